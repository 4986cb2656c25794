"""Reading a trace into a table by compiled kernels, where somebody has provided them.

`et` knows no compiler. Whoever has one provides a module with the kernel (nadi/simulation/trace_decoding/nodes.py says
what it does and
what its words mean). It decodes valid files; where it is not sure, the whole file is left to the reader that parses
message by message, so both give the same tables, and errors are said by one.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from et import attributes
from et.columns import Columns
from et.decoded_columns import SLOTS, DecodedColumns, most
from et.errors import TraceError
from et.framing import HEAD_BYTES, LONGEST_LENGTH_BYTES, read_length, refuse_others
from et.groups import groups_of_metadata_node
from et.schema import AttributeProto, RawNode
from et.window import Window

Path = str | os.PathLike[str]

FEWEST_BYTES = 1 << 20
"""Smaller files are read in a few hundredths of a second anyway, and need not wait for a compiler."""
MANY_BYTES = 8 << 20
"""Once so much has been read in smaller files, as of hundreds of NPUs, the next ones are worth a compiler, too."""

_STEP_BYTES = 2 << 20
_MOST_SPANS = 4_096
_NAME_ENTRIES, _ATTRIBUTE_ENTRIES = 1 << 11, 1 << 17
_MOST_ARENA_BYTES = 32 << 20
_MARGIN = 1.02
_RANKS = "ranks"  # of METADATA nodes, the members of a group

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
        if not _is_worth(window.end):
            return None
        refuse_others(path, window.data[: min(window.end, HEAD_BYTES)].tobytes())
        metadata = _first_message(path, window)
        columns = _Decoder(path, _providers[0](), keep_others=keep_others).take(window)
        _ = columns.made_names
    except (_NotSureError, TraceError, DecodeError, ValueError):
        return None
    return metadata, columns


def _first_message(path: Path, window: Window) -> bytes:
    """The message that a file begins with; the window begins behind it.

    Raises:
        _NotSureError, TraceError: there is none.
    """
    while window.end < LONGEST_LENGTH_BYTES and window.read_on():
        pass
    length, begin = read_length(path, window.data[: min(window.end, LONGEST_LENGTH_BYTES)].tobytes(), 0, 0)
    while window.end < begin + length:
        if not window.read_on():
            raise _NotSureError
    window.begin = begin + length
    return window.data[begin : window.begin].tobytes()


def _is_worth(size: int) -> bool:
    """Whether a file of a size, or of so many bytes at least, is for the kernel."""
    if size >= FEWEST_BYTES:
        return True
    _small_files["bytes"] += size
    return _small_files["bytes"] > MANY_BYTES


class _Decoder:
    """Feeds the kernel with windows, and answers what it asks."""

    def __init__(self, path: Path, kernel: Any, *, keep_others: bool) -> None:  # noqa: ANN401 - a module
        self._kernel = kernel
        self._file_bytes = os.path.getsize(path)  # noqa: PTH202 - any path that can be opened
        self._columns = DecodedColumns(path, kernel, keep_others=keep_others)
        self._names = np.zeros(kernel.ENTRY * _NAME_ENTRIES, np.int64)
        self._follows = np.zeros(_NAME_ENTRIES + 1, np.int64)
        self._attributes = np.zeros(kernel.ENTRY * _ATTRIBUTE_ENTRIES, np.int64)
        self._arena = np.zeros(_MOST_ARENA_BYTES + kernel.PADDING_BYTES, np.uint8)
        self._arena_bytes = 0
        self._spans = np.empty(2 * _MOST_SPANS, np.int64)
        self._state = np.zeros(kernel.STATE_WORDS, np.int64)

    def take(self, window: Window) -> DecodedColumns:
        """Decode all nodes of a file.

        Raises:
            _NotSureError: it is for the other reader.
            DecodeError, ValueError, TraceError: something is wrong with it.
        """
        self._window = window
        while True:
            self._decode_window()
            if not window.read_on():
                break
        if window.begin < window.end:
            raise _NotSureError
        return self._columns

    def _decode_window(self) -> None:
        """Decode the messages that are whole in the window, so that it begins behind them."""
        window, kernel, state = self._window, self._kernel, self._state
        data, columns, places = window.data.ctypes.data, self._columns.columns, self._columns.places
        state[kernel.POSITION] = window.begin
        while True:
            outcome = kernel.decode_nodes(
                data,
                window.end,
                self._names,
                self._follows,
                self._attributes,
                self._arena.ctypes.data,
                columns,
                self._columns.ready_rows,
                self._spans,
                places,
                state,
            )
            if outcome == kernel.DOUBTFUL:
                raise _NotSureError
            if outcome in {kernel.NEW_NAME, kernel.NEW_ATTRIBUTE}:
                self._learn(is_name=outcome == kernel.NEW_NAME)
                continue
            self._flush()
            if outcome == kernel.DONE:
                break
            done = window.taken - window.end + int(state[kernel.POSITION])
            self._columns.make_room(int(state[kernel.WANTED_BYTES]), _MARGIN * self._file_bytes / max(done, 1))
        window.begin = int(state[kernel.POSITION])

    def _flush(self) -> None:
        """Take in what the kernel has decoded."""
        kernel, state = self._kernel, self._state
        self._columns.count(int(state[kernel.ROWS]), state[: kernel.LISTS])
        for begin, end in self._spans[: 2 * state[kernel.SPANS]].reshape(-1, 2).tolist():
            message = RawNode.FromString(self._window.data[begin:end].tobytes())
            self._columns.add_groups(groups_of_metadata_node(message))
        state[kernel.SPANS] = 0

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
            return SLOTS.index(text), most(text)
        return (self._kernel.WHOLE, 0) if text in {*SLOTS, _RANKS} else (self._kernel.IGNORED, 0)

    def _of_attribute(self, message: bytes) -> tuple[int, int]:
        """Slot and value of an attribute with its value."""
        attribute = AttributeProto.FromString(message)
        if attribute.name == _RANKS:
            return self._kernel.RANKS, 0
        return self._columns.cell(attribute, self._kernel.IGNORED)
