import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from et import metadata, recv_node, send_node, table_of
from tests.workload import naive
from workload import KINDS, WorkloadError, build_program, collective_program, pairs_program, permutation


@pytest.mark.parametrize("kind", KINDS)
def test_one_collective_of_all(kind):
    program = collective_program(kind, 5, 1000)
    assert program.node_kind.tolist() == [5]
    assert program.node_bytes.tolist() == [0 if kind == "barrier" else 1000]
    assert program.trace_of_npu.tolist() == [0] * 5
    assert program.slot_member.tolist() == [0, 1, 2, 3, 4]
    assert program.schedules.members.tolist() == [5]


def test_the_algorithm_may_be_named():
    assert collective_program("all-reduce", 4, 8, "direct").schedules.plan_ptr.tolist() == [0, 4]
    with pytest.raises(WorkloadError, match=r"^algorithm 'x' for all-reduce: expected one of direct, ring$"):
        collective_program("all-reduce", 4, 8, "x")


def test_sizes_must_be_positive():
    with pytest.raises(WorkloadError, match=r"^all-reduce of 0 B: expected at least 1$"):
        collective_program("all-reduce", 4, 0)


@st.composite
def destinations(draw):
    npus = draw(st.integers(1, 8))
    return [draw(st.integers(-1, npus - 1).filter(lambda d, i=i: d != i)) for i in range(npus)]


@given(destinations())
def test_pairs_are_what_traces_would_give(to):
    npus = len(to)
    tables = []
    for npu, peer in enumerate(to):
        sends = [send_node(0, "", npu, peer, 77)] if peer >= 0 else []
        receives = [recv_node(1 + s, "", s, npu, 77) for s in range(npus) if to[s] == npu]
        tables.append(table_of(metadata(), [*sends, *receives]))
    wanted, program = build_program(tables, range(npus), npus), pairs_program(to, 77)
    for npu in range(npus):
        assert naive.found(program, npu) == naive.found(wanted, npu)
    naive.check_lists(program)
    assert len(program.trace_ptr) == len(wanted.trace_ptr)
    for a, b in zip(program[:-1], wanted[:-1], strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype


def test_a_shift_is_shared():
    program = pairs_program((np.arange(16_384) + 4) % 16_384, 1)
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
    with pytest.raises(WorkloadError) as error:
        pairs_program(to, size)
    assert str(error.value) == text


@pytest.mark.parametrize("npus", [2, 3, 1000])
def test_permutations_meet_everyone_and_never_themselves(npus):
    for seed in range(3):
        to = permutation(npus, seed)
        assert sorted(to.tolist()) == list(range(npus))
        assert not np.any(to == np.arange(npus))
    assert permutation(npus, 5).tolist() == permutation(npus, 5).tolist()
    with pytest.raises(WorkloadError, match=r"^permutation of 1 NPUs: expected at least 2$"):
        permutation(1)
