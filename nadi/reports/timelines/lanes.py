"""Distribution of the slices of a lane over a minimum of tracks; slices of a track are nested or disjoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.reports.timelines.perfetto import PerfettoTrace, Value

MAX_TRACKS = 64  # Number of tracks per lane; more are not readable


class Slice(NamedTuple):
    """An interval with a name."""

    begin_ns: int  # Begin in nanoseconds
    end_ns: int  # End in nanoseconds, not before begin_ns
    name: str  # Name of the slice
    details: dict[str, Value]  # Values that a click on the slice shows, by name
    flows: tuple[int, ...] = ()  # Numbers of the arrows that start here
    ended_flows: tuple[int, ...] = ()  # Numbers of the arrows that end here


def write_npu(
    trace: PerfettoTrace,
    npu: int,
    position: int,
    lanes: Mapping[str, Int64],
    begin_ns: Int64,
    end_ns: Int64,
    slice_of: Callable[[int], Slice],
    max_slices: int,
) -> tuple[int, int, int]:
    """Write the lanes of an NPU, of many nodes the longest, and one slice for the shorter nodes between them.

    The result counts slices, nodes merged into slices of several nodes, and nodes left out because more than MAX_TRACKS
    overlap.

    Args:
        trace: Timeline to write to.
        npu: Number of the NPU.
        position: Position of the NPU in the timeline.
        lanes: Nodes (indices of begin_ns and end_ns) by lane.
        begin_ns: int64[n], begin of each node in ns.
        end_ns: int64[n], end of each node in ns.
        slice_of: Function that returns the slice of a node.
        max_slices: Number of nodes that get slices of their own.
    """
    process = trace.process(f"NPU {npu}", npu + 1, position)
    nodes = np.sort(np.concatenate([np.zeros(0, np.int64), *lanes.values()]))
    has_slice = np.zeros(len(begin_ns), np.bool_)
    # the longest nodes get slices of their own, as the eye finds them
    has_slice[nodes[np.argsort(-(end_ns - begin_ns)[nodes], kind="stable")[: max(max_slices, 1)]]] = True
    written = merged = left_out = 0
    for number, (name, rows) in enumerate(lanes.items()):
        # of nodes that begin together, the longer one contains the others
        ordered = rows[np.lexsort((-end_ns[rows], begin_ns[rows]))]
        slices: list[Slice] = []
        short: list[int] = []
        for row in ordered.tolist():
            if has_slice[row]:
                slices += [*_merged_slice(short, begin_ns, end_ns), slice_of(row)]
                short = []
            else:
                short.append(row)
        slices += _merged_slice(short, begin_ns, end_ns)
        written += len(slices)
        merged += int(np.count_nonzero(~has_slice[rows]))
        left_out += write_lane(trace, name, process, slices, number)
    return written, merged, left_out


def _merged_slice(rows: Sequence[int], begin_ns: Int64, end_ns: Int64) -> list[Slice]:
    """Return one slice for short nodes between longer ones."""
    if not rows:
        return []
    busy_ns = int((end_ns[rows] - begin_ns[rows]).sum())
    details: dict[str, Value] = {"nodes": len(rows), "together_ns": busy_ns}
    return [Slice(int(begin_ns[rows].min()), int(end_ns[rows].max()), f"{len(rows):,} short nodes", details)]


def write_notes(trace: PerfettoTrace, notes: Sequence[str]) -> None:
    """Write the notes, if any, on a track of their own, which the UI shows first.

    Args:
        trace: Timeline to write to.
        notes: Lines of text.
    """
    if notes:
        track = trace.track("notes on this timeline")
        for note in notes:
            trace.instant(track, 0, note)


def write_lane(trace: PerfettoTrace, lane_name: str, parent_track: int, slices: Sequence[Slice], rank: int = 0) -> int:
    """Write the slices of a lane, and overlapping slices onto further tracks of the same name.

    Return the number of slices that are left out because more than MAX_TRACKS overlap.

    Args:
        trace: Timeline to write to.
        lane_name: Name of the lane.
        parent_track: Number of the track that holds the lane.
        slices: Slices of the lane.
        rank: Position among the tracks of the parent.
    """
    tracks = _apart(slices)
    for own in tracks:
        track = trace.track(lane_name, parent_track, rank)
        for time_ns, slice_ in _ordered(own):
            if slice_ is None:
                trace.end(track, time_ns)
            else:
                flows = {"flows": slice_.flows, "ended_flows": slice_.ended_flows}
                trace.begin(track, time_ns, slice_.name, slice_.details, **flows)
    return len(slices) - sum(map(len, tracks))


def _apart(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Return the slices by track: each is on the first track where it is nested in an open slice, or follows it."""
    tracks: list[list[Slice]] = []
    open_ends: list[list[int]] = []
    for slice_ in sorted(slices, key=lambda s: (s.begin_ns, -s.end_ns)):
        number = next((i for i, ends in enumerate(open_ends) if _fits(slice_, ends)), len(tracks))
        if number == MAX_TRACKS:
            continue
        if number == len(tracks):
            tracks.append([])
            open_ends.append([])
        tracks[number].append(slice_)
        open_ends[number].append(slice_.end_ns)
    return tracks


def _fits(slice_: Slice, ends: list[int]) -> bool:
    """Return whether a slice is within the open slices of a track, or after them; slices that have ended are closed."""
    while ends and ends[-1] <= slice_.begin_ns:
        ends.pop()
    return not ends or slice_.end_ns <= ends[-1]


def _ordered(slices: Sequence[Slice]) -> Iterator[tuple[int, Slice | None]]:
    """Yield the begin of each slice and the ends (None) of one track, in order of time."""
    ends: list[int] = []
    for slice_ in slices:
        while ends and ends[-1] <= slice_.begin_ns:
            yield ends.pop(), None
        yield slice_.begin_ns, slice_
        ends.append(slice_.end_ns)
    for end_ns in reversed(ends):
        yield end_ns, None
