"""Collectives of all NPUs that are restricted to some dimensions of the fabric, against naive enumeration."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import topologies
from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.workload import CollectiveSettings, WorkloadError, build_program
from nadi.workload.trace_sets.trace_set import ELSEWHERE
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.scenarios.running import simulate
from tests.workload.ranks import on_ranks

ALL_REDUCE = CollectiveCommType.ALL_REDUCE
TORUS = "torus:sizes=2x3x4"
DIMS = (2, 3, 4)


def trace(*involved, name="t.et"):
    """All-reduces one after another; involved: a list of booleans each, None = absent."""
    nodes = [
        coll_node(i, "x", ALL_REDUCE, 960 + i, involved_dim=dims, deps=range(i)) for i, dims in enumerate(involved)
    ]
    return table_of(metadata(), nodes, name)


def digits(npu):
    return npu % 2, npu // 2 % 3, npu // 6


def naive_members(npu, dims):
    """NPUs with the same digits in all dimensions that do not take part."""
    fixed = [d for d in range(3) if dims is not None and not (d < len(dims) and dims[d])]
    return [other for other in range(24) if all(digits(other)[d] == digits(npu)[d] for d in fixed)]


def found_members(program, npu):
    """Members of the group of each row of an NPU, and its place there."""
    begin, end = program.trace_ptr[program.trace_of_npu[npu] :][:2].tolist()
    for row in range(begin, end):
        slot = int(program.slot_ptr[npu] + program.node_group[row])
        group = int(program.slot_group[slot])
        members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist()
        yield members, int(program.slot_member[slot]), int(program.node_seq[row])


restrictions = st.one_of(st.none(), st.lists(st.booleans(), min_size=1, max_size=4).filter(lambda d: any(d[:3])))


@bounded(60)
@given(st.lists(restrictions, min_size=1, max_size=4))
def test_groups_are_those_of_the_enumeration(involved):
    program = build_program([trace(*involved)], [0] * 24, 24, fabric=topologies.build(TORUS))
    for npu in range(24):
        seen = []
        for dims, (members, me, seq) in nonempty(zip(involved, found_members(program, npu), strict=True)):
            assert members == naive_members(npu, dims)
            assert members[me] == npu
            assert seq == seen.count(members)
            seen.append(members)
    assert len(program.trace_ptr) == 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_agree(ranks):
    table, graph = trace([True, False, False], None, [False, True, True]), topologies.build(TORUS)
    whole = build_program([table], [0] * 24, 24, fabric=graph)
    rank_of = np.arange(24) * 7 % ranks

    def build(rank, exchange):
        own = np.where(rank_of == rank, 0, ELSEWHERE)
        return build_program([table], own, 24, fabric=graph, exchange=exchange)

    for rank, part in nonempty(enumerate(on_ranks(ranks, build))):
        for npu in nonempty(np.flatnonzero(rank_of == rank).tolist()):
            assert [*found_members(part, npu)] == [*found_members(whole, npu)]
            groups = [p.slot_group[p.slot_ptr[npu] : p.slot_ptr[npu + 1]].tolist() for p in (part, whole)]
            assert groups[0] == groups[1]


@pytest.mark.parametrize("algorithm", ["ring", "grid"])
def test_the_engine_keeps_to_the_lines(algorithm):
    graph = topologies.build(TORUS)
    settings = CollectiveSettings({"all-reduce": algorithm})
    program = build_program([trace([True, False, True])], [0] * 24, 24, settings=settings, fabric=graph)
    flows = simulate(graph, program).flows
    for src, dst in nonempty(zip(flows["src"].tolist(), flows["dst"].tolist(), strict=True)):
        assert digits(src)[1] == digits(dst)[1]
    assert flows["bytes"].sum() == 3 * 2 * 7 * 960


def test_lines_that_stand_unlike_have_schedules_of_their_own():
    """The first line of four is two hosts, the second is one."""
    settings = CollectiveSettings({"all-reduce": "hierarchical"})
    graph = topologies.build("leaf-spine:npus=8,hosts_per_leaf=4,spines=1,dims=4x2")
    graph = replace(graph, host=np.array([0, 0, 1, 1, 2, 2, 2, 2], np.int32))
    program = build_program([trace([True, False])], [0] * 8, 8, settings=settings, fabric=graph)
    assert program.schedules.members.tolist() == [4, 4]
    assert program.node_schedule[program.trace_ptr[program.trace_of_npu]].tolist() == [0] * 4 + [1] * 4


def test_a_group_by_name_says_who_takes_part():
    node = coll_node(0, "x", ALL_REDUCE, 8, pg_name="a", involved_dim=[True, False, False])
    program = build_program(
        [table_of(metadata(), [node])], [0] * 24, 24, {"a": tuple(range(24))}, fabric=topologies.build(TORUS)
    )
    assert [members for members, _, _ in found_members(program, 5)] == [list(range(24))]


def test_none_of_the_dimensions_is_refused():
    assert (
        refused(
            WorkloadError,
            build_program,
            [trace([False, False, False, True])],
            [0] * 24,
            24,
            fabric=topologies.build(TORUS),
        )
        == "t.et: node 0: involved_dim names none of the fabric's 3 dimensions"
    )


def test_priorities_reach_the_program():
    nodes = [coll_node(i, "x", ALL_REDUCE, 8, comm_priority=priority) for i, priority in enumerate((5, None, -2))]
    program = build_program([table_of(metadata(), nodes)], [0, 0], 2)
    assert program.node_priority.tolist() == [5, 0, -2]
    assert program.node_priority.dtype == np.int32
