"""Message-level models run on one worker: whoever is asked to run them, the files are the same."""

import json

import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.reports.run_folder import TABLES
from tests.nonempty import nonempty
from tests.parallel.waiting import add_a_knot, check_said_once

NPUS = 6
SPEC = "leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us"
MODELS = ("false", "true")
WAYS = {
    # ranks (None: no MPI), environment, then options
    "two threads": (None, {}, "--workers", 2),
    "two processes": (None, {}, "--workers", 2, "--backend", "processes"),
    "plain Python": (None, {"NUMBA_DISABLE_JIT": "1"}),
    "two ranks": (2, {}),
    "three ranks of two threads": (3, {}, "--workers", 2, "--set", "engine.weights=fabric"),
}


def step(npu):
    """Forward, an all-reduce beside a message to the other half, and a gather of three."""
    other = (npu + NPUS // 2) % NPUS
    nodes = [
        et.comp_node(1, "forward", duration_micros=10 + npu % 3),
        et.coll_node(2, "grads", et.CollectiveCommType.ALL_REDUCE, 60_000, deps=[1]),
        et.send_node(3, "to other", npu, other, 50_000, 3, deps=[1]),
        et.recv_node(4, "from other", other, npu, 50_000, 3),
    ]
    if npu % 2 == 0:
        nodes.append(et.coll_node(5, "firsts", et.CollectiveCommType.ALL_GATHER, 9000, pg_name="firsts", deps=[2, 4]))
    return nodes


def written(folder, nodes_of_npu):
    """A run file and its traces."""
    for npu, nodes in enumerate(nodes_of_npu):
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes)
    (folder / "groups.json").write_text(json.dumps({"firsts": list(range(0, NPUS, 2))}))
    run = folder / "run.toml"
    run.write_text(
        f'[workload]\ntraces = "trace"\ngroups = "groups.json"\n[topology]\nspec = "{SPEC}"\n'
        '[network]\nfidelity = "analytical"\nendpoint_delay = "10ns"\nreduction_bandwidth = "1TB/s"\n'
    )
    return run


def summary(folder):
    found = json.loads((folder / "summary.json").read_text())
    return {name: found[name] for name in ("network", "digest", "finish_time_ps", "events", "flows", "packet_hops")}


@pytest.fixture(scope="module")
def alone(nadi, tmp_path_factory):
    """The run file, and the folder of each model's results."""
    folder = tmp_path_factory.mktemp("alone")
    run = written(folder, [step(npu) for npu in range(NPUS)])
    for aware in MODELS:
        given = ("-q", "--out", folder / aware, "--set", f"network.congestion_aware={aware}")
        done = nadi(None, "run", run, *given)
        assert done.returncode == 0, done.stderr
    return run, folder


def test_the_models_differ(alone):
    _, folder = alone
    assert len({summary(folder / aware)["digest"] for aware in MODELS}) == 2


@pytest.mark.parametrize("aware", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_results_are_the_same(nadi, alone, tmp_path, way, aware):
    run, folder = alone
    ranks, environment, *options = WAYS[way]
    given = ("-q", "--out", tmp_path / "out", "--set", f"network.congestion_aware={aware}", *options)
    done = nadi(ranks, "run", run, *given, **environment)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "out") == summary(folder / aware)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"] == (ranks or 1)
    for table in nonempty(TABLES):
        found, wanted = (pq.read_table(path / f"{table}.parquet") for path in (tmp_path / "out", folder / aware))
        assert found.to_pydict() == wanted.to_pydict(), table
    assert done.stdout.count("results: ") == 1


def test_a_run_that_cannot_finish_says_once_who_waits(nadi, tmp_path):
    nodes = [[et.comp_node(1, "c", duration_micros=3)] for _ in range(NPUS)]
    add_a_knot(nodes, 0, 5)
    done = nadi(2, "run", written(tmp_path, nodes), "--out", tmp_path / "new", "-q")
    head = check_said_once(done, tmp_path / "new", 0, 5)
    assert "at 3000000 ps, but 4 trace nodes are not done" in head


def test_a_mistake_of_the_user_is_said_once(nadi, tmp_path):
    nodes = [step(npu) for npu in range(NPUS)]
    nodes[5].append(et.recv_node(9, "never", 0, 5, 64, 9))
    done = nadi(2, "run", written(tmp_path, nodes), "-q")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "NPU 5 from NPU 0" in line
