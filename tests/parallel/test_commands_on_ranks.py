"""Commands on several ranks: one table, the same files and digests as alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.reports.run_folder import TABLES
from tests import needs
from tests.cli.test_plug_ins import OWN, copied, written as written_plug_ins
from tests.nonempty import nonempty
from tests.parallel.test_command import NPUS, step, written
from tests.parallel.waiting import add_a_knot, check_said_once

MODELS = {
    "unaware": "network.congestion_aware=false",
    "aware": "network.congestion_aware=true",
    "closed forms": "network.fidelity=closed-form",
}
WAYS = {
    # ranks (None: no MPI), environment, then options
    "two threads": (None, {}, "--workers", 2),
    "two processes": (None, {}, "--workers", 2, "--backend", "processes"),
    "plain Python": (None, {"NUMBA_DISABLE_JIT": "1"}),
    "two ranks": (2, {}),
    "three ranks of two threads": (3, {}, "--workers", 2, "--set", "engine.weights=fabric"),
}


def written_of_messages(folder, nodes_of_npu):
    network = 'fidelity = "analytical"\nendpoint_delay = "10ns"\nreduction_bandwidth = "1TB/s"'
    return written(folder, nodes_of_npu, network=network)


def summary(folder):
    found = json.loads((folder / "summary.json").read_text())
    return {name: found[name] for name in ("network", "digest", "finish_time_ps", "events", "flows", "packet_hops")}


@pytest.fixture(scope="module")
def alone(nadi, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    run = written_of_messages(folder, [step(npu) for npu in range(NPUS)])
    for model, key in MODELS.items():
        done = nadi(None, "run", run, "-q", "--out", folder / model, "--set", key)
        assert done.returncode == 0, done.stderr
    return run, folder


def test_the_models_differ(alone):
    _, folder = alone
    assert len({summary(folder / model)["digest"] for model in MODELS}) == len(MODELS)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        *((model, way) for model in ("unaware", "aware") for way in WAYS),
        *(("closed forms", way) for way in ("two threads", "plain Python", "two ranks")),
    ],
)
def test_results_are_the_same(nadi, alone, tmp_path, model, way):
    run, folder = alone
    ranks, environment, *options = WAYS[way]
    done = nadi(ranks, "run", run, "-q", "--out", tmp_path / "out", "--set", MODELS[model], *options, **environment)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "out") == summary(folder / model)
    said = json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"]
    assert model == "closed forms" or said == (ranks or 1)
    for table in nonempty(TABLES):
        found, wanted = (pq.read_table(path / f"{table}.parquet") for path in (tmp_path / "out", folder / model))
        assert found.to_pydict() == wanted.to_pydict(), table
    assert done.stdout.count("results: ") == 1


@pytest.mark.parametrize("model", ["aware", "closed forms"])
def test_a_run_that_cannot_finish_says_once_who_waits(nadi, tmp_path, model):
    nodes = [[et.comp_node(1, "c", duration_micros=3)] for _ in range(NPUS)]
    add_a_knot(nodes, 0, 7)
    done = nadi(2, "run", written_of_messages(tmp_path, nodes), "--out", tmp_path / "new", "-q", "--set", MODELS[model])
    head = check_said_once(done, tmp_path / "new", 0, 7)
    assert model == "closed forms" or "at 3000000 ps, but 4 trace nodes are not done" in head


def test_a_mistake_of_the_user_is_said_once(nadi, tmp_path):
    nodes = [step(npu) for npu in range(NPUS)]
    nodes[7].append(et.recv_node(9, "never", 0, 7, 64, 9))
    done = nadi(2, "run", written_of_messages(tmp_path, nodes), "-q")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "NPU 7 from NPU 0" in line


ARGUMENTS = ("all-reduce", "-t", "ring:npus=8,rate=100Gbps,delay=1us", "--sizes", "8:4KiB:x32", "--algorithm", "all")


@needs.ranks
def test_two_ranks_have_one_table(nadi, tmp_path):
    done = {ranks: nadi(ranks, "collective", *ARGUMENTS, "--json", "-o", tmp_path / str(ranks)) for ranks in (None, 2)}
    for outcome in nonempty(done.values()):
        assert outcome.returncode == 0, outcome.stderr
    assert json.loads(done[2].stdout) == json.loads(done[None].stdout)
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == ["collective.html", "collective.parquet"]


@needs.ranks
def test_two_ranks_refuse_with_one_line(nadi, tmp_path):
    done = nadi(2, "collective", *ARGUMENTS[:-1], "rnig", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("nadi: error")]
    assert "rnig" in line
    assert not (tmp_path / "out").exists()


@needs.ranks
def test_two_ranks_take_the_same_files(nadi, tmp_path):
    copies = {key: copied(tmp_path, kind, name) for key, (kind, name) in OWN.items()}
    digests = set()
    for ranks, path in ((None, written_plug_ins(tmp_path, "own")), (2, written_plug_ins(tmp_path, "copies", **copies))):
        done = nadi(ranks, "run", path, "--out", path.with_suffix(""), "-q")
        assert done.returncode == 0, done.stderr
        digests.add(json.loads((path.with_suffix("") / "summary.json").read_text())["digest"])
    assert len(digests) == 1
    wrong = written_plug_ins(tmp_path, "wrong", control="copies/none.py")
    refused = nadi(2, "run", wrong, "-q")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "none.py: No such file or directory; expected a congestion control with " in refused.stderr


STEP = ["run", "--model", "gpt3-350m", "--plan", "tp8,dp2,gb2,seq256", "--cluster", "dgx-b200-superpod", "--gpus", 16]


HPCC = ("--set", "network.switch=shared-buffer", "--set", "network.congestion_control=hpcc")


@needs.ranks
@pytest.mark.parametrize("network", [(), HPCC])
def test_two_ranks_replay_what_one_process_replays(nadi, tmp_path, network):
    summaries = []
    for ranks in (None, 2):
        done = nadi(ranks, *STEP, *network, "--out", tmp_path / str(ranks), "-q")
        assert done.returncode == 0, done.stderr
        summaries.append(json.loads((tmp_path / str(ranks) / "summary.json").read_text()))
    alone, two = summaries
    assert two["ranks"] == 2
    assert two["digest"] == alone["digest"]
    assert two["packet_hops"] == alone["packet_hops"]
    assert two["reuse"]["replayed_messages"] == alone["reuse"]["replayed_messages"] > 0  # periods of one process, too


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_row_adds_up():
    options = ("--npus", "128", "--nodes", "4", "--ranks-per-node", "2", "--samples", "2")
    command = [sys.executable, str(ROOT / "scripts" / "rank_memory.py"), *options]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)
    assert done.returncode == 0, done.stderr
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines())
    assert [row[:2] for row in rows] == [["4", "8"]]
    for row in rows:
        sizes = dict(zip(head, map(float, row), strict=True))
        parts = sum(sizes[name] for name in ("Python and kernels", "fabric", "program", "layout", "world"))
        assert parts - 8 < sizes["a rank"] <= parts + 3
        assert sizes["a rank"] > 30
        once = sizes["files"] + sizes["shared, reserved"]
        assert abs(sizes["a node, GB"] * 1e3 - 2 * sizes["a rank"] - once) < 60
