"""`nadi trace check`: mended traces run, and the groups of trace sets are checked."""

import numpy as np

from nadi import et
from nadi.workload import TraceSet, write_set

REDUCE = et.CollectiveCommType.ALL_REDUCE


def test_a_mended_trace_is_what_a_run_that_is_not_strict_makes_of_it(nadi, write_run, tmp_path):
    nodes = [
        et.comp_node(1, "a", duration_micros=5, ctrl_deps=[2, 77], attrs=[et.attribute("scope", "string", "kept")]),
        et.comp_node(2, "b", duration_micros=7, deps=[1, 99]),
        et.coll_node(3, "c", REDUCE, 1 << 16, deps=[2]),
    ]
    run = write_run([nodes] * 4)
    loose = nadi("run", run, "--set", "workload.strict=false", "--json").document
    assert nadi("trace", "check", tmp_path / "trace", "--fix", "-o", tmp_path / "out").code == 0
    mended = nadi("run", run, "--set", f'workload.traces="{tmp_path / "out" / "trace"}"', "--json").document
    assert mended["digest"] == loose["digest"]
    assert et.read_messages(tmp_path / "out" / "trace.0.et")[1][0].attr[-1].string_val == "kept"


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
