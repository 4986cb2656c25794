"""A trace without what does not matter for its simulated time.

Three things go, each only where the engine's answer stays the same to the picosecond:

- dependencies that others imply;
- nodes that take no time (METADATA that define no groups, operators of no duration and no work), where all that becomes
  ready through them is before or after every other row of its lane: rows that become ready at one moment start in the
  order in which they became so, and a node on the way would change that order;
- host operators one after another, which become one of their durations' sum, where the host never has a choice.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from et.order import children, topological_order
from et.reader import read_trace
from et.reshape.bridging import bridge
from et.reshape.comparing import COMPUTE, HOST, MEMORY, NETWORK, NOTHING, in_line, wants
from et.reshape.partners import communications
from et.reshape.rewriting import Change, rewrite
from et.reshape.slicing import defines_groups
from et.table import TraceTable

Mask = NDArray[np.bool_]
Parents = dict[int, set[int]]

_MOST_BITS = 1 << 31


class ReduceResult(NamedTuple):
    """What became of a trace.

    Attributes:
        nodes, dependencies: before.
        kept, kept_dependencies: after.
        dropped: nodes that took no time, or host operators that were to go whatever they take.
        fused: host operators that became part of the next.
        implied: dependencies that others imply.
        reordered: whether nothing but dependencies went, as communications would have come in another order.
    """

    nodes: int
    dependencies: int
    kept: int
    kept_dependencies: int
    dropped: int
    fused: int
    implied: int
    reordered: bool


def reduce_trace(path: Path, out: Path, *, npu: int = -1, without_host: bool = False) -> ReduceResult:
    """Write a trace without what does not matter.

    Args:
        path: of the trace.
        out: the new file, gzipped if its name ends in .gz.
        npu: whose trace it is, -1 = as its sends and receives say.
        without_host: all host operators go, whatever time they take: what is left is the accelerator's time alone.

    Raises:
        TraceError: as et.read_trace(path, strict=False), or the file cannot be written.
    """
    table = read_trace(path, strict=False)
    order = topological_order(table).tolist()
    keep = ~_droppable(table, order, without_host=without_host)
    found = _written(table, keep, out, fuse=True)
    before = _sequence(table, npu)
    if _sequence(read_trace(out), npu) != before:
        found = _written(table, np.ones(len(table), np.bool_), out, fuse=False)._replace(reordered=True)
    return found


def _written(table: TraceTable, keep: Mask, out: Path, *, fuse: bool) -> ReduceResult:
    bridged = bridge(table, keep)
    parents = bridged.parents
    stayed = len(parents)
    implied = _drop_implied(table, parents)
    durations = _fuse(table, parents) if fuse else {}
    fused = stayed - len(parents)
    joints = np.zeros(len(table), np.bool_)  # a joint stays what it is: it takes no time
    rewrite(out, table, parents, joints, change=_with_durations(durations) if durations else None)
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


def _droppable(table: TraceTable, order: list[int], *, without_host: bool) -> Mask:
    """bool[n]: rows that may go."""
    lane = wants(table)
    groups = defines_groups(table)
    if without_host:
        return (lane == HOST) | ((lane == NOTHING) & ~groups)
    has_work = (table.num_ops >= 0) | (table.tensor_size >= 0) | (table.operators > 0)
    is_idle = (lane == NOTHING) | ((table.duration_micros == 0) & ((lane == HOST) | ((lane == COMPUTE) & ~has_work)))
    if not np.any(is_idle):
        return is_idle
    surely_timed = (table.duration_micros > 0) | (table.num_ops > 0) | (table.tensor_size > 0) | (table.operators > 0)
    surely_timed &= (lane == COMPUTE) | (lane == MEMORY) | ((lane == HOST) & (table.duration_micros > 0))
    in_its_line = np.ones(len(table), np.bool_)
    for resource in (HOST, COMPUTE, MEMORY, NETWORK):
        in_its_line &= in_line(table, order, lane == resource)
    harmless = _harmless(table, order, in_its_line, surely_timed)
    return is_idle & harmless & ~groups & in_its_line


def _harmless(table: TraceTable, order: list[int], in_its_line: Mask, surely_timed: Mask) -> Mask:
    """bool[n]: rows whose children may become ready a step earlier within a moment and nobody could tell."""
    child_ptr, child = (a.tolist() for a in children(table))
    in_line_of, timed = in_its_line.tolist(), surely_timed.tolist()
    told = [False] * len(in_line_of)  # if the row itself comes a step earlier, its or another's start changes
    found = np.ones(len(in_line_of), np.bool_)
    for row in reversed(order):
        below = any(told[other] for other in child[child_ptr[row] : child_ptr[row + 1]])
        found[row] = not below
        told[row] = not in_line_of[row] or (not timed[row] and below)
    return found


def _fuse(table: TraceTable, parents: Parents) -> dict[int, int]:
    """Make runs of host operators one each, the last of the run; return the durations of these, by row."""
    lane = wants(table)
    order = topological_order(table).tolist()
    host = in_line(table, order, lane == HOST) & (lane == HOST) & (table.duration_micros > 0)
    heirs = dict.fromkeys(parents, 0)
    for parent in itertools.chain.from_iterable(parents.values()):
        heirs[parent] += 1
    is_host = host.tolist()
    durations: dict[int, int] = {}
    micros = table.duration_micros.tolist()
    for row in order:
        if row not in parents or not is_host[row] or len(parents[row]) != 1:
            continue
        (parent,) = parents[row]
        if is_host[parent] and heirs[parent] == 1:
            durations[row] = durations.pop(parent, micros[parent]) + micros[row]
            parents[row] = parents.pop(parent)
    return durations


def _with_durations(durations: dict[int, int]) -> Change:
    def change(row: int, node: Message) -> None:
        if row in durations:
            node.duration_micros = durations[row]

    return change


def _drop_implied(table: TraceTable, parents: Parents) -> int:
    """Leave out dependencies on what another parent waits for; return how many."""
    rows = [row for row in topological_order(table).tolist() if row in parents]
    exact = len(rows) ** 2 <= _MOST_BITS
    number = {row: i for i, row in enumerate(rows)}
    before: dict[int, int] = {}
    dropped = 0
    for row in rows:
        own = parents[row]
        if exact:
            reached = 0
            for parent in own:
                reached |= before[parent]
            implied = {parent for parent in own if reached >> number[parent] & 1}
            for parent in own - implied:
                reached |= 1 << number[parent]
            before[row] = reached
        else:
            implied = own & set().union(*(parents[parent] for parent in own))
        dropped += len(implied)
        parents[row] = own - implied
    return dropped


def _sequence(table: TraceTable, npu: int) -> dict[object, int]:
    """The communications of a trace by key, as ids."""
    return {key: int(table.node_id[row]) for row, key in communications(table, npu)}
