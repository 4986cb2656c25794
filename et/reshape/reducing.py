"""Reduction of a trace to what matters for its simulated time.

Three things are removed, each only where the engine's answer stays the same to the picosecond:

- dependencies that others imply;
- nodes that take no time (METADATA nodes that define no groups, operators of no duration and no work), if everything
  that becomes ready through them is before or after every other row of its lane: rows that become ready at the same
  moment start in the order of becoming ready, and a node in between would change that order;
- consecutive host operators, which become one with the sum of their durations, where the host never has a choice.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadi.et.communications import (
    COMMUNICATION_LANES,
    COMPUTE_LANE,
    HOST_LANE,
    MEMORY_LANE,
    NO_LANE,
    communications,
    lanes_of,
)
from nadi.et.order import bridge, children, topological_order
from nadi.et.reader import read_trace
from nadi.et.reshape.slicing import defines_groups
from nadi.et.reshape.wire import rewrite
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int64, Mask

Parents = dict[int, set[int]]

_MAX_BITS = 1 << 31  # 256 MiB for exact reachability: a bit per pair of rows


class ReduceResult(NamedTuple):
    """Result of a reduction."""

    # numbers before the reduction
    nodes: int
    dependencies: int
    # numbers after the reduction
    kept: int
    kept_dependencies: int
    dropped: int  # number of removed nodes that took no time, or removed host operators (`without_host`)
    fused: int  # number of host operators that became part of the next one
    implied: int  # number of removed dependencies that others imply
    reordered: bool  # whether only dependencies were removed, because communications would otherwise change their order


def reduce_trace(path: Path, out: Path, *, npu: int = -1, without_host: bool = False) -> ReduceResult:
    """Write a smaller trace with the same simulated time; without the host, it has the accelerator's time alone.

    Args:
        path: The trace to reduce.
        out: The file to write; it is gzipped if its name ends in .gz.
        npu: The NPU that runs the trace; -1 = the NPU in the trace's sends and receives.
        without_host: Whether all operators of the host are removed, so that only the accelerator's time stays.
    """
    table = read_trace(path, strict=False)
    order = topological_order(table).tolist()
    keep = ~_droppable(table, order, without_host=without_host)
    result = _write(table, keep, out, fuse=True)
    before = _sequence(table, npu)
    # Without what orders them, communications may have changed places: then remove only dependencies
    if _sequence(read_trace(out), npu) != before:
        result = _write(table, np.ones(len(table), np.bool_), out, fuse=False)._replace(reordered=True)
    return result


def _write(table: TraceTable, keep: Mask, out: Path, *, fuse: bool) -> ReduceResult:
    """Write the rows to keep (bool[n]) to `out`; if `fuse`, runs of host operators become one."""
    bridged = bridge(table, keep)
    parents = bridged.parents
    stayed = len(parents)
    implied = _drop_implied(table, parents)
    durations = _fuse(table, parents) if fuse else {}
    fused = stayed - len(parents)
    joints = np.zeros(len(table), np.bool_)  # joints take no time anyway, so they are written unchanged
    rewrite(out, table, parents, joints, durations=durations)
    return ReduceResult(
        nodes=len(table),
        dependencies=len(table.dep),
        kept=len(parents),
        kept_dependencies=sum(map(len, parents.values())),
        dropped=len(table) - stayed,
        fused=fused,
        implied=implied,
        reordered=False,
    )


def _droppable(table: TraceTable, topological: list[int], *, without_host: bool) -> Mask:
    """Return bool[n], rows that may be removed; `without_host` includes all host operators."""
    lane = lanes_of(table)
    groups = defines_groups(table)
    if without_host:
        return (lane == HOST_LANE) | ((lane == NO_LANE) & ~groups)
    # Work without a duration takes time once a compute model knows the GPU
    has_work = (table.num_ops >= 0) | (table.tensor_size >= 0) | (table.operators > 0)
    is_idle = (lane == NO_LANE) | (
        (table.duration_micros == 0) & ((lane == HOST_LANE) | ((lane == COMPUTE_LANE) & ~has_work))
    )
    if not np.any(is_idle):
        return is_idle
    # Rows that surely take time: what follows them starts later, whatever the order of events at their own start
    surely_timed = (table.duration_micros > 0) | (table.num_ops > 0) | (table.tensor_size > 0) | (table.operators > 0)
    surely_timed &= (lane == COMPUTE_LANE) | (lane == MEMORY_LANE) | ((lane == HOST_LANE) & (table.duration_micros > 0))
    ordered = np.ones(len(table), np.bool_)
    for lanes in ((HOST_LANE,), (COMPUTE_LANE,), (MEMORY_LANE,), COMMUNICATION_LANES):
        ordered &= is_ordered(table, topological, np.isin(lane, lanes))
    child_ptr, child = (a.tolist() for a in children(table))
    # rows without which no start changes although their children may become ready a step earlier
    ordered_rows, timed = ordered.tolist(), surely_timed.tolist()
    visible = [False] * len(ordered_rows)  # a start changes if the row itself becomes ready a step earlier
    found = np.ones(len(ordered_rows), np.bool_)
    for row in reversed(topological):
        below = any(visible[other] for other in child[child_ptr[row] : child_ptr[row + 1]])
        found[row] = not below
        visible[row] = not ordered_rows[row] or (not timed[row] and below)
    return is_idle & found & ~groups & ordered


def _fuse(table: TraceTable, parents_of_row: Parents) -> dict[int, int]:
    """Fuse runs of host operators into the last one of each run; return the durations of these in us, by row."""
    lane = lanes_of(table)
    order = topological_order(table).tolist()
    host = is_ordered(table, order, lane == HOST_LANE) & (lane == HOST_LANE) & (table.duration_micros > 0)
    child_counts = dict.fromkeys(parents_of_row, 0)
    for parent in itertools.chain.from_iterable(parents_of_row.values()):
        child_counts[parent] += 1
    is_host = host.tolist()
    durations: dict[int, int] = {}
    micros = table.duration_micros.tolist()
    for row in order:
        if row not in parents_of_row or not is_host[row] or len(parents_of_row[row]) != 1:
            continue
        (parent,) = parents_of_row[row]
        # With a second child, the end of the parent itself matters to somebody
        if is_host[parent] and child_counts[parent] == 1:
            # The parent may have absorbed earlier operators: its sum moves on, and this row inherits its parents
            durations[row] = durations.pop(parent, micros[parent]) + micros[row]
            parents_of_row[row] = parents_of_row.pop(parent)
    return durations


def _drop_implied(table: TraceTable, parents_of_row: Parents) -> int:
    """Remove dependencies that other parents imply; return how many."""
    rows = [row for row in topological_order(table).tolist() if row in parents_of_row]
    # Otherwise only parents of parents count
    is_exact = len(rows) ** 2 <= _MAX_BITS
    number = {row: i for i, row in enumerate(rows)}
    before: dict[int, int] = {}
    dropped = 0
    for row in rows:
        own = parents_of_row[row]
        if is_exact:
            reached = 0
            for parent in own:
                # A bit set of rows, by their place in the order
                reached |= before[parent]
            implied = {parent for parent in own if reached >> number[parent] & 1}
            for parent in own - implied:
                reached |= 1 << number[parent]
            before[row] = reached
        else:
            implied = own & set().union(*(parents_of_row[parent] for parent in own))
        dropped += len(implied)
        parents_of_row[row] = own - implied
    return dropped


def _sequence(table: TraceTable, npu: int) -> dict[object, int]:
    """Return the node ids of a trace's communications, by key."""
    return {key: int(table.node_id[row]) for row, key in communications(table, npu)}


def is_ordered(table: TraceTable, topological: Sequence[int], chosen: Mask) -> Mask:
    """Return bool[n], whether a chosen row is before or after each other chosen row; True for rows that are not chosen.

    If a trace is too large to compare all pairs, rows count as ordered only if all chosen rows are in one chain.

    Args:
        table: The trace of one NPU.
        topological: All rows in a topological order.
        chosen: bool[n], the rows to compare with each other.
    """
    count = int(np.count_nonzero(chosen))
    before = _reach(table.dep_ptr.tolist(), table.dep.tolist(), topological, chosen, count)
    child_ptr, child = children(table)
    after = _reach(child_ptr.tolist(), child.tolist(), topological[::-1], chosen, count)
    # Rows before it and after it, itself counted in both, are all: none is left that could run at the same time
    return ~chosen | (before + after == count + 1)


def _reach(ptr: list[int], to: list[int], topological: Sequence[int], chosen: Mask, count: int) -> Int64:
    """Return int64[n], the number of chosen rows that each row reaches, itself included.

    `ptr` and `to` are parents or children as CSR arrays, `chosen` a mask of `count` rows. If there are too many rows,
    it is the number of chosen rows on the row's longest path.
    """
    counted = np.zeros(len(chosen), np.int64)
    is_chosen = chosen.tolist()
    if count * len(is_chosen) > _MAX_BITS:
        longest = [0] * len(is_chosen)
        for row in topological:
            longest[row] = is_chosen[row] + max((longest[other] for other in to[ptr[row] : ptr[row + 1]]), default=0)
        counted[:] = longest
        return counted
    # The chosen rows that each row reaches, as a bit set
    bits = [0] * len(is_chosen)
    number = 0
    for row in topological:
        found = 0
        for other in to[ptr[row] : ptr[row + 1]]:
            found |= bits[other]
        if is_chosen[row]:
            found |= 1 << number
            number += 1
        bits[row] = found
        counted[row] = found.bit_count()
    return counted
