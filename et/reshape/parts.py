"""Parts of traces: slices by step, range of ids, NPUs or names, and reduction to what matters for the simulated time.

Of a slice, dependencies through removed nodes are bridged. Partners stay together: all members of a collective, send
and receive.

A reduction removes three things, each only where the engine's answer stays the same to the picosecond:

- dependencies that others imply;
- nodes that take no time (METADATA nodes that define no groups, operators of no duration and no work), if everything
  that becomes ready through them is before or after every other row of its lane: rows that become ready at the same
  moment start in the order of becoming ready, and a node in between would change that order;
- consecutive host operators, which become one with the sum of their durations, where the host never has a choice.
"""

import fnmatch
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from nadi.et import communications
from nadi.et.errors import TraceError
from nadi.et.files import TraceFile, groups_of_metadata_node
from nadi.et.order import bridge, children, topological_order
from nadi.et.reader import read_trace
from nadi.et.reshape.wire import WireTrace, rewrite
from nadi.et.schema import NodeType, RawNode
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int64, Mask

Partners = Literal["keep", "drop", "refuse"]

_STEP = re.compile(r"step(\d+)(?:/|\Z)")
_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")


class Selection(NamedTuple):
    """The nodes to select: those that meet all given conditions."""

    steps: frozenset[int] | None = None  # numbers of training steps; None = all
    ids: tuple[tuple[int, int], ...] | None = None  # ranges (first, last) of node ids; None = all
    npus: frozenset[int] | None = None  # NPUs whose traces to slice; None = all
    # shell patterns, where * also matches slashes, one of which the name must match; None = all
    names: tuple[str, ...] | None = None
    with_ancestors: bool = False  # whether to select all direct and indirect parents of the selected nodes, too


class SliceResult(NamedTuple):
    """Result for one file."""

    file: TraceFile  # file that was sliced
    nodes: int  # number of its nodes
    kept: int  # number of nodes kept, joints included
    joints: int  # number of kept nodes that do nothing and connect other nodes
    added: int  # number of new dependencies that replace paths through removed nodes
    for_partners: int  # number of unselected nodes kept because they are partners of selected ones or define groups
    without_partners: int  # number of selected nodes removed because a partner is missing
    dangling: int  # number of removed dependencies on nodes that the file lacks


class _Part:
    """One file, and which of its rows to keep."""

    def __init__(self, file: TraceFile, selection: Selection) -> None:
        table = read_trace(file.path, strict=False)
        self.file = file
        self.is_chosen = selection.npus is None or file.npu in selection.npus  # whether the file is written
        # Rows that meet the conditions, as bool[n]
        self.selected = _selected(table, selection) if self.is_chosen else np.zeros(len(table), np.bool_)
        self.keep = self.selected.copy()  # rows to write, which partners extend or shorten
        # row of each communication
        self.row_of: dict[communications.Key, int] = {
            key: row for row, key in communications.communications(table, file.npu)
        }
        if self.is_chosen:
            self.keep |= defines_groups(table)
            if selection.with_ancestors:
                add_ancestors(table, self.keep)


def slice_traces(
    files: Sequence[TraceFile],
    folder: Path,
    selection: Selection,
    partners: Partners = "keep",
    progress: Callable[[TraceFile], None] = lambda _: None,
) -> list[SliceResult]:
    """Write the selected nodes of each file under the file's own name into a folder.

    Args:
        files: The traces, those of unselected NPUs included, among which partners are sought.
        folder: An existing folder for the results.
        selection: The conditions that selected nodes meet.
        partners: The treatment of communications with both selected and unselected nodes: "keep" all nodes, which fails
            if the trace of one is not selected; "drop" all; "refuse", which fails.
        progress: A function that is called with each file before the file is read.
    """
    parts = []
    for file in files:
        progress(file)
        parts.append(_Part(file, selection))
    if not any(part.selected.any() for part in parts):
        others = f" and {len(files) - 1} others" if len(files) > 1 else ""
        raise TraceError(f"{files[0].path}{others}: no node matches the selection, expected one or more")
    _settle(parts, selection, partners)
    return [_write_slice(part, folder) for part in parts if part.is_chosen]


def _settle(parts: Sequence[_Part], selection: Selection, partners: Partners) -> None:
    """Keep or drop partners together, in all parts."""
    sharers: dict[communications.Key, list[int]] = {}
    for number, part in enumerate(parts):
        for key in part.row_of:
            sharers.setdefault(key, []).append(number)
    # Kept partners may have ancestors, which may have partners in turn
    while True:
        grown: set[int] = set()
        for key, numbers in sharers.items():
            kept = [number for number in numbers if parts[number].keep[parts[number].row_of[key]]]
            if not kept or len(kept) == len(numbers):
                continue
            if partners == "drop":
                for number in kept:
                    parts[number].keep[parts[number].row_of[key]] = False
            else:
                lost = [number for number in numbers if number not in kept]
                _keep(parts, key, kept[0], lost, refuse=partners == "refuse")
                grown.update(lost)
        # Without ancestors one round is enough: keeping a partner adds no other communication
        if not (grown and selection.with_ancestors):
            return
        for number in grown:
            add_ancestors(read_trace(parts[number].file.path, strict=False), parts[number].keep)


def _keep(
    parts: Sequence[_Part], key: communications.Key, kept_part: int, lost_parts: Sequence[int], *, refuse: bool
) -> None:
    """Keep the partners of a kept node by their key; refuse it if asked, or if partners are on an unselected NPU."""
    place = f"{parts[kept_part].file.path}: {communications.communication_text(key)}"
    for part in (parts[number] for number in lost_parts):
        if not part.is_chosen:
            ways = "selected with all its NPUs, or left out (--partners drop)"
            raise TraceError(f"{place} has a partner in {part.file.path}, which is not selected; expected it {ways}")
        if refuse:
            raise TraceError(f"{place} is selected on some of its NPUs only, expected on all or on none of them")
        part.keep[part.row_of[key]] = True


def _write_slice(part: _Part, folder: Path) -> SliceResult:
    """Write the rows of a part that are kept into a folder, and return counts of them."""
    table = read_trace(part.file.path, strict=False)
    bridged = bridge(table, part.keep)
    order = [row for row in topological_order(table).tolist() if row in bridged.parents]
    # The file is then written without holding its nodes
    in_file_order = all(a < b for a, b in itertools.pairwise(order))
    rewrite(folder / part.file.path.name, table, bridged.parents, bridged.joints, None if in_file_order else order)
    masks = bridged.joints, part.keep & ~part.selected, part.selected & ~part.keep
    joints, for_partners, without_partners = (int(np.count_nonzero(mask)) for mask in masks)
    nodes = len(table), len(bridged.parents), joints
    dangling = table.dangling + table.dangling_control
    return SliceResult(part.file, *nodes, bridged.added, for_partners, without_partners, dangling)


def _selected(table: TraceTable, selection: Selection) -> Mask:
    """Return bool[n], the rows that a selection names by id, name and training step."""
    selected = matching(table, selection.ids, selection.names)
    if selection.steps is not None:
        steps = steps_of(table)
        if not np.any(steps >= 0):
            raise TraceError(f"{table.path}: no steps, expected names step0/... or nodes ProfilerStep#0 with times")
        selected &= np.isin(steps, sorted(selection.steps))
    return selected


def matching(table: TraceTable, ids: Sequence[tuple[int, int]] | None, names: Sequence[str] | None) -> Mask:
    """Return bool[n], whether each node has an id in one of the ranges, and a name that matches one of the patterns.

    Args:
        table: The trace of one NPU.
        ids: Ranges (first, last) of node ids; None = any id.
        names: Shell patterns for names, where * also matches slashes; None = any name.
    """
    matches = np.ones(len(table), np.bool_)
    if ids is not None:
        inside = [(table.node_id >= np.uint64(first)) & (table.node_id <= np.uint64(last)) for first, last in ids]
        matches &= np.any(inside, axis=0)
    if names is not None:
        fits = re.compile("|".join(fnmatch.translate(pattern) for pattern in names)).match
        matches &= np.fromiter((fits(name) is not None for name in table.names), np.bool_, len(table))
    return matches


def steps_of(table: TraceTable) -> Int64:
    """Return int64[n], the training step of each node, -1 = none.

    The step is in the node's name, step0/..., or that of the node ProfilerStep#0 of PyTorch during which it starts.

    Args:
        table: The trace of one NPU.
    """
    found = np.full(len(table), -1, np.int64)
    spans = []
    for row, name in enumerate(table.names):
        match = _STEP.match(name)
        if match:
            # A name may hold any number of digits; the column is int64
            found[row] = min(int(match[1]), 2**62)
        elif match := _PROFILER_STEP.fullmatch(name):
            spans.append((min(int(match[1]), 2**62), row))
    for step, row in spans:
        start = table.start_time_micros[row]
        # The nodes that start during the step; the first step that has a node keeps it
        inside = (table.start_time_micros >= start) & (table.start_time_micros < start + table.duration_micros[row])
        found[inside & (found < 0)] = step
        found[row] = step
    return found


def add_ancestors(table: TraceTable, keep: Mask) -> None:
    """Add all direct and indirect parents of the kept rows to `keep` (bool[n]).

    Args:
        table: The trace of one NPU.
        keep: bool[n], the rows that stay, which is extended in place.
    """
    dep_ptr, dep = table.dep_ptr.tolist(), table.dep.tolist()
    stays = keep.tolist()
    # Children come before parents, so that one pass reaches all ancestors
    for row in reversed(topological_order(table).tolist()):
        if stays[row]:
            for parent in dep[dep_ptr[row] : dep_ptr[row + 1]]:
                stays[parent] = True
    keep[:] = stays


def defines_groups(table: TraceTable) -> Mask:
    """Return bool[n], whether each node is a METADATA node that defines groups of NPUs.

    Args:
        table: A trace whose file still exists; the file is read again if the table has groups.
    """
    found = np.zeros(len(table), np.bool_)
    if table.metadata_groups:
        is_metadata = (table.type == NodeType.METADATA_NODE).tolist()
        for row, message in enumerate(WireTrace(Path(table.path))):
            found[row] = is_metadata[row] and bool(groups_of_metadata_node(RawNode.FromString(message)))
    return found


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
    result = _write_reduced(table, keep, out, fuse=True)
    before = _sequence(table, npu)
    # Without what orders them, communications may have changed places: then remove only dependencies
    if _sequence(read_trace(out), npu) != before:
        result = _write_reduced(table, np.ones(len(table), np.bool_), out, fuse=False)._replace(reordered=True)
    return result


def _write_reduced(table: TraceTable, keep: Mask, out: Path, *, fuse: bool) -> ReduceResult:
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
    lane = communications.lanes_of(table)
    groups = defines_groups(table)
    if without_host:
        return (lane == communications.HOST_LANE) | ((lane == communications.NO_LANE) & ~groups)
    # Work without a duration takes time once a compute model knows the GPU
    has_work = (table.num_ops >= 0) | (table.tensor_size >= 0) | (table.operators > 0)
    is_idle = (lane == communications.NO_LANE) | (
        (table.duration_micros == 0)
        & ((lane == communications.HOST_LANE) | ((lane == communications.COMPUTE_LANE) & ~has_work))
    )
    if not np.any(is_idle):
        return is_idle
    # Rows that surely take time: what follows them starts later, whatever the order of events at their own start
    surely_timed = (table.duration_micros > 0) | (table.num_ops > 0) | (table.tensor_size > 0) | (table.operators > 0)
    surely_timed &= (
        (lane == communications.COMPUTE_LANE)
        | (lane == communications.MEMORY_LANE)
        | ((lane == communications.HOST_LANE) & (table.duration_micros > 0))
    )
    ordered = np.ones(len(table), np.bool_)
    for lanes in (
        (communications.HOST_LANE,),
        (communications.COMPUTE_LANE,),
        (communications.MEMORY_LANE,),
        communications.COMMUNICATION_LANES,
    ):
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
    lane = communications.lanes_of(table)
    order = topological_order(table).tolist()
    host = (
        is_ordered(table, order, lane == communications.HOST_LANE)
        & (lane == communications.HOST_LANE)
        & (table.duration_micros > 0)
    )
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
    return {key: int(table.node_id[row]) for row, key in communications.communications(table, npu)}


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
