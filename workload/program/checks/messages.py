"""Check that every send has its receive and every collective its members, since an NPU would otherwise wait for ever.

The sum over all pairs of NPUs of `et.checking.matching.message_sums` times a hash of the pair is one number, which the
ranks compare. Only if it is not 0 do the ranks search for the pair and exchange its messages.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nadi.et.checking import matching, shifts_of
from nadi.inputs.arrays import Int64, Mask, UInt64
from nadi.workload.errors import Exchange, WorkloadError, agree, alone, first_of
from nadi.workload.kinds import BARRIER
from nadi.workload.trace_sets.groups import GroupTable
from nadi.workload.trace_sets.trace_set import OwnTraces, TraceView


class _Message(NamedTuple):
    """One end of a message; ends sort in the order of error messages."""

    tag: int  # tag of the message
    seq: int  # number of earlier messages with the same ends and tag
    is_receive: bool  # whether this is the receiver's end
    size: int  # size in bytes
    node: str  # place of the node, for errors


def check_messages(rank_traces: OwnTraces, exchange: Exchange = alone) -> None:
    """Check that every send has its receive and the other way round.

    Raises WorkloadError: an NPU sends to itself, a trace has another NPU's number as its own end, a send or receive has
    no counterpart, or the two differ in size.

    Args:
        rank_traces: The distinct traces of this rank's NPUs.
        exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
    """
    npus = len(rank_traces.trace_of_npu)
    of_traces = agree(exchange, lambda: rank_traces.each(lambda view, users: _sums(view, users, npus)))
    # The factor is odd, which has an inverse mod 2^64: a difference of one pair never becomes 0. An even one could lose
    # it, as 2^63 x 2 = 0. The hash of sizes includes the tag and the number, and so also shows a missing end.
    excess = sum(int(((matching.mixed(of.pair) | np.uint64(1)) * of.sizes).sum(dtype=np.uint64)) for of in of_traces)
    if sum(exchange(excess)) % 2**64 == 0:
        return
    total = matching.by_pair(exchange(matching.by_pair(of_traces)))
    wrong = total.ends if np.any(total.ends) else total.sizes  # unmatched ends come first
    pair = int(total.pair[np.argmax(wrong != 0)])
    _raise_unmatched(pair // npus, pair % npus, exchange(_messages(rank_traces, pair)))


def _sums(view: TraceView, running_npus: Int64, npus: int) -> matching.MessageSums:
    """Return the sums of the NPUs that run a trace, of `npus` in all, after checking their own ends of messages."""
    shifts = shifts_of(running_npus, view.example)
    _check_ends(view, running_npus, shifts)
    return matching.message_sums(view.messages, running_npus, shifts, npus)


def _check_ends(view: TraceView, running_npus: Int64, shifts: Int64) -> None:
    """Check that no NPU sends to itself, and that a trace's own end is right for all NPUs that run it."""
    # The error is that of the smallest NPU.
    errors, messages = [], view.messages
    with_itself, of_others = matching.wrong_owners(messages, running_npus, shifts)
    if np.any(with_itself):
        number = messages.peer[with_itself].min()
        npu, wrong = int(number + shifts[0]), messages.peer == number
        errors.append(_wrong_end(view, npu, wrong, "sends to or receives from itself, expected another peer"))
    if np.any(of_others):
        # Of two NPUs that run the trace as it is written, the second one differs if the first does not
        differs = (messages.own >= 0) & (messages.own + shifts[0] != running_npus[0])
        at = 0 if np.any(differs) else 1
        wrong = (messages.own >= 0) & (messages.own + shifts[at] != running_npus[at])
        errors.append(_wrong_end(view, int(running_npus[at]), wrong, "runs it, but its own end is another NPU's"))
    if errors:
        raise first_of(errors)


def _wrong_end(view: TraceView, npu: int, is_wrong: Mask, text: str) -> WorkloadError:
    """Return the error of the first wrong message of a trace, bool[messages], that NPU `npu` runs."""
    r = int(view.messages.row[np.argmax(is_wrong)])
    ends = f"comm_src {view.table.comm_src[r]}, comm_dst {view.table.comm_dst[r]}"
    written = f", as NPU {view.example} has it" if view.shift(npu) else ""
    return WorkloadError(f"{view.node(r)}: NPU {npu} {text} ({ends}{written})", npu)


def _messages(rank_traces: OwnTraces, pair_number: int) -> list[_Message]:
    """Return the ends of the messages of a pair of NPUs (source x NPUs + target) on this rank."""
    ends = divmod(pair_number, len(rank_traces.trace_of_npu))
    messages = []
    for npu, other, is_send in (*zip(ends, reversed(ends), (True, False), strict=True),):
        if rank_traces.trace_of_npu[npu] >= 0:
            view = rank_traces.views[rank_traces.trace_of_npu[npu]]
            own = view.messages
            for i in own.with_peer(other - view.shift(npu), is_send=is_send).tolist():
                message = int(own.tag[i]), int(own.seq[i]), not is_send, int(own.size[i])
                messages.append(_Message(*message, view.node(int(own.row[i]))))
    return messages


def _raise_unmatched(source: int, target: int, messages_of_ranks: Sequence[list[_Message]]) -> NoReturn:
    """Raise the error of a pair's first unmatched message, else of the first with two sizes."""
    ends_of = defaultdict(list)
    for message in sorted(chain.from_iterable(messages_of_ranks)):
        ends_of[message.tag, message.seq].append(message)
    for (tag, seq), ends in ends_of.items():
        if len(ends) == 1:
            what = f"receive {seq} on NPU {target} from NPU {source} with tag {tag} has no send there"
            if not ends[0].is_receive:
                what = f"send {seq} from NPU {source} to NPU {target} with tag {tag} has no receive there"
            raise WorkloadError(f"{ends[0].node}: {what}")
    send, receive = next(ends for ends in ends_of.values() if ends[0].size != ends[1].size)
    raise WorkloadError(
        f"{send.node}: NPU {source} sends {send.size} B, but NPU {target} expects {receive.size} B ({receive.node})"
    )


# Check that the members of each group issue the same collectives in the same order, so that no NPU waits for ever.
#
# Ranks compare digests of the collectives that their members issue. Only if digests differ do they exchange details.


_ANY_SIZE = -1


class _Slots(NamedTuple):
    """The u slots of a rank's NPUs, by group and then NPU."""

    group: Int64  # int64[u], group of each slot
    npu: Int64  # int64[u], NPU of each slot
    slot: Int64  # int64[u], number of the slot on its NPU
    issued: UInt64  # uint64[u, 2], digest of the collectives that the NPU issues in the group


class _Summary(NamedTuple):
    """A rank's summary of the k groups of its NPUs."""

    group: Int64  # int64[k], numbers of the groups
    members: Int64  # int64[k], numbers of members
    users: Int64  # int64[k], numbers of members that are this rank's NPUs and use the group
    issued: UInt64  # uint64[k, 2], digest of the first user's collectives
    alike: Mask  # bool[k], whether all users have this digest


class _Issued(NamedTuple):
    """Texts about the collectives that an NPU issues in a group, for error messages."""

    npu: int  # Number of the NPU
    group: str  # Name of the group
    path: str  # Path of the NPU's trace
    node: list[str]  # File and node of each collective in order
    words: list[str]  # Kind and size of each collective, equal for collectives that match


def check_collectives(rank_traces: OwnTraces, group_table: GroupTable, exchange: Exchange = alone) -> None:
    """Check that all members of a group issue the same collectives in the same order; WorkloadError if they do not.

    Args:
        rank_traces: The distinct traces of this rank's NPUs.
        group_table: The groups of all NPUs, with the members of those that this rank's NPUs use.
        exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
    """
    slots = _slots(rank_traces, group_table)
    columns = [np.concatenate(column) for column in zip(*exchange(_summary(slots, group_table)), strict=True)]
    by_group = np.argsort(columns[0], kind="stable")
    total = _Summary(*(column[by_group] for column in columns))
    if len(total.group) == 0:
        return
    first = _firsts(total.group)
    is_short = np.add.reduceat(total.users, first) != total.members[first]
    wrong = is_short | ~(matching.are_alike(total.issued, first) & np.logical_and.reduceat(total.alike, first))
    if not np.any(wrong):
        return
    at = int(np.argmax(wrong))
    group = int(total.group[first[at]])
    if is_short[at]:
        _raise_absence(rank_traces, group_table, slots, group, exchange)
    _raise_difference(rank_traces, slots, group, exchange)


def _slots(rank_traces: OwnTraces, group_table: GroupTable) -> _Slots:
    """Return the slots of this rank's NPUs (uses of groups), by group and then NPU."""
    npu = np.repeat(np.arange(len(rank_traces.trace_of_npu)), np.diff(group_table.slot_ptr))
    slot = np.arange(len(npu)) - group_table.slot_ptr[npu]
    # Digests of all traces in one list: those of trace t begin at start[t], one for each of its slots
    start = np.cumsum([0, *(len(view.slot_names) for view in rank_traces.views)])
    issued = np.concatenate([np.zeros((0, 2), np.uint64), *(_digests(view) for view in rank_traces.views)])
    order = np.argsort(group_table.slot_group, kind="stable")
    group, npu, slot = group_table.slot_group[order].astype(np.int64), npu[order], slot[order]
    return _Slots(group, npu, slot, issued[start[rank_traces.trace_of_npu[npu]] + slot])


def _digests(view: TraceView) -> UInt64:
    """Return uint64[slots, 2]: digests of the kinds and sizes of each slot's collectives in order."""
    # Barriers have no size, and the sizes of an all-to-all with split sizes may differ between members.
    size = np.where(view.coll_kind == BARRIER, 0, view.table.comm_size[view.coll_rows])
    size[view.coll_uneven] = _ANY_SIZE
    return matching.sequence_digests(view.coll_slot, [view.coll_kind, size], len(view.slot_names))


def _summary(slots: _Slots, group_table: GroupTable) -> _Summary:
    """Return the summary of the groups that this rank's slots use."""
    first = _firsts(slots.group)
    group = slots.group[first]
    return _Summary(
        group=group,
        members=group_table.sizes()[group],
        users=np.diff(first, append=len(slots.group)),
        issued=slots.issued[first],
        alike=matching.are_alike(slots.issued, first),
    )


def _firsts(group: Int64) -> Int64:
    """Return the first index of each run of equal groups."""
    return np.flatnonzero(np.diff(group, prepend=-1))


def _raise_absence(
    rank_traces: OwnTraces, group_table: GroupTable, slots: _Slots, group: int, exchange: Exchange
) -> NoReturn:
    """Raise the error of the first member that does not use the group at all."""
    members, users = (
        np.concatenate(of_ranks)
        for of_ranks in zip(*exchange((group_table.members(group), slots.npu[slots.group == group])), strict=True)
    )
    absent = int(np.setdiff1d(members, users)[0])
    first, path = _gathered(exchange, _issued(rank_traces, slots, group, int(users.min())), _path(rank_traces, absent))
    state = f"whose trace {path} has no collective of this group" if path else "no trace"
    raise WorkloadError(
        f'{first.node[0]}: group "{first.group}": {first.words[0]}, the first of the group, has no counterpart '
        f"on member NPU {absent}: {state}"
    )


def _raise_difference(rank_traces: OwnTraces, slots: _Slots, group: int, exchange: Exchange) -> NoReturn:
    """Raise the error of the first member that issues something else than the group's first user."""
    mine = slots.group == group
    of_ranks = exchange(list(zip(slots.npu[mine].tolist(), slots.issued[mine].tolist(), strict=True)))
    (npu, issued), *others = sorted(chain.from_iterable(of_ranks))
    other = next(npu for npu, other_issued in others if other_issued != issued)
    a, b = _gathered(exchange, _issued(rank_traces, slots, group, npu), _issued(rank_traces, slots, group, other))
    k = matching.first_difference(a.words, b.words)
    shorter, longer = sorted((a, b), key=lambda issued: len(issued.node))
    if k < len(shorter.node):
        raise WorkloadError(
            f'{a.node[k]}: group "{a.group}": collective {k} on NPU {a.npu} is {a.words[k]}, '
            f"but on NPU {b.npu} it is {b.words[k]} ({b.node[k]})"
        )
    raise WorkloadError(
        f'{longer.node[k]}: group "{longer.group}": {longer.words[k]}, collective {k} of the group, '
        f"has no counterpart on member NPU {shorter.npu}, which issues {k} ({shorter.path})"
    )


def _gathered(exchange: Exchange, *facts: object) -> list[Any]:
    """Return facts that one rank each has; the other ranks pass None."""
    return [next((f for f in of_ranks if f is not None), None) for of_ranks in zip(*exchange(facts), strict=True)]


def _issued(rank_traces: OwnTraces, slots: _Slots, group: int, npu: int) -> _Issued | None:
    """Return the collectives that an NPU issues in a group; None on other ranks."""
    at = np.flatnonzero((slots.group == group) & (slots.npu == npu))
    if len(at) == 0:
        return None
    view, slot = rank_traces.views[rank_traces.trace_of_npu[npu]], int(slots.slot[at[0]])
    rows = view.slot_rows(slot).tolist()
    return _Issued(
        npu, view.slot_names[slot], view.table.path, [view.node(r) for r in rows], [view.collective(r) for r in rows]
    )


def _path(rank_traces: OwnTraces, npu: int) -> str | None:
    """Return the path of an NPU's trace; None without a trace and on other ranks."""
    trace = rank_traces.trace_of_npu[npu]
    return rank_traces.views[trace].table.path if trace >= 0 else None
