"""Reading of a trace into a table by a compiled kernel (et/kernels/nodes.py documents what it does, and its words).

The kernel decodes valid files that are large enough to be worth a compiler. Where it is not sure, the reader that
parses message by message reads the whole file, so both give the same tables, and one reader reports all errors. As
plain Python the kernel would be slow, and the other reader reads all files.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import DTypeLike, NDArray

from nadi.compiling.decorators import jit_enabled
from nadi.et import schema
from nadi.et.columns import Columns, Parents
from nadi.et.errors import TraceError
from nadi.et.files import groups_of_metadata_node
from nadi.et.framing import HEAD_BYTES, MAX_LENGTH_BYTES, fills_of, read_length, refuse_others
from nadi.et.kernels import nodes as kernel, wire
from nadi.et.schema import AttributeProto, RawNode
from nadi.et.table import NameTable, OtherAttributes
from nadi.inputs.arrays import Int32, Int64, Mask, UInt64

# Columns of a trace that a compiled kernel decodes and fills in place.

SLOTS = (*schema.INTEGERS, "pg_name", "involved_dim", "in_split_size", "out_split_size", "operators")
_FIELDS = ("id", "type", "start", "duration", "name", "data", "control", "other")
"""In the kernel's order; "name", "data", "control" and "other" are the numbers of items in these lists per node."""
_LISTS = {"data": np.uint64, "control": np.uint64, "name": np.uint8, "other": np.uint8}
"""In the kernel's order: ids of parents, bytes of names, and serialized attributes that no column takes."""
SLACK_BYTES = 64  # zero bytes after the end of the data, because kernels read whole words
_NOT_GIVEN = -(2**63)  # outside the range of comm_type
_ABSENT = {"involved_dim": -1, "comm_type": _NOT_GIVEN}
_FIRST_ITEMS, _ROWS_AT_ONCE = 1 << 16, 16_384
_GROWTH = 1.5
_LINE_BYTES = 64
_LARGE_PAGES_BYTES = 4 << 20  # size from which NumPy asks the system for large pages, which cause fewer page faults
_NO_END, _LAST_ASCII = 1 << 62, 0x7F


class DecodedColumns(Columns):
    """Columns whose nodes arrive in large batches; the kernel may fill `ready_rows` rows."""

    def __init__(self, path: Any, *, keep_others: bool) -> None:  # noqa: ANN401 - a path
        super().__init__(path, keep_others=keep_others)
        # Decoded rows, rows of the arrays, and rows that the kernel may fill
        self._count = self._room = self.ready_rows = 0
        self._arrays = {name: np.empty(0, _dtype(name)) for name in (*_FIELDS, *SLOTS)}
        self._lists = {name: np.empty(0, dtype) for name, dtype in _LISTS.items()}
        self._used = dict.fromkeys(_LISTS, 0)
        # addresses and widths of the arrays that the kernel fills, in its layout
        self.columns = np.zeros(kernel.COLUMN_WORDS * len(self._arrays), np.int64)
        self.places = np.zeros(kernel.LIST_WORDS * len(_LISTS), np.int64)
        if not keep_others:
            del self._lists["other"]
            self.places.reshape(-1, kernel.LIST_WORDS)[kernel.OTHER_BYTES] = 0, _NO_END

    def count(self, num_rows: int, num_items: Int64) -> None:
        """Record how many rows are decoded, and how many items each list has.

        Args:
            num_rows: The number of rows.
            num_items: The number of items of each list, int64[lists].
        """
        self._count = num_rows
        self._used = dict(zip(_LISTS, num_items.tolist(), strict=True))

    def make_room(self, wanted_items: int, expected_growth: float) -> None:
        """Make room for at least one more row, and for more items in each list.

        Args:
            wanted_items: The number of items of each list.
            expected_growth: The expected size of the whole file, as a multiple of what is decoded.
        """
        if self._count >= self._room:
            self._grow(max(_ROWS_AT_ONCE, int(max(_GROWTH, expected_growth) * self._count)))
        # Rows get their absent values in portions, ahead of the kernel
        if self._count >= self.ready_rows:
            begin, self.ready_rows = self._count, min(self._room, self._count + _ROWS_AT_ONCE)
            for name in SLOTS:
                # The kernel writes only attributes that nodes have
                self._arrays[name][begin : self.ready_rows] = absent(name)
        for i, name in enumerate(_LISTS):
            used, items = self._used[name], self._lists.get(name)
            if items is not None and used + wanted_items + SLACK_BYTES > len(items):
                minimum = _LARGE_PAGES_BYTES // items.itemsize if used else _FIRST_ITEMS
                room = max(minimum, used + wanted_items, int(max(_GROWTH, expected_growth) * used))
                grown = np.empty(room + SLACK_BYTES, items.dtype)
                grown[:used] = items[:used]
                self._lists[name] = grown
                self.places.reshape(len(_LISTS), -1)[i] = grown.ctypes.data, room

    def _grow(self, min_rows: int) -> None:
        """Move all columns to one larger array, in large pages of the system, with at least `min_rows` rows each."""
        # Each array takes whole cache lines
        room = -(-min_rows // _LINE_BYTES) * _LINE_BYTES
        widths = {name: array.itemsize for name, array in self._arrays.items()}
        if not self._keep_others:
            # A width of 0: the numbers of all rows go to one place, which nothing reads
            widths["other"] = 0
        block = np.empty(sum(room * width + SLACK_BYTES for width in widths.values()), np.uint8)
        at = 0
        for i, (name, width) in enumerate(widths.items()):
            grown = block[at : at + room * width].view(self._arrays[name].dtype)
            # The kernel writes whole words; the mask keeps the cells behind a narrower cell
            neighbour_mask = 0 if width == np.dtype(np.int64).itemsize else -1 << (8 * width)
            self.columns.reshape(len(widths), -1)[i] = block.ctypes.data + at, width, neighbour_mask
            grown[: self._count] = self._arrays[name][: self._count] if width else 0
            self._arrays[name] = grown
            at += room * width + SLACK_BYTES
        self._room, self.ready_rows = room, self._count

    def add_groups(self, groups: dict[str, tuple[int, ...]]) -> None:
        """Add the groups of a METADATA node.

        Args:
            groups: The members of each group by name.
        """
        self._metadata_groups.update(groups)

    def cell(self, attribute: Message, slot_of_others: int) -> tuple[int, int]:
        """Return slot and value of an attribute; slot `slot_of_others` and 0 if no column takes it.

        Args:
            attribute: The attribute, an AttributeProto.
            slot_of_others: The slot of attributes that no column takes.
        """
        name = attribute.name
        if name not in SLOTS:
            return slot_of_others, 0
        value = self._value(attribute)
        return SLOTS.index(name), int(value != 0) if _dtype(name) is np.bool_ else value

    def _others(self) -> tuple[Int32 | None, Sequence[tuple[bytes, ...]]]:
        """Return each node's row of attributes that no column takes, and those; (None, one row) if none are kept."""
        if not self._keep_others:
            return None, ((),)
        lengths = self._taken("other")
        has_others = lengths > 0
        # List 0 is empty; nodes with other attributes have a list each
        # Two zeros: list 0 begins and ends at 0, and list 1 begins there.
        offsets = np.concatenate([np.zeros(2, np.int64), np.cumsum(lengths[has_others])])
        fields = self._items("other")
        for array in (offsets, fields):
            array.setflags(write=False)
        return np.where(has_others, np.cumsum(has_others), 0).astype(np.int32), OtherAttributes(fields, offsets)

    def _name_table(self) -> NameTable:
        return self.decoded_names

    @functools.cached_property
    def decoded_names(self) -> NameTable:
        """Names of all nodes, built on first use; raise UnicodeDecodeError if a name is not UTF-8."""
        offsets = np.zeros(self._count + 1, np.int64)
        np.cumsum(self._taken("name"), out=offsets[1:])
        blob = self._items("name")
        for array in (blob, offsets):
            array.setflags(write=False)
        names = NameTable(blob, offsets)
        # ASCII is UTF-8; other names are decoded once, to find wrong ones
        if len(blob) and blob.max() > _LAST_ASCII:
            for _ in names:
                pass
        return names

    def _ids_and_types(self) -> tuple[UInt64, NDArray[Any]]:
        return self._taken("id"), self._taken("type")

    def _parents(self, kind: str) -> Parents:
        return Parents(self._items(kind), self._taken(kind))

    def _resolved(self, ids: UInt64, parents: Sequence[Parents], *, strict: bool) -> tuple[Int64, Int32, int]:
        """Return dep_ptr, dep and the number of dropped parents, as et.columns.resolve does.

        A kernel makes them where nodes and their parents are in ascending order, as in most files.
        """
        named = [kind for kind in parents if len(kind.ids)] or parents[:1]
        if len(named) > 1:
            return super()._resolved(ids, parents, strict=strict)
        parent_ids, counts = named[0]
        dep_ptr, dep = np.empty(len(ids) + 1, np.int64), np.empty(len(parent_ids) + SLACK_BYTES, np.int32)
        # The kernel takes signed numbers
        signed_ids, signed_parents = ids.view(np.int64), parent_ids.view(np.int64)
        if not kernel.link_in_order(signed_ids, signed_parents, counts, dep_ptr, dep.ctypes.data):
            return super()._resolved(ids, parents, strict=strict)
        return dep_ptr, dep[: len(parent_ids)], 0

    def _is_given(self, name: str) -> Mask:
        return self._taken(name) != _NOT_GIVEN

    def _micros(self, name: str) -> Int64:
        return self._taken("start" if name == "start_time_micros" else "duration")

    def _column(self, name: str, dtype: DTypeLike, absent: int) -> NDArray[Any]:
        """Return a column as `dtype`, with a row per node; the kernel has filled in the absent values."""
        del absent
        column = self._taken(name)
        if name == "comm_type":
            column = np.where(column == _NOT_GIVEN, schema.INTEGERS[name].absent, column)
        return column.astype(dtype, copy=False)

    def _taken(self, name: str) -> NDArray[Any]:
        return self._arrays[name][: self._count]

    def _items(self, name: str) -> NDArray[Any]:
        return self._lists[name][: self._used[name]]


def absent(name: str) -> int:
    """Return the value of a column for nodes that lack the attribute.

    Args:
        name: The name of the column.
    """
    return _ABSENT.get(name, schema.INTEGERS[name].absent if name in schema.INTEGERS else 0)


def maximum(name: str) -> int:
    """Return the largest number that the column of an attribute of INTEGERS holds.

    Args:
        name: The name of the attribute.
    """
    return 1 if _dtype(name) is np.bool_ else schema.INTEGERS[name].maximum


def _dtype(name: str) -> DTypeLike:
    """Return the NumPy type of a column."""
    if name in schema.INTEGERS:
        return schema.INTEGERS[name].dtype
    return {"id": np.uint64, "type": np.int8}.get(name, np.int32 if name in SLOTS else np.int64)


Path = str | os.PathLike[str]

MIN_KERNEL_BYTES = 1 << 20  # smallest file for the kernel; others take the other reader a few hundredths of a second
MAX_SMALL_FILES_BYTES = 8 << 20  # total size of small files after which more of them are worth a compiler, too

_STEP_BYTES = 2 << 20
_MAX_SPANS = 4_096
_NAME_ENTRIES, _ATTRIBUTE_ENTRIES = 1 << 11, 1 << 17
_MAX_ARENA_BYTES = 32 << 20
_MARGIN = 1.02  # room beyond the estimated size of the columns, so that they seldom grow again
_RANKS = "ranks"  # of METADATA nodes, the members of a group

_small_files = {"bytes": 0}  # size of the small files that this process has read


class _NotSureError(Exception):
    """The kernel cannot decode the file, so the other reader must."""


class _Window:
    """A moving window of a file's bytes, inflated if it is gzipped, so that a large file needs little memory."""

    def __init__(self, path: Path, first_bytes: int, step_bytes: int) -> None:
        """Make an empty window; the first read takes `first_bytes`, each later read `step_bytes`."""
        self.data = np.empty(max(first_bytes, 2 * step_bytes) + SLACK_BYTES, np.uint8)  # room and SLACK_BYTES
        self.begin = self.end = 0  # offsets in `data` of the first byte that is still needed, and after the last one
        self.taken = 0  # number of bytes of the file that have been read so far
        self._fills: Iterator[int] = fills_of(path, self._room)
        self._more, self._step_bytes = first_bytes, step_bytes

    def read_on(self) -> bool:
        """Read the bytes after the window; return whether there were any."""
        read = next(self._fills, 0)
        self.end += read
        self.taken += read
        self._more = self._step_bytes
        # The kernel reads whole words, so bytes of an earlier filling may not follow the end
        self.data[self.end : self.end + SLACK_BYTES] = 0
        return read > 0

    def close(self) -> None:
        """Close the file, and end the cycle of window and filling, which would keep the buffer for some time."""
        self._fills = iter(())

    def _room(self) -> memoryview:
        """Return the buffer for the next bytes, after those that are still needed."""
        # A message that is not complete moves to the front; what the kernel has decoded is overwritten
        needed = self.data[self.begin : self.end].copy()
        self.begin, self.end = 0, len(needed)
        if self.end + self._more + SLACK_BYTES > len(self.data):
            self.data = np.empty(2 * (self.end + self._more) + SLACK_BYTES, np.uint8)
        self.data[: self.end] = needed
        return self.data[self.end : self.end + self._more].data


def decoded(path: Path, *, keep_others: bool = False) -> tuple[bytes, Columns] | None:
    """Return the message of the metadata and the columns of the nodes; None if the other reader must read the file.

    Args:
        path: The path of the file.
        keep_others: Whether attributes that no column takes are kept, as bytes.
    """
    if not jit_enabled() or not os.path.isfile(path):  # noqa: PTH113 - the other reader cannot read a pipe again
        return None
    window = _Window(path, max(MIN_KERNEL_BYTES, _STEP_BYTES), _STEP_BYTES)
    try:
        window.read_on()
        if not _is_worth(window.end):
            return None
        refuse_others(path, window.data[: min(window.end, HEAD_BYTES)].tobytes())
        metadata = _first_message(path, window)
        columns = _Decoder(path, keep_others=keep_others).take(window)
        # Builds the names now: wrong UTF-8 then leads to the other reader, which names the node
        _ = columns.decoded_names
    except (_NotSureError, TraceError, DecodeError, ValueError):
        return None
    finally:
        window.close()
    return metadata, columns


def _first_message(path: Path, window: _Window) -> bytes:
    """Return the first message of a file, and move the window behind it; raise if it has no complete one."""
    while window.end < MAX_LENGTH_BYTES and window.read_on():
        pass
    length, begin = read_length(path, window.data[: min(window.end, MAX_LENGTH_BYTES)].tobytes(), 0, 0)
    while window.end < begin + length:
        if not window.read_on():
            raise _NotSureError
    window.begin = begin + length
    return window.data[begin : window.begin].tobytes()


def _is_worth(size_bytes: int) -> bool:
    """Return whether the kernel should read a file of `size_bytes` bytes or more."""
    if size_bytes >= MIN_KERNEL_BYTES:
        return True
    # A run with thousands of small traces is worth loading the kernel, a single small trace is not
    _small_files["bytes"] += size_bytes
    return _small_files["bytes"] > MAX_SMALL_FILES_BYTES


class _Decoder:
    """Driver of the kernel: passes it windows of the file, and answers its requests."""

    def __init__(self, path: Path, *, keep_others: bool) -> None:
        self._file_bytes = os.path.getsize(path)  # noqa: PTH202 - any path that can be opened
        self._columns = DecodedColumns(path, keep_others=keep_others)
        self._names = np.zeros(wire.ENTRY * _NAME_ENTRIES, np.int64)
        self._follows = np.zeros(_NAME_ENTRIES + 1, np.int64)
        self._attributes = np.zeros(wire.ENTRY * _ATTRIBUTE_ENTRIES, np.int64)
        self._arena = np.zeros(_MAX_ARENA_BYTES + kernel.PADDING_BYTES, np.uint8)
        self._arena_bytes = 0
        self._spans = np.empty(2 * _MAX_SPANS, np.int64)
        self._state = np.zeros(kernel.STATE_WORDS, np.int64)

    def take(self, window: _Window) -> DecodedColumns:
        """Decode all nodes of a file. Raises _NotSureError: the other reader must read it.

        Args:
            window: The moving window of the file's bytes.
        """
        self._window = window
        while True:
            self._decode_window()
            if not window.read_on():
                break
        # The file ends inside a message, which the other reader reports with its offset
        if window.begin < window.end:
            raise _NotSureError
        return self._columns

    def _decode_window(self) -> None:
        """Decode the messages that the window holds completely, and move its beginning behind them."""
        window, state = self._window, self._state
        data, columns, places = window.data.ctypes.data, self._columns.columns, self._columns.places
        known = self._names, self._follows, self._attributes, self._arena.ctypes.data
        state[kernel.POSITION] = window.begin
        while True:
            out = columns, self._columns.ready_rows, self._spans, places
            outcome = kernel.decode_nodes(data, window.end, *known, *out, state)
            if outcome == kernel.DOUBTFUL:
                raise _NotSureError
            if outcome in {kernel.NEW_NAME, kernel.NEW_ATTRIBUTE}:
                self._learn(is_name=outcome == kernel.NEW_NAME)
                continue
            self._columns.count(int(state[kernel.ROWS]), state[: kernel.LISTS])
            for begin, end in self._spans[: 2 * state[kernel.SPANS]].reshape(-1, 2).tolist():
                message = RawNode.FromString(self._window.data[begin:end].tobytes())
                self._columns.add_groups(groups_of_metadata_node(message))
            state[kernel.SPANS] = 0
            if outcome == kernel.DONE:
                break
            done = window.taken - window.end + int(state[kernel.POSITION])
            self._columns.make_room(int(state[kernel.WANTED_BYTES]), _MARGIN * self._file_bytes / max(done, 1))
        window.begin = int(state[kernel.POSITION])

    def _learn(self, *, is_name: bool) -> None:
        """Answer a request of the kernel: slot and maximum of an attribute name, or slot and value of an attribute."""
        state = self._state
        begin = int(state[kernel.ASKED_AT]) - self._window.data.ctypes.data
        # The kernel has met a name or attribute that its tables lack; after the answer it repeats the step
        found = self._window.data[begin : begin + int(state[kernel.ASKED_BYTES])]
        # Too many distinct attributes: the arena that keeps their bytes would grow with the file
        if self._arena_bytes + len(found) > _MAX_ARENA_BYTES:
            raise _NotSureError
        if is_name:
            name = found.tobytes().decode()
            slot, value = kernel.WHOLE if name in {*SLOTS, _RANKS} else kernel.IGNORED, 0
            if name in schema.INTEGERS:
                slot, value = SLOTS.index(name), maximum(name)
        else:
            attribute = AttributeProto.FromString(found.tobytes())
            is_ranks = attribute.name == _RANKS
            slot, value = (kernel.RANKS, 0) if is_ranks else self._columns.cell(attribute, kernel.IGNORED)
        self._arena[self._arena_bytes : self._arena_bytes + len(found)] = found
        entry = wire.ENTRY * int(state[kernel.ASKED_PLACE])
        table = self._names if is_name else self._attributes
        table[entry : entry + wire.ENTRY] = self._arena_bytes, len(found), slot, value
        self._arena_bytes += len(found)
