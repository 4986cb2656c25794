"""Traces of a pipeline take as long as the schedule's closed form says, where only layers take time."""

from graphlib import TopologicalSorter

import pytest

from nadi.et import NodeType
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from tests.nonempty import nonempty
from tests.workload.training.small import GPT

_LAYERS = GPT.layers


def makespan(made, duration):
    """When the last node of a set without collectives ends; messages take no time. Naive: one graph of all nodes."""
    parents, takes, sends, receives = {}, {}, {}, []
    for npu, number in nonempty(enumerate(made.trace_of_npu.tolist())):
        trace, names = made.traces[number], list(made.traces[number].names)
        assert made.example_npu[number] == npu
        for row in nonempty(range(len(trace))):
            parents[npu, row] = {
                (npu, other) for other in trace.dep[trace.dep_ptr[row] : trace.dep_ptr[row + 1]].tolist()
            }
            takes[npu, row] = duration(names[row]) if trace.type[row] == NodeType.COMP_NODE else 0
            ends = tuple(int(column[row]) for column in (trace.comm_src, trace.comm_dst, trace.comm_tag))
            if trace.type[row] == NodeType.COMM_SEND_NODE:
                assert ends not in sends
                sends[ends] = (npu, row)
            elif trace.type[row] == NodeType.COMM_RECV_NODE:
                receives.append((ends, (npu, row)))
    for ends, node in receives:
        parents[node].add(sends[ends])
    finish = {}
    for node in TopologicalSorter(parents).static_order():
        finish[node] = takes[node] + max((finish[parent] for parent in parents[node]), default=0)
    return max(finish.values())


@pytest.mark.parametrize("micro_batches", [4, 8, 16])
@pytest.mark.parametrize(
    ("plan", "chunks"),
    [("pp4,1f1b", 1), ("pp4,gpipe", 1), ("pp2", 1), ("pp4,vpp2", 2), ("pp2,vpp4", 4), ("pp2,vpp2", 2)],
)
def test_bubbles_are_the_published_ones(plan, chunks, micro_batches):
    """(p - 1) / m of the work, interleaved (p - 1) / (v m) (arXiv 2104.04473, section 2.2)."""
    made = generate(GPT, parallel_plan(f"{plan},gb{micro_batches}"))
    stages = made.npus
    work = micro_batches * _LAYERS // stages * 6
    takes = {"forward": 2, "backward": 4}

    def duration(name):
        return takes[name.split("/")[1]] if "/layer" in name else 0

    bubble = (stages - 1) * (_LAYERS // stages) * 6 // chunks
    assert makespan(made, duration) == work + bubble


def test_zero_bubble_leaves_a_third():
    """ZB-H1: (p - 1) (F + B - W) with F = B = W (arXiv 2401.10241, table 2); plain 1F1B has (p - 1) (F + B + W)."""
    made = generate(GPT, parallel_plan("pp4,zero-bubble,gb16"))
    assert any("backward-weights" in name for name in made.traces[0].names)
    assert makespan(made, lambda name: int("/layer" in name)) == (16 * 3 + 3) * _LAYERS // 4


@pytest.mark.parametrize(
    ("plan", "waits"), [("1f1b", True), ("vpp2", False), ("vpp2,overlap_p2p=false", True), ("zero-bubble", False)]
)
def test_computations_wait_for_sends_where_messages_are_not_overlapped(plan, waits):
    made = generate(GPT, parallel_plan(f"pp4,{plan},gb8"))
    for trace in nonempty(made.traces):
        ends = zip(trace.dep_ptr.tolist(), trace.dep_ptr[1:].tolist(), trace.type.tolist(), strict=False)
        work = (NodeType.COMP_NODE, NodeType.COMM_COLL_NODE)
        awaited = {row for begin, end, kind in ends if kind in work for row in trace.dep[begin:end].tolist()}
        sends = [row for row in range(len(trace)) if trace.type[row] == NodeType.COMM_SEND_NODE]
        assert {row in awaited for row in sends} == {waits}
