"""Runs of trace sets and of several jobs, and what traces bring along, are the same whoever runs them."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.simulation import schemas
from nadi.workload import TraceSet, collectives, write_set
from nadi.workload.collectives.custom import to_msccl
from tests import needs
from tests.parallel.test_command import OPENED, SAME, SPEC, summary
from tests.workload import msccl_files

WIDTH, STAGES = 4, 2
NPUS = WIDTH * STAGES
NODES = ("npu", "row", "node_id", "name", "kind", "lane", "group", "bytes", "start_ps", "finish_ps")


def stage_table(stage):
    """The trace of a stage's second NPU: two micro-batches up and down, a gather of pairs, a sum over the stage."""
    own = stage * WIDTH + 1
    other = own + WIDTH if stage == 0 else own - WIDTH
    columns, block = et.TraceColumns(own, f"stage {stage}"), et.Block()
    got = block.recv("pp:recv", 30_000, after=["before"]) if stage else None
    gather = block.coll("tp:all-gather", et.CollectiveCommType.ALL_GATHER, 9000, group="tp", after=["in"])
    work = block.comp("layer", duration_micros=7 + stage, after=[gather, *([got] if stage else [])])
    if stage == 0:
        block.send("pp:send", 30_000, after=[work])
    last = []
    for batch in range(2):
        last = [columns.stamp(block, f"mb{batch}/", after={"in": last}, tag=batch, peer=other) + len(block) - 1]
    end = et.Block()
    end.coll("dp:all-reduce", et.CollectiveCommType.ALL_REDUCE, 1 << 16, group="stage", after=["in"])
    columns.stamp(end, after={"in": last})
    return columns.table()


@pytest.fixture(scope="module")
def runs(nadi, tmp_path_factory):
    """Run files of a set and of its expansion, and the results of the expansion alone."""
    folder = tmp_path_factory.mktemp("sets")
    families = {"tp": tuple((2 * k, 2 * k + 1) for k in range(NPUS // 2)), "stage": ((3, 1, 2, 0), (4, 5, 6, 7))}
    owner, examples = np.repeat(np.arange(STAGES), WIDTH).astype(np.int32), np.array([1, WIDTH + 1], np.int32)
    write_set(folder / "set", TraceSet([stage_table(s) for s in range(STAGES)], owner, examples, families))
    done = nadi(None, "trace", "expand", folder / "set", "-o", folder / "plain")
    assert done.returncode == 0, done.stderr
    texts = {"set": 'traces = "set"', "plain": 'traces = "plain/trace"\ngroups = "plain/groups.json"'}
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(f'[workload]\n{text}\n[topology]\nspec = "{SPEC}"\n')
    done = nadi(None, "run", folder / "plain.toml", "--out", folder / "wanted", "-q")
    assert done.returncode == 0, done.stderr
    return folder


WAYS = {"alone": (), "two threads of two LPs": ("--workers", 2, "--set", "engine.lps_per_worker=2")}


def check_same(out, wanted):
    """Both folders hold the results of one run; names of groups apart."""
    found, said = summary(out), summary(wanted)
    assert {name: found[name] for name in SAME} == {name: said[name] for name in SAME}
    tables = [pq.read_table(folder / "nodes.parquet").select(NODES).to_pydict() for folder in (out, wanted)]
    assert tables[0] == tables[1]
    names = pq.read_table(out / "collectives.parquet")["group_name"].to_pylist()
    assert set(names) == {"tp", "stage"}


@pytest.mark.parametrize("way", WAYS)
def test_the_results_are_those_of_the_expansion(nadi, runs, tmp_path, way):
    done = nadi(None, "run", runs / "set.toml", "--out", tmp_path / "out", "-q", *WAYS[way])
    assert done.returncode == 0, done.stderr
    check_same(tmp_path / "out", runs / "wanted")


def test_message_level_too(nadi, runs):
    options = ("--json", "-q", "--set", "network.fidelity=analytical")
    documents = [json.loads(nadi(None, "run", runs / f"{name}.toml", *options).stdout) for name in ("set", "plain")]
    assert documents[0]["digest"] == documents[1]["digest"]
    assert documents[0]["finish_time_ps"] == documents[1]["finish_time_ps"] > 0


@pytest.mark.slow
def test_ranks_open_the_traces_of_their_own_npus_and_find_the_same(python, runs, tmp_path):
    """In blocks each rank has one stage."""
    options = ("-q", "--set", "engine.weights=fabric", "--set", "engine.partitioner=blocks")
    done = python(2, "-c", OPENED, runs / "set", "run", runs / "set.toml", "--out", tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    check_same(tmp_path / "out", runs / "wanted")
    assert summary(tmp_path / "out")["ranks"] == 2
    opened = [json.loads((runs / "set" / f"opened.{rank}.json").read_text()) for rank in range(2)]
    assert sorted(opened) == [["traces.npu1.et"], ["traces.npu5.et"]]


SPEC_OF_JOBS = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us"
JOBS = """
[topology]
spec = "{spec}"
[output]
alone = true
sample = "2us"
[[jobs]]
name = "plain"
traces = "plain/t"
placement = "scattered:seed=3"
repeat = 2
start = "every:7us"
[[jobs]]
name = "set"
traces = "set"
start = "3us"
iterations = 2
[[jobs]]
name = "background"
gpus = 4
placement = "scattered"
traffic = {{ sizes = "hadoop", load = 0.5, duration = "40us", arrivals = "lognormal:sigma=1" }}
"""
WAYS_OF_JOBS = {
    "two threads": (None, "--workers", 2),
    "two processes": (None, "--workers", 2, "--backend", "processes"),
    "two ranks": (2,),
    "three ranks": (3,),
}
TABLES = (
    schemas.NODES,
    schemas.FLOWS,
    schemas.NPUS,
    schemas.COLLECTIVES,
    schemas.STEPS,
    schemas.JOB_LINKS,
    schemas.SAMPLES,
)


def write_traces(folder):
    """Write traces of four ranks, and a set of two traces of which each has two ranks."""
    gather = et.CollectiveCommType.ALL_GATHER
    for rank in range(4):
        et.write_trace(
            folder / "plain" / f"t.{rank}.et",
            et.metadata(),
            [
                et.coll_node(0, "dp:sum", et.CollectiveCommType.ALL_REDUCE, 40_000 + 4),
                et.send_node(1, "pp:on", rank, (rank + 1) % 4, 30_000, 7, deps=[0]),
                et.recv_node(2, "pp:from", (rank - 1) % 4, rank, 30_000, 7, deps=[0]),
                et.comp_node(3, "work", duration_micros=5, deps=[2]),
            ],
        )
    tables = []
    for rank in (0, 2):
        nodes = [
            et.coll_node(0, "tp:pair", gather, 9000, pg_name="tp"),
            et.send_node(1, "pp:on", rank, 2 - rank, 20_000, 1, deps=[0]),
            et.recv_node(2, "pp:back", 2 - rank, rank, 20_000, 1, deps=[0]),
        ]
        tables.append(et.table_of(et.metadata(), nodes))
    owner, examples = [0, 0, 1, 1], [0, 2]
    write_set(
        folder / "set",
        TraceSet(tables, np.array(owner, np.int32), np.array(examples, np.int32), {"tp": ((0, 1), (2, 3))}),
    )


@pytest.fixture(scope="module")
def wanted(nadi, tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "plain").mkdir()
    write_traces(folder)
    (folder / "run.toml").write_text(JOBS.format(spec=SPEC_OF_JOBS))
    done = nadi(None, "run", folder / "run.toml", "--out", folder / "one", "-q")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("way", WAYS_OF_JOBS)
def test_jobs_are_the_same_in_every_way_of_running(nadi, wanted, way):
    ranks, *options = WAYS_OF_JOBS[way]
    out = wanted / way.replace(" ", "-")
    done = nadi(ranks, "run", wanted / "run.toml", *options, "--out", out, "-q")
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((folder / "summary.json").read_text()) for folder in (wanted / "one", out))
    assert other["digest"] == one["digest"]
    assert other["jobs"] == one["jobs"]
    assert [job["name"] for job in one["jobs"]] == ["plain.0", "plain.1", "set", "background"]
    for schema in TABLES:
        assert pq.read_table(out / schema.file).equals(pq.read_table(wanted / "one" / schema.file)), schema.name


NPUS_OF_FILES = 8
SPEC_OF_FILES = "ring:npus=8,rate=100Gbps,delay=1us"
MATRIX = np.random.default_rng(4).integers(0, 9, (NPUS_OF_FILES, NPUS_OF_FILES)) * 512
HALVES = {"low": [0, 2, 4, 6], "high": [1, 3, 5, 7]}


def run_file(folder, nodes_of_npu, algorithms):
    for npu in range(NPUS_OF_FILES):
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes_of_npu(npu))
    (folder / "groups.json").write_text(json.dumps(HALVES))
    table = "".join(f'{kind} = "{algorithm}"\n' for kind, algorithm in algorithms.items())
    run = folder / "run.toml"
    run.write_text(
        f'[workload]\ntraces = "trace"\ngroups = "groups.json"\n[topology]\nspec = "{SPEC_OF_FILES}"\n'
        f"[system.collectives]\n{table}"
    )
    return run


def same_on_two_ranks(nadi, run):
    """Runs alone and on two ranks; the digest of both."""
    digests = set()
    for ranks in (None, 2):
        out = run.parent / f"out.{ranks}"
        done = nadi(ranks, "run", run, "--out", out, "-q")
        assert done.returncode == 0, done.stderr
        digests.add(json.loads((out / "summary.json").read_text())["digest"])
    alone, two = ((run.parent / f"out.{ranks}" / "collectives.parquet").read_bytes() for ranks in (None, 2))
    assert alone == two
    (digest,) = digests
    return digest


def write_algorithms(folder):
    """An all-reduce and an all-gather as MSCCL's XML, an all-to-all as Chakra traces."""
    (folder / "ring.xml").write_text(msccl_files.fused_ring(NPUS_OF_FILES))
    own = to_msccl(collectives.plan("all-gather", "ring", NPUS_OF_FILES), "all-gather", "ring")
    (folder / "gather.xml").write_text(own)
    for me in range(NPUS_OF_FILES):
        others = [p for p in range(NPUS_OF_FILES) if p != me]
        sends = [et.send_node(p, "s", me, p, 512) for p in others]
        receives = [et.recv_node(NPUS_OF_FILES + p, "r", p, me, 512) for p in others]
        et.write_trace(folder / f"swap.{me}.et", et.metadata(), sends + receives)


@needs.ranks
def test_algorithms_of_files(nadi, tmp_path):
    write_algorithms(tmp_path)
    kinds = et.CollectiveCommType

    def nodes(npu):  # noqa: ARG001 - all alike
        return [
            et.coll_node(1, "a", kinds.ALL_REDUCE, 40_000),
            et.coll_node(2, "b", kinds.ALL_GATHER, 5000, deps=[1]),
            et.coll_node(3, "c", kinds.ALL_TO_ALL, 4096, deps=[2]),
        ]

    algorithms = {
        "all-reduce": "custom:file=ring.xml",
        "all-gather": "custom:file=gather.xml",
        "all-to-all": "custom:file=swap,size=4KiB",
    }
    same_on_two_ranks(nadi, run_file(tmp_path, nodes, algorithms))


@needs.ranks
@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_split_sizes(nadi, tmp_path, algorithm):
    """One all-to-all of all, and one of each half, whose members are on both ranks."""
    kind = et.CollectiveCommType.ALL_TO_ALL

    def nodes(npu):
        half = HALVES["high" if npu % 2 else "low"]
        part, column = MATRIX[npu, half], MATRIX[half, npu]
        return [
            et.coll_node(1, "a", kind, int(MATRIX[npu].sum()), in_split_size=MATRIX[npu].tolist()),
            et.coll_node(
                *(2, "b", kind, int(part.sum())),
                in_split_size=part.tolist(),
                out_split_size=column.tolist(),
                pg_name="high" if npu % 2 else "low",
                deps=[1],
            ),
        ]

    same_on_two_ranks(nadi, run_file(tmp_path, nodes, {"all-to-all-v": algorithm}))


@needs.ranks
def test_members_on_other_ranks_that_disagree(nadi, tmp_path):
    kind = et.CollectiveCommType.ALL_TO_ALL
    columns = MATRIX.T.copy()
    columns[6, 1] += 512

    def nodes(npu):
        row, column = MATRIX[npu].tolist(), columns[npu].tolist()
        return [et.coll_node(1, "a", kind, sum(row), in_split_size=row, out_split_size=column)]

    run = run_file(tmp_path, nodes, {})
    for ranks in (None, 2):
        done = nadi(ranks, "run", run, "--out", tmp_path / "out", "-q")
        assert done.returncode == 2
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("nadi: error")]
        assert line.endswith(
            f"trace.6.et: node 1: out_split_size says {columns[6, 1]} B from member 1, expected the {MATRIX[1, 6]} B "
            "of its in_split_size"
        )
