"""Writer of Perfetto traces: tracks, slices with interned names, flows between slices, counters, and lanes.

A trace is a sequence of TracePackets, so that only names are held in memory. Timestamps are whole nanoseconds, the
resolution of Perfetto. The slices of a lane are distributed over a minimum of tracks; those of a track are nested or
disjoint.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nadi import inputs
from nadi.errors import OutputError
from nadi.inputs.arrays import Int64

# Values of enums of perfetto_trace.proto.
_SEQUENCE_ID = 1  # any number but 0
_INCREMENTAL_STATE_CLEARED, _NEEDS_INCREMENTAL_STATE = 1, 2  # of TracePacket.SequenceFlags
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4  # of TrackEvent.Type
_EXPLICIT = 3  # of TrackDescriptor.ChildTracksOrdering: by sibling_order_rank
Value = int | float | str

_PACKAGE = "perfetto.protos"
# Fields of each message: number, name and type, with a star if repeated. Enums are int32, EventName and
# DebugAnnotationName are InternedName: the bytes are the same. Source: protos/perfetto/trace/perfetto_trace.proto of
# Perfetto 58
_FIELDS = {
    "Trace": "1 packet TracePacket*",
    "TracePacket": "8 timestamp uint64, 10 trusted_packet_sequence_id uint32, 11 track_event TrackEvent, "
    "12 interned_data InternedData, 13 sequence_flags uint32, 60 track_descriptor TrackDescriptor",
    "TrackDescriptor": "1 uuid uint64, 2 name string, 3 process ProcessDescriptor, 5 parent_uuid uint64, "
    "8 counter CounterDescriptor, 11 child_ordering int32, 12 sibling_order_rank int32",
    "ProcessDescriptor": "1 pid int32, 6 process_name string",
    "CounterDescriptor": "6 unit_name string",
    "InternedData": "2 event_names InternedName*, 3 debug_annotation_names InternedName*",
    "InternedName": "1 iid uint64, 2 name string",
    "TrackEvent": "4 debug_annotations DebugAnnotation*, 9 type int32, 10 name_iid uint64, 11 track_uuid uint64, "
    "30 counter_value int64, 44 double_counter_value double, 47 flow_ids fixed64*, 48 terminating_flow_ids fixed64*",
    "DebugAnnotation": "1 name_iid uint64, 4 int_value int64, 5 double_value double, 6 string_value string",
}


def _trace_class() -> Any:  # noqa: ANN401 - classes of messages have no types
    """Return the class of Perfetto's Trace, which creates the classes of all other messages.

    They are in a pool of their own, so that Perfetto's own Python package can be imported in the same process.
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="perfetto_trace.proto", package=_PACKAGE, syntax="proto2")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for text in fields.split(", "):
            number, name, kind = text.split()
            field = described.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            if kind.rstrip("*") in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind.rstrip('*')}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.rstrip('*').upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Trace"))


Trace = _trace_class()


class PerfettoTrace:
    """A trace that is written packet by packet.

    Slices on one track must be nested or disjoint, and events of a track must be ordered by time; events at the same
    time keep the order of writing. Tracks are written before their events.
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
            name: Name that the UI shows.
            pid: Number to show, from 1.
            rank: Position among the groups.
        """
        process = {"pid": pid, "process_name": _valid(name)}
        return self._descriptor(process=process, child_ordering=_EXPLICIT, sibling_order_rank=rank)

    def track(self, name: str, parent: int | None = None, rank: int = 0) -> int:
        """Write a track for slices and return its number.

        Args:
            name: Name that the UI shows.
            parent: Number of the track that holds this one; None = none.
            rank: Position among the tracks of the parent.
        """
        return self._descriptor(name=_valid(name), parent_uuid=parent, sibling_order_rank=rank)

    def counter(self, name: str, unit: str, parent: int | None = None, rank: int = 0) -> int:
        """Write a track for the values of a counter in a unit, and return its number.

        Args:
            name: Name that the UI shows.
            unit: Unit of the values.
            parent: Number of the track that holds this one; None = none.
            rank: Position among the tracks of the parent.
        """
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
            time_ns: Time in ns.
            name: Name that the UI shows.
            details: Details for a click on the event; None = no details.
            flows: Numbers of the arrows that start there.
            ended_flows: Numbers of the arrows that end there.
        """
        self._event(_SLICE_BEGIN, track, time_ns, name, details, flow_ids=flows, terminating_flow_ids=ended_flows)

    def end(self, track: int, time_ns: int) -> None:
        """End the innermost open slice of a track.

        Args:
            track: Number of the track.
            time_ns: Time in ns.
        """
        self._event(_SLICE_END, track, time_ns)

    def instant(self, track: int, time_ns: int, name: str, details: Mapping[str, Value] | None = None) -> None:
        """Write an event without duration.

        Args:
            track: Number of the track.
            time_ns: Time in ns.
            name: Name that the UI shows.
            details: Details for a click on the event; None = no details.
        """
        self._event(_INSTANT, track, time_ns, name, details)

    def count(self, track: int, time_ns: int, value: float) -> None:
        """Set the value of a counter from a time on.

        Args:
            track: Number of the track.
            time_ns: Time in ns.
            value: Value of the counter from then on.
        """
        if isinstance(value, int):
            self._event(_COUNTER, track, time_ns, counter_value=value)
        else:
            self._event(_COUNTER, track, time_ns, double_counter_value=value)

    def _event(
        self,
        event_type: int,
        track: int,
        time_ns: int,
        name: str | None = None,
        details: Mapping[str, Value] | None = None,
        **fields: Any,  # noqa: ANN401 - of TrackEvent
    ) -> None:
        """Write an event on a track."""
        if name is not None:
            fields["name_iid"] = self._interned(self._names, "event_names", name)
        if details:
            fields["debug_annotations"] = [self._annotation(key, value) for key, value in details.items()]
        self._packet(
            timestamp=time_ns,
            track_event={"type": event_type, "track_uuid": track, **fields},
            sequence_flags=_NEEDS_INCREMENTAL_STATE,
        )

    def _annotation(self, key: str, value: Value) -> dict[str, Value]:
        """Return a detail of a slice: a key and its value."""
        number = self._interned(self._keys, "debug_annotation_names", key)
        if isinstance(value, str):
            return {"name_iid": number, "string_value": _valid(value)}
        return {"name_iid": number, "double_value" if isinstance(value, float) else "int_value": value}

    def _interned(self, number_of_text: dict[str, int], field: str, text: str) -> int:
        """Return the number of a text, and write the text at its first use."""
        number = number_of_text.get(text)
        if number is None:
            number = number_of_text[text] = len(number_of_text) + 1
            entries = {field: [{"iid": number, "name": _valid(text)}]}
            self._packet(interned_data=entries, sequence_flags=_NEEDS_INCREMENTAL_STATE)
        return number

    def _descriptor(self, **fields: Any) -> int:  # noqa: ANN401 - of TrackDescriptor
        """Write the description of a new track and return its number."""
        self._tracks += 1
        self._packet(track_descriptor={"uuid": self._tracks, **fields})
        return self._tracks

    def _packet(self, **fields: Any) -> None:  # noqa: ANN401 - of TracePacket
        packet = {"trusted_packet_sequence_id": _SEQUENCE_ID, **fields}
        self._out.write(Trace(packet=[packet]).SerializeToString())


@contextmanager
def perfetto_trace(path: str | os.PathLike[str]) -> Iterator[PerfettoTrace]:
    """Open a trace for writing; the file appears when the block ends normally, and not at all after an exception.

    Args:
        path: File to write.
    """
    with inputs.refusing(path, "a file to write the timeline to", OutputError), inputs.whole_file(path) as out:
        yield PerfettoTrace(out)


def _valid(text: str) -> str:
    """Return a text without lone surrogates, which file names can contain but UTF-8 cannot."""
    return text.encode("utf-8", errors="replace").decode()


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
