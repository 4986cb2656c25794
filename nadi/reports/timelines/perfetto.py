"""Writing a Perfetto trace: tracks, slices with interned names, flows between slices, counters.

The bytes are those of perfetto/protos/perfetto/trace/perfetto_trace.proto (Perfetto 58); a Trace is a sequence of
TracePackets, so that nothing is held but names. Timestamps are whole nanoseconds, as Perfetto has no finer ones.

| message | fields used here |
| --- | --- |
| Trace | 1 packet |
| TracePacket | 8 timestamp, 10 trusted_packet_sequence_id, 11 track_event, 12 interned_data, 13 sequence_flags, 60 track_descriptor |
| TrackDescriptor | 1 uuid, 2 name, 3 process, 5 parent_uuid, 8 counter, 11 child_ordering, 12 sibling_order_rank |
| ProcessDescriptor | 1 pid, 6 process_name |
| CounterDescriptor | 6 unit_name |
| InternedData | 2 event_names, 3 debug_annotation_names: each 1 iid, 2 name |
| TrackEvent | 4 debug_annotations, 9 type, 10 name_iid, 11 track_uuid, 30 counter_value, 44 double_counter_value, 47 flow_ids, 48 terminating_flow_ids |
| DebugAnnotation | 1 name_iid, 4 int_value, 5 double_value, 6 string_value |
"""  # noqa: E501 - rows of a table

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

import inputs
from nadi.errors import OutputError

ENDING = ".perfetto-trace"

_SEQUENCE = 1
_CLEARED, _NEEDED = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EXPLICIT = 3
_LENGTH = 2
Value = int | float | str


class PerfettoTrace:
    """A trace as it is written, packet by packet.

    Slices on one track must be nested or apart, and events of a track come in order of time; events at one moment stay
    in the order in which they were written. Tracks are written before their events.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._sequence = _integer(10, _SEQUENCE)
        self._packet(_integer(13, _CLEARED) + self._sequence)

    def process(self, name: str, pid: int, rank: int = 0) -> int:
        """A group of tracks, such as an NPU; pid: a number from 1 that no other has; rank: its place among others."""
        self._tracks += 1
        process = _integer(1, pid) + _text(6, name)
        ordered = _integer(11, _EXPLICIT) + _integer(12, rank)
        self._descriptor(_integer(1, self._tracks) + _message(3, process) + ordered)
        return self._tracks

    def track(self, name: str, parent: int | None = None, rank: int = 0) -> int:
        """A track for slices, below another one or a process; rank: its place among its siblings."""
        self._tracks += 1
        body = _integer(1, self._tracks) + _text(2, name) + _integer(12, rank)
        self._descriptor(body + (_integer(5, parent) if parent else b""))
        return self._tracks

    def counter(self, name: str, unit: str, parent: int | None = None, rank: int = 0) -> int:
        """A track for the values of a counter in a unit."""
        self._tracks += 1
        body = _integer(1, self._tracks) + _text(2, name) + _message(8, _text(6, unit)) + _integer(12, rank)
        self._descriptor(body + (_integer(5, parent) if parent else b""))
        return self._tracks

    def begin(
        self,
        track: int,
        time_ns: int,
        name: str,
        said: Mapping[str, Value] | None = None,
        *,
        flows: Sequence[int] = (),
        ended_flows: Sequence[int] = (),
    ) -> None:
        """A slice begins; said: what a click on it shows; flows: numbers of the arrows that start here, or end here."""
        body = self._event(_BEGIN, track, name, said)
        body += b"".join(_fixed(47, flow) for flow in flows) + b"".join(_fixed(48, flow) for flow in ended_flows)
        self._packet(_integer(8, time_ns) + _message(11, body) + self._later)

    def end(self, track: int, time_ns: int) -> None:
        """The slice that began last and has not ended ends."""
        self._packet(_integer(8, time_ns) + _message(11, _integer(9, _END) + _integer(11, track)) + self._later)

    def instant(self, track: int, time_ns: int, name: str, said: Mapping[str, Value] | None = None) -> None:
        """Something that happened at a moment."""
        body = self._event(_INSTANT, track, name, said)
        self._packet(_integer(8, time_ns) + _message(11, body) + self._later)

    def count(self, track: int, time_ns: int, value: float) -> None:
        """A counter has this value from now on."""
        said = _integer(30, value) if isinstance(value, int) else _double(44, value)
        body = _integer(9, _COUNTER) + _integer(11, track) + said
        self._packet(_integer(8, time_ns) + _message(11, body) + self._later)

    @property
    def _later(self) -> bytes:
        return self._sequence + _integer(13, _NEEDED)

    def _event(self, kind: int, track: int, name: str, said: Mapping[str, Value] | None) -> bytes:
        body = _integer(9, kind) + _integer(11, track) + _integer(10, self._interned(self._names, 2, name))
        for key, value in (said or {}).items():
            note = _integer(1, self._interned(self._keys, 3, key))
            if isinstance(value, str):
                note += _text(6, value)
            elif isinstance(value, float):
                note += _double(5, value)
            else:
                note += _integer(4, value)
            body += _message(4, note)
        return body

    def _interned(self, known: dict[str, int], field: int, text: str) -> int:
        """The number of a text, which is written when it comes for the first time."""
        number = known.get(text)
        if number is None:
            number = known[text] = len(known) + 1
            entry = _integer(1, number) + _text(2, text)
            self._packet(_message(12, _message(field, entry)) + self._later)
        return number

    def _descriptor(self, body: bytes) -> None:
        self._packet(_message(60, body) + self._sequence)

    def _packet(self, body: bytes) -> None:
        self._out.write(_message(1, body))


@contextmanager
def perfetto_trace(path: str | os.PathLike[str]) -> Iterator[PerfettoTrace]:
    """A trace to write into; the file has its name when the block ends well, and when it does not there is none.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        with inputs.whole_file(path) as out:
            yield PerfettoTrace(out)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the timeline to") from error


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative integers are of ten bytes
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", errors="replace"))


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(body)) + body
