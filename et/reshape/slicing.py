"""Selection of a part of a set of traces: by step, range of ids, NPUs or names.

Dependencies through removed nodes are bridged. Partners stay together: all members of a collective, send and receive.
"""

import fnmatch
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from nadi.et.communications import Key, communication_text, communications
from nadi.et.errors import TraceError
from nadi.et.files import TraceFile, groups_of_metadata_node
from nadi.et.order import bridge, topological_order
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
        self.row_of: dict[Key, int] = {key: row for row, key in communications(table, file.npu)}
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
    return [_write(part, folder) for part in parts if part.is_chosen]


def _settle(parts: Sequence[_Part], selection: Selection, partners: Partners) -> None:
    """Keep or drop partners together, in all parts."""
    sharers: dict[Key, list[int]] = {}
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


def _keep(parts: Sequence[_Part], key: Key, kept_part: int, lost_parts: Sequence[int], *, refuse: bool) -> None:
    """Keep the partners of a kept node by their key; refuse it if asked, or if partners are on an unselected NPU."""
    place = f"{parts[kept_part].file.path}: {communication_text(key)}"
    for part in (parts[number] for number in lost_parts):
        if not part.is_chosen:
            ways = "selected with all its NPUs, or left out (--partners drop)"
            raise TraceError(f"{place} has a partner in {part.file.path}, which is not selected; expected it {ways}")
        if refuse:
            raise TraceError(f"{place} is selected on some of its NPUs only, expected on all or on none of them")
        part.keep[part.row_of[key]] = True


def _write(part: _Part, folder: Path) -> SliceResult:
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
