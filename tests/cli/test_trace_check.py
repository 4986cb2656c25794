"""`nadi trace check`: what users name, what is printed, exit codes, and mending."""

import numpy as np
import pytest

from nadi import et
from nadi.workload import TraceSet, write_set

REDUCE = et.CollectiveCommType.ALL_REDUCE


@pytest.fixture
def broken(tmp_path):
    """Two NPUs; of NPU 0 a dependency dangles, control dependencies close a cycle, and an id occurs twice."""
    folder = tmp_path / "in"
    folder.mkdir()
    nodes = [
        et.comp_node(1, "a", duration_micros=5, ctrl_deps=[2], attrs=[et.attribute("scope", "string", "kept")]),
        et.comp_node(2, "b", duration_micros=5, deps=[1, 99]),
        et.coll_node(3, "c", REDUCE, 64, pg_name="7", deps=[2, 3]),
        et.comp_node(1000, "d", duration_micros=5, deps=[3]),
        et.comp_node(1000, "e", duration_micros=5, deps=[3]),
    ]
    et.write_trace(folder / "a.0.et", et.metadata("0.0.4"), nodes)
    et.write_trace(folder / "a.1.et.gz", et.metadata(), [et.coll_node(1, "c", REDUCE, 64, pg_name="7")])
    (folder / "groups.json").write_text('{"7": [0, 1]}')
    return folder


def test_a_folder_a_prefix_and_a_file(nadi, broken):
    for path in (broken, broken / "a"):
        outcome = nadi("trace", "check", path, "--json")
        assert outcome.code == 2
        assert (outcome.document["npus"], outcome.document["traces"], outcome.document["errors"]) == (2, 2, 4)
    alone = nadi("trace", "check", broken / "a.1.et.gz", "--json")
    assert (alone.code, alone.document["nodes"], alone.document["warnings"]) == (0, 1, 1)
    assert nadi("trace", "check", broken / "a.1.et.gz", "--strict").code == 2


def test_what_is_printed(nadi, broken):
    outcome = nadi("trace", "check", broken)
    lines = outcome.out.splitlines()
    assert "error    cycles: 1 cycles that control dependencies close" in lines
    assert f"         {broken}/a.0.et: node 2: depends on node 99 (data)" in lines
    assert lines[-1] == f"{broken}: 4 errors, 0 warnings, 0 notes; 2 distinct traces, 6 nodes"
    assert "and 1 more" not in outcome.out
    bounded = nadi("trace", "check", broken, "--most", "0").out.splitlines()
    assert len(bounded) == 5


def test_mending_lists_each_mend_and_what_is_made_is_clean(nadi, broken, tmp_path):
    out = tmp_path / "out"
    outcome = nadi("trace", "check", broken, "--fix", "-o", out, "--json")
    assert outcome.code == 0, outcome
    assert outcome.document["errors"] == 0
    assert [(mend["what"].split(" are ")[0], mend["count"]) for mend in outcome.document["mends"]] == [
        ("dependencies on nodes that the file lacks", 1),
        ("dependencies of nodes on themselves", 1),
        ("control dependencies", 1),
        ("ids that occurred twice, and on which no node depends,", 1),
    ]
    assert nadi("trace", "check", out).code == 0
    _, nodes = et.read_messages(out / "a.0.et")
    assert [(n.id, list(n.data_deps), list(n.ctrl_deps)) for n in nodes] == [
        (1, [], []),
        (2, [1], []),
        (3, [2], []),
        (1000, [3], []),
        (1001, [3], []),
    ]
    assert nodes[0].attr[-1].string_val == "kept"
    assert (out / "a.1.et.gz").read_bytes() == (broken / "a.1.et.gz").read_bytes()
    assert (out / "groups.json").read_bytes() == (broken / "groups.json").read_bytes()


def test_what_needs_guessing_is_left_and_told(nadi, tmp_path):
    zero = [et.coll_node(1, "x", REDUCE, 0), et.comp_node(2, "a", duration_micros=1)]
    zero += [et.comp_node(2, "b", duration_micros=1), et.comp_node(3, "c", duration_micros=1, deps=[2])]
    (tmp_path / "in").mkdir()
    et.write_trace(tmp_path / "in" / "a.0.et", et.metadata(), zero)
    outcome = nadi("trace", "check", tmp_path / "in", "--fix", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert outcome.out.startswith("fixed    nothing")
    assert "sizes: 1 collectives have comm_size 0" in outcome.out
    assert "duplicates: 1 nodes have an id" in outcome.out
    assert (tmp_path / "out" / "a.0.et").read_bytes() == (tmp_path / "in" / "a.0.et").read_bytes()


def test_a_mended_trace_is_what_a_run_that_is_not_strict_makes_of_it(nadi, write_run, tmp_path):
    nodes = [
        et.comp_node(1, "a", duration_micros=5, ctrl_deps=[2, 77]),
        et.comp_node(2, "b", duration_micros=7, deps=[1, 99]),
        et.coll_node(3, "c", REDUCE, 1 << 16, deps=[2]),
    ]
    run = write_run([nodes] * 4)
    loose = nadi("run", run, "--set", "workload.strict=false", "--json").document
    assert nadi("trace", "check", tmp_path / "trace", "--fix", "-o", tmp_path / "out").code == 0
    mended = nadi("run", run, "--set", f'workload.traces="{tmp_path / "out" / "trace"}"', "--json").document
    assert mended["digest"] == loose["digest"]


def test_a_trace_set_is_checked_for_every_npu(nadi, tmp_path):
    block = et.Block()
    block.coll("x", REDUCE, 64, group="tp")
    block.send("s", 8, peer=1)
    columns = et.TraceColumns(npu=0)
    columns.stamp(block)
    families = {"tp": ((0, 1), (2, 3))}
    traces = TraceSet([columns.table()], np.zeros(4, np.int32), np.zeros(1, np.int32), families)
    write_set(tmp_path / "set", traces)
    outcome = nadi("trace", "check", tmp_path / "set", "--json")
    sorts = {(f["check"], f["severity"]): f["count"] for f in outcome.document["findings"]}
    assert (outcome.code, sorts) == (2, {("messages", "error"): 3, ("peers", "error"): 1})
    assert nadi("trace", "check", tmp_path / "set", "--fix", "-o", tmp_path / "out").code == 2
    assert (tmp_path / "out" / "traces.json").read_bytes() == (tmp_path / "set" / "traces.json").read_bytes()


def test_wrong_arguments_are_one_line(nadi, broken, tmp_path):
    (broken / "b.0.et").write_bytes((broken / "a.0.et").read_bytes())
    (tmp_path / "empty").mkdir()
    for arguments, says in (
        ([broken], "traces of 2 prefixes, expected one of them"),
        ([tmp_path / "empty"], "empty: is a folder, and there are no traces, looked for"),
        ([tmp_path / "none"], "no traces, looked for"),
        ([broken / "a", "--fix"], "--fix: found alone"),
        ([broken / "a", "-o", tmp_path / "out"], "-o: found alone"),
        ([broken / "a", "--fix", "-o", broken], "the traces' own folder"),
        ([broken / "a", "--npus", "1"], "trace of NPU 1, but the fabric has 1 NPUs"),
        ([broken / "a", "--groups", broken / "a.0.et"], "is a Chakra trace, expected a group file"),
    ):
        outcome = nadi("trace", "check", *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), (arguments, outcome)
        assert says in outcome.err
    assert not (tmp_path / "out").exists()
