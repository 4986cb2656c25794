"""Uneven all-to-alls of traces: how many bytes each member sends to each, put together from what all members say.

in_split_size of a member shares out its comm_size among the receivers, in any unit: PyTorch counts rows of a tensor.
out_split_size, where it stands, must say what the others send, in the same unit.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload.errors import WorkloadError
from workload.trace_sets.exchange import Exchange, agree, alone
from workload.trace_sets.groups import GroupTable
from workload.trace_sets.own import OwnTraces
from workload.trace_sets.view import TraceView

Int64 = NDArray[np.int64]

Matrices = Mapping[tuple[int, int], Int64]
"""int64[n, n] by group and place in it: bytes from member (row) to member (column). Equal ones are one array."""


class _Said(NamedTuple):
    """What the members of a rank say, k times.

    Attributes:
        group: int64[k].
        seq: int64[k], the how-manieth collective of the group.
        member: int64[k].
        sizes: int64[k], row of `lists`.
        lists: distinct int64[n], bytes to each member.
    """

    group: Int64
    seq: Int64
    member: Int64
    sizes: Int64
    lists: list[Int64]


class _Use(NamedTuple):
    """An uneven all-to-all of one NPU; at: its place among the collectives of the view."""

    view: TraceView
    at: int
    npu: int
    group: int
    seq: int
    member: int


def split_bytes(view: TraceView, at: int, numbers: Sequence[int]) -> Int64:
    """int64[n]: bytes that split sizes mean, of which in_split_size makes comm_size.

    Args:
        view: the trace.
        at: place among its collectives.
        numbers: in_split_size or out_split_size.
    """
    row = view.coll_rows[at]
    unit = sum(view.table.split_sizes[view.table.in_split_size[row]])
    size = int(view.table.comm_size[row])
    return np.array([number * size // unit if unit else 0 for number in numbers], np.int64)


def check_splits(view: TraceView) -> None:
    """Check that split sizes cut comm_size into whole bytes.

    Raises:
        WorkloadError: they do not.
    """
    for at in np.flatnonzero(view.coll_uneven).tolist():
        row = int(view.coll_rows[at])
        size, numbers = int(view.table.comm_size[row]), view.table.split_sizes[view.table.in_split_size[row]]
        if size > 0 and sum(numbers) == 0:
            raise WorkloadError(f"{view.node(row)}: in_split_size is all 0 and comm_size {size}, expected 0 too")
        broken = [number for number in numbers if number * size % max(sum(numbers), 1)]
        if broken:
            raise WorkloadError(
                f"{view.node(row)}: in_split_size has {broken[0]} of {sum(numbers)} in comm_size {size}, "
                "expected whole bytes"
            )


def matrices(own: OwnTraces, groups: GroupTable, exchange: Exchange = alone) -> Matrices:
    """The matrices of all uneven all-to-alls of the groups that a rank has; all members issue them alike.

    Args:
        own: traces of this rank's NPUs.
        groups: of these traces.
        exchange: with the other ranks.

    Raises:
        WorkloadError: split sizes of another number than members, or members that disagree on what one sends.
    """
    uses = agree(exchange, lambda: list(_checked_uses(own, groups)))
    found = _put_together(exchange(_said(uses)), groups)
    agree(exchange, lambda: _check_receivers(uses, found))
    return found


def _checked_uses(own: OwnTraces, groups: GroupTable) -> Iterator[_Use]:
    for view, users in zip(own.views, own.users, strict=True):
        places = np.flatnonzero(view.coll_uneven).tolist()
        for npu in users.tolist() if places else ():
            slots = groups.slots_of(npu)
            group, member = groups.slot_group[slots].tolist(), groups.slot_member[slots].tolist()
            for at in places:
                slot = int(view.coll_slot[at])
                use = _Use(view, at, npu, group[slot], int(view.coll_seq[at]), member[slot])
                _check_length(use, len(groups.members(use.group)))
                yield use


def _check_length(use: _Use, members: int) -> None:
    row, table = int(use.view.coll_rows[use.at]), use.view.table
    for name, column in (("in_split_size", table.in_split_size), ("out_split_size", table.out_split_size)):
        numbers = table.split_sizes[column[row]]
        if numbers and len(numbers) != members:
            raise WorkloadError(
                f"{use.view.node(row)}: {name} has {len(numbers)} numbers, expected one for each of the group's "
                f"{members} members",
                use.npu,
            )


def _said(uses: Sequence[_Use]) -> _Said:
    number: dict[bytes, int] = {}
    lists: list[Int64] = []
    sizes = np.empty(len(uses), np.int64)
    for i, use in enumerate(uses):
        table = use.view.table
        found = split_bytes(use.view, use.at, table.split_sizes[table.in_split_size[use.view.coll_rows[use.at]]])
        key = found.tobytes()
        if key not in number:
            number[key] = len(lists)
            lists.append(found)
        sizes[i] = number[key]
    group, seq, member = np.array([(use.group, use.seq, use.member) for use in uses], np.int64).reshape(-1, 3).T
    return _Said(group, seq, member, sizes, lists)


def _put_together(of_ranks: Sequence[_Said], groups: GroupTable) -> dict[tuple[int, int], Int64]:
    lists = [one for said in of_ranks for one in said.lists]
    first = np.cumsum([0, *(len(said.lists) for said in of_ranks)])
    sizes = np.concatenate([said.sizes + at for said, at in zip(of_ranks, first, strict=False)])
    group, seq, member = (np.concatenate(column) for column in zip(*(said[:3] for said in of_ranks), strict=True))
    order = np.lexsort((member, seq, group))
    group, seq, sizes = group[order], seq[order], sizes[order]
    begins = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(seq, prepend=-1) != 0))
    found: dict[tuple[int, int], Int64] = {}
    known: dict[bytes, Int64] = {}
    for begin, end in pairwise([*begins.tolist(), len(order)]):
        if len(groups.members(int(group[begin]))):
            matrix = np.stack([lists[i] for i in sizes[begin:end].tolist()])
            found[int(group[begin]), int(seq[begin])] = known.setdefault(matrix.tobytes(), matrix)
    return found


def _check_receivers(uses: Sequence[_Use], found: Matrices) -> None:
    """What members say that they receive is what is sent to them; who sends nothing has no unit to say it in."""
    for use in uses:
        row, table = int(use.view.coll_rows[use.at]), use.view.table
        numbers = table.split_sizes[table.out_split_size[row]]
        if not numbers or not any(table.split_sizes[table.in_split_size[row]]):
            continue
        expected, sent = split_bytes(use.view, use.at, numbers), found[use.group, use.seq][:, use.member]
        if not np.array_equal(expected, sent):
            wrong = int(np.argmax(expected != sent))
            raise WorkloadError(
                f"{use.view.node(row)}: out_split_size says {expected[wrong]} B from member {wrong}, expected "
                f"the {sent[wrong]} B of its in_split_size",
                use.npu,
            )
