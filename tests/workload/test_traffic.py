"""Traffic against the plans themselves, step by step; and its parts against the whole."""

import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.workload import KINDS, ComputeModel, build_program, collective_program, collectives, pairs_program
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.program.traffic import Traffic, merge, traffic
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.workload import naive
from tests.workload.handmade import grid, two_rings
from tests.workload.plain import plain_algorithms
from tests.workload.test_program import workloads

WHOLE_BUFFER_TIMES_N = ("all-gather", "gather")


def plan_sends(kind, algorithm, n, size_bytes):
    """(src member, dst member, bytes) of every message of a collective, straight from the algorithm's plans."""
    made = collectives.plan(kind, algorithm, n)
    for member in range(n):
        for lane in made.plans[0 if made.relative else member]:
            for step in lane:
                if step.send_peer >= 0:
                    peer = (member + step.send_peer) % n if made.relative else step.send_peer
                    shift = member * made.chunks // n if made.relative else 0
                    chunks = [(shift + step.send_chunk + i) % made.chunks for i in range(step.send_count)]
                    yield (
                        member,
                        peer,
                        sum((c + 1) * size_bytes // made.chunks - c * size_bytes // made.chunks for c in chunks),
                    )


def as_dict(found):
    rows = zip(found.src.tolist(), found.dst.tolist(), found.bytes.tolist(), found.messages.tolist(), strict=True)
    pairs = {(src, dst): (size_bytes, messages) for src, dst, size_bytes, messages in rows}
    assert len(pairs) == len(found.src)
    assert list(pairs) == sorted(pairs)
    return pairs


def summed(sends):
    pairs = defaultdict(lambda: (0, 0))
    for src, dst, size_bytes in sends:
        pairs[src, dst] = (pairs[src, dst][0] + size_bytes, pairs[src, dst][1] + 1)
    return dict(pairs)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_sends_what_its_plans_say(kind, n):
    for algorithm in nonempty(plain_algorithms(kind)):
        for size_bytes in (1, 5, 64, 840, 1 << 20, (1 << 20) + 13):
            found = traffic(collective_program(kind, n, size_bytes, algorithm))
            size = 0 if kind == "barrier" else size_bytes
            sends = plan_sends(kind, algorithm, n, size) if n > 1 else []
            assert as_dict(found) == summed(sends), (algorithm, size_bytes)


def naive_traffic(nodes, groups):
    npus = len(nodes)
    for npu, own in enumerate(nodes):
        for node in own:
            if node["what"] == "send":
                yield npu, node["peer"], node["size"]
            elif node["what"] == "coll":
                members = groups.get(node["group"], tuple(range(npus)))
                kind, me = naive.KIND_NAMES[node["type"]], members.index(npu)
                factor = {"barrier": 0}.get(kind, len(members) if kind in WHOLE_BUFFER_TIMES_N else 1)
                if len(members) > 1:
                    algorithm = collectives.default_algorithm(kind)
                    for src, dst, size_bytes in plan_sends(kind, algorithm, len(members), factor * node["size"]):
                        if src == me:
                            yield npu, members[dst], size_bytes


@bounded(200)
@given(workloads())
def test_any_workload_is_what_a_walk_over_its_nodes_finds(case):
    nodes, groups = case
    tables = [naive.table(npu, own) for npu, own in enumerate(nodes)]
    program = build_program(tables, range(len(nodes)), len(nodes), groups, ComputeModel("trace"))
    assert as_dict(traffic(program)) == summed(naive_traffic(nodes, groups))


def known_to(program, rank, ranks):
    """The program as a rank sees it that has read only the traces of its own NPUs."""
    foreign = np.arange(program.npus) % ranks != rank
    slots = np.where(foreign, 0, np.diff(program.slot_ptr))
    kept = np.repeat(~foreign, np.diff(program.slot_ptr))
    return program._replace(
        trace_of_npu=np.where(foreign, -1, program.trace_of_npu).astype(np.int32),
        slot_ptr=np.concatenate([[0], np.cumsum(slots)]),
        slot_group=program.slot_group[kept],
        slot_member=program.slot_member[kept],
    )


@bounded(50)
@given(workloads(), st.integers(1, 4))
def test_parts_of_ranks_make_the_whole(case, ranks):
    nodes, groups = case
    tables = [naive.table(npu, own) for npu, own in enumerate(nodes)]
    program = build_program(tables, range(len(nodes)), len(nodes), groups, ComputeModel("trace"))
    parts = [traffic(known_to(program, rank, ranks)) for rank in range(ranks)]
    for rank, part in nonempty(enumerate(parts)):
        assert (part.src % ranks == rank).all()
    assert as_dict(merge(parts)) == as_dict(traffic(program))


def test_merge_adds_pairs_and_orders_them():
    one = Traffic(*(np.array(x) for x in ([3, 0, 3], [1, 2, 1], [10, 5, 1], [1, 2, 1])))
    other = Traffic(*(np.array(x) for x in ([0, 0], [2, 1], [2**61, 7], [1, 1])))
    found = merge([one, other])
    assert as_dict(found) == {(0, 1): (7, 1), (0, 2): (2**61 + 5, 3), (3, 1): (11, 2)}
    assert [column.dtype for column in found] == [np.int32, np.int32, np.int64, np.int64]
    assert [len(column) for column in merge([])] == [0] * 4


def test_many_pairs_are_summed_in_between(monkeypatch):
    monkeypatch.setattr("nadi.workload.program.traffic._MAX_PENDING", 5)
    found = traffic(collective_program("all-to-all", 9, 9000, "direct"))
    assert as_dict(found) == summed(plan_sends("all-to-all", "direct", 9, 9000))


@pytest.mark.parametrize("size_bytes", [1 << 30, (1 << 30) + 777])
def test_a_ring_of_16384_is_cheap_and_complete(size_bytes):
    program = collective_program("all-reduce", 16_384, size_bytes)
    begin = time.process_time()
    found = traffic(program)
    assert time.process_time() - begin < 2
    assert len(found.src) == 16_384
    assert found.messages.sum() == 16_384 * 2 * 16_383
    assert int(found.bytes.sum()) == 2 * 16_383 * size_bytes


def test_a_permutation_of_16384():
    to = np.roll(np.arange(16_384), 5)
    found = traffic(pairs_program(to, 1 << 20))
    assert (found.dst == to).all()
    assert (found.bytes == 1 << 20).all()


def fixed(monkeypatch, plans):
    """An algorithm that has one plan."""
    module = SimpleNamespace(NAME="fixed", KINDS=("all-reduce",), plan=lambda *_: plans)
    monkeypatch.setattr(collectives, "known_algorithms", lambda: {"fixed": module})
    return "fixed"


@pytest.mark.parametrize("plans", [two_rings(5), two_rings(4, wire=(2, 1)), two_rings(4, wire=(16, 15)), grid(3, 4)])
@pytest.mark.parametrize("size_bytes", [64 * 7 * 120, 1000, 7])
def test_views_parts_and_wire_factors(monkeypatch, plans, size_bytes):
    program = collective_program("all-reduce", plans.members, size_bytes, fixed(monkeypatch, plans))
    found = as_dict(traffic(program))
    wanted = defaultdict(lambda: (0, 0))
    steps, of_lanes = unpack(program.schedules, 0), buffers(program.schedules, 0)
    for member in range(plans.members):
        for lane, buffer in zip(steps[member], of_lanes[member], strict=True):
            for step in lane:
                if step.send_peer >= 0:
                    size, count = wanted[member, step.send_peer]
                    size += buffer.wire_bytes(step.send_chunk, step.send_count, size_bytes)
                    wanted[member, step.send_peer] = size, count + 1
    exact = size_bytes % (2 * 5 * 4 * 3) == 0 or plans.attributes[0][0].wire != (16, 15)
    assert found.keys() == wanted.keys()
    for pair, (size, messages) in nonempty(wanted.items()):
        assert found[pair][1] == messages
        assert found[pair][0] == size if exact else size - messages < found[pair][0] <= size
