"""Reading of a trace into a table by a compiled kernel (et/kernels/nodes.py documents what it does, and its words).

The kernel decodes valid files that are large enough to be worth a compiler. Where it is not sure, the reader that
parses message by message reads the whole file, so both give the same tables, and one reader reports all errors. As
plain Python the kernel would be slow, and the other reader reads all files.
"""

import os
from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from nadi.compiling.decorators import jit_enabled
from nadi.et import attributes
from nadi.et.columns import Columns
from nadi.et.decoded_columns import SLACK_BYTES, SLOTS, DecodedColumns, maximum
from nadi.et.errors import TraceError
from nadi.et.framing import HEAD_BYTES, MAX_LENGTH_BYTES, fills_of, read_length, refuse_others
from nadi.et.groups import groups_of_metadata_node
from nadi.et.kernels import nodes as kernel
from nadi.et.schema import AttributeProto, RawNode

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
        self._names = np.zeros(kernel.ENTRY * _NAME_ENTRIES, np.int64)
        self._follows = np.zeros(_NAME_ENTRIES + 1, np.int64)
        self._attributes = np.zeros(kernel.ENTRY * _ATTRIBUTE_ENTRIES, np.int64)
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
            if name in attributes.INTEGERS:
                slot, value = SLOTS.index(name), maximum(name)
        else:
            attribute = AttributeProto.FromString(found.tobytes())
            is_ranks = attribute.name == _RANKS
            slot, value = (kernel.RANKS, 0) if is_ranks else self._columns.cell(attribute, kernel.IGNORED)
        self._arena[self._arena_bytes : self._arena_bytes + len(found)] = found
        entry = kernel.ENTRY * int(state[kernel.ASKED_PLACE])
        table = self._names if is_name else self._attributes
        table[entry : entry + kernel.ENTRY] = self._arena_bytes, len(found), slot, value
        self._arena_bytes += len(found)
