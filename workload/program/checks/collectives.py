"""The members of each group must issue the same collectives in the same order, or somebody waits for ever.

Ranks compare digests of what their members issue. Only when something is wrong do those that have it say more.
"""

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from workload.errors import WorkloadError
from workload.kinds import BARRIER
from workload.trace_sets.exchange import Exchange, alone
from workload.trace_sets.groups import GroupTable
from workload.trace_sets.own import OwnTraces
from workload.trace_sets.view import TraceView

Int64 = NDArray[np.int64]
Digests = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_ANY_SIZE = -1


class _Slots(NamedTuple):
    """The slots of a rank's NPUs, u of them, by group and then NPU.

    Attributes:
        group: int64[u].
        npu: int64[u].
        slot: int64[u], the NPU's own number for the group.
        issued: uint64[u, 2], digest of the collectives that the NPU issues there.
    """

    group: Int64
    npu: Int64
    slot: Int64
    issued: Digests


class _Summary(NamedTuple):
    """What a rank says about the k groups of its NPUs.

    Attributes:
        group: int64[k].
        members: int64[k], how many the group has.
        users: int64[k], how many of them are this rank's and use it.
        issued: uint64[k, 2], digest of the first user's collectives.
        alike: bool[k], that of all users.
    """

    group: Int64
    members: Int64
    users: Int64
    issued: Digests
    alike: Mask


class _Issued(NamedTuple):
    """What an NPU issues in a group, in words; told only when it is not as it should be.

    Attributes:
        npu: the NPU.
        group: name of the group.
        path: the trace.
        node: file and node of each collective in order.
        words: kind and size of each, equal for collectives that fit together.
    """

    npu: int
    group: str
    path: str
    node: list[str]
    words: list[str]


def check_collectives(own: OwnTraces, groups: GroupTable, exchange: Exchange = alone) -> None:
    """Check that all members of each group issue the same collectives in the same order.

    Args:
        own: traces of this rank's NPUs.
        groups: of these traces.
        exchange: with the other ranks.

    Raises:
        WorkloadError: a member lacks a collective, or members disagree in kind or size.
    """
    slots = _slots(own, groups)
    total = _by_group(exchange(_summary(slots, groups)))
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
        _tell_absence(own, groups, slots, group, exchange)
    _tell_difference(own, slots, group, exchange)


def _slots(own: OwnTraces, groups: GroupTable) -> _Slots:
    npu = np.repeat(np.arange(len(own.trace_of_npu)), np.diff(groups.slot_ptr))
    slot = np.arange(len(npu)) - groups.slot_ptr[npu]
    start = np.cumsum([0, *(len(view.slot_names) for view in own.views)])
    issued = np.concatenate([np.zeros((0, 2), np.uint64), *(_digests(view) for view in own.views)])
    order = np.argsort(groups.slot_group, kind="stable")
    group, npu, slot = groups.slot_group[order].astype(np.int64), npu[order], slot[order]
    return _Slots(group, npu, slot, issued[start[own.trace_of_npu[npu]] + slot])


def _digests(view: TraceView) -> Digests:
    """uint64[slots, 2]: of the kinds and sizes of each slot's collectives in order; a barrier has no size.

    Members of an all-to-all with split sizes may have different ones.
    """
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


def _summary(slots: _Slots, groups: GroupTable) -> _Summary:
    first = _firsts(slots.group)
    group = slots.group[first]
    return _Summary(
        group=group,
        members=groups.sizes()[group],
        users=np.diff(first, append=len(slots.group)),
        issued=slots.issued[first],
        alike=_alike(slots.issued, np.ones(len(slots.group), np.bool_), first),
    )


def _by_group(of_ranks: Sequence[_Summary]) -> _Summary:
    """Summaries of all ranks, those of a group together."""
    order = np.argsort(np.concatenate([summary.group for summary in of_ranks]), kind="stable")
    return _Summary(*(np.concatenate(column)[order] for column in zip(*of_ranks, strict=True)))


def _firsts(group: Int64) -> Int64:
    """Where each run of equal groups begins."""
    return np.flatnonzero(np.diff(group, prepend=-1))


def _alike(issued: Digests, alike: Mask, first: Int64) -> Mask:
    """Of each run that begins at `first`: whether all are alike, among themselves and with each other."""
    if len(first) == 0:
        return np.zeros(0, np.bool_)
    least, most = (np.asarray(pick.reduceat(issued, first, axis=0)) for pick in (np.minimum, np.maximum))
    return np.all(least == most, axis=1) & np.logical_and.reduceat(alike, first)


def _tell_absence(own: OwnTraces, groups: GroupTable, slots: _Slots, group: int, exchange: Exchange) -> NoReturn:
    """Raise the error of the first member that does not use the group at all."""
    members, users = (
        np.concatenate(of_ranks)
        for of_ranks in zip(*exchange((groups.members(group), slots.npu[slots.group == group])), strict=True)
    )
    absent = int(np.setdiff1d(members, users)[0])
    first, path = _told(exchange, _issued(own, slots, group, int(users.min())), _path(own, absent))
    state = f"whose trace {path} has no collective of this group" if path else "no trace"
    raise WorkloadError(
        f'{first.node[0]}: group "{first.group}": {first.words[0]}, the first of the group, has no counterpart '
        f"on member NPU {absent}: {state}"
    )


def _tell_difference(own: OwnTraces, slots: _Slots, group: int, exchange: Exchange) -> NoReturn:
    """Raise the error of the first member that issues something else than the group's first user."""
    mine = slots.group == group
    of_ranks = exchange(list(zip(slots.npu[mine].tolist(), slots.issued[mine].tolist(), strict=True)))
    (npu, issued), *others = sorted(chain.from_iterable(of_ranks))
    other = next(npu for npu, other_issued in others if other_issued != issued)
    a, b = _told(exchange, _issued(own, slots, group, npu), _issued(own, slots, group, other))
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


def _told(exchange: Exchange, *facts: object) -> list[Any]:
    """Facts that one rank each has; None is what the others have."""
    return [next((f for f in of_ranks if f is not None), None) for of_ranks in zip(*exchange(facts), strict=True)]


def _issued(own: OwnTraces, slots: _Slots, group: int, npu: int) -> _Issued | None:
    """What an NPU issues in a group; None on other ranks."""
    at = np.flatnonzero((slots.group == group) & (slots.npu == npu))
    if len(at) == 0:
        return None
    view, slot = own.views[own.trace_of_npu[npu]], int(slots.slot[at[0]])
    rows = view.slot_rows(slot).tolist()
    return _Issued(
        npu, view.slot_names[slot], view.table.path, [view.node(r) for r in rows], [view.collective(r) for r in rows]
    )


def _path(own: OwnTraces, npu: int) -> str | None:
    """The trace of an NPU; None where it has none and on other ranks."""
    trace = own.trace_of_npu[npu]
    return own.views[trace].table.path if trace >= 0 else None
