"""Schedules as arrays, shapes of groups against the fabric, and an oracle that must be able to fail."""

import time

import numpy as np
import pytest

from nadi import topologies
from nadi.workload import collectives
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own, everyone_alike
from nadi.workload.collectives.schedules.oracle import OracleError, check
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from nadi.workload.collectives.schedules.sends import unpack
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty


def test_ring_says_what_each_step_does():
    s = pack([collectives.plan("all-reduce", "ring", 3)])
    assert s.members.tolist() == [3]
    assert s.chunks.tolist() == [3]
    assert s.relative.tolist() == [True]
    assert s.plan_of_ptr.tolist() == [0, 1]
    assert s.plan_ptr.tolist() == [0, 1]
    assert s.lane_ptr.tolist() == [0, 4]
    assert s.send_peer.tolist() == [1] * 4
    assert s.recv_peer.tolist() == [2] * 4
    assert s.send_chunk.tolist() == [2, 1, 0, 2]
    assert s.recv_chunk.tolist() == [1, 0, 2, 1]
    assert s.reduce.tolist() == [True, True, False, False]
    assert s.dep_lane.tolist() == [-1] * 4
    assert s.send_lane.tolist() == [0] * 4
    assert s.send_count.tolist() == s.recv_count.tolist() == [1] * 4


def test_dtypes_are_those_of_the_interface():
    s = pack([collectives.plan("all-reduce", "ring", 3)])
    wanted = dict.fromkeys(("relative", "reduce", "lane_plain", "uneven"), np.bool_)
    wanted |= dict.fromkeys(("plan_of_ptr", "view_ptr", "arrangement_ptr", "launch_ps", "lane_latency_ps"), np.int64)
    wanted["lane_shares"] = np.float64
    for name, column in nonempty(s._asdict().items()):
        assert column.dtype == wanted.get(name, np.int32), name


def test_several_schedules_stand_behind_each_other():
    plans = [collectives.plan(*key) for key in (("gather", "direct", 4), ("barrier", "dissemination", 5))]
    s = pack(plans)
    for index, plan in nonempty(enumerate(plans)):
        if not plan.relative:
            assert [tuple(map(tuple, own)) for own in unpack(s, index)] == list(plan.plans)
    assert s.plan_of_ptr.tolist() == [0, 4, 5]
    assert s.plan_of.tolist() == [0, 1, 2, 3, 4]
    assert s.plan_ptr.tolist() == [0, 1, 2, 3, 4, 7]


def test_equal_plans_are_held_once():
    s = pack([collectives.plan("broadcast", "direct", 1000)])
    assert len(s.plan_ptr) - 1 == 2
    assert s.plan_of.tolist() == [0] + [1] * 999


def test_steps_that_stand_in_a_row_are_packed_without_a_copy():
    def first_word(lane):
        return np.frombuffer(lane.array, np.int32).ctypes.data

    (alone,) = [collectives.plan("all-reduce", "double-binary-tree", 6)]
    lanes = [lane for own in alone.plans for lane in own]
    steps = pack([alone]).steps
    assert steps.ctypes.data == first_word(lanes[0])
    assert [tuple(row) for row in steps.tolist()] == [tuple(step) for lane in lanes for step in lane]
    two = pack([alone, collectives.plan("all-reduce", "double-binary-tree", 7)]).steps
    assert two[: len(steps)].tolist() == steps.tolist()
    assert two.ctypes.data != first_word(lanes[0])


def test_relative_peers_and_chunks_turn_with_the_member():
    lane = Lane().step(send_to=1, send=2, receive_from=3, receive=7)
    steps = [own[0][0] for own in unpack(pack([everyone_alike(4, 8, [lane])]), 0)]
    assert [(x.send_peer, x.send_chunk, x.recv_peer, x.recv_chunk) for x in steps] == [
        (1, 2, 3, 7),
        (2, 4, 0, 1),
        (3, 6, 1, 3),
        (0, 0, 2, 5),
    ]


def test_set_holds_each_schedule_once():
    schedules = ScheduleSet()
    assert schedules.add("all-reduce", "ring", 4) == 0
    assert schedules.add("all-reduce", "direct", 4) == 1
    assert schedules.add("all-reduce", "ring", 8) == 2
    assert schedules.add("all-reduce", "ring", 4) == 0
    assert schedules.add("all-reduce", "ring", 1) == -1
    assert schedules.pieces(2) == 8
    assert schedules.pack().members.tolist() == [4, 4, 8]


def test_no_schedules_at_all():
    s = ScheduleSet().pack()
    assert s.plan_of_ptr.tolist() == s.plan_ptr.tolist() == s.lane_ptr.tolist() == [0]
    assert len(s.send_peer) == len(s.members) == 0


def test_a_large_ring_is_quick():
    start = time.process_time()
    schedules = ScheduleSet()
    schedules.add("all-reduce", "ring", 16_384)
    packed = schedules.pack()
    assert time.process_time() - start < 1
    assert len(packed.send_peer) == 2 * 16_383


def test_groups_at_other_places_share_a_schedule_if_their_plans_are_equal():
    """On hosts of eight GPUs: the same GPU of two hosts, whichever it is; two GPUs of one host differ from these."""
    graph = topologies.build(topologies.clusters.find("dgx-h100-superpod").topology(16))
    algorithm = collectives.defaults_on(graph)["all-reduce"]
    schedules = ScheduleSet()
    groups = ([0, 8], [1, 9], [7, 15], [2, 3], [12, 13])
    shapes = [shape_of(graph, members) for members in groups]
    numbers = [schedules.add("all-reduce", algorithm, 2, shape, 1 << 20) for shape in shapes]
    assert len(set(shapes)) == 5
    assert numbers == [0, 0, 0, 1, 1]
    for shape, number in zip(shapes, numbers, strict=True):
        alone = ScheduleSet()
        alone.add("all-reduce", algorithm, 2, shape, 1 << 20)
        wanted, found = unpack(alone.pack(), 0), unpack(schedules.pack(), number)
        assert wanted == found


@pytest.mark.parametrize("sizes", [(300_000_000, 900_000_000, 1_200_000_000), (1 << 16, 3 << 16)])
def test_sizes_share_steps_and_differ_in_the_time_before_the_first(sizes, monkeypatch):
    """NVLS trees over two hosts; the schedule of each size is the one that it has alone."""
    graph = topologies.build(topologies.clusters.find("dgx-h100-superpod").topology(16))
    shape = shape_of(graph, range(16), trees=collectives.choose("all-reduce", "nccl").trees)
    alone = [ScheduleSet() for _ in sizes]
    for schedules, size in zip(alone, sizes, strict=True):
        schedules.add("all-reduce", "nccl:algo=nvls-tree", 16, shape, size)
    planned = []
    plan = collectives.AlgorithmChoice.plan
    monkeypatch.setattr(collectives.AlgorithmChoice, "plan", lambda *given: planned.append(given[-1]) or plan(*given))
    schedules = ScheduleSet()
    numbers = [schedules.add("all-reduce", "nccl:algo=nvls-tree", 16, shape, size) for size in sizes]
    packed = schedules.pack()
    assert numbers == [*range(len(sizes))]
    classes = {
        collectives.choose("all-reduce", "nccl:algo=nvls-tree").size_class("all-reduce", shape, s) for s in sizes
    }
    assert len(planned) == len(classes)
    assert len(set(packed.launch_ps.tolist())) == len(sizes)
    for number, single in nonempty(zip(numbers, alone, strict=True)):
        assert packed.launch_ps[number] == single.pack().launch_ps[0]
        assert unpack(packed, number) == unpack(single.pack(), 0)


def test_several_steps_are_those_added_one_by_one():
    peers, chunks, lanes = np.array([2, -1, 1]), np.array([4, 5, 6]), np.array([0, -1, 3])
    together = Lane().several(3, send_to=peers, to_lane=7, send=chunks, receive_from=peers[::-1], after=(lanes, chunks))
    one_by_one = Lane()
    for own, other, chunk, lane in zip(*(a.tolist() for a in (peers, peers[::-1], chunks, lanes)), strict=True):
        one_by_one.step(send_to=own, to_lane=7, send=chunk, receive_from=other, after=(lane, chunk))
    assert together.steps == one_by_one.steps
    assert len(Lane().several(0, send_to=1).steps) == 0


G = 10**9
NS = 1000
STACK = (
    "stack:dims=Ring(4)_FullyConnected(3)_Switch(2),rates=100Gbps_50Gbps_25Gbps,delays=100ns_200ns_300ns,"
    "switch_latency=40ns,host_dims=1"
)


def shape(spec, members):
    return shape_of(topologies.build(spec), members)


def test_a_whole_stack():
    found = shape(STACK, range(24))
    assert found.members == 24
    assert found.grid == (4, 3, 2)
    assert found.rate_bps == (100 * G, 2 * 50 * G, 25 * G)
    assert found.latency_ps == (100 * NS, 200 * NS, 640 * NS)
    assert found.host == tuple(i // 4 for i in range(24))
    assert found.place == tuple(i % 4 for i in range(24))


@pytest.mark.parametrize(
    ("members", "grid", "rates"),
    [
        (range(4), (4,), (100 * G,)),
        (range(4, 8), (4,), (100 * G,)),
        ([2, 6, 10], (3,), (100 * G,)),
        ([1, 13], (2,), (25 * G,)),
        ([0, 1, 12, 13], (2, 2), (100 * G, 25 * G)),
        ([1, 2, 3, 0], (4,), (100 * G,)),
        ([0, 12, 1, 13], (4,), (25 * G,)),
        ([7], (1,), (0,)),
    ],
)
def test_groups_of_the_stack(members, grid, rates):
    found = shape(STACK, members)
    assert found.grid == grid
    assert found.rate_bps == rates


def test_a_group_in_another_order_is_no_grid():
    found = shape(STACK, [4, 5, 6, 7, 0, 1, 2, 3])
    assert found.grid == (8,)
    assert found.host == (0,) * 4 + (1,) * 4
    assert shape(STACK, [7, 0, 4]).host == (0, 1, 0)
    assert shape(STACK, [7, 0, 4]).place == (3, 0, 0)


def test_parallel_and_switched_links():
    spec = "leaf-spine:leaves=2,spines=2,hosts_per_leaf=4,rate=100Gbps,delay=1us,switch_latency=300ns"
    found = shape(spec, range(8))
    assert found.rate_bps[0] == 100 * G
    assert max(found.latency_ps) == 4 * 1000 * NS + 3 * 300 * NS


def test_alike_groups_are_equal():
    graph = topologies.build("torus:sizes=4x4x2")
    one, other = shape_of(graph, range(4)), shape_of(graph, range(8, 12))
    assert one == other
    assert hash(one) == hash(other)
    assert one != shape_of(graph, [0, 4, 8, 12, 16])


def mutated(plans: Plans, member: int, lane: int, step: int, **changes) -> Plans:
    """The plans with one step of one plan changed, or left out if nothing is to change."""
    own = [list(steps) for steps in plans.plans[member]]
    if changes:
        own[lane][step] = own[lane][step]._replace(**changes)
    else:
        del own[lane][step]
    every = list(plans.plans)
    every[member] = tuple(tuple(steps) for steps in own)
    return plans._replace(plans=tuple(every))


def reasons(kind: str, plans: Plans, seeds: int = 20) -> set[str]:
    """What the oracle says with different seeds, "" for nothing."""
    schedules = pack([plans])
    found = set()
    for seed in range(seeds):
        try:
            check(kind, schedules, 0, seed)
            found.add("")
        except OracleError as error:
            found.add(str(error))
    return found


RING = collectives.plan("all-reduce", "ring", 5)
CHAIN = collectives.plan("broadcast", "ring", 4)


@pytest.mark.parametrize(
    ("kind", "plans"),
    [
        ("all-reduce", mutated(RING, 0, 0, 2, send_peer=2)),
        ("all-reduce", mutated(RING, 0, 0, 2, recv_peer=3)),
        ("all-reduce", mutated(RING, 0, 0, 3, send_chunk=0)),
        ("all-reduce", mutated(RING, 0, 0, 3, recv_chunk=2)),
        ("all-reduce", mutated(RING, 0, 0, 3, reduce=False)),
        ("all-reduce", mutated(RING, 0, 0, 5, reduce=True)),
        ("all-reduce", mutated(RING, 0, 0, 0, send_peer=-1)),
        ("all-reduce", mutated(RING, 0, 0, 7)),
        ("all-reduce", mutated(RING, 0, 0, 0)),
        ("all-reduce", mutated(RING, 0, 0, 1, send_lane=1)),
        ("all-reduce", collectives.plan("reduce-scatter", "ring", 5)),
        ("reduce-scatter", collectives.plan("all-gather", "ring", 5)),
        ("all-gather", mutated(collectives.plan("all-gather", "direct", 5), 0, 0, 1, send_chunk=1)),
        ("all-to-all", mutated(collectives.plan("all-to-all", "direct", 5), 0, 1, 1, recv_chunk=1)),
        ("all-reduce", mutated(collectives.plan("all-reduce", "direct", 5), 0, 2, 0, dep_step=2)),
        ("broadcast", mutated(CHAIN, 1, 0, 3, send_peer=3)),
        ("broadcast", mutated(CHAIN, 1, 0, 3)),
        ("reduce", collectives.plan("broadcast", "direct", 4)),
        ("gather", mutated(collectives.plan("gather", "direct", 4), 2, 0, 0, send_chunk=1)),
        ("scatter", mutated(collectives.plan("scatter", "direct", 4), 0, 0, 0, send_peer=2)),
        ("barrier", mutated(collectives.plan("barrier", "dissemination", 8), 0, 2, 0, send_peer=2, recv_peer=6)),
        ("barrier", mutated(collectives.plan("barrier", "dissemination", 8), 0, 2, 0)),
    ],
)
def test_one_thing_wrong_is_always_found(kind, plans):
    assert "" not in reasons(kind, plans)


@pytest.mark.parametrize(
    ("kind", "plans"),
    [
        ("all-reduce", mutated(collectives.plan("all-reduce", "direct", 5), 0, 2, 0, dep_lane=-1)),
        ("barrier", mutated(collectives.plan("barrier", "dissemination", 8), 0, 2, 0, dep_lane=-1)),
    ],
)
def test_a_missing_dependency_is_found_in_some_order(kind, plans):
    assert any("promised" in reason for reason in reasons(kind, plans))


def test_a_sink_that_others_watch_midway_is_found():
    plans = mutated(collectives.plan("all-reduce", "direct", 5), 0, 2, 0, dep_step=1)
    assert reasons("all-reduce", plans, 1) == {
        "member 0 lane 1: several senders, and someone waits for step 1, not for the last"
    }


def test_sends_between_receives_from_several_are_found():
    lane = Lane().step(send_to=1, receive_from=2, reduce=True).step(send_to=2, receive_from=1, reduce=True)
    assert reasons("all-reduce", everyone_alike(3, 1, [lane])) == {
        "member 0 lane 0: several senders, and sends between their messages"
    }


def test_copies_into_one_chunk_from_several_are_found():
    root = Lane().step(receive_from=1).step(receive_from=2)
    leaves = [[Lane().step(send_to=0)], [Lane().step(send_to=0)]]
    assert reasons("reduce", each_its_own(1, [[root], *leaves])) == {
        "member 0 lane 0: several senders, and two of them replace the same chunk"
    }


def test_waiting_in_a_circle_is_found():
    lanes = [Lane().step(receive_from=1, after=(1, 0)), Lane().step(send_to=1, after=(0, 0))]
    assert reasons("barrier", everyone_alike(2, 1, lanes)) == {"member 0 lane 0: stuck at step 0 of 1"}


def test_a_message_left_over_is_found():
    lanes = [Lane().step(send_to=1, receive_from=1, reduce=True).step(send_to=1)]
    (reason,) = reasons("barrier", everyone_alike(2, 1, lanes))
    assert reason == "member 0 lane 0: a message from 1 is left over"


def test_counts_that_differ_are_found():
    lanes = [Lane().step(send_to=1, send_count=2, receive_from=1, receive=1, reduce=True)]
    found = reasons("all-reduce", each_its_own(2, [lanes, [Lane().step(send_to=0, receive_from=0, reduce=True)]]))
    assert "member 1: 2 chunks came, expected 1" in found
