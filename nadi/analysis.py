"""What the times of trace nodes mean: where each NPU's time went, how long each collective took, which links were busy.

A trace node occupies its NPU from start to finish. Of an NPU's time, *compute* is what compute nodes of the accelerator
cover, *cpu* what those of the host cover, *memory* what memory nodes cover, *communication* what sends, receives and
collectives cover. *Exposed* communication is the part that no compute of the accelerator covers; *idle* is covered by
none of compute, memory and communication. A receive covers its wait for the message: waiting for others is
communication.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies import Graph
from workload import KINDS, Program

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = 1, 2, 3, 4, 5
CPU_LANE = 0
_MOST_ROWS = 4_000_000
_PS_PER_S = 10**12


class Rows(NamedTuple):
    """Trace nodes of some NPUs, m of them.

    Attributes:
        npu: int64[m].
        row: int64[m], row within the NPU's trace.
        at: int64[m], row of Program.node_*.
        result: slice of the per-NPU arrays of Results.
        npus: the NPUs, those without trace nodes too.
    """

    npu: Int64
    row: Int64
    at: Int64
    result: slice
    npus: range


class NpuTimes(NamedTuple):
    """Per NPU, int64[npus] picoseconds; `finish_ps` is when its last node ended."""

    compute_ps: Int64
    cpu_ps: Int64
    memory_ps: Int64
    communication_ps: Int64
    exposed_ps: Int64
    idle_ps: Int64
    finish_ps: Int64


class Collectives(NamedTuple):
    """The c collectives of a run by group and place in the group.

    Attributes:
        group: int32[c].
        seq: int32[c], the how-manieth of its group.
        kind: int8[c], row of workload.KINDS, -1 where no trace says.
        npu: int64[c], a member, and
        row: int64[c], the collective's row in its trace.
        schedule: int32[c], -1 = group of one.
        members: int64[c].
        size_bytes: int64[c], the whole buffer S.
        start_ps: int64[c], the first member began.
        ready_ps: int64[c], the last member began.
        finish_ps: int64[c], the last member was done.
    """

    group: Int32
    seq: Int32
    kind: NDArray[np.int8]
    npu: Int64
    row: Int64
    schedule: Int32
    members: Int64
    size_bytes: Int64
    start_ps: Int64
    ready_ps: Int64
    finish_ps: Int64

    @property
    def time_ps(self) -> Int64:
        """int64[c]: from when all members are there to when the last is done."""
        return self.finish_ps - self.ready_ps


def row_blocks(program: Program, npu_node_ptr: Int64) -> Iterator[Rows]:
    """All trace nodes NPU by NPU, in blocks of whole NPUs that fit in memory."""
    counts = np.diff(npu_node_ptr)[: program.npus]
    block = npu_node_ptr[: program.npus] // _MOST_ROWS
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    for first, end in pairwise([*starts.tolist(), program.npus]):
        npu = np.repeat(np.arange(first, end), counts[first:end])
        begin, stop = int(npu_node_ptr[first]), int(npu_node_ptr[end])
        row = np.arange(begin, stop) - npu_node_ptr[npu]
        yield Rows(npu, row, program.trace_ptr[program.trace_of_npu[npu]] + row, slice(begin, stop), range(first, end))


def covered_ps(owner: Int64, start_ps: Int64, finish_ps: Int64, owners: int) -> Int64:
    """Length of the union of intervals, per owner.

    Args:
        owner: int64[m], 0 .. owners-1.
        start_ps: int64[m].
        finish_ps: int64[m], not before start_ps.
        owners: how many.

    Returns:
        int64[owners].
    """
    order = np.lexsort((start_ps, owner))
    owner, start_ps, finish_ps = owner[order], start_ps[order], finish_ps[order]
    ends, place = np.unique(finish_ps, return_inverse=True)
    # later owners have larger keys, so the running maximum never looks across owners
    latest = np.maximum.accumulate(owner * len(ends) + place) if len(order) else place
    reached = ends[latest % max(len(ends), 1)]
    before = np.zeros_like(start_ps)
    before[1:] = np.where(owner[1:] == owner[:-1], reached[:-1], start_ps[1:])
    before[:1] = start_ps[:1]
    gained = np.maximum(finish_ps - np.maximum(start_ps, before), 0)
    total = np.zeros(owners, np.int64)
    np.add.at(total, owner, gained)
    return total


def npu_times(
    program: Program, npu_node_ptr: Int64, node_start_ps: Int64, node_finish_ps: Int64, finish_time_ps: int
) -> NpuTimes:
    """Where each NPU's time went.

    Args:
        program: what ran.
        npu_node_ptr: int64[npus+1], see pdes.Results.
        node_start_ps: int64[], same.
        node_finish_ps: int64[], same.
        finish_time_ps: end of the run, until which an NPU that is done idles.
    """
    parts = [
        _block_times(program, rows, node_start_ps[rows.result], node_finish_ps[rows.result], finish_time_ps)
        for rows in row_blocks(program, npu_node_ptr)
    ]
    return NpuTimes(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def find_collectives(program: Program, npu_node_ptr: Int64, node_start_ps: Int64, node_finish_ps: Int64) -> Collectives:
    """All collectives that ran, by group and place in the group; `kind` is -1 until someone knows it."""
    parts = []
    for rows in row_blocks(program, npu_node_ptr):
        keep = program.node_kind[rows.at] == COLLECTIVE
        npu, row, at = rows.npu[keep], rows.row[keep], rows.at[keep]
        group = program.slot_group[program.slot_ptr[npu] + program.node_group[at]].astype(np.int64)
        times = node_start_ps[rows.result][keep], node_finish_ps[rows.result][keep]
        parts.append(np.stack([group, program.node_seq[at], npu, row, at, *times]))
    table = np.concatenate(parts, axis=1) if parts else np.zeros((7, 0), np.int64)
    table = table[:, np.lexsort((table[2], table[1], table[0]))]
    group, seq, npu, row, at, start, finish = table
    is_first = np.ones(len(group), np.bool_)
    is_first[1:] = (np.diff(group) != 0) | (np.diff(seq) != 0)
    first = np.flatnonzero(is_first)
    none = len(first) == 0
    return Collectives(
        group=group[first].astype(np.int32),
        seq=seq[first].astype(np.int32),
        kind=np.full(len(first), -1, np.int8),
        npu=npu[first],
        row=row[first],
        schedule=program.node_schedule[at[first]],
        members=np.diff(program.group_ptr)[group[first]],
        size_bytes=program.node_bytes[at[first]],
        start_ps=start[:0] if none else np.minimum.reduceat(start, first),
        ready_ps=start[:0] if none else np.maximum.reduceat(start, first),
        finish_ps=finish[:0] if none else np.maximum.reduceat(finish, first),
    )


def bus_factor(kind: str, members: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it (doc/PERFORMANCE.md); 1 where it does not."""
    if kind == "all-reduce":
        return 2 * (members - 1) / members
    if kind in {"reduce-scatter", "all-gather", "all-to-all", "gather", "scatter"}:
        return (members - 1) / members
    return 1.0


def bandwidths_Bps(kind: int, members: int, size_bytes: int, time_ps: int) -> tuple[float, float]:  # noqa: N802 - bytes
    """Algorithm and bus bandwidth in bytes per second; 0 where no time passed."""
    if time_ps <= 0:
        return 0.0, 0.0
    algorithm_Bps = size_bytes / time_ps * _PS_PER_S  # noqa: N806 - bytes, not bits
    return algorithm_Bps, algorithm_Bps * bus_factor(KINDS[kind] if kind >= 0 else "", members)


def _block_times(program: Program, rows: Rows, start_ps: Int64, finish_ps: Int64, finish_time_ps: int) -> NpuTimes:
    """Times of the NPUs of a block; start_ps and finish_ps are those of its rows."""
    kind = program.node_kind[rows.at]
    owner = rows.npu - rows.npus.start
    on_cpu = (kind == COMPUTE) & (program.node_lane[rows.at] == CPU_LANE)
    is_compute, is_communication = (kind == COMPUTE) & ~on_cpu, kind >= SEND
    compute, cpu, memory, communication, both, busy = (
        covered_ps(owner[mask], start_ps[mask], finish_ps[mask], len(rows.npus))
        for mask in (
            is_compute,
            on_cpu,
            kind == MEMORY,
            is_communication,
            is_compute | is_communication,
            (kind > 0) & ~on_cpu,
        )
    )
    last_ps = np.zeros(len(rows.npus), np.int64)
    np.maximum.at(last_ps, owner, finish_ps)
    return NpuTimes(compute, cpu, memory, communication, both - compute, finish_time_ps - busy, last_ps)


def utilisation(graph: Graph, tx_bytes: Int64, finish_time_ps: int) -> NDArray[np.float64]:
    """float64[links]: share of the run in which each link was sending."""
    if finish_time_ps <= 0:
        return np.zeros(graph.links)
    return tx_bytes * (8 * _PS_PER_S / finish_time_ps) / graph.link_rate_bps
