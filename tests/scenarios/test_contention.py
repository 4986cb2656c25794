"""Compute that is slower while collectives run (pdes/npu/contention.py), beside exact fractions."""

from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from nadi import topologies
from nadi.pdes import NpuFault
from nadi.workload import CollectiveSettings, ComputeModel, build_program
from tests.failures.common import faults_of
from tests.nonempty import nonempty
from tests.pdes.cases import Traces
from tests.samples import sampled
from tests.scenarios.running import simulate

SPEC = "fully-connected:npus=2,rate=100Gbps,delay=1us"
US = 1_000_000
SIZE = 100_000
"""An all-reduce of so many bytes takes some 10 us here."""


class Case(NamedTuple):
    """When computation begins and how long it takes alone, and when collectives begin, all in us; groups by letter."""

    computes: tuple
    collectives: tuple
    serial: bool = True


CASES = {
    "never together": Case(((0, 5), (25, 3)), ((7, "a"),)),
    "compute within": Case(((3, 2),), ((0, "a"),)),
    "compute begins before, ends within": Case(((0, 7),), ((4, "a"),)),
    "compute begins within, ends after": Case(((6, 13),), ((0, "a"),)),
    "compute around": Case(((0, 37),), ((5, "a"),)),
    "begin together": Case(((4, 30),), ((4, "a"),)),
    "ends when it begins": Case(((0, 4),), ((4, "a"),)),
    "several back to back": Case(((0, 60),), ((3, "a"), (3, "a"), (3, "a"))),
    "several with gaps": Case(((0, 90),), ((3, "a"), (30, "a"), (57, "b"))),
    "two at once": Case(((0, 41),), ((5, "a"), (9, "b"))),
    "one within the other": Case(((0, 41), (43, 7)), ((5, "a"), (6, "b"), (7, "c"))),
    "compute after compute": Case(((0, 3), (3, 3), (6, 3), (9, 11)), ((4, "a"), (13, "b"))),
    "concurrent": Case(((1, 41),), ((5, "a"), (5, "a")), serial=False),
}


def built(case):
    """The program, and which rows of an NPU are computations and collectives; the others are waits on the CPU."""
    traces = Traces(2)
    rows = {"compute": [], "collective": []}
    names = sorted({name for _, name in case.collectives})
    waited = {0: {npu: [] for npu in range(2)}}
    last = 0
    for us in sorted({us for us, _ in (*case.computes, *case.collectives)} - {0}):
        waited[us] = {npu: [traces.compute(npu, us - last, cpu=True, deps=waited[last][npu])] for npu in range(2)}
        last = us
    for us, long in case.computes:
        rows["compute"].append(len(traces.nodes[0]))
        for npu in range(2):
            traces.compute(npu, long, deps=waited[us][npu])
    for us, name in case.collectives:
        rows["collective"].append(len(traces.nodes[0]))
        traces.collective(range(2), 0, SIZE, name, deps=waited[us])
    program = traces.program(dict.fromkeys(names, (0, 1)), CollectiveSettings({"all-reduce": "direct"}))
    return program, rows


def end_ps(begin_ps, work_ps, intervals_ps, factor):
    """When work is done that is slowed down in the intervals, which may overlap; rounded up once."""
    edges = sorted({edge for interval in intervals_ps for edge in interval if edge > begin_ps})
    left, now = Fraction(work_ps), begin_ps
    for edge in [*edges, None]:
        slow = any(begin <= now < end for begin, end in intervals_ps)
        pace = 1 / factor if slow else Fraction(1)
        if edge is None or left <= (edge - now) * pace:
            return ceil(now + left / pace)
        left -= (edge - now) * pace
        now = edge
    raise AssertionError("the last stretch has no end")


@sampled({"straggler": [None, 1.5, 3.14], "factor": ["1.5", "1.001", "7.013"], "name": CASES})
def test_overlaps_of_every_order(name, factor, straggler):
    case = CASES[name]
    graph = topologies.build(SPEC)
    program, rows = built(case)
    chosen = {"compute_slowdown": float(factor), "concurrent_collectives": not case.serial}
    slow = 1
    if straggler:
        chosen["faults"] = faults_of(graph, npus=[NpuFault(0, 0, slowdown=straggler)])
        slow = Fraction(round(1024 * straggler), 1024)
    results = simulate(graph, program, **chosen)
    start, finish = (column[: len(column) // 2] for column in (results.node_start_ps, results.node_finish_ps))
    intervals = [(int(start[row]), int(finish[row])) for row in rows["collective"]]
    longer = []
    for row, (_, long) in nonempty(zip(rows["compute"], case.computes, strict=True)):
        work = floor(long * US * slow)
        assert finish[row] == end_ps(int(start[row]), work, intervals, Fraction(factor))
        longer.append(finish[row] - start[row] > work)
    if not straggler:
        assert any(longer) == (name not in {"never together", "ends when it begins"})


def test_a_collective_within_a_computation_costs_its_time():
    """By hand: of T in which a collective ran, T / 1.5 was done."""
    program, rows = built(CASES["compute around"])
    results = simulate(SPEC, program, compute_slowdown=1.5)
    row, other = rows["compute"][0], rows["collective"][0]
    took = int(results.node_finish_ps[other] - results.node_start_ps[other])
    assert results.node_finish_ps[row] == 37 * US + ceil(Fraction(took, 3))
    assert simulate(SPEC, program).node_finish_ps[row] == 37 * US


def test_a_computation_within_a_collective_takes_its_factor():
    program, rows = built(CASES["compute within"])
    results = simulate(SPEC, program, compute_slowdown=1.75)
    row = rows["compute"][0]
    assert results.node_finish_ps[row] - results.node_start_ps[row] == 3_500_000


def test_network_and_other_lanes_are_as_they_were():
    program, rows = built(CASES["several with gaps"])
    plain, slow = simulate(SPEC, program), simulate(SPEC, program, compute_slowdown=2.0)
    others = np.setdiff1d(np.arange(len(plain.node_finish_ps) // 2), rows["compute"])
    assert (plain.node_finish_ps[others] == slow.node_finish_ps[others]).all()
    assert (plain.flows["finish_ps"] == slow.flows["finish_ps"]).all()
    assert simulate(SPEC, program, compute_slowdown=1.0).digest == plain.digest


def test_a_launch_does_not_count():
    """NCCL's plans begin after a launch: until then compute goes at its own pace."""
    graph = topologies.build("rail-optimised:npus=4,gpus_per_host=4")
    traces = Traces(4)
    for npu in range(4):
        traces.compute(npu, 200)
    traces.collective(range(4), 0, 4 << 20)
    chosen = CollectiveSettings({"all-reduce": "nccl"})
    program = build_program(traces.tables(), range(4), 4, {}, ComputeModel("trace"), chosen, fabric=graph)
    results = simulate(graph, program, compute_slowdown=1.5)
    launch_ps = int(program.schedules.launch_ps.max())
    assert launch_ps > 0
    assert len(results.node_finish_ps) == 8
    for npu in range(4):
        begin, end = launch_ps, int(results.node_finish_ps[2 * npu + 1])
        assert results.node_finish_ps[2 * npu] == end_ps(0, 200 * US, [(begin, end)], Fraction(3, 2)) > 200 * US
