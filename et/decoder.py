"""Reading a trace into a table by compiled kernels, where somebody has provided them.

`et` knows no compiler. Whoever has one provides a module with the kernel (pdes/decoding/nodes.py says what it does and
what its words mean). It decodes valid files; where it is not sure, the whole file is left to the reader that parses
message by message, so both give the same tables, and errors are said by one.
"""

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import DTypeLike, NDArray

from et import attributes
from et.columns import Columns
from et.dependencies import ManyParents, Parents
from et.errors import TraceError
from et.framing import LONGEST_LENGTH_BYTES, read_length
from et.groups import groups_of_metadata_node
from et.names import NameTable
from et.other_attributes import OtherAttributes
from et.schema import AttributeProto, RawNode
from et.window import SLACK_BYTES, Window

Path = str | os.PathLike[str]
Int64 = NDArray[np.int64]

FEWEST_BYTES = 1 << 20
"""Smaller files are read in a few hundredths of a second anyway, and need not wait for a compiler."""
MANY_BYTES = 8 << 20
"""Once so much has been read in smaller files, as of hundreds of NPUs, the next ones are worth a compiler, too."""

_STEP_BYTES = 1 << 20
_MOST_ROWS = 32_768 + 56  # columns that are no power of two apart share no lines of a cache
_NAME_ENTRIES, _ATTRIBUTE_ENTRIES = 1 << 11, 1 << 17
_MOST_ARENA_BYTES = 32 << 20
_GROWTH, _MARGIN = 1.5, 1.02
_LINE_BYTES = 64
_SLOTS = (*attributes.INTEGERS, "pg_name", "involved_dim", "in_split_size", "out_split_size", "operators")
_FIELDS = ("id", "type", "start", "duration", "name", "data", "control")
_RANKS = "ranks"  # of METADATA nodes, the members of a group
_NOT_GIVEN = -(2**63)  # no value of comm_type
_ABSENT = {"involved_dim": -1, "comm_type": _NOT_GIVEN}

_providers: list[Callable[[], Any]] = []
_small_files = {"bytes": 0}


class _NotSureError(Exception):
    """The file is for the other reader."""


def provide(module: Callable[[], Any]) -> None:
    """Have traces decoded by the kernel of a module; what gives it is called when the first large trace is read."""
    _providers[:] = [module]


def provided() -> Any:  # noqa: ANN401 - a module
    """The module with the kernels, or None."""
    return _providers[0]() if _providers else None


def withdraw() -> None:
    """Have traces parsed message by message again."""
    _providers.clear()
    _small_files["bytes"] = 0


def decoded(path: Path, *, keep_others: bool = False) -> tuple[bytes, Columns] | None:
    """The message of the metadata, and the columns of the nodes; None where the other reader must look."""
    if not _providers or not os.path.isfile(path):  # noqa: PTH113 - a pipe cannot be read once more by the other
        return None
    try:
        window = Window(path, max(FEWEST_BYTES, _STEP_BYTES), _STEP_BYTES)
        window.read_on()
        if not _is_worth(window.size):
            return None
        metadata = _first_message(path, window)
        decoder = _Decoder(path, _providers[0](), keep_others=keep_others)
        decoder.take(window)
        columns = decoder.columns()
        _ = columns.made_names
    except (_NotSureError, TraceError, DecodeError, ValueError):
        return None
    return metadata, columns


def _first_message(path: Path, window: Window) -> bytes:
    """The message that a file begins with; the window begins behind it.

    Raises:
        _NotSureError, TraceError: there is none.
    """
    while window.size < LONGEST_LENGTH_BYTES and window.read_on():
        pass
    length, begin = read_length(path, window.data[: min(window.size, LONGEST_LENGTH_BYTES)].tobytes(), 0, 0)
    while window.size < begin + length:
        if not window.read_on():
            raise _NotSureError
    message = window.data[begin : begin + length].tobytes()
    window.drop(begin + length)
    return message


def _is_worth(size: int) -> bool:
    """Whether a file of a size, or of so many bytes at least, is for the kernel."""
    if size >= FEWEST_BYTES:
        return True
    _small_files["bytes"] += size
    return _small_files["bytes"] > MANY_BYTES


class _Decoder:
    """Feeds the kernel with windows, answers what it asks, and gathers what it decodes."""

    def __init__(self, path: Path, kernel: Any, *, keep_others: bool) -> None:  # noqa: ANN401 - a module
        self._kernel, self._keep_others = kernel, keep_others
        self._file_bytes = os.path.getsize(path)  # noqa: PTH202 - any path that can be opened
        self._columns = _DecodedColumns(path, keep_others=keep_others)
        self._names = np.zeros(kernel.ENTRY * _NAME_ENTRIES, np.int64)
        self._attributes = np.zeros(kernel.ENTRY * _ATTRIBUTE_ENTRIES, np.int64)
        self._arena = np.zeros(_MOST_ARENA_BYTES + kernel.PADDING_BYTES, np.uint8)
        self._arena_bytes = 0
        self._rows = np.empty((kernel.FIRST_SLOT + len(_SLOTS)) * _MOST_ROWS, np.int64)
        self._spans = np.empty(3 * _MOST_ROWS, np.int64)
        self._state = np.zeros(kernel.STATE_WORDS, np.int64)
        self._absent = np.array([_absent(name) for name in _SLOTS], np.int64)
        self._room_bytes = 0

    def take(self, window: Window) -> None:
        """Decode all nodes."""
        self._window = window
        while True:
            window.drop(self._decode_window())
            self._columns.expect(self._file_bytes, window.taken)
            if not window.read_on():
                break
        if window.size:
            raise _NotSureError

    def columns(self) -> "_DecodedColumns":
        """What was decoded."""
        return self._columns

    def _room(self, size: int) -> None:
        """Buffers for windows of so many bytes."""
        self._room_bytes = size
        self._out = np.empty(size, np.uint8)
        self._others = np.empty(size if self._keep_others else 0, np.uint8)
        self._data_deps, self._control_deps = np.empty(size, np.int64), np.empty(size, np.int64)

    def _decode_window(self) -> int:
        """Decode what is in the window; gives how many bytes were whole messages."""
        data, size = self._window.data, self._window.size
        if len(data) > self._room_bytes:
            self._room(len(data))
        data[size : size + SLACK_BYTES] = 0
        kernel, state = self._kernel, self._state
        state[:] = 0
        while True:
            outcome = kernel.decode_nodes(
                data.ctypes.data,
                size,
                self._out.ctypes.data,
                self._others.ctypes.data if self._keep_others else 0,
                self._names,
                self._attributes,
                self._arena.ctypes.data,
                self._absent,
                self._rows,
                self._data_deps,
                self._control_deps,
                self._spans,
                state,
            )
            if outcome in {kernel.DONE, kernel.FULL}:
                self._flush()
            if outcome == kernel.DONE:
                break
            if outcome == kernel.DOUBTFUL:
                raise _NotSureError
            if outcome in {kernel.NEW_NAME, kernel.NEW_ATTRIBUTE}:
                self._learn(is_name=outcome == kernel.NEW_NAME)
        return int(state[kernel.POSITION])

    def _flush(self) -> None:
        kernel, state = self._kernel, self._state
        count = int(state[kernel.ROWS])
        rows = self._rows.reshape(-1, _MOST_ROWS)[:, :count]
        for row, begin, end in self._spans[: 3 * state[kernel.SPANS]].reshape(-1, 3).tolist():
            del row
            message = RawNode.FromString(self._window.data[begin:end].tobytes())
            self._columns.add_groups(groups_of_metadata_node(message))
        data, control = self._data_deps[: state[kernel.DATA]], self._control_deps[: state[kernel.CONTROL]]
        self._columns.extend(kernel, rows, data, control, self._out[: state[kernel.NAME_BYTES]].tobytes())
        if self._keep_others:
            self._columns.keep(rows[kernel.OTHER_LENGTH], self._others[: state[kernel.OTHER_BYTES]])
        for word in (kernel.ROWS, kernel.DATA, kernel.CONTROL, kernel.NAME_BYTES, kernel.SPANS, kernel.OTHER_BYTES):
            state[word] = 0

    def _learn(self, *, is_name: bool) -> None:
        """Answer what the kernel asked: where a name of attributes or an attribute goes."""
        kernel, state = self._kernel, self._state
        begin = int(state[kernel.ASKED_AT]) - self._window.data.ctypes.data
        found = self._window.data[begin : begin + int(state[kernel.ASKED_BYTES])]
        if self._arena_bytes + len(found) > _MOST_ARENA_BYTES:
            raise _NotSureError
        slot, value = self._of_name(found.tobytes()) if is_name else self._of_attribute(found.tobytes())
        self._arena[self._arena_bytes : self._arena_bytes + len(found)] = found
        entry = kernel.ENTRY * int(state[kernel.ASKED_PLACE])
        table = self._names if is_name else self._attributes
        table[entry : entry + kernel.ENTRY] = self._arena_bytes, len(found), slot, value
        self._arena_bytes += len(found)

    def _of_name(self, name: bytes) -> tuple[int, int]:
        """Slot of the attributes of a name, and the largest value that a number in it may have."""
        text = name.decode()
        if text in attributes.INTEGERS:
            return _SLOTS.index(text), attributes.INTEGERS[text].most
        return (self._kernel.WHOLE, 0) if text in {*_SLOTS, _RANKS} else (self._kernel.IGNORED, 0)

    def _of_attribute(self, message: bytes) -> tuple[int, int]:
        """Slot and value of an attribute with its value."""
        attribute = AttributeProto.FromString(message)
        if attribute.name == _RANKS:
            return self._kernel.RANKS, 0
        return self._columns.cell(attribute, self._kernel.IGNORED)


class _DecodedColumns(Columns):
    """Columns whose nodes come many at a time."""

    def __init__(self, path: Path, *, keep_others: bool) -> None:
        super().__init__(path, keep_others=keep_others)
        self._other_lengths: list[Int64] = []
        self._other_fields = np.empty(0, np.uint8)
        self._other_bytes = 0
        self._rest = 1.0
        self._count = 0
        self._of_rows = np.empty((0, 0), np.int64)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._blobs: list[bytes] = []
        self._data_parts: list[NDArray[np.uint64]] = []
        self._control_parts: list[NDArray[np.uint64]] = []
        self._expected = 0

    def expect(self, size: int, done: int) -> None:
        """Make room at once for as many nodes as a file of so many bytes may have, of which so many are done."""
        self._rest = size / max(done, 1) * _MARGIN
        self._expected = int(self._count * self._rest) + 1

    def add_groups(self, groups: dict[str, tuple[int, ...]]) -> None:
        """Take in the groups of a METADATA node."""
        self._metadata_groups.update(groups)

    def cell(self, attribute: Message, nowhere: int) -> tuple[int, int]:
        """Slot and value of an attribute; (nowhere, 0) if no column takes it.

        Raises:
            DecodeError, ValueError: what is wrong with it.
        """
        name = attribute.name
        return (_SLOTS.index(name), self._value(attribute)) if name in _SLOTS else (nowhere, 0)

    def keep(self, lengths: Int64, fields: NDArray[np.uint8]) -> None:
        """Append the fields of attributes that no column takes; lengths: int64[nodes], how many bytes each has."""
        self._other_lengths.append(lengths.copy())
        end = self._other_bytes + len(fields)
        if end > len(self._other_fields):
            grown = np.empty(max(end, int(_GROWTH * self._other_bytes), int(end * self._rest)), np.uint8)
            grown[: self._other_bytes] = self._other_fields[: self._other_bytes]
            self._other_fields = grown
        self._other_fields[self._other_bytes : end] = fields
        self._other_bytes = end

    def _others(self) -> tuple[NDArray[np.int32] | None, Sequence[tuple[bytes, ...]]]:
        if not self._keep_others:
            return None, ((),)
        lengths = np.concatenate([np.zeros(0, np.int64), *self._other_lengths])
        has_some = lengths > 0
        offsets = np.concatenate([np.zeros(2, np.int64), np.cumsum(lengths[has_some])])
        fields = self._other_fields[: self._other_bytes]
        for array in (offsets, fields):
            array.setflags(write=False)
        return np.where(has_some, np.cumsum(has_some), 0).astype(np.int32), OtherAttributes(fields, offsets)

    def extend(self, kernel: Any, rows: Int64, data: Int64, control: Int64, names: bytes) -> None:  # noqa: ANN401
        """Append the nodes of some rows: int64[columns, nodes]."""
        if rows.shape[1] == 0:  # the first node is longer than a window, or there is none
            return
        begin, end = self._count, self._count + rows.shape[1]
        if end > len(self._arrays.get("id", ())):
            self._grow(end)
        of = {
            "id": kernel.ID,
            "type": kernel.TYPE,
            "start": kernel.START,
            "duration": kernel.DURATION,
            "name": kernel.NAME_LENGTH,
            "data": kernel.DATA_COUNT,
            "control": kernel.CONTROL_COUNT,
            **{name: kernel.FIRST_SLOT + slot for slot, name in enumerate(_SLOTS)},
        }
        for name, column in of.items():
            self._arrays[name][begin:end] = rows[column]
        self._data_parts.append(data.astype(np.uint64))
        self._control_parts.append(control.astype(np.uint64))
        self._blobs.append(names)
        self._count = end

    def _grow(self, least: int) -> None:
        room = -(-max(least, self._expected, int(_GROWTH * self._count)) // _LINE_BYTES) * _LINE_BYTES
        dtypes = {name: np.dtype(_dtype(name)) for name in (*_FIELDS, *_SLOTS)}
        block = np.empty(room * sum(dtype.itemsize for dtype in dtypes.values()), np.uint8)  # one, for large pages
        at = 0
        for name, dtype in dtypes.items():
            grown = block[at : at + room * dtype.itemsize].view(dtype)
            at += room * dtype.itemsize
            if self._count:
                grown[: self._count] = self._arrays[name][: self._count]
            self._arrays[name] = grown

    def _name_table(self) -> NameTable:
        return self.made_names

    @functools.cached_property
    def made_names(self) -> NameTable:
        """The names, made once.

        Raises:
            UnicodeDecodeError: one is not UTF-8.
        """
        offsets = np.zeros(self._count + 1, np.int64)
        np.cumsum(self._taken("name"), out=offsets[1:])
        blob = b"".join(self._blobs)
        self._blobs.clear()
        if not blob.isascii():
            for begin, end in itertools.pairwise(offsets.tolist()):
                blob[begin:end].decode()
        offsets.setflags(write=False)
        return NameTable(blob, offsets)

    def _ids_and_types(self) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        return self._taken("id"), self._taken("type")

    def _parents(self) -> tuple[Parents, Parents]:
        data, control = _joined(self._data_parts), _joined(self._control_parts)
        return ManyParents(data, self._taken("data")), ManyParents(control, self._taken("control"))

    def _is_given(self, name: str) -> NDArray[np.bool_]:
        return self._taken(name) != _NOT_GIVEN

    def _micros(self, name: str) -> Int64:
        return self._taken("start" if name == "start_time_micros" else "duration")

    def _column(self, name: str, dtype: DTypeLike, absent: int) -> NDArray[Any]:
        del absent
        column = self._taken(name)
        if name == "comm_type":
            column = np.where(column == _NOT_GIVEN, attributes.INTEGERS[name].absent, column)
        return column.astype(dtype, copy=False)

    def _taken(self, name: str) -> NDArray[Any]:
        return self._arrays[name][: self._count] if self._arrays else np.zeros(0, _dtype(name))


def _joined(parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """One after another, in one array that takes their place."""
    if len(parts) != 1:
        parts[:] = [np.concatenate(parts)] if parts else [np.zeros(0, np.uint64)]
    return parts[0]


def _absent(name: str) -> int:
    """What a node has that lacks an attribute."""
    return _ABSENT.get(name, attributes.INTEGERS[name].absent if name in attributes.INTEGERS else 0)


def _dtype(name: str) -> DTypeLike:
    """Of a column."""
    if name in attributes.INTEGERS:
        return attributes.INTEGERS[name].dtype
    return {"id": np.uint64, "type": np.int8}.get(name, np.int32 if name in _SLOTS else np.int64)
