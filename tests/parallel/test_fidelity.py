"""Networks of whole messages run on one worker: whoever is asked to run them, the files are the same."""

import json

import pyarrow.parquet as pq
import pytest

import et
from nadi.results import TABLES

NPUS = 6
SPEC = "leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us"
WAYS = {
    # ranks (None: no MPI), environment, then options
    "two threads": (None, {}, "--workers", 2),
    "two processes": (None, {}, "--workers", 2, "--backend", "processes"),
    "plain Python": (None, {"NUMBA_DISABLE_JIT": "1"}),
    "two ranks": (2, {}),
    "three ranks of two threads": (3, {}, "--workers", 2, "--set", "engine.weights=fabric"),
}
MODELS = ("false", "true")


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
def alone(python, tmp_path_factory):
    """The run file, and the folder of each model's results."""
    folder = tmp_path_factory.mktemp("alone")
    run = written(folder, [step(npu) for npu in range(NPUS)])
    for aware in MODELS:
        done = python(
            *(None, "-m", "nadi", "run", run, "-q", "--out", folder / aware),
            *("--set", f"network.congestion_aware={aware}"),
        )
        assert done.returncode == 0, done.stderr
    return run, folder


def test_the_models_differ(alone):
    _, folder = alone
    assert len({summary(folder / aware)["digest"] for aware in MODELS}) == 2


@pytest.mark.parametrize("aware", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_results_are_the_same(python, alone, tmp_path, way, aware):
    run, folder = alone
    ranks, environment, *options = WAYS[way]
    given = ("-q", "--out", tmp_path / "out", "--set", f"network.congestion_aware={aware}", *options)
    done = python(ranks, "-m", "nadi", "run", run, *given, timeout=120, **environment)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "out") == summary(folder / aware)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"] == (ranks or 1)
    for table in TABLES:
        found, wanted = (pq.read_table(path / f"{table}.parquet") for path in (tmp_path / "out", folder / aware))
        assert found.to_pydict() == wanted.to_pydict(), table
    assert done.stdout.count("results: ") == 1


def test_a_run_that_cannot_finish_says_once_who_waits(python, tmp_path):
    nodes = [[et.comp_node(1, "c", duration_micros=3)] for _ in range(NPUS)]
    for npu, peer in ((0, 5), (5, 0)):
        nodes[npu] += [et.recv_node(2, "recv", peer, npu, 64), et.send_node(3, "send", npu, peer, 64, deps=[2])]
    done = python(2, "-m", "nadi", "run", written(tmp_path, nodes), "--out", tmp_path / "new", "-q", timeout=120)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "new").exists()
    head, *waits = done.stderr.splitlines()
    assert head.startswith("nadi: error: nothing is left to happen at 3000000 ps, but 4 trace nodes are not done")
    assert sorted(line.strip() for line in waits) == [
        "npu 0 row 1: receive 0 of tag 0 waits for npu 5",
        "npu 5 row 1: receive 0 of tag 0 waits for npu 0",
    ]


def test_a_mistake_of_the_user_is_said_once(python, tmp_path):
    nodes = [step(npu) for npu in range(NPUS)]
    nodes[5].append(et.recv_node(9, "never", 0, 5, 64, 9))
    done = python(2, "-m", "nadi", "run", written(tmp_path, nodes), "-q", timeout=120)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "NPU 5 from NPU 0" in line
