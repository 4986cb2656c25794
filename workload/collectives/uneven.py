"""All-to-all with a separate number of bytes for each pair (all-to-all-v), such as tokens sent to their experts.

A chunk is one unit, the greatest common divisor of all sizes. In a collective of `buffer_bytes` every message therefore
has exactly the bytes of the matrix. Blocks are ordered by receiver in the input and by sender in the output.

Hierarchically, a member gives the member in place p of its own host all its data for members in place p of any host;
that member sends each host's share to the member in its own place there. Thus only messages between equal places leave
a host, one per other host.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi.inputs.arrays import Int32, Int64
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own
from nadi.workload.errors import Exchange, WorkloadError, agree, alone
from nadi.workload.trace_sets.groups import GroupTable
from nadi.workload.trace_sets.trace_set import OwnTraces, TraceView

NAME = "all-to-all-v"
ALGORITHMS = ("direct", "pairwise", "hierarchical")

_MAX_CHUNKS = 1 << 28  # maximum number of units in a buffer: chunk numbers over all regions must fit into int32
# Regions: output, data by receiving place, data received from the own host, the same sorted by host, and data received
# from other hosts
_OUTPUT, _TO_PLACES, _GIVEN, _TO_HOSTS, _COME = 1, 2, 3, 4, 5


class Units(NamedTuple):
    """A matrix of sizes in units."""

    unit_bytes: int  # size of a unit, which is one chunk
    chunks: int  # number of chunks of the fullest buffer, the size of all buffers
    sent: Int64  # int64[n, n], units from member to member


def units(matrix_bytes: ArrayLike) -> Units:
    """Return a matrix of bytes as whole numbers of their greatest common divisor.

    Raises WorkloadError: a matrix that is not square, not integer or negative, or more than 2^28 units in a buffer.

    Args:
        matrix_bytes: The bytes from member (row) to member (column), int[n, n].
    """
    try:
        matrix = np.asarray(matrix_bytes)
    except ValueError:
        raise WorkloadError("all-to-all-v: rows of unlike lengths, expected a square matrix of bytes") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        shape = " x ".join(map(str, matrix.shape)) or "one number"
        raise WorkloadError(f"all-to-all-v: a matrix of {shape}, expected a square one of bytes")
    if not np.issubdtype(matrix.dtype, np.integer):
        raise WorkloadError(f"all-to-all-v: a matrix of {matrix.dtype}, expected whole numbers of bytes")
    if matrix.min() < 0:
        src, dst = np.unravel_index(matrix.argmin(), matrix.shape)
        raise WorkloadError(f"all-to-all-v: {matrix.min()} B from member {src} to {dst}, expected 0 or more")
    sizes = matrix.astype(np.int64)
    unit_bytes = math.gcd(*sizes.reshape(-1).tolist()) or 1
    count = sizes // unit_bytes
    # All members have buffers of one size in a plan: that of the member that sends (rows) or receives (columns) most
    chunks = max(1, int(count.sum(axis=0).max()), int(count.sum(axis=1).max()))
    if chunks > _MAX_CHUNKS:
        raise WorkloadError(
            f"all-to-all-v: {chunks} units of {unit_bytes} B in a buffer, expected at most {_MAX_CHUNKS}"
        )
    return Units(unit_bytes, chunks, count)


def all_to_all_v(matrix_bytes: ArrayLike, algorithm: str, hosts: Sequence[int] | None = None) -> Plans:
    """Return the steps of each member.

    algorithm: direct (all messages at once), pairwise (step k sends to the member k further on and receives from the
    one k before, one step at a time), or hierarchical (first to the member of the own host in the receiver's place,
    then all data of a host for a receiver at once); hosts: host of each member, for hierarchical, each with equally
    many members.

    Args:
        matrix_bytes: The bytes from member (row) to member (column), int[n, n]; a member copies its own.
        algorithm: "direct" (all messages at once), "pairwise" (step k sends to the member k further on and receives
            from the one k before, one step at a time), or "hierarchical" (see the module's docstring).
        hosts: The host of each member, for "hierarchical": hosts with equally many members. None = unknown.
    """
    if algorithm not in ALGORITHMS:
        raise WorkloadError(f"algorithm {algorithm!r} for {NAME}: expected one of {', '.join(ALGORITHMS)}")
    split = units(matrix_bytes)
    if algorithm == "hierarchical":
        return _by_hosts(split.sent, split.chunks, _places_of(hosts, len(split.sent)))._replace(uneven=True)
    lanes = (_member(me, split, at_once=algorithm == "direct") for me in range(len(split.sent)))
    return each_its_own(split.chunks, lanes, regions=2)._replace(uneven=True)


def buffer_bytes(plans: Plans, matrix_bytes: ArrayLike) -> int:
    """Return the size at which a collective of these plans moves the bytes of the matrix.

    Args:
        plans: The plans of an all-to-all with split sizes.
        matrix_bytes: The bytes from member (row) to member (column), int[n, n], from which the plans were made.
    """
    return plans.chunks * units(matrix_bytes).unit_bytes


def _member(member: int, split: Units, *, at_once: bool) -> list[Lane]:
    """Return a member's lanes: one that sends and one that receives all messages at once; else one per step."""
    # The first lane begins with a copy of the member's own block, or with a step that does nothing.
    n, sent = len(split.sent), split.sent
    inputs, outputs = (
        np.cumsum(sent[member]) - sent[member],
        split.chunks + np.cumsum(sent[:, member]) - sent[:, member],
    )
    own = Lane()
    if sent[member, member]:
        own.copy(int(inputs[member]), to=int(outputs[member]), count=int(sent[member, member]))
    else:
        own.step()
    lanes = [own, Lane()] if at_once else [own]
    for far in range(1, n):
        to, source = (member + far) % n, (member - far) % n
        sends = _send(to, 1 if at_once else far, int(inputs[to]), int(sent[member, to]))
        receives = _receive(source, int(outputs[source]), int(sent[source, member]))
        if at_once:
            own.step(**sends)
            lanes[1].step(**receives)
        else:
            lanes.append(Lane().step(after=(far - 1, len(lanes[-1].steps) - 1), **sends, **receives))
    return lanes


def _places_of(hosts: Sequence[int] | None, members: int) -> Int64:
    """Return int64[hosts, places], members of equal hosts; hosts: host of each member. WorkloadError for others."""
    if hosts is None or len(hosts) != members:
        count = "none" if hosts is None else len(hosts)
        raise WorkloadError(f"all-to-all-v, hierarchical: hosts of {count} members, expected of {members}")
    names, sizes = np.unique(np.asarray(hosts), return_counts=True)
    if sizes.min() != sizes.max():
        raise WorkloadError(
            f"all-to-all-v, hierarchical: hosts of {sizes.min()} to {sizes.max()} members, expected as many on each"
        )
    return np.stack([np.flatnonzero(np.asarray(hosts) == name) for name in names]).astype(np.int64)


def _by_hosts(sent: Int64, chunks: int, member_at: Int64) -> Plans:
    """Return plans by hosts (members int64[hosts, places]); sent: int64[n, n]; chunks: those of the fullest buffer."""
    # a member holds what the members of its host have for its place of all hosts
    max_given = max(int(sent[np.ix_(own, member_at[:, place])].sum()) for own in member_at for place in range(len(own)))
    region_chunks = max(chunks, max_given)
    lanes = {
        int(member_at[at]): _member_by_hosts(sent, region_chunks, member_at, *at) for at in np.ndindex(*member_at.shape)
    }
    return each_its_own(region_chunks, [lanes[me] for me in range(len(sent))], regions=6)


class _Region:
    """A region with consecutive blocks; size: int64[rows, columns], chunks of each block."""

    def __init__(self, number: int, region_chunks: int, size: Int64) -> None:
        self.size = size
        # Blocks lie row by row: for sizes [[2, 1], [0, 4]] they begin at 0, 2, 3 and 3 in the region
        self.first = (number * region_chunks + np.cumsum(size) - size.reshape(-1)).reshape(size.shape)

    def row(self, row: int) -> tuple[int, int]:
        """Return the first chunk and the number of chunks of all blocks in a `row`."""
        return int(self.first[row, 0]), int(self.size[row].sum())


def _member_by_hosts(sent: Int64, region_chunks: int, member_at: Int64, host: int, place: int) -> list[Lane]:
    """Return the lanes of the member in a place of a host: packing, a lane per mate, sorting, a lane per other host."""
    # sent: int64[n, n] chunks; region_chunks: chunks of a region; member_at: int64[hosts, places].
    (hosts, places), me = member_at.shape, int(member_at[host, place])
    to_places = _Region(_TO_PLACES, region_chunks, sent[me, member_at.T])  # [places, hosts], for each member
    given = _Region(_GIVEN, region_chunks, sent[np.ix_(member_at[host], member_at[:, place])])  # [mates, hosts]
    to_hosts = _Region(_TO_HOSTS, region_chunks, given.size.T)  # [hosts, mates]
    come = _Region(_COME, region_chunks, sent[member_at, me])  # [hosts, places], from each member
    inputs, outputs = np.cumsum(sent[me]) - sent[me], np.cumsum(sent[:, me]) - sent[:, me]

    def unpack(lane: Lane, source: int) -> None:
        """Add to a lane copies of the blocks from host `source` to the output."""
        for mate, sender in enumerate(member_at[source]):
            output = _OUTPUT * region_chunks + int(outputs[sender])
            _copy(lane, int(come.first[source, mate]), output, int(come.size[source, mate]))

    # order the input by receiving place, and copy the own place's blocks to the data received from mates
    pack = Lane()
    for at in np.ndindex(places, hosts):
        _copy(pack, int(inputs[member_at.T[at]]), int(to_places.first[at]), int(to_places.size[at]))
    own, count = to_places.row(place)
    _copy(pack, own, given.row(place)[0], count)
    packed = (0, len(pack.steps))
    lanes = [pack.step()]
    # exchange with all mates at once
    for far in range(1, places):
        to, source = (place + far) % places, (place - far) % places
        ways = _send(int(member_at[host, to]), far, *to_places.row(to))
        ways |= _receive(int(member_at[host, source]), *given.row(source))
        lanes.append(Lane().step(after=packed, **ways))
    # sort the data of all mates by host, and copy the own host's blocks to the output
    sort = Lane()
    for far in range(1, places):
        sort.step(after=(far, 0))
    sort.step(after=packed)
    for at in np.ndindex(hosts, places):
        _copy(sort, int(given.first.T[at]), int(to_hosts.first[at]), int(to_hosts.size[at]))
    own, count = to_hosts.row(host)
    _copy(sort, own, come.row(host)[0], count)
    unpack(sort, host)
    lanes.append(sort)
    # exchange with the same place of the other hosts
    for far in range(1, hosts):
        to, source = (host + far) % hosts, (host - far) % hosts
        ways = _send(int(member_at[to, place]), places + far, *to_hosts.row(to))
        ways |= _receive(int(member_at[source, place]), *come.row(source))
        lanes.append(Lane().step(after=(places, len(sort.steps) - 1), **ways))
        unpack(lanes[-1], source)
    return lanes


def _copy(lane: Lane, chunk: int, to: int, count: int) -> None:
    """Add to a lane a copy of `count` chunks, if there are any, from number `chunk` to number `to`."""
    if count:
        lane.copy(chunk, to=to, count=count)


def _send(peer: int, to_lane: int, chunk: int, count: int) -> dict[str, Any]:
    """Return the arguments of `Lane.step` for a send; none if it has no chunks."""
    return {"send_to": peer, "to_lane": to_lane, "send": chunk, "send_count": count} if count else {}


def _receive(peer: int, chunk: int, count: int) -> dict[str, Any]:
    """Return the arguments of `Lane.step` for a receive; none if it has no chunks."""
    return {"receive_from": peer, "receive": chunk, "receive_count": count} if count else {}


# Uneven all-to-alls of traces: the bytes from member to member, assembled from the split sizes of all members.
#
# A member's in_split_size divides its comm_size among the receivers, in any unit: PyTorch counts rows of a tensor.
# out_split_size, if given, must agree with what the others send, in the same unit.


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
    """Return int64[n]: the bytes of split sizes, in the unit that makes in_split_size add up to comm_size.

    Args:
        view: The view of the trace.
        collective_number: The index of the all-to-all among the collectives of the view.
        numbers: The values of in_split_size or out_split_size, one for each member.
    """
    row = view.coll_rows[collective_number]
    unit = sum(view.table.split_sizes[view.table.in_split_size[row]])
    size = int(view.table.comm_size[row])
    return np.array([number * size // unit if unit else 0 for number in numbers], np.int64)


def check_splits(view: TraceView) -> None:
    """Check that split sizes divide comm_size into whole bytes; WorkloadError if not.

    Args:
        view: The view of the trace.
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


def matrices(rank_traces: OwnTraces, group_table: GroupTable, exchange: Exchange = alone) -> Matrices:
    """Return the matrices of all uneven all-to-alls of this rank's groups.

    Raises WorkloadError: a number of split sizes that is not the number of members, or members that disagree on a size.

    Args:
        rank_traces: The traces of this rank's NPUs.
        group_table: The groups of all NPUs, with this rank's members.
        exchange: A function that gives all ranks the values of all.
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
    group, seq, member = (np.concatenate(column) for column in zip(*(part[:3] for part in sizes_of_ranks), strict=True))
    # Uses of the same collective follow each other, in the order of its members: each makes a row of the matrix
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
    for part in sizes_of_ranks:
        own = np.empty(len(part.lists), np.int64)
        for i, sizes_to_members in enumerate(part.lists):
            own[i] = number.setdefault(sizes_to_members.tobytes(), len(lists))
            if own[i] == len(lists):
                lists.append(sizes_to_members)
        sizes.append(own[part.sizes])
    return lists, np.concatenate(sizes)


def _check_receivers(uses: Sequence[_Use], matrices: Matrices) -> None:
    """Check out_split_size against the bytes sent; a member that sends nothing has no unit and is not checked."""
    for _, of_view in groupby(uses, key=lambda use: id(use.view)):
        wrong = [error for use in of_view if (error := _validation_error(use, matrices))]
        if wrong:
            npu, _, text = min(wrong)
            raise WorkloadError(text, npu)


def _validation_error(use: _Use, matrices: Matrices) -> tuple[int, int, str] | None:
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
