"""`nadi run` as a whole: the same files whoever ran it, and one word about what is wrong."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et, partition, topologies
from nadi.reports.run_folder import TABLES
from tests.nonempty import nonempty
from tests.parallel.waiting import add_a_knot, check_said_once

SPEC = "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us"
NPUS = 8
WAYS = {
    # ranks (None: no MPI), then options
    "two threads": (None, "--workers", 2),
    "four LPs": (None, "--set", "engine.workers=2", "--set", "engine.lps_per_worker=2"),
    "two processes": (None, "--workers", 2, "--backend", "processes"),
    "other weights": (None, "--workers", 2, "--set", "engine.weights=fabric"),
    "other method": (None, "--workers", 3, "--set", "engine.partitioner=scatter"),
    "two ranks": (2,),
    "two ranks of two threads, by messages": (2, "--workers", 2, "--set", "engine.share_memory=false"),
}
FRESH = {"two ranks", "corrupt trace of rank 1 by traces", "true"}
"""Done by ranks that are started for it, as users do; the others by ranks that have done commands before."""
SAME = {
    *("version", "network", "topology", "npus", "nodes", "links", "finish_time_ps", "digest", "packet_hops", "events"),
    *("flows", "data_packets", "ack_packets", "retransmitted_packets", "dropped_packets", "timeouts", "bytes_sent"),
    *("bytes_received", "bytes_dropped", "payload_bytes", "trace_nodes", "packets"),
}


def step(npu):
    """Forward, an all-reduce beside backward, a message to the other half, a gather of the servers' first NPUs."""
    other = (npu + NPUS // 2) % NPUS
    nodes = [
        et.comp_node(1, "forward", duration_micros=10 + npu % 3),
        et.coll_node(2, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 16, deps=[1]),
        et.comp_node(3, "backward", duration_micros=5, deps=[1]),
        et.send_node(4, "to other", npu, other, 10_000, 3, deps=[3]),
        et.recv_node(5, "from other", other, npu, 10_000, 3),
    ]
    if npu % 2 == 0:
        nodes.append(et.coll_node(6, "firsts", et.CollectiveCommType.ALL_GATHER, 9000, pg_name="firsts", deps=[2, 5]))
    return nodes


def written(folder, nodes_of_npu, text="", network="queue_limit = 9000"):
    for npu, nodes in enumerate(nodes_of_npu):
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes)
    (folder / "groups.json").write_text(json.dumps({"firsts": list(range(0, NPUS, 2))}))
    run = folder / "run.toml"
    run.write_text(
        f'[workload]\ntraces = "trace"\ngroups = "groups.json"\n[topology]\nspec = "{SPEC}"\n'
        f"[network]\n{network}\n{text}"
    )
    return run


@pytest.fixture(scope="module")
def alone(nadi, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    run = written(folder, [step(npu) for npu in range(NPUS)])
    done = nadi(None, "run", run, "--out", folder / "out", "-q")
    assert done.returncode == 0, done.stderr
    return run, folder / "out"


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def rows(path):
    """A table's types and values; words by their value, since dictionaries may hold them in any order."""
    table = pq.read_table(path)
    return [(field.name, str(field.type)) for field in table.schema], table.to_pydict()


@pytest.fixture
def on_ranks(nadi, python):
    """Run `nadi` on ranks that are fresh where `what` is of FRESH; gives the completed process."""

    def run(what, ranks, *arguments):
        return python(ranks, "-m", "nadi", *arguments) if what in FRESH else nadi(ranks, *arguments)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_results_are_the_same(on_ranks, alone, tmp_path, way):
    run, wanted = alone
    ranks, *options = WAYS[way]
    done = on_ranks(way, ranks, "run", run, "--out", tmp_path / "out", "-q", *options)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in wanted.iterdir())
    found, said = summary(tmp_path / "out"), summary(wanted)
    assert {name: found[name] for name in SAME} == {name: said[name] for name in SAME}
    assert found["dropped_packets"] > 0
    assert found["lps"] > 1
    assert found["ranks"] == (ranks or 1)
    for table in nonempty(TABLES):
        assert rows(tmp_path / "out" / f"{table}.parquet") == rows(wanted / f"{table}.parquet"), table
    for table in ("flows", "links", "collectives", "npus"):
        same = (tmp_path / "out" / f"{table}.parquet").read_bytes() == (wanted / f"{table}.parquet").read_bytes()
        assert same, f"{table}.parquet holds the same rows but other bytes"
    assert done.stdout.count("results: ") == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_messages_of_switches_are_the_same_on_ranks(nadi, tmp_path, ranks):
    """Rows of messages to and from switches that reduce: those of one process, and as many as the summary counts."""
    run = written(tmp_path, [step(npu) for npu in range(NPUS)], '[system.collectives]\nall-reduce = "in-network"\n')
    for out, on in (("alone", None), ("ranks", ranks)):
        done = nadi(on, "run", run, "--out", tmp_path / out, "-q", "--workers", 2)
        assert done.returncode == 0, done.stderr
    flows = pq.read_table(tmp_path / "ranks/flows.parquet")
    said = summary(tmp_path / "ranks")
    assert (len(flows), int(np.sum(flows["bytes"]))) == (said["flows"], said["payload_bytes"])
    assert np.max(flows["dst"]) >= NPUS
    assert flows.equals(pq.read_table(tmp_path / "alone/flows.parquet"))


def test_an_earlier_run_as_weights(nadi, alone, tmp_path):
    run, wanted = alone
    done = nadi(2, "run", run, "--json", "-q", "--set", f"engine.weights={wanted}", "--set", "engine.lps_per_worker=2")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["digest"] == summary(wanted)["digest"]
    assert document["lps"] == 4
    assert list(tmp_path.iterdir()) == []


def corrupt(folder):
    path = folder / f"trace.{NPUS - 1}.et"
    path.write_bytes(path.read_bytes()[:-5])


def no_send(nodes):
    """NPU 7 waits for a message that NPU 0 does not send: they are on different ranks."""
    nodes[7].append(et.recv_node(9, "never", 0, 7, 64, 9))


def cycle(nodes):
    nodes[6][0] = et.comp_node(1, "forward", duration_micros=10, deps=[3])


def no_member(nodes):
    """One member of a collective does another kind."""
    nodes[7][1] = et.coll_node(2, "grads", et.CollectiveCommType.ALL_GATHER, 1 << 16, deps=[1])


MISTAKES = {
    # what is wrong with the nodes, with the files, options, what is said
    "unknown key": (None, None, ("--set", "engine.wrokers=2"), "wrokers"),
    "corrupt trace of rank 1": (None, corrupt, (), r"trace\.7\.et"),
    "receive without send": (no_send, None, (), "NPU 7 from NPU 0"),
    "cycle": (cycle, None, (), r"trace\.6\.et.*cycle|cycle.*trace\.6\.et"),
    "another kind": (no_member, None, (), "npu 7|all-gather"),
    "processes on ranks": (None, None, ("--backend", "processes"), "processes on 2 MPI ranks; expected threads there"),
    "no folder": (
        None,
        None,
        ("--out", "/dev/null/out"),
        "^nadi: error: /dev/null/out: .*; expected a folder to write",
    ),
    "more LPs than there can be": (None, None, ("--set", "engine.lps_per_worker=40"), "at most"),
}
READ_BY_WEIGHTS = ("corrupt trace of rank 1", "receive without send", "cycle", "another kind")


@pytest.mark.parametrize(
    ("mistake", "weights"),
    [*((mistake, "traces") for mistake in MISTAKES), *((mistake, "fabric") for mistake in READ_BY_WEIGHTS)],
)
def test_a_mistake_of_the_user_is_said_once(on_ranks, tmp_path, mistake, weights):
    break_nodes, break_files, options, said = MISTAKES[mistake]
    nodes = [step(npu) for npu in range(NPUS)]
    if break_nodes:
        break_nodes(nodes)
    run = written(tmp_path, nodes)
    if break_files:
        break_files(tmp_path)
    weighed = ("--set", f"engine.weights={weights}")
    done = on_ranks(
        f"{mistake} by {weights}", 2, "run", run, "--out", tmp_path / "new" / "out", "-q", *weighed, *options
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("nadi: error: ")
    assert re.search(said, lines[0]), lines[0]
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ranks_share", ["true", "false"])
def test_a_run_that_cannot_finish_says_once_who_waits(on_ranks, tmp_path, ranks_share):
    """NPU 0 sends only after it has received, NPU 7, on the other rank, the same."""
    nodes = [[et.comp_node(1, "c", duration_micros=3)] for _ in range(NPUS)]
    add_a_knot(nodes, 0, 7)
    run = written(tmp_path, nodes)
    options = ("--out", tmp_path / "new", "-q", "--set", f"engine.share_memory={ranks_share}")
    done = on_ranks(ranks_share, 2, "run", run, *options)
    check_said_once(done, tmp_path / "new", 0, 7)


OPENED = """
import json, os, sys
from pathlib import Path
opened = set()
folder = sys.argv[1]
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(arguments[0])
        if path.startswith(folder) and path.endswith(".et"):
            opened.add(os.path.basename(path))
sys.addaudithook(hook)
from nadi.cli.main import main
code = main(sys.argv[2:])
from mpi4py import MPI
(Path(folder) / f"opened.{MPI.COMM_WORLD.Get_rank()}.json").write_text(json.dumps(sorted(opened)))
sys.exit(code)
"""


@pytest.mark.slow
def test_a_rank_opens_its_own_traces_only(python, tmp_path):
    run = written(tmp_path, [step(npu) for npu in range(NPUS)])
    options = ("-q", "--set", "engine.weights=fabric", "--set", "engine.lps_per_worker=2")
    done = python(2, "-c", OPENED, tmp_path, "run", run, "--json", *options)
    assert done.returncode == 0, done.stderr
    opened = [set(json.loads((tmp_path / f"opened.{rank}.json").read_text())) for rank in range(2)]
    graph = topologies.build(SPEC)
    rank_of = partition.partition(graph, 4, weights=partition.uniform(graph)).owner[:NPUS] // 2
    for rank in range(2):
        assert opened[rank] == {f"trace.{npu}.et" for npu in np.flatnonzero(rank_of == rank)}
    assert min(map(len, opened)) > 0
