"""What a run leaves out or cannot mean is said, in the report and in summary.json."""

import json

from nadi import et

ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE
RING = 'spec = "ring:npus=4,rate=100Gbps,delay=1us"'


def warnings(nadi, run, *arguments):
    """Of summary.json; the report has the same."""
    outcome = nadi("run", run, "-q", "--json", *arguments)
    assert outcome.code == 0, outcome
    said = outcome.document["warnings"]
    shown = " ".join(nadi("run", run, "-q", *arguments).out.split())
    assert [warning for warning in said if f"warning: {warning}" not in shown] == []
    assert said or "warning:" not in shown
    return said


def test_remote_memory_is_not_modelled(nadi, write_run, tmp_path):
    def nodes(*places):
        load = [et.mem_node(i, "l", et.NodeType.MEM_LOAD_NODE, 4096, tensor_loc=loc) for i, loc in enumerate(places)]
        return [*load, et.comp_node(99, "c", duration_micros=1)]

    run = write_run([nodes(0, 2, 1), nodes(0, 0), nodes(2)], '[memory]\nbandwidth = "1TB/s"\n')
    (said,) = warnings(nadi, run)
    assert said.startswith("3 trace nodes on 2 NPUs")
    assert f"first in {tmp_path / 'trace.0.et'}: node 1" in said
    assert "treated as local" in said
    modelled = "--set", "memory.remote=npu", "--set", "memory.remote_bandwidth=1GB/s"
    assert warnings(nadi, run, *modelled) == []
    out = tmp_path / "out"
    assert nadi("run", run, "-q", "--out", out).code == 0
    assert json.loads((out / "summary.json").read_text())["warnings"] == [said]


def test_collectives_that_start_at_ever_other_offsets(nadi, write_run):
    """Computation before each differs by a microsecond more in each turn, or is the same for all."""

    def turns(npu, more_micros):
        nodes = []
        for turn in range(60):
            before = [2 * turn - 1] if turn else []
            nodes.append(et.comp_node(2 * turn, "c", duration_micros=9 + turn * npu * more_micros, deps=before))
            nodes.append(et.coll_node(2 * turn + 1, "a", ALL_REDUCE, 4096, deps=[2 * turn]))
        return nodes

    host = 'spec = "rail-optimised:npus=4,gpus_per_host=4"'
    (said,) = warnings(nadi, write_run([turns(npu, 1) for npu in range(4)], "", host))
    assert said.startswith("collectives of NVLink domains seldom repeat: of 60, 60 start at offsets")
    assert warnings(nadi, write_run([turns(npu, 0) for npu in range(4)], "", host)) == []


def test_traces_without_nodes(nadi, write_run):
    (said,) = warnings(nadi, write_run([[], []]))
    assert said.startswith("no NPU has anything to do: the trace is without nodes (")
