"""Columns of a trace that a compiled kernel decodes and fills in place."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import DTypeLike, NDArray

from nadi.et import attributes
from nadi.et.columns import Columns
from nadi.et.dependencies import Parents
from nadi.et.kernels import nodes as kernel
from nadi.et.names import NameTable
from nadi.et.other_attributes import OtherAttributes
from nadi.inputs.arrays import Int32, Int64, Mask, UInt64

SLOTS = (*attributes.INTEGERS, "pg_name", "involved_dim", "in_split_size", "out_split_size", "operators")
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
        """Return dep_ptr, dep and the number of dropped parents, as et.dependencies.resolve does.

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
            column = np.where(column == _NOT_GIVEN, attributes.INTEGERS[name].absent, column)
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
    return _ABSENT.get(name, attributes.INTEGERS[name].absent if name in attributes.INTEGERS else 0)


def maximum(name: str) -> int:
    """Return the largest number that the column of an attribute of INTEGERS holds.

    Args:
        name: The name of the attribute.
    """
    return 1 if _dtype(name) is np.bool_ else attributes.INTEGERS[name].maximum


def _dtype(name: str) -> DTypeLike:
    """Return the NumPy type of a column."""
    if name in attributes.INTEGERS:
        return attributes.INTEGERS[name].dtype
    return {"id": np.uint64, "type": np.int8}.get(name, np.int32 if name in SLOTS else np.int64)
