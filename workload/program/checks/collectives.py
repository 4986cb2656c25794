"""Check that the members of each group issue the same collectives in the same order, so that no NPU waits for ever.

Ranks compare digests of the collectives that their members issue. Only if digests differ do they exchange details.
"""

import hashlib
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nadi.et.arrays import Int64, Mask, UInt64
from nadi.workload.errors import Exchange, WorkloadError, alone
from nadi.workload.kinds import BARRIER
from nadi.workload.trace_sets.groups import GroupTable
from nadi.workload.trace_sets.rank_traces import OwnTraces
from nadi.workload.trace_sets.view import TraceView

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
    """Check that all members of a group issue the same collectives in the same order; WorkloadError if they do not."""
    slots = _slots(rank_traces, group_table)
    columns = [np.concatenate(column) for column in zip(*exchange(_summary(slots, group_table)), strict=True)]
    by_group = np.argsort(columns[0], kind="stable")
    total = _Summary(*(column[by_group] for column in columns))
    if len(total.group) == 0:
        return
    first = _firsts(total.group)
    is_short = np.add.reduceat(total.users, first) != total.members[first]
    wrong = is_short | ~_alike(total.issued, total.alike, first)
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
    start = np.cumsum([0, *(len(view.slot_names) for view in rank_traces.views)])
    issued = np.concatenate([np.zeros((0, 2), np.uint64), *(_digests(view) for view in rank_traces.views)])
    order = np.argsort(group_table.slot_group, kind="stable")
    group, npu, slot = group_table.slot_group[order].astype(np.int64), npu[order], slot[order]
    return _Slots(group, npu, slot, issued[start[rank_traces.trace_of_npu[npu]] + slot])


def _digests(view: TraceView) -> UInt64:
    """Return uint64[slots, 2]: digests of the kinds and sizes of each slot's collectives in order."""
    # Barriers have no size, and the sizes of an all-to-all with split sizes may differ between members.
    order = np.argsort(view.coll_slot, kind="stable")
    kind = view.coll_kind[order]
    size = np.where(kind == BARRIER, 0, view.table.comm_size[view.coll_rows[order]])
    size[view.coll_uneven[order]] = _ANY_SIZE
    ends = np.cumsum(np.bincount(view.coll_slot, minlength=len(view.slot_names))).tolist()
    digests = b"".join(
        hashlib.blake2b(kind[begin:end].tobytes() + size[begin:end].tobytes(), digest_size=16).digest()
        for begin, end in zip([0, *ends], ends, strict=False)
    )
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def _summary(slots: _Slots, group_table: GroupTable) -> _Summary:
    """Return the summary of the groups that this rank's slots use."""
    first = _firsts(slots.group)
    group = slots.group[first]
    return _Summary(
        group=group,
        members=group_table.sizes()[group],
        users=np.diff(first, append=len(slots.group)),
        issued=slots.issued[first],
        alike=_alike(slots.issued, np.ones(len(slots.group), np.bool_), first),
    )


def _firsts(group: Int64) -> Int64:
    """Return the first index of each run of equal groups."""
    return np.flatnonzero(np.diff(group, prepend=-1))


def _alike(digests: UInt64, are_equal: Mask, run_begins: Int64) -> Mask:
    """Return for each run of digests whether they and its entries of are_equal are all equal and true."""
    if len(run_begins) == 0:
        return np.zeros(0, np.bool_)
    smallest, largest = (np.asarray(pick.reduceat(digests, run_begins, axis=0)) for pick in (np.minimum, np.maximum))
    return np.all(smallest == largest, axis=1) & np.logical_and.reduceat(are_equal, run_begins)


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
    for k, (in_a, in_b) in enumerate(zip(a.words, b.words, strict=False)):
        if in_a != in_b:
            raise WorkloadError(
                f'{a.node[k]}: group "{a.group}": collective {k} on NPU {a.npu} is {in_a}, '
                f"but on NPU {b.npu} it is {in_b} ({b.node[k]})"
            )
    shorter, longer = sorted((a, b), key=lambda issued: len(issued.node))
    k = len(shorter.node)
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
