"""Slices of one lane on as few tracks as they need: on a track they are nested or apart."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nadi.reports.timelines.perfetto import PerfettoTrace, Value


class Slice(NamedTuple):
    """Something that takes time.

    Attributes:
        begin_ns: when it begins.
        end_ns: when it ends, not before.
        name: what it is.
        said: what a click on it shows.
        flows: arrows that start here, by number.
        ended_flows: arrows that end here.
    """

    begin_ns: int
    end_ns: int
    name: str
    said: dict[str, Value]
    flows: tuple[int, ...] = ()
    ended_flows: tuple[int, ...] = ()


MAX_TRACKS = 64
"""Of one lane; nobody looks at more."""


def write_lane(trace: PerfettoTrace, name: str, parent: int, slices: Sequence[Slice], rank: int = 0) -> int:
    """Write the slices of a lane, those that overlap onto further tracks of the same name.

    Returns:
        How many slices are left out, as more than MAX_TRACKS overlap.
    """
    tracks = _apart(slices)
    for own in tracks:
        track = trace.track(name, parent, rank)
        for time_ns, slice_ in _ordered(own):
            if slice_ is None:
                trace.end(track, time_ns)
            else:
                flows = {"flows": slice_.flows, "ended_flows": slice_.ended_flows}
                trace.begin(track, time_ns, slice_.name, slice_.said, **flows)
    return len(slices) - sum(map(len, tracks))


def _apart(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Slices by track: each goes on the first one where it is within what is open, or after it."""
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
    """Whether a slice is within what is open on a track, or after it; what has ended by then is closed."""
    while ends and ends[-1] <= slice_.begin_ns:
        ends.pop()
    return not ends or slice_.end_ns <= ends[-1]


def _ordered(slices: Sequence[Slice]) -> Iterator[tuple[int, Slice | None]]:
    """When slices of one track begin and end (None), in order."""
    ends: list[int] = []
    for slice_ in slices:
        while ends and ends[-1] <= slice_.begin_ns:
            yield ends.pop(), None
        yield slice_.begin_ns, slice_
        ends.append(slice_.end_ns)
    while ends:
        yield ends.pop(), None
