"""The oracle must be able to fail: schedules with one thing wrong."""

import pytest

from nadi.workload import collectives
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own, everyone_alike
from nadi.workload.collectives.schedules.oracle import OracleError, check
from nadi.workload.collectives.schedules.packed import pack


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
