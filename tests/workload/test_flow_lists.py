"""Lists of flows: CSV, ns-3's flow.txt and htsim's matrices as traces."""

import numpy as np
import pytest

from nadi.workload import WorkloadError, build_program
from nadi.workload.generators.point_to_point.flow_lists import flow_list, warnings
from nadi.workload.generators.point_to_point.traces import OPS_PER_S
from nadi.workload.node_kinds import SEND
from nadi.workload.program.durations import ComputeModel
from tests.nonempty import nonempty

CSV = "src,dst,bytes,start_us\n2,0,700,1.25\n0,1,5000,3\n0,1,600,0.5\n"
FLOWS = [(0, 1, 600, 500_000), (0, 1, 5000, 3_000_000), (2, 0, 700, 1_250_000)]
"""Sender, receiver, bytes and start in ps of CSV, by sender and start."""
NS3 = "3\n0 1 3 100 600 2.0000005\n2 0 3 100 700 2.00000125\n0 1 3 101 5000 2.000003\n"
HTSIM = (
    "Nodes 3\nConnections 3\n2->0 start 1250000 size 700\n0->1 start 3000000 size 5000\n0->1 start 500000 size 600\n"
)


def flows_of(traces):
    """Sender, receiver, bytes and start of each send, whose only parents are waits one after another."""
    model = ComputeModel(host_flops=OPS_PER_S)
    program = build_program(traces.traces, traces.trace_of_npu, traces.npus, compute=model)
    found = []
    for npu, trace in enumerate(traces.trace_of_npu.tolist()):
        rows = range(*program.trace_ptr[trace : trace + 2].tolist()) if trace >= 0 else ()
        now_ps = 0
        for row in rows:
            now_ps += int(program.node_duration_ps[row])
            if program.node_kind[row] == SEND:
                peer = npu + int(program.node_peer[row])
                found.append((npu, peer, int(program.node_bytes[row]), now_ps))
    return sorted(found, key=lambda flow: (flow[0], flow[3]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", CSV),
        ("x.csv", "dst, start_ps, note, bytes, src\n0,1250000,a,700,2\n1,3000000,,5000,0\n\n1,500000,,600,0\n"),
        ("x.csv", "src,dst,bytes,start_s\n2,0,700,1.25e-6\n0,1,5000,3e-6\n0,1,600,5e-7\n"),
        ("x.cm", HTSIM),
    ],
)
def test_each_form_of_a_list(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert flows_of(flow_list(tmp_path / name)) == FLOWS


@pytest.mark.parametrize("text", [NS3, NS3.replace(" 100 ", " ").replace(" 101 ", " ")])
def test_starts_of_ns3_count_from_the_first_flow(tmp_path, text):
    (tmp_path / "flow.txt").write_text(text)
    first_ps = min(start for *_, start in FLOWS)
    found = flows_of(flow_list(tmp_path / "flow.txt"))
    for flow, expected in nonempty(zip(found, FLOWS, strict=True)):
        assert flow[:3] == expected[:3]
        assert flow[3] == pytest.approx(expected[3] - first_ps, abs=500)  # seconds near 2 as floating-point numbers


def test_numbers_of_ns3_are_those_of_the_nodes_in_the_topologys_file(tmp_path):
    path = tmp_path / "flow.txt"
    path.write_text("2\n2 1 3 100 600 2\n1 3 3 100 700 2\n")
    assert [flow[:2] for flow in flows_of(flow_list(path, {1: 0, 2: 1, 3: 2}))] == [(0, 2), (1, 0)]
    with pytest.raises(WorkloadError, match="line 3: found node 3, a switch or none; expected the number of a GPU"):
        flow_list(path, {1: 0, 2: 1})


def test_what_follows_the_flows_of_the_header_is_not_read(tmp_path):
    path = tmp_path / "flow.txt"
    path.write_text(NS3)
    assert warnings(path) == ()
    path.write_text(NS3.replace("3\n", "2\n", 1) + "\nsrc0 dst0 3 dst_port0 size0 start_time0\n")
    assert len(flows_of(flow_list(path))) == 2
    assert warnings(path) == (
        f"{path}: 2 lines are not read, from line 4 on ('0 1 3 101 5000 2.000003'), behind the 2 flows of the header",
    )


def test_a_receiver_without_flows_of_its_own_has_a_trace(tmp_path):
    (tmp_path / "x.csv").write_text("src,dst,bytes,start_us\n0,4,10,0\n")
    traces = flow_list(tmp_path / "x.csv")
    assert traces.npus == 5
    assert (traces.trace_of_npu >= 0).tolist() == [True, False, False, False, True]


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"src,dst\x00\xff")
    with pytest.raises(WorkloadError, match=r"x\.csv: "):
        flow_list(tmp_path / "x.csv")


def test_many_flows_keep_their_order_per_pair(tmp_path):
    """The n-th send of a pair must meet its n-th receive, whatever the order of the file."""
    rng = np.random.default_rng(3)
    rows = [
        f"{src},{(src + 1) % 3},{size},{start}"
        for src, size, start in rng.integers(1, 1000, (300, 3)) % (3, 999, 99) + (0, 1, 0)
    ]
    (tmp_path / "x.csv").write_text("src,dst,bytes,start_ns\n" + "\n".join(rows))
    assert len(flows_of(flow_list(tmp_path / "x.csv"))) == 300
