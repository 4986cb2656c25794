"""A run of a trace set is the run of its expansion, whoever runs it."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.workload import TraceSet, write_set
from tests.parallel.test_command import OPENED, SAME, SPEC, summary

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
