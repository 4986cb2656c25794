"""Interval arithmetic and collectives against models that go picosecond by picosecond."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import workload
from nadi.insight import node_times
from nadi.insight.node_times import bus_factor, covered_ps, find_collectives, npu_times
from tests.nonempty import nonempty

INTERVALS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(0, 12)), max_size=40)


def naive_covered(intervals, owner):
    return len({t for o, start, length in intervals if o == owner for t in range(start, start + length)})


@given(INTERVALS)
def test_covered_time_is_the_union(intervals):
    owner, start, length = (np.array([i[k] for i in sorted(intervals)], np.int64) for k in range(3))
    found = covered_ps(owner, start, start + length, 5)
    assert found.tolist() == [naive_covered(intervals, o) for o in range(5)]


def test_covered_time_of_long_runs_does_not_overflow():
    owner = np.arange(3000)
    start = np.full(3000, 2**61)
    assert np.all(covered_ps(owner, start, start + 7, 3000) == 7)


def _program(kinds_of_npu):
    """A program with these node kinds (7: compute on the CPU), as far as the analysis looks at it."""
    ptr = np.cumsum([0, *map(len, kinds_of_npu)])
    blank = workload.collective_program("barrier", len(kinds_of_npu), 0)
    return ptr, blank._replace(
        trace_of_npu=np.arange(len(kinds_of_npu), dtype=np.int32),
        trace_ptr=ptr,
        node_kind=np.concatenate([np.array(kinds, np.int8) % 6 for kinds in kinds_of_npu]),
        node_lane=np.concatenate([np.array(kinds, np.int8) < 6 for kinds in kinds_of_npu]),
    )


NODES = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 4, 5, 7]), st.integers(0, 30), st.integers(0, 12)), max_size=8)


@given(st.lists(NODES, min_size=1, max_size=4), st.integers(1, 9))
def test_times_of_npus(nodes_of_npu, most_rows):
    ptr, program = _program([[kind for kind, _, _ in nodes] for nodes in nodes_of_npu])
    nodes = [node for own in nodes_of_npu for node in own]
    start = np.array([s for _, s, _ in nodes], np.int64)
    finish = np.array([s + length for _, s, length in nodes], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_times, "_MAX_ROWS", most_rows)  # blocks must not matter
        times = npu_times(program, ptr, start, finish, 100)
    for npu, own in nonempty(enumerate(nodes_of_npu)):
        busy = {
            kinds: {t for k, s, length in own if k in kinds for t in range(s, s + length)}
            for kinds in ((1,), (7,), (2,), (3, 4, 5))
        }
        compute, cpu, memory, communication = busy.values()
        assert times.compute_ps[npu] == len(compute)
        assert times.cpu_ps[npu] == len(cpu)
        assert times.memory_ps[npu] == len(memory)
        assert times.communication_ps[npu] == len(communication)
        assert times.exposed_ps[npu] == len(communication - compute)
        assert times.host_ps[npu] == len(cpu - compute - memory - communication)
        assert times.idle_ps[npu] == 100 - len(compute | cpu | memory | communication)
        assert times.finish_ps[npu] == max((s + length for _, s, length in own), default=0)


def test_collectives_are_found_by_group_and_place():
    program = workload.collective_program("all-reduce", 3, 300, "ring")
    start, finish = np.array([5, 9, 7]), np.array([20, 22, 21])
    found = find_collectives(program, np.arange(4), start, finish)
    assert [int(column[0]) for column in (found.group, found.seq, found.members, found.size_bytes)] == [0, 0, 3, 300]
    assert (found.start_ps[0], found.ready_ps[0], found.finish_ps[0], found.time_ps[0]) == (5, 9, 22, 13)


def test_no_collectives():
    program = workload.pairs_program([1, 0], 10)
    found = find_collectives(program, np.array([0, 2, 4]), np.zeros(4, np.int64), np.ones(4, np.int64))
    assert len(found.group) == 0


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("all-reduce", 8) == 2 * 7 / 8
    assert bus_factor("all-gather", 8) == bus_factor("all-to-all", 8) == bus_factor("reduce-scatter", 8) == 7 / 8
    assert bus_factor("broadcast", 8) == bus_factor("reduce", 8) == 1
