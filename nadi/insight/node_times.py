"""Times of NPUs and collectives, and utilisation of links, computed from the times of trace nodes.

A trace node occupies its NPU from start to finish. Of an NPU's time, *compute* is covered by compute nodes of the
accelerator, *cpu* by those of the host, *memory* by memory nodes, *communication* by sends, receives and collectives.
*Exposed* communication is the part that no accelerator compute covers; *host* is covered by compute nodes of the host
alone, while accelerator, memory and communication wait; *idle* is not covered. A receive covers its wait for the
message: waiting for others is communication.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.inputs.arrays import Int32, Int64, Mask, numpy_column
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.pdes import LinkFault
from nadi.topologies import Graph
from nadi.workload import KINDS, Program
from nadi.workload.collectives import UNEVEN
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, CPU_LANE, MEMORY, SEND

_MAX_ROWS = 4_000_000  # number of trace nodes that one block of NPUs may have, to bound memory


class NodeRows(NamedTuple):
    """m trace nodes of a block of NPUs."""

    npu: Int64  # int64[m], NPU of each node
    row: Int64  # int64[m], row within the NPU's trace
    at: Int64  # int64[m], row of Program.node_*
    result: slice  # slice of the per-NPU arrays of Results
    npus: range  # NPUs of the block, including those without trace nodes


class NpuTimes(NamedTuple):
    """Times per NPU, int64[npus] picoseconds; `finish_ps` is the end of the NPU's last node."""

    compute_ps: Int64
    cpu_ps: Int64
    memory_ps: Int64
    communication_ps: Int64
    exposed_ps: Int64
    host_ps: Int64
    idle_ps: Int64
    finish_ps: Int64


class CollectiveTimes(NamedTuple):
    """The c collectives of a run, or the part that some NPUs have, sorted by group and place in the group."""

    group: Int32  # int32[c], number of the group
    seq: Int32  # int32[c], index of the collective within its group
    kind: NDArray[np.int8]  # int8[c], row of workload.KINDS
    uneven: Mask  # bool[c], whether it is an all-to-all with split sizes
    npu: Int64  # int64[c], lowest member among the NPUs considered
    row: Int64  # int64[c], row of the collective in this member's trace
    members: Int64  # int64[c], number of members of the group
    size_bytes: Int64  # int64[c], size of the whole buffer
    start_ps: Int64  # int64[c], begin of the first member considered
    ready_ps: Int64  # int64[c], begin of the last member considered
    finish_ps: Int64  # int64[c], end of the last member considered

    @property
    def time_ps(self) -> Int64:
        """int64[c]: time from the begin of the last member to the end of the last member."""
        return self.finish_ps - self.ready_ps


def npu_blocks(rows_of_npu: Int64) -> list[range]:
    """Return blocks of NPUs whose trace nodes fit in memory; rows_of_npu: int64[npus], number of nodes per NPU."""
    # by the number of rows before each NPU: a block exceeds _MAX_ROWS by less than its last NPU
    block = (np.cumsum(rows_of_npu) - rows_of_npu) // _MAX_ROWS
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    return [range(first, end) for first, end in pairwise([*starts.tolist(), len(rows_of_npu)])]


def node_rows(program: Program, npu_node_ptr: Int64, block_npus: range) -> NodeRows:
    """Return the trace nodes of a block of NPUs, NPU by NPU.

    Args:
        program: Work of all NPUs (`Program`).
        npu_node_ptr: int64[npus + 1], rows of each NPU in the columns of pdes.Results.
        block_npus: Numbers of the NPUs.
    """
    npu = np.repeat(
        np.arange(block_npus.start, block_npus.stop), np.diff(npu_node_ptr[block_npus.start : block_npus.stop + 1])
    )
    begin, stop = int(npu_node_ptr[block_npus.start]), int(npu_node_ptr[block_npus.stop])
    row = np.arange(begin, stop) - npu_node_ptr[npu]
    return NodeRows(npu, row, program.trace_ptr[program.trace_of_npu[npu]] + row, slice(begin, stop), block_npus)


def row_blocks(program: Program, npu_node_ptr: Int64) -> Iterator[NodeRows]:
    """Yield all trace nodes NPU by NPU, in blocks of whole NPUs that fit in memory.

    Args:
        program: Work of all NPUs (`Program`).
        npu_node_ptr: int64[npus + 1], rows of each NPU in the columns of pdes.Results.
    """
    for npus in npu_blocks(np.diff(npu_node_ptr)):
        yield node_rows(program, npu_node_ptr, npus)


def covered_ps(owner: Int64, start_ps: Int64, finish_ps: Int64, num_owners: int) -> Int64:
    """Return int64[owners], the length of the union of each owner's intervals.

    Args:
        owner: int64[m], owner of each interval; the intervals are sorted by owner, and those of an owner by start.
        start_ps: int64[m], start of each interval in ps.
        finish_ps: int64[m], end of each interval in ps.
        num_owners: Number of owners.
    """
    total = np.zeros(num_owners, np.int64)
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    if len(first) == 0:
        return total
    reached_ps = finish_ps.copy()  # latest end of the owner's intervals so far
    for begin, end in pairwise([*first.tolist(), len(owner)]):
        # the latest end so far, by owner: intervals of one owner may overlap or contain others
        np.maximum.accumulate(reached_ps[begin:end], out=reached_ps[begin:end])
    from_ps = start_ps.copy()
    # each interval counts only from where those before it have ended
    np.maximum(start_ps[1:], reached_ps[:-1], out=from_ps[1:])
    # an owner's first interval does not follow one of its own
    from_ps[first] = start_ps[first]
    total[owner[first]] = np.add.reduceat(np.maximum(finish_ps - from_ps, 0), first)
    return total


def npu_times(
    program: Program, npu_node_ptr: Int64, node_start_ps: Int64, node_finish_ps: Int64, finish_time_ps: int
) -> NpuTimes:
    """Return the time of each NPU by kind from the columns of pdes.Results; an NPU idles after its last node.

    Args:
        program: Work of all NPUs (`Program`).
        npu_node_ptr: int64[npus + 1], rows of each NPU in the columns of pdes.Results.
        node_start_ps: int64[rows], start of each trace node in ps.
        node_finish_ps: int64[rows], end of each trace node in ps.
        finish_time_ps: End of the run in ps.
    """
    parts = [
        _block_times(program, rows, node_start_ps[rows.result], node_finish_ps[rows.result], finish_time_ps)
        for rows in row_blocks(program, npu_node_ptr)
    ]
    return NpuTimes(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def find_collectives(
    program: Program, npu_node_ptr: Int64, node_start_ps: Int64, node_finish_ps: Int64, group_like: Int32 | None = None
) -> CollectiveTimes:
    """Return all collectives that ran from the columns of pdes.Results, sorted by group and place in the group.

    `group_like`: int32[G], representative of each group, see pdes.KeptRows; None = each group itself.

    Args:
        program: Work of all NPUs (`Program`).
        npu_node_ptr: int64[npus + 1], rows of each NPU in the columns of pdes.Results.
        node_start_ps: int64[rows], start of each trace node in ps.
        node_finish_ps: int64[rows], end of each trace node in ps.
        group_like: int32[G], representative of each group, see pdes.KeptRows; None = each group itself.
    """
    parts = [
        _block_collectives(program, rows, node_start_ps[rows.result], node_finish_ps[rows.result])
        for rows in row_blocks(program, npu_node_ptr)
    ]
    if group_like is not None:
        # groups with a representative count as the one whose rows are kept
        parts = [part._replace(group=group_like[part.group]) for part in parts]
    return merge_collectives(parts)


def merge_collectives(parts: Sequence[CollectiveTimes]) -> CollectiveTimes:
    """Merge the parts of collectives that blocks or ranks have, in any order and number."""
    merged = CollectiveTimes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    order = np.lexsort((merged.npu, merged.seq, merged.group))
    merged = CollectiveTimes(**{name: column[order] for name, column in merged._asdict().items()})
    is_first = np.ones(len(order), np.bool_)
    # rows of one collective are together, members in the order of their NPUs
    is_first[1:] = (np.diff(merged.group) != 0) | (np.diff(merged.seq) != 0)
    first = np.flatnonzero(is_first)
    if len(first) == 0:
        return merged
    members = CollectiveTimes(**{name: column[first] for name, column in merged._asdict().items()})
    return members._replace(
        start_ps=np.minimum.reduceat(merged.start_ps, first),
        ready_ps=np.maximum.reduceat(merged.ready_ps, first),
        finish_ps=np.maximum.reduceat(merged.finish_ps, first),
    )


def bus_factor(kind: str, members: int) -> float:
    """Return the bus bandwidth over the algorithm bandwidth, as nccl-tests defines it (doc/PERFORMANCE.md); else 1.

    Args:
        kind: Kind of collective.
        members: Number of members.
    """
    if kind == "all-reduce":
        return 2 * (members - 1) / members
    if kind in {"reduce-scatter", "all-gather", "all-to-all", UNEVEN, "gather", "scatter"}:
        return (members - 1) / members
    return 1.0


def bandwidths_Bps(kind: int, members: int, size_bytes: int, time_ps: int) -> tuple[float, float]:  # noqa: N802 - bytes
    """Return algorithm and bus bandwidth in bytes per second; 0 where no time passed.

    Args:
        kind: Index of the kind in KINDS.
        members: Number of members.
        size_bytes: Size of the buffer in bytes.
        time_ps: Time of the collective in ps.
    """
    if time_ps <= 0:
        return 0.0, 0.0
    algorithm_Bps = size_bytes / time_ps * PS_PER_S  # noqa: N806 - bytes, not bits
    return algorithm_Bps, algorithm_Bps * bus_factor(KINDS[kind], members)


def _block_collectives(program: Program, rows: NodeRows, start_ps: Int64, finish_ps: Int64) -> CollectiveTimes:
    """Return each member's part as a collective of its own; start_ps and finish_ps are those of the rows."""
    keep = program.node_kind[rows.at] == COLLECTIVE
    npu, at = rows.npu[keep], rows.at[keep]
    group = program.slot_group[program.slot_ptr[npu] + program.node_group[at]]
    return CollectiveTimes(
        group=group,
        seq=program.node_seq[at],
        kind=program.node_collective[at],
        uneven=program.node_uneven[at],
        npu=npu,
        row=rows.row[keep],
        members=np.diff(program.group_ptr)[group],
        size_bytes=program.node_bytes[at],
        start_ps=start_ps[keep],
        ready_ps=start_ps[keep],
        finish_ps=finish_ps[keep],
    )


def _block_times(program: Program, rows: NodeRows, start_ps: Int64, finish_ps: Int64, finish_time_ps: int) -> NpuTimes:
    """Return the times of the NPUs of a block; start_ps and finish_ps are those of its rows."""
    owner = rows.npu - rows.npus.start
    last_ps = np.zeros(len(rows.npus), np.int64)
    np.maximum.at(last_ps, owner, finish_ps)
    order = np.flatnonzero(finish_ps > start_ps)  # others cover nothing
    order = order[np.lexsort((start_ps[order], owner[order]))]
    at, owner, start_ps, finish_ps = rows.at[order], owner[order], start_ps[order], finish_ps[order]
    kind = program.node_kind[at]
    on_cpu = (kind == COMPUTE) & (program.node_lane[at] == CPU_LANE)
    is_compute, is_communication = (kind == COMPUTE) & ~on_cpu, kind >= SEND
    compute, cpu, memory, communication, both, busy, anything = (
        covered_ps(owner[mask], start_ps[mask], finish_ps[mask], len(rows.npus))
        for mask in (
            is_compute,
            on_cpu,
            kind == MEMORY,
            is_communication,
            is_compute | is_communication,
            (kind > 0) & ~on_cpu,
            kind > 0,
        )
    )
    host, idle = anything - busy, finish_time_ps - anything
    return NpuTimes(compute, cpu, memory, communication, both - compute, host, idle, last_ps)


def utilisation(
    graph: Graph, tx_bytes: Int64, finish_time_ps: int, faults: Sequence[LinkFault] = (), cell_ps: int = 1
) -> NDArray[np.float64]:
    """Return float64[links]: bytes sent over the capacity during the run.

    Where faults change a link's rate, the capacity uses its mean rate over the run; a change counts from the begin of
    the first cell at or after its time (docs/reference/faults.md).

    Args:
        graph: The fabric (`Graph`).
        tx_bytes: int64[links], bytes that each link sent.
        finish_time_ps: End of the run in ps.
        faults: Faults of links.
        cell_ps: Length of a cell in ps, at whose begin a change takes effect.
    """
    if finish_time_ps <= 0:
        return np.zeros(graph.links)
    rate_bps = graph.link_rate_bps.astype(np.float64)
    for fault in faults:
        if fault.rate_bps:
            begin, end = (min(-(-t // cell_ps) * cell_ps, finish_time_ps) for t in (fault.at_ps, fault.until_ps))
            which = list(fault.links)
            # mean over the run of the rate while the fault holds
            rate_bps[which] += (fault.rate_bps - graph.link_rate_bps[which]) * ((end - begin) / finish_time_ps)
    return tx_bytes * (BITS_PER_BYTE * PS_PER_S / finish_time_ps) / rate_bps


def distinct_rows(columns: Sequence[NDArray[np.integer]]) -> tuple[Int64, Int64]:
    """Return the first row of each distinct row, and int64[n], the number of each row among the distinct ones.

    columns: Arrays of n numbers each.
    """
    order = np.lexsort(columns)  # a stable sort, so that the first row of each kind comes first
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    first = order[is_new]
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    number = np.empty(len(order), np.int64)
    number[order] = rank[np.cumsum(is_new) - 1]
    return np.sort(first), number


class CollectiveKey(NamedTuple):
    """The key by which collectives are alike, also those of different runs."""

    group: str  # name of the group in the traces, which groups of one family share; "" for all NPUs
    kind: str  # kind of the collective, such as "all-reduce"
    members: int  # number of NPUs in the group
    size_bytes: int  # size of the whole buffer in bytes


def collectives_by_key(collectives: pa.Table) -> dict[CollectiveKey, Int64]:
    """Return the rows of collectives.parquet by key, in the order of each key's first row."""
    names = ("group_name", "kind", "members", "bytes")
    words = [np.unique(numpy_column(collectives[name]), return_inverse=True)[1] for name in names[:2]]
    first, number = distinct_rows([*words, *(numpy_column(collectives[name]) for name in names[2:])])
    chosen = collectives.select(names)  # `take` would import PyArrow's functions
    keys = (chosen.slice(row, 1).to_pylist()[0].values() for row in first.tolist())
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number, minlength=1))[:-1])
    return dict(zip((CollectiveKey(*key) for key in keys), rows, strict=False))


def slowest_collectives(collectives: pa.Table) -> list[tuple[CollectiveKey, Int64]]:
    """Return the keys and rows of `alike`, those with the largest summed time first.

    Args:
        collectives: Columns of collectives.parquet.
    """
    time_ps = numpy_column(collectives["time_ps"])
    return sorted(collectives_by_key(collectives).items(), key=lambda each: -int(time_ps[each[1]].sum()))
