"""Distribution of the slices of a lane over a minimum of tracks; slices of a track are nested or disjoint."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nadi.reports.timelines.perfetto import PerfettoTrace, Value


class Slice(NamedTuple):
    """An interval with a name."""

    begin_ns: int  # Begin in nanoseconds
    end_ns: int  # End in nanoseconds, not before begin_ns
    name: str  # Name of the slice
    details: dict[str, Value]  # Values that a click on the slice shows, by name
    flows: tuple[int, ...] = ()  # Numbers of the arrows that start here
    ended_flows: tuple[int, ...] = ()  # Numbers of the arrows that end here


MAX_TRACKS = 64  # Number of tracks per lane; more are not readable


def write_lane(trace: PerfettoTrace, name: str, parent: int, slices: Sequence[Slice], rank: int = 0) -> int:
    """Write the slices of a lane, and overlapping slices onto further tracks of the same name.

    Returns:
        Number of slices that are left out because more than MAX_TRACKS overlap.
    """
    tracks = _apart(slices)
    for own in tracks:
        track = trace.track(name, parent, rank)
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
        at = next((i for i, ends in enumerate(open_ends) if _fits(slice_, ends)), len(tracks))
        if at == MAX_TRACKS:
            continue
        if at == len(tracks):
            tracks.append([])
            open_ends.append([])
        tracks[at].append(slice_)
        open_ends[at].append(slice_.end_ns)
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
    while ends:
        yield ends.pop(), None
