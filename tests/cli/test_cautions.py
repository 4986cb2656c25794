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


def test_an_ordinary_run_has_none(nadi, write_run, step):
    assert warnings(nadi, write_run([step] * 4)) == []


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


ADAPTIVE = ("--set", "network.load_balancing=adaptive")
FAR = 'spec = "fat-tree:k=4,rate=400Gbps,delay={}"'


def test_a_window_that_selective_repeat_keeps_small(nadi, write_run, step):
    (said,) = warnings(nadi, write_run([step] * 16, "", FAR.format("5us")), *ADAPTIVE)
    assert said.startswith('[network] window = "auto" is 512 packets, the most that selective repeat keeps, and the ')
    assert "round trip holds 727" in said
    assert warnings(nadi, write_run([step] * 16, "", FAR.format("1us")), *ADAPTIVE) == []


def test_flowlets_that_overtake_each_other(nadi, write_run):
    nodes = [et.coll_node(1, "a", et.CollectiveCommType.ALL_TO_ALL, 1 << 22)]
    run = write_run([nodes] * 16, "", 'spec = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=4,rate=100Gbps,delay=1us"')
    flowlets = ("--set", "network.load_balancing=flowlet")
    assert warnings(nadi, run, *flowlets) == []
    short = (*flowlets, "--set", "network.flowlet_gap=1us")
    (said,) = warnings(nadi, run, *short)
    assert "packets were sent again, and none was dropped" in said
    assert "a flowlet_gap longer than 1us" in said
    assert warnings(nadi, run, *short, "--set", "network.selective_repeat=true") == []


def test_a_network_that_carries_mostly_retransmissions(nadi, write_run):
    sends = [[et.send_node(1, "s", npu, 0, 20_000, npu)] for npu in range(1, 7)]
    received = [et.recv_node(npu, "r", npu, 0, 20_000, npu) for npu in range(1, 7)]
    crowd = '[network]\nmtu = "918B"\nwindow = "9kB"\npfc = false\ntrimming = true\nbuffer = "2kB"\npfc_alpha = 8\n'
    run = write_run([received, *sends], crowd, 'spec = "switch:npus=7,rate=100Gbps,delay=100ns"')
    (said,) = warnings(nadi, run)
    assert "packets were sent again" in said
    assert "times the 132 of the data" in said
    assert warnings(nadi, run, "--set", "network.buffer=4MB") == []


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


def test_durations_of_zero(nadi, write_run):
    run = write_run([[et.comp_node(1, "a"), et.comp_node(2, "b", deps=[1])]] * 3)
    (said,) = warnings(nadi, run)
    assert said == (
        "the run takes no time: 6 compute and memory nodes have neither a duration nor, for a roofline, "
        "num_ops or tensor_size"
    )
    (said,) = warnings(nadi, run, "--set", "compute.model=trace")
    assert '[compute] model is "trace"' in said


def test_collectives_of_one(nadi, write_run, tmp_path):
    run = write_run([[et.coll_node(1, "a", ALL_REDUCE, 1024, pg_name="7")]], "", RING)
    (tmp_path / "groups.json").write_text('{"7": [0]}')
    (said,) = warnings(nadi, run, "--set", 'workload.groups="groups.json"')
    assert said == "the run takes no time: 1 collectives have no other member to send to"
