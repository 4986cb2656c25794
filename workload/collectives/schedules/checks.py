"""Checks of plans (peers, lanes and chunks exist, a connection has one rate), and plans that equal members share."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int32, Int64, pointers
from nadi.workload.collectives.plans.plan import (
    MAX_CONNECTIONS,
    MAX_SHARES,
    NONE,
    Attributes,
    LaneSteps,
    Plan,
    Plans,
    Step,
    step_table,
)
from nadi.workload.errors import WorkloadError
from nadi.workload.kept import MEMBER_BYTES

# By connection: the divisor of the line rate that limits it, and the algorithm that set it
SharesOf = dict[int, tuple[float, str]]
_PIECE_STEPS = 1 << 19  # number of steps that are checked at a time, which bounds the memory of the check


def checked(plans: Plans, label: str, kind: str = "", earlier_shares: SharesOf | None = None) -> Plans:
    """Return the plans after checking that their peers, lanes and chunks exist; the oracle checks the result.

    Args:
        plans: The plans of a schedule.
        label: The name of the schedule, with which errors begin.
        kind: The kind of collective, one of workload.KINDS; "" = any.
        earlier_shares: The rates of connections in schedules of equal groups; those of this schedule are added. None =
            no others.
    """
    given, min_regions = len(plans.plans), 2 if kind == "all-to-all" else 1
    attributes = [plans.attributes_of(i) for i in range(given)]
    for holds, problem in (
        (
            given == (1 if plans.relative else plans.members) and plans.chunks >= 1,
            f"{given} plans and {plans.chunks} chunks, expected one plan or one each",
        ),
        (
            plans.regions >= min_regions and plans.launch_ps >= 0,
            f"{plans.regions} regions, launch after {plans.launch_ps} ps; expected {min_regions} and 0 or more",
        ),
        (
            [len(own) for own in attributes] == [len(plan) for plan in plans.plans],
            "lanes and attributes differ in number, expected one each",
        ),
    ):
        if not holds:
            raise WorkloadError(f"{label}: {problem}")
    for view in plans.views:
        if len(view.member) != plans.members:
            raise WorkloadError(f"{label}: a view of {len(view.member)} members, expected all {plans.members}")
    for arrangement in plans.arrangements:
        if not np.array_equal(np.sort(arrangement), np.arange(len(arrangement))):
            raise WorkloadError(f"{label}: an arrangement of {len(arrangement)} pieces, expected each once")
    for lane in dict.fromkeys(chain.from_iterable(attributes)):
        _check_attributes(plans, lane, label)
    _check_shares(plans, attributes, label, {} if earlier_shares is None else earlier_shares)
    first = steps = 0
    for i, plan in enumerate(plans.plans):  # in pieces, which bound the memory of the check
        steps += sum(len(lane) for lane in plan)
        if steps >= _PIECE_STEPS or i == given - 1:
            _check_steps(plans, range(first, i + 1), attributes[first : i + 1], label)
            first, steps = i + 1, 0
    return plans


def _check_attributes(plans: Plans, lane: Attributes, label: str) -> None:
    """Check the attributes of a lane by themselves and against those of the plans; label: beginning of errors."""
    has_view = -1 <= lane.view < len(plans.views) and (lane.view < 0 or plans.relative)
    has_part = 0 <= lane.part < lane.parts and (lane.chunks is None or lane.chunks >= 1)
    has_times = min(lane.wire) >= 1 and lane.latency_ps >= 0 and min(lane.phase, lane.gate) >= -1
    views, arrangements, connections = len(plans.views), len(plans.arrangements), MAX_CONNECTIONS
    for holds, problem in (
        (has_view, f"view {lane.view}, expected one of {views} in relative plans"),
        (-1 <= lane.arrangement < arrangements, f"arrangement {lane.arrangement}, expected one of {arrangements}"),
        (has_part, f"part {lane.part} of {lane.parts} in {lane.chunks} chunks, expected one"),
        (has_times, f"{lane}, expected a wire factor above 0 and no negative times"),
        (0 <= lane.connection < connections, f"connection {lane.connection}, expected one of 0 .. {connections - 1}"),
        (1 <= lane.shares <= MAX_SHARES, f"{lane.shares} shares of a line rate, expected 1 .. {MAX_SHARES}"),
    ):
        if not holds:
            raise WorkloadError(f"{label}: a lane with {problem}")
    chunks, size = lane.chunks or plans.chunks, _line_size(plans, lane)
    if plans.relative and chunks > 1 and chunks % size:
        members = "the members" if size == plans.members else f"the {size} members of a line"
        raise WorkloadError(f"{label}: {chunks} chunks, expected 1 or a multiple of {members}")


def _line_size(plans: Plans, lane: Attributes) -> int:
    """Return the number of members that a lane's peers are counted among, the member itself included."""
    return plans.views[lane.view].size if lane.view >= 0 else plans.members


def _check_shares(plans: Plans, attributes: list[tuple[Attributes, ...]], label: str, earlier_shares: SharesOf) -> None:
    """Check that each connection has one rate; earlier_shares: shares in schedules of equal groups, added to."""
    for lane, own in zip(chain.from_iterable(plans.plans), chain.from_iterable(attributes), strict=True):
        if lane.sends() if isinstance(lane, LaneSteps) else any(step.send_peer >= 0 for step in lane):
            add_shares({own.connection: (own.shares, label)}, label, earlier_shares)


def add_shares(new: SharesOf, label: str, earlier_shares: SharesOf) -> None:
    """Add the shares of a schedule's connections to those of equal groups. Raises WorkloadError: they differ.

    Args:
        new: The shares of the schedule's connections.
        label: The name of the schedule, with which errors begin.
        earlier_shares: The shares in schedules of equal groups, which are added to.
    """
    for connection, (shares, _) in new.items():
        known, other = earlier_shares.setdefault(connection, (shares, label))
        if known != shares:
            also = "" if other == label else f" in {other}"
            raise WorkloadError(
                f"{label}: connection {connection} at 1/{shares:g} of the line rate, "
                f"and at 1/{known:g}{also}, expected one rate"
            )


def _check_steps(plans: Plans, plan_numbers: range, attributes_of: list[tuple[Attributes, ...]], label: str) -> None:
    """Check the peers, chunks and connections of the steps of some plans; label: beginning of errors."""
    lanes = [lane for i in plan_numbers for lane in plans.plans[i]]
    lengths = [len(lane) for lane in lanes]
    steps = dict(zip(Step._fields, step_table(lanes).T, strict=True))

    def by_step(values: Iterable[int]) -> Int64:
        """Return int64[steps]: `values` of the lanes, repeated for each step of a lane."""
        return np.repeat(np.fromiter(values, np.int64, len(lanes)), lengths)

    attributes = list(chain.from_iterable(attributes_of))
    chunks = by_step(a.chunks or plans.chunks for a in attributes)
    size = by_step(_line_size(plans, a) for a in attributes)
    copies = (steps["send_peer"] < 0) & (steps["recv_peer"] < 0) & (steps["send_chunk"] >= 0)
    for side in ("send", "recv"):
        peer, chunk, count = (steps[f"{side}_{field}"] for field in ("peer", "chunk", "count"))
        if np.any(peer >= size) or (plans.relative and np.any(peer == 0)):
            raise WorkloadError(f"{label}: {side} peer {peer.max()}, expected another of the members")
        # A range of chunks may not reach from one region into the next: the regions are separate buffers
        outside = (chunk < 0) | (count < 1) | (chunk % chunks + count > chunks) | (chunk >= plans.regions * chunks)
        wrong = ((peer >= 0) | copies) & outside
        if np.any(wrong):
            last = plans.regions * int(chunks[np.argmax(wrong)]) - 1
            raise WorkloadError(f"{label}: {side} of a chunk that is not there, expected 0 .. {last}")
    if np.any(copies & (steps["send_count"] != steps["recv_count"])):
        raise WorkloadError(f"{label}: a copy of chunks to another number of them, expected equal numbers")
    connection = by_step(a.connection for a in attributes)
    if connection.any():  # a lane must receive a peer's messages over a single connection, to keep them in order
        plan = by_step(i for i in plan_numbers for _ in plans.plans[i])
        # In each view the same peer number means another member; + 1 because lanes without a view have number -1
        sender = plan * (len(plans.views) + 1) + by_step(a.view for a in attributes) + 1
        sends = steps["send_peer"] >= 0
        peer, lane = steps["send_peer"][sends].astype(np.int64), steps["send_lane"][sends].astype(np.int64)
        # One number for each (sender and view, peer, lane): it occurs with several connections if that makes more
        # numbers
        to = (sender[sends] * (peer.max(initial=0) + 1) + peer) * (lane.max(initial=0) + 1) + lane
        if len(np.unique(to)) < len(np.unique(to * MAX_CONNECTIONS + connection[sends])):
            raise WorkloadError(f"{label}: a lane that gets a peer's messages over several connections, expected one")


# Plans that several members share because they do the same with different peers.
#
# A shared plan does not name its peers and their lanes. Its steps hold indices into a list of the member: its peers,
# then the lanes that take its messages, each in the order of first use. In a tree over scattered NPUs, every member has
# other peers, but nearly all members follow one of a few plans.


_SHARED_STEPS = 1 << 19  # number of steps that are compared at a time, which bounds the memory of the comparison
_ENTRY_BYTES = 4  # of an entry of a list
_SEND_PEER, _SEND_LANE, _RECV_PEER = (Step._fields.index(name) for name in ("send_peer", "send_lane", "recv_peer"))


class SharedPlans(NamedTuple):
    """The plans of a schedule in which equal plans are the same object, and the lists that their steps index."""

    plans: Plans
    list_first: Int32  # int32[plans], first entry of each member's list; -1 = steps name members and lanes
    peer_list: Int32  # int32[], the lists of all members


# Upper bounds of the memory of a schedule, of a step (a tuple of numbers), and of a lane with its attributes
_BASE_BYTES, _STEP_BYTES, _LANE_BYTES = 12_000, 400, 400


@dataclass
class BuiltSchedule:
    """The checked plans of a schedule."""

    shared: SharedPlans  # the plans of all members
    shares: SharesOf  # the shares of the schedule's connections
    content: bytes = b""  # digest of the plans, b"" = not computed yet

    def bytes_of(self) -> int:
        """Return an upper bound of the memory in bytes of the schedule and what it depends on."""
        plans = self.shared.plans
        distinct = [*{id(plan): plan for plan in plans.plans}.values()]
        attributes = {id(own): len(own) for own in plans.attributes}.values()
        tables = [*plans.arrangements, self.shared.list_first, self.shared.peer_list]
        for view in plans.views:
            tables += view.member, view.at, view.part
        counted = _STEP_BYTES * sum(len(lane) for plan in distinct for lane in plan)
        counted += _LANE_BYTES * (sum(map(len, distinct)) + sum(attributes)) + sum(table.nbytes for table in tables)
        return _BASE_BYTES + counted + MEMBER_BYTES * plans.members


def shared(plans: Plans) -> SharedPlans:
    """Return the plans with lists of peers if these take less memory; otherwise steps name members and lanes.

    Args:
        plans: The plans of a schedule, with absolute peers in each step.
    """
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
    """Yield ranges of members, whose plans have about _SHARED_STEPS steps together."""
    first = steps = 0
    for member, plan in enumerate(plans, start=1):
        steps += sum(map(len, plan))
        if steps >= _SHARED_STEPS or member == len(plans):
            yield range(first, member)
            first, steps = member, 0


def _with_lists(steps: Int32, ptr: Int64) -> tuple[Int32, Int64, Int32]:
    """Return steps that index lists, the number of entries of each member's list, and all lists one after another.

    steps: int32[steps, 10] with absolute peers; ptr: int64[members + 1], first step of each member.
    """
    # For example, a member that sends to lane 2 of member 3 and receives from 7 and 9 gets the list [3, 7, 9, 2]. Its
    # sends then have peer 0 and lane 3, its receives peers 1 and 2. All arrays here run over all members.
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
    # A member's list holds its peers and then the lanes that take its messages
    begin = pointers(counts)[:-1]
    entries = np.empty(int(counts.sum()), np.int32)
    entries[np.arange(len(first)) + (begin - of_member[:-1])[owner[first]]] = peer[first]
    lane_owner = member[sends[first_lane]]
    entries[np.arange(len(first_lane)) + (begin + peers - lanes_of_member[:-1])[lane_owner]] = lane[first_lane]
    # `given` may be a view of the plans' own array, which must keep absolute numbers if lists turn out not to pay
    steps = steps.copy()
    steps[sends, _SEND_PEER], steps[receives, _RECV_PEER] = index[: len(sends)], index[len(sends) :]
    steps[sends, _SEND_LANE] = lane_index + peers[member[sends]]
    return steps, counts, entries


def _first_uses(owner: Int64, value: Int64, owners: int) -> tuple[Int64, Int64, Int64]:
    """Number the distinct values of each owner in the order of their first use.

    Returns the number of each value among those of its owner, the place of each first use, owner by owner, and
    int64[owners + 1], the first of these of each owner.
    """
    # One number for each (owner, value), so that one call of unique handles all owners
    key = owner * (value.max(initial=0) + 1) + value
    is_new = np.append(True, key[1:] != key[:-1])[: len(key)]  # most steps have the peer of the step before
    places = np.flatnonzero(is_new)
    _, first, which = np.unique(key[places], return_index=True, return_inverse=True)
    first = places[first]
    # unique sorts by value; number the values in the order of their first use instead, owner by owner
    order = np.lexsort((first, owner[first]))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    first = first[order]
    ptr = np.searchsorted(owner[first], np.arange(owners + 1))
    # cumsum(is_new) - 1 is the run to which each value belongs, `which` the distinct key of the run, `number` its rank
    # over all owners; ptr turns that into a number within the owner
    return number[which.reshape(-1)][np.cumsum(is_new) - 1] - ptr[owner], first, ptr
