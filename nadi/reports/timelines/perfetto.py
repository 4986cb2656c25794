"""Writer of Perfetto traces: tracks, slices with interned names, flows between slices, counters.

A trace is a sequence of TracePackets, so that only names are held in memory. Timestamps are whole nanoseconds, the
resolution of Perfetto.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import inputs
from nadi.errors import OutputError
from nadi.reports.timelines.perfetto_messages import Trace

ENDING = ".perfetto-trace"

# Values of enums of perfetto_trace.proto.
_SEQUENCE_ID = 1  # any number but 0
_INCREMENTAL_STATE_CLEARED, _NEEDS_INCREMENTAL_STATE = 1, 2  # of TracePacket.SequenceFlags
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4  # of TrackEvent.Type
_EXPLICIT = 3  # of TrackDescriptor.ChildTracksOrdering: by sibling_order_rank
Value = int | float | str


class PerfettoTrace:
    """A trace that is written packet by packet.

    Slices on one track must be nested or disjoint, and events of a track must be ordered by time; events at the same
    time
    keep the order of writing. Tracks are written before their events.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._packet(sequence_flags=_INCREMENTAL_STATE_CLEARED)

    def process(self, name: str, pid: int, rank: int = 0) -> int:
        """Write a group of tracks, such as an NPU, and return its number.

        Args:
            name: Name of the group.
            pid: Number from 1 that no other group has.
            rank: Position among the groups.
        """
        process = {"pid": pid, "process_name": _valid(name)}
        return self._descriptor(process=process, child_ordering=_EXPLICIT, sibling_order_rank=rank)

    def track(self, name: str, parent: int | None = None, rank: int = 0) -> int:
        """Write a track for slices and return its number.

        Args:
            name: Name of the track.
            parent: Number of the track or process above it; None = no parent.
            rank: Position among the tracks of the same parent.
        """
        return self._descriptor(name=_valid(name), parent_uuid=parent, sibling_order_rank=rank)

    def counter(self, name: str, unit: str, parent: int | None = None, rank: int = 0) -> int:
        """Write a track for the values of a counter in a unit, and return its number."""
        counter = {"unit_name": _valid(unit)}
        return self._descriptor(name=_valid(name), counter=counter, parent_uuid=parent, sibling_order_rank=rank)

    def begin(
        self,
        track: int,
        time_ns: int,
        name: str,
        details: Mapping[str, Value] | None = None,
        *,
        flows: Sequence[int] = (),
        ended_flows: Sequence[int] = (),
    ) -> None:
        """Begin a slice.

        Args:
            track: Number of the track.
            time_ns: Time in nanoseconds.
            name: Name of the slice.
            details: Values that a click on the slice shows, by name.
            flows: Numbers of the arrows that start at the slice.
            ended_flows: Numbers of the arrows that end at the slice.
        """
        self._event(_SLICE_BEGIN, track, time_ns, name, details, flow_ids=flows, terminating_flow_ids=ended_flows)

    def end(self, track: int, time_ns: int) -> None:
        """End the innermost open slice of a track."""
        self._event(_SLICE_END, track, time_ns)

    def instant(self, track: int, time_ns: int, name: str, details: Mapping[str, Value] | None = None) -> None:
        """Write an event without duration."""
        self._event(_INSTANT, track, time_ns, name, details)

    def count(self, track: int, time_ns: int, value: float) -> None:
        """Set the value of a counter from a time on."""
        if isinstance(value, int):
            self._event(_COUNTER, track, time_ns, counter_value=value)
        else:
            self._event(_COUNTER, track, time_ns, double_counter_value=value)

    def _event(
        self,
        kind: int,
        track: int,
        time_ns: int,
        name: str | None = None,
        details: Mapping[str, Value] | None = None,
        **fields: Any,  # noqa: ANN401 - of TrackEvent
    ) -> None:
        if name is not None:
            fields["name_iid"] = self._interned(self._names, "event_names", name)
        if details:
            fields["debug_annotations"] = [self._annotation(key, value) for key, value in details.items()]
        self._packet(
            timestamp=time_ns,
            track_event={"type": kind, "track_uuid": track, **fields},
            sequence_flags=_NEEDS_INCREMENTAL_STATE,
        )

    def _annotation(self, key: str, value: Value) -> dict[str, Value]:
        number = self._interned(self._keys, "debug_annotation_names", key)
        if isinstance(value, str):
            return {"name_iid": number, "string_value": _valid(value)}
        return {"name_iid": number, "double_value" if isinstance(value, float) else "int_value": value}

    def _interned(self, known: dict[str, int], field: str, text: str) -> int:
        """Return the number of a text, and write the text at its first use."""
        number = known.get(text)
        if number is None:
            number = known[text] = len(known) + 1
            entries = {field: [{"iid": number, "name": _valid(text)}]}
            self._packet(interned_data=entries, sequence_flags=_NEEDS_INCREMENTAL_STATE)
        return number

    def _descriptor(self, **fields: Any) -> int:  # noqa: ANN401 - of TrackDescriptor
        self._tracks += 1
        self._packet(track_descriptor={"uuid": self._tracks, **fields})
        return self._tracks

    def _packet(self, **fields: Any) -> None:  # noqa: ANN401 - of TracePacket
        packet = {"trusted_packet_sequence_id": _SEQUENCE_ID, **fields}
        self._out.write(Trace(packet=[packet]).SerializeToString())


@contextmanager
def perfetto_trace(path: str | os.PathLike[str]) -> Iterator[PerfettoTrace]:
    """Open a trace for writing; the file appears when the block ends normally, and not at all after an exception.

    Raises:
        OutputError: The file cannot be written.
    """
    try:
        with inputs.whole_file(path) as out:
            yield PerfettoTrace(out)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the timeline to") from error


def _valid(text: str) -> str:
    """Return a text without lone surrogates, which file names can contain but UTF-8 cannot."""
    return text.encode("utf-8", errors="replace").decode()
