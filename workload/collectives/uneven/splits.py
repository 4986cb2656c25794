"""Uneven all-to-alls of traces: the bytes from member to member, assembled from the split sizes of all members.

A member's in_split_size divides its comm_size among the receivers, in any unit: PyTorch counts rows of a tensor.
out_split_size, if given, must agree with what the others send, in the same unit.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from nadi.et.arrays import Int32, Int64
from nadi.workload.errors import Exchange, WorkloadError, agree, alone
from nadi.workload.trace_sets.groups import GroupTable
from nadi.workload.trace_sets.rank_traces import OwnTraces
from nadi.workload.trace_sets.view import TraceView

# int64[n, n] by group and index of the collective in it: bytes from member (row) to member (column). Equal matrices are
# one array.
Matrices = Mapping[tuple[int, int], Int64]


class _SplitSizes(NamedTuple):
    """The split sizes of the k uses of uneven all-to-alls by the members of a rank."""

    group: Int64  # int64[k], group of the use
    seq: Int64  # int64[k], index of the collective in its group
    member: Int64  # int64[k], number of the member
    sizes: Int64  # int64[k], row of `lists`
    lists: list[Int64]  # distinct int64[n], bytes to each member


class _Use(NamedTuple):
    """An uneven all-to-all of all NPUs that share a trace."""

    view: TraceView  # view of the trace
    at: int  # index among the collectives of the view
    npu: Int64  # int64[k], numbers of the NPUs, ascending
    group: Int64  # int64[k], group of each NPU
    member: Int64  # int64[k], number of the NPU in its group

    @property
    def seq(self) -> int:
        """The index of the collective in its group."""
        return int(self.view.coll_seq[self.at])

    @property
    def row(self) -> int:
        """The row of the trace."""
        return int(self.view.coll_rows[self.at])

    def splits(self, column: Int32) -> tuple[int, ...]:
        """Return the split sizes; column: in_split_size or out_split_size of the trace."""
        return self.view.table.split_sizes[column[self.row]]


def split_bytes(view: TraceView, collective_number: int, numbers: Sequence[int]) -> Int64:
    """Return int64[n]: bytes of in_split_size or out_split_size (numbers), where in_split_size sums up to comm_size."""
    row = view.coll_rows[collective_number]
    unit = sum(view.table.split_sizes[view.table.in_split_size[row]])
    size = int(view.table.comm_size[row])
    return np.array([number * size // unit if unit else 0 for number in numbers], np.int64)


def check_splits(view: TraceView) -> None:
    """Check that split sizes divide comm_size into whole bytes; WorkloadError if not."""
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


def matrices(rank_traces: OwnTraces, group_table: GroupTable, exchange: Exchange = alone) -> Matrices:
    """Return the matrices of all uneven all-to-alls of this rank's groups; exchange: exchange with other ranks.

    Raises WorkloadError: a number of split sizes that is not the number of members, or members that disagree on a size.
    """
    uses = agree(exchange, lambda: _checked_uses(rank_traces, group_table))
    by_use = _assemble(exchange(_split_sizes(uses)), group_table)
    agree(exchange, lambda: _check_receivers(uses, by_use))
    return by_use


def _checked_uses(rank_traces: OwnTraces, group_table: GroupTable) -> list[_Use]:
    """Return the uses of uneven all-to-alls by this rank's NPUs, after a check of their numbers of split sizes."""
    sizes = group_table.sizes()
    uses: list[_Use] = []
    for view, users in zip(rank_traces.views, rank_traces.users, strict=True):
        of_view = []
        for at in np.flatnonzero(view.coll_uneven).tolist() if len(users) else ():
            slots = group_table.slot_ptr[users] + int(view.coll_slot[at])
            group = group_table.slot_group[slots].astype(np.int64)
            member = group_table.slot_member[slots].astype(np.int64)
            of_view.append(_Use(view, at, np.asarray(users, np.int64), group, member))
        _check_lengths(of_view, sizes)
        uses += of_view
    return uses


def _check_lengths(uses_of_trace: Sequence[_Use], sizes: Int64) -> None:
    """Check that each use has one number per member; sizes: members of each group. The message names the first NPU."""
    wrong = []
    for use in uses_of_trace:
        table = use.view.table
        for name, column in (("in_split_size", table.in_split_size), ("out_split_size", table.out_split_size)):
            count = len(use.splits(column))
            differs = sizes[use.group] != count
            if count and differs.any():
                first = int(np.argmax(differs))
                wrong.append((int(use.npu[first]), use.at, name, count, use.row, int(sizes[use.group[first]])))
    if wrong:
        npu, _, name, count, row, members = min(wrong)
        raise WorkloadError(
            f"{uses_of_trace[0].view.node(row)}: {name} has {count} numbers, expected one for each of the group's "
            f"{members} members",
            npu,
        )


def _split_sizes(uses: Sequence[_Use]) -> _SplitSizes:
    """Return the split sizes of all uses, equal lists once."""
    number: dict[bytes, int] = {}
    lists: list[Int64] = []
    sizes = []
    for use in uses:
        sent_bytes = split_bytes(use.view, use.at, use.splits(use.view.table.in_split_size))
        key = sent_bytes.tobytes()
        if key not in number:
            number[key] = len(lists)
            lists.append(sent_bytes)
        sizes.append(np.full(len(use.npu), number[key], np.int64))
    none = np.zeros(0, np.int64)
    group, member = (np.concatenate([none, *column]) for column in ([u.group for u in uses], [u.member for u in uses]))
    seq = np.concatenate([none, *(np.full(len(use.npu), use.seq, np.int64) for use in uses)])
    return _SplitSizes(group, seq, member, np.concatenate([none, *sizes]), lists)


def _assemble(sizes_of_ranks: Sequence[_SplitSizes], group_table: GroupTable) -> dict[tuple[int, int], Int64]:
    """Return the matrix of bytes by (group, number of the all-to-all in it), int64[n, n], from all ranks' sizes."""
    lists, sizes = _numbered(sizes_of_ranks)
    group, seq, member = (np.concatenate(column) for column in zip(*(said[:3] for said in sizes_of_ranks), strict=True))
    order = np.lexsort((member, seq, group))
    group, seq, sizes = group[order], seq[order], sizes[order]
    begins = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(seq, prepend=-1) != 0))
    is_held = group_table.sizes()[group[begins]] > 0
    ends = np.append(begins, len(order))[1:]
    matrices: dict[tuple[int, int], Int64] = {}
    known: dict[bytes, Int64] = {}
    for begin, end in zip(begins[is_held].tolist(), ends[is_held].tolist(), strict=True):
        key = sizes[begin:end].tobytes()
        if key not in known:
            known[key] = np.stack([lists[i] for i in sizes[begin:end].tolist()])
        matrices[int(group[begin]), int(seq[begin])] = known[key]
    return matrices


def _numbered(sizes_of_ranks: Sequence[_SplitSizes]) -> tuple[list[Int64], Int64]:
    """Return the distinct lists of all ranks, and the list of each use of all ranks."""
    number: dict[bytes, int] = {}
    lists: list[Int64] = []
    sizes = []
    for said in sizes_of_ranks:
        own = np.empty(len(said.lists), np.int64)
        for i, sizes_to_members in enumerate(said.lists):
            own[i] = number.setdefault(sizes_to_members.tobytes(), len(lists))
            if own[i] == len(lists):
                lists.append(sizes_to_members)
        sizes.append(own[said.sizes])
    return lists, np.concatenate(sizes)


def _check_receivers(uses: Sequence[_Use], matrices: Matrices) -> None:
    """Check out_split_size against the bytes sent; a member that sends nothing has no unit and is not checked."""
    for _, of_view in groupby(uses, key=lambda use: id(use.view)):
        wrong = [complaint for use in of_view if (complaint := _complaint(use, matrices))]
        if wrong:
            npu, _, text = min(wrong)
            raise WorkloadError(text, npu)


def _complaint(use: _Use, matrices: Matrices) -> tuple[int, int, str] | None:
    """Return the first NPU whose out_split_size differs from what others send, the use's index and the message."""
    numbers = use.splits(use.view.table.out_split_size)
    if not numbers or not any(use.splits(use.view.table.in_split_size)):
        return None
    expected = split_bytes(use.view, use.at, numbers)
    compared: set[tuple[int, int]] = set()
    for npu, group, member in zip(use.npu.tolist(), use.group.tolist(), use.member.tolist(), strict=True):
        matrix = matrices[group, use.seq]
        if (id(matrix), member) in compared:  # equal matrices are one array
            continue
        compared.add((id(matrix), member))
        sent = matrix[:, member]
        if not np.array_equal(expected, sent):
            wrong = int(np.argmax(expected != sent))
            text = (
                f"{use.view.node(use.row)}: out_split_size says {expected[wrong]} B from member {wrong}, expected "
                f"the {sent[wrong]} B of its in_split_size"
            )
            return npu, use.at, text
    return None
