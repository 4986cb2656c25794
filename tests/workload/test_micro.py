import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import workload
from nadi.et import CollectiveCommType, coll_node, metadata, recv_node, send_node, table_of
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.workload import naive


@pytest.mark.parametrize("kind", workload.KINDS)
def test_one_collective_of_all(kind):
    program = workload.collective_program(kind, 5, 1000)
    assert program.node_kind.tolist() == [5]
    assert program.node_bytes.tolist() == [0 if kind == "barrier" else 1000]
    assert program.trace_of_npu.tolist() == [0] * 5
    assert program.slot_member.tolist() == [0, 1, 2, 3, 4]
    assert program.schedules.members.tolist() == [5]


def test_the_algorithm_may_be_named():
    assert workload.collective_program("all-reduce", 4, 8, "direct").schedules.plan_ptr.tolist() == [0, 4]
    with pytest.raises(
        workload.WorkloadError, match=r"^algorithm 'x' for all-reduce: expected one of direct, .*, ring$"
    ):
        workload.collective_program("all-reduce", 4, 8, "x")


def test_sizes_must_be_positive():
    with pytest.raises(workload.WorkloadError, match=r"^all-reduce of 0 B: expected at least 1$"):
        workload.collective_program("all-reduce", 4, 0)


@st.composite
def destinations(draw):
    npus = draw(st.integers(1, 8))
    return [draw(st.integers(-1, npus - 1).filter(lambda d, i=i: d != i)) for i in range(npus)]


@bounded(30)
@given(destinations())
def test_pairs_are_what_traces_would_give(to):
    npus = len(to)
    tables = []
    for npu, peer in enumerate(to):
        sends = [send_node(0, "", npu, peer, 77)] if peer >= 0 else []
        receives = [recv_node(1 + s, "", s, npu, 77) for s in range(npus) if to[s] == npu]
        tables.append(table_of(metadata(), [*sends, *receives]))
    wanted, program = workload.build_program(tables, range(npus), npus), workload.pairs_program(to, 77)
    for npu in range(npus):
        assert naive.found(program, npu) == naive.found(wanted, npu)
    naive.check_lists(program)
    assert len(program.trace_ptr) == len(wanted.trace_ptr)
    tuples = {"schedules", "in_network", "channels"}
    for name, a, b in nonempty(zip(program._fields, program, wanted, strict=True)):
        assert name in tuples or np.asarray(a).dtype == np.asarray(b).dtype


def test_a_shift_is_shared():
    program = workload.pairs_program((np.arange(16_384) + 4) % 16_384, 1)
    assert len(program.trace_ptr) - 1 == 3  # inside, at the end, at the beginning


@pytest.mark.parametrize(
    ("to", "size", "text"),
    [
        ([0, 0], 1, "destination 0 of NPU 0: expected another NPU from 0 to 1, or -1"),
        ([1, 2], 1, "destination 2 of NPU 1: expected another NPU from 0 to 1, or -1"),
        ([1, 0], -1, "messages of -1 B: expected 0 or more"),
        ([], 1, "0 NPUs: expected 1 to 524287"),
    ],
)
def test_pairs_that_cannot_be_are_refused(to, size, text):
    assert refused(workload.WorkloadError, workload.pairs_program, to, size) == text


@pytest.mark.parametrize("npus", [2, 3, 1000])
def test_permutations_meet_everyone_and_never_themselves(npus):
    for seed in range(3):
        to = workload.permutation(npus, seed)
        assert sorted(to.tolist()) == list(range(npus))
        assert not np.any(to == np.arange(npus))
    assert workload.permutation(npus, 5).tolist() == workload.permutation(npus, 5).tolist()
    with pytest.raises(workload.WorkloadError, match=r"^permutation of 1 NPUs: expected at least 2$"):
        workload.permutation(1)


@pytest.mark.parametrize(("npus", "group"), [(4, 2), (12, 3), (12, 4)])
def test_a_hierarchical_all_reduce_is_what_traces_would_give(npus, group):
    hosts = npus // group
    size = 96
    groups = {f"host {h}": tuple(range(h * group, (h + 1) * group)) for h in range(hosts)}
    groups |= {f"rail {r}": tuple(range(r, npus, group)) for r in range(group)}
    kinds = CollectiveCommType.REDUCE_SCATTER, CollectiveCommType.ALL_REDUCE, CollectiveCommType.ALL_GATHER
    tables = []
    for npu in range(npus):
        names = f"host {npu // group}", f"rail {npu % group}", f"host {npu // group}"
        nodes = [
            coll_node(i, "", kind, size // group if i == 1 else size, pg_name=name, deps=[i - 1] if i else [])
            for i, (kind, name) in enumerate(zip(kinds, names, strict=True))
        ]
        tables.append(table_of(metadata(), nodes, f"t.{npu}.et"))
    wanted = workload.build_program(
        tables, range(npus), npus, groups, settings=workload.CollectiveSettings(all_gather_size="total")
    )
    found = workload.hierarchical_program(npus, group, size)
    for npu in range(npus):
        slots = [slice(int(p.slot_ptr[npu]), int(p.slot_ptr[npu + 1])) for p in (wanted, found)]
        members = [
            [p.group_member[p.group_ptr[g] : p.group_ptr[g + 1]].tolist() for g in p.slot_group[own]]
            for p, own in zip((wanted, found), slots, strict=True)
        ]
        assert members[0] == members[1]
        assert wanted.slot_member[slots[0]].tolist() == found.slot_member[slots[1]].tolist()
    for name in (
        "trace_of_npu",
        "node_kind",
        "node_bytes",
        "node_seq",
        "node_group",
        "node_deps",
        "child",
        "coll_node",
    ):
        assert getattr(wanted, name).tolist() == getattr(found, name).tolist(), name
    assert [steps_of(wanted, row) for row in range(3)] == [steps_of(found, row) for row in range(3)]


def steps_of(program, row):
    """Members, chunks and first plan of a collective's schedule."""
    sched, schedule = program.schedules, program.node_schedule[row]
    plan = sched.plan_of[sched.plan_of_ptr[schedule]]
    lanes = sched.lane_ptr[sched.plan_ptr[plan] : sched.plan_ptr[plan + 1] + 1]
    steps = slice(int(lanes[0]), int(lanes[-1]))
    columns = [getattr(sched, name)[steps].tolist() for name in ("send_peer", "send_chunk", "recv_peer", "recv_chunk")]
    return sched.members[schedule], sched.chunks[schedule], (lanes - lanes[0]).tolist(), columns


def test_a_hierarchical_all_reduce_needs_equal_groups():
    with pytest.raises(
        workload.WorkloadError, match=r"^10 NPUs in groups of 4: expected two groups or more of equal size$"
    ):
        workload.hierarchical_program(10, 4, 64)
    with pytest.raises(workload.WorkloadError, match=r"^all-reduce of 66 B in groups of 4: expected a multiple of 4$"):
        workload.hierarchical_program(8, 4, 66)
