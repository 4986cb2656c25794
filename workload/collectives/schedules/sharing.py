"""Plans that several members share because they do the same with different peers.

A shared plan does not name its peers and their lanes. Its steps hold indices into a list of the member: its peers, then
the lanes that take its messages, each in the order of first use. In a tree over scattered NPUs, every member has other
peers, but nearly all members follow one of a few plans.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nadi.et.arrays import Int32, Int64, pointers
from nadi.workload.collectives.plans.plan import NONE, Attributes, LaneSteps, Plan, Plans, Step, step_table

_PIECE_STEPS = 1 << 19  # number of steps that are compared at a time, which bounds the memory of the comparison
_ENTRY_BYTES = 4  # of an entry of a list
_SEND_PEER, _SEND_LANE, _RECV_PEER = (Step._fields.index(name) for name in ("send_peer", "send_lane", "recv_peer"))


class SharedPlans(NamedTuple):
    """The plans of a schedule in which equal plans are the same object, and the lists that their steps index."""

    plans: Plans
    list_first: Int32  # int32[plans], first entry of each member's list; -1 = steps name members and lanes
    peer_list: Int32  # int32[], the lists of all members


def shared(plans: Plans) -> SharedPlans:
    """Return the plans with lists of peers if these take less memory; otherwise steps name members and lanes."""
    as_given = SharedPlans(plans, np.full(len(plans.plans), NONE, np.int32), np.zeros(0, np.int32))
    if plans.relative:
        return as_given
    words: array[int] = array("i")
    known: dict[tuple[bytes, tuple[int, ...], tuple[Attributes, ...]], Plan] = {}
    of_members: list[Plan] = []
    counts, lists = [np.zeros(0, np.int64)], [as_given.peer_list]
    # bytes of distinct plans as given, which hashes identify: a collision only changes the choice; and of the lists
    seen, given_bytes, list_bytes = set[int](), 0, 0
    for members in _pieces(plans.plans):
        sizes = [[len(lane) for lane in plans.plans[member]] for member in members]
        ptr = pointers([sum(own) for own in sizes])
        given = step_table([lane for member in members for lane in plans.plans[member]])
        steps, count, entries = _with_lists(given, ptr)
        counts.append(count)
        lists.append(entries)
        list_bytes += _ENTRY_BYTES * len(entries)
        for member, own, begin, end in zip(members, sizes, ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
            content = given[begin:end].tobytes()
            given_bytes += len(content) * (hash(content) not in seen)
            seen.add(hash(content))
            key = steps[begin:end].tobytes(), tuple(own), plans.attributes_of(member)
            if key not in known:
                bounds = (pointers(own) + len(words) // len(Step._fields)).tolist()
                words.frombytes(key[0])
                known[key] = tuple(LaneSteps(words, *ends) for ends in pairwise(bounds))
            of_members.append(known[key])
        if words.itemsize * len(words) + list_bytes >= given_bytes:
            return as_given  # where the first members share nothing, the others are not compared
    first = pointers(np.concatenate(counts))[:-1].astype(np.int32)
    return SharedPlans(plans._replace(plans=tuple(of_members)), first, np.concatenate(lists))


def _pieces(plans: Sequence[Plan]) -> Iterator[range]:
    """Yield ranges of members, whose plans have about _PIECE_STEPS steps together."""
    first = steps = 0
    for member, plan in enumerate(plans, start=1):
        steps += sum(map(len, plan))
        if steps >= _PIECE_STEPS or member == len(plans):
            yield range(first, member)
            first, steps = member, 0


def _with_lists(steps: Int32, ptr: Int64) -> tuple[Int32, Int64, Int32]:
    """Return steps that index lists, the number of entries of each member's list, and all lists one after another.

    steps: int32[steps, 10] with absolute peers; ptr: int64[members + 1], first step of each member.
    """
    member = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    sends, receives = (np.flatnonzero(steps[:, column] >= 0) for column in (_SEND_PEER, _RECV_PEER))
    owner = np.concatenate([member[sends], member[receives]])
    peer = np.concatenate([steps[sends, _SEND_PEER], steps[receives, _RECV_PEER]])
    index, first, of_member = _first_uses(owner, peer, len(ptr) - 1)
    lane = steps[sends, _SEND_LANE].astype(np.int64)
    of_peer = index[: len(sends)] * (lane.max(initial=0) + 1) + lane  # a lane of another peer has an entry of its own
    lane_index, first_lane, lanes_of_member = _first_uses(member[sends], of_peer, len(ptr) - 1)
    peers = np.diff(of_member)
    counts = peers + np.diff(lanes_of_member)
    begin = pointers(counts)[:-1]
    entries = np.empty(int(counts.sum()), np.int32)
    entries[np.arange(len(first)) + (begin - of_member[:-1])[owner[first]]] = peer[first]
    lane_owner = member[sends[first_lane]]
    entries[np.arange(len(first_lane)) + (begin + peers - lanes_of_member[:-1])[lane_owner]] = lane[first_lane]
    steps = steps.copy()
    steps[sends, _SEND_PEER], steps[receives, _RECV_PEER] = index[: len(sends)], index[len(sends) :]
    steps[sends, _SEND_LANE] = lane_index + peers[member[sends]]
    return steps, counts, entries


def _first_uses(owner: Int64, value: Int64, owners: int) -> tuple[Int64, Int64, Int64]:
    """Number the distinct values of each owner in the order of their first use.

    Returns the number of each value among those of its owner, the place of each first use, owner by owner, and
    int64[owners + 1], the first of these of each owner.
    """
    key = owner * (value.max(initial=0) + 1) + value
    is_new = np.append(True, key[1:] != key[:-1])[: len(key)]  # most steps have the peer of the step before
    places = np.flatnonzero(is_new)
    _, first, which = np.unique(key[places], return_index=True, return_inverse=True)
    first = places[first]
    order = np.lexsort((first, owner[first]))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    first = first[order]
    ptr = np.searchsorted(owner[first], np.arange(owners + 1))
    return number[which.reshape(-1)][np.cumsum(is_new) - 1] - ptr[owner], first, ptr
