"""NPUs that notice at ticks what has ended: rows of traces start and finish at ticks since the begin of their job."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nadi.pdes import Settings, build_world, run
from nadi.topologies import build
from tests.pdes.cases import Traces

PS_PER_US = 1_000_000
TICKS_PS = [7_001, 100_000, 1_300_000]
PLAIN = Settings(nvlink_framing=False)


def up(time_ps, tick_ps):
    """The first tick from a time on."""
    return -(-time_ps // tick_ps) * tick_ps


def results(traces, tick_ps=0, spec="switch:npus=2", **more):
    graph, program = build(spec), traces.program(more.pop("groups", None))
    return run(build_world(graph, program, replace(PLAIN, tick_ps=tick_ps, **more)))


def rows(found, npu):
    """Starts and finishes of an NPU's rows."""
    own = slice(*found.npu_node_ptr[npu : npu + 2])
    return found.node_start_ps[own].tolist(), found.node_finish_ps[own].tolist()


@pytest.mark.parametrize("tick_ps", TICKS_PS)
def test_a_message_between_computations(tick_ps):
    """Counted by hand from when the message alone has left and arrives."""
    alone = Traces(2)
    alone.message(0, 1, 10_000)
    (_, (left_ps,)), (_, (arrived_ps,)) = (rows(results(alone), npu) for npu in range(2))
    traces = Traces(2)
    traces.compute(0, 1)
    traces.message(0, 1, 10_000, deps=((0,), ()))
    traces.compute(0, 1, deps=(1,))
    traces.compute(1, 1, deps=(0,))
    found = results(traces, tick_ps)
    posted_ps = up(PS_PER_US, tick_ps)
    told_ps, came_ps = up(posted_ps + left_ps, tick_ps), up(posted_ps + arrived_ps, tick_ps)
    assert rows(found, 0) == ([0, posted_ps, told_ps], [posted_ps, told_ps, up(told_ps + PS_PER_US, tick_ps)])
    assert rows(found, 1) == ([0, came_ps], [came_ps, up(came_ps + PS_PER_US, tick_ps)])


@pytest.mark.parametrize("tick_ps", TICKS_PS)
def test_collectives_one_after_another(tick_ps):
    """On an idle fabric each takes its time alone, and its members go on at the next tick."""
    members = range(4)
    alone = Traces(4)
    alone.collective(members, 0, 100_000)
    once = results(alone, spec="ring:npus=4")
    assert len(set(once.node_finish_ps.tolist())) == 1
    alone_ps = int(once.finish_time_ps)
    traces = Traces(4)
    for turn in range(3):
        traces.collective(members, 0, 100_000, deps=dict.fromkeys(members, (turn - 1,) if turn else ()))
    found = results(traces, tick_ps, "ring:npus=4")
    for npu in members:
        assert rows(found, npu)[1] == [turn * up(alone_ps, tick_ps) for turn in (1, 2, 3)]


@st.composite
def computations(draw):
    """Traces of one NPU that use its lanes, with random dependencies."""
    traces = Traces(2)
    for number in range(draw(st.integers(1, 12))):
        deps = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else ()
        micros = draw(st.integers(0, 5))
        kind = draw(st.sampled_from(["compute", "cpu", "memory"]))
        if kind == "memory":
            traces.memory(0, micros, deps=deps)
        else:
            traces.compute(0, micros, cpu=kind == "cpu", deps=deps)
    return traces


@settings(max_examples=30, deadline=None)
@given(computations(), st.sampled_from(TICKS_PS))
def test_computation_takes_whole_ticks(traces, tick_ps):
    """The same run whose durations are whole ticks has the same times without them."""
    graph, program = build("switch:npus=2"), traces.program()
    whole = program._replace(node_duration_ps=up(program.node_duration_ps, tick_ps))
    found = run(build_world(graph, program, replace(PLAIN, tick_ps=tick_ps)))
    wanted = run(build_world(graph, whole, PLAIN))
    assert np.array_equal(found.node_start_ps, wanted.node_start_ps)
    assert np.array_equal(found.node_finish_ps, wanted.node_finish_ps)


@pytest.mark.parametrize("slowdown", [1.0, 1.7])
@pytest.mark.parametrize("tick_ps", TICKS_PS)
def test_computation_beside_collectives(slowdown, tick_ps):
    """A row that is done stays on its lane until its tick, while collectives begin and end beside it."""
    members = range(4)
    traces = Traces(4)
    for npu in members:
        for turn in range(6):
            traces.compute(npu, 3 + npu % 2, deps=(turn - 1,) if turn else ())
    for turn in range(3):
        last = dict.fromkeys(members, (2 * turn, *((6 + turn - 1,) if turn else ())))
        traces.collective(members, 0, 30_000, deps=last)
    found = results(traces, tick_ps, "ring:npus=4", compute_slowdown=slowdown)
    assert not np.any(found.node_start_ps % tick_ps)
    assert not np.any(found.node_finish_ps % tick_ps)
    beside = results(traces, 0, "ring:npus=4", compute_slowdown=slowdown)
    late = found.node_finish_ps - beside.node_finish_ps
    assert late.min() >= 0
    assert late.max() <= 9 * tick_ps


def test_members_whose_messages_come_apart_go_on_together():
    """Two messages to a pair share the link to the second of its switches, so that one comes later than the other."""
    traces = Traces(8)
    for src, dst in ((0, 4), (1, 5)):
        traces.message(src, dst, 50_000)
    spec = "leaf-spine:npus=8,hosts_per_leaf=4,spines=1,rate=100Gbps,uplink_rate=150Gbps"
    apart, together = (results(traces, tick_ps, spec) for tick_ps in (0, 10 * PS_PER_US))
    ends = [[rows(found, npu)[1][0] for npu in (4, 5)] for found in (apart, together)]
    assert ends[0][0] != ends[0][1]
    assert ends[1][0] == ends[1][1]
