"""Writing of a TraceTable as a trace file, without a message per node.

Rows are assembled in large batches, as arrays of bytes. A trace repeats few lists of attributes, so protobuf encodes
each of them once; NumPy encodes ids, names and parents. The bytes are those that `et.write_trace` writes for the nodes
that et.schema makes (Protocol Buffers, "Encoding": varints, length-delimited fields).
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nadi.et.framing import frame, write_frames
from nadi.et.schema import INTEGERS, KINDS, IOInfo, NodeType, attribute, metadata
from nadi.et.table import OtherAttributes, TraceTable
from nadi.inputs.arrays import Int64, Mask, UInt8, UInt64, spans

_ROWS_AT_ONCE = 1 << 15
_ID, _NAME, _TYPE, _DATA_DEPS, _START, _DURATION, _INPUTS, _ATTR = 1, 2, 3, 5, 6, 7, 8, 10
_VARINT, _LENGTH = 0, 2


class _Field(NamedTuple):
    """One field of m rows: the bytes of all rows, concatenated, and the number of bytes of each."""

    data: UInt8  # uint8[], bytes of all rows
    sizes: Int64  # int64[m], number of bytes of each row


def write_table(path: str | os.PathLike[str], table: TraceTable) -> None:
    """Write a trace file, gzipped if its name ends in .gz; the file appears only when it is complete.

    All parents become data dependencies. Attributes that no column of the table takes are written if the table has
    kept them (`read_trace(..., keep_others=True)`).

    Args:
        path: The path of the file.
        table: The trace as a table of columns.
    """
    write_frames(path, frames_of(table))


def frames_of(table: TraceTable) -> Iterator[bytes]:
    """Yield the messages of a table, each behind its length: the metadata by itself, then nodes in large batches."""
    yield frame(metadata(table.version).SerializeToString(deterministic=True))
    lists, row_of_list = _attribute_lists(table)
    attributes = _fields_of(lists)
    others = _others(table.other_attributes)
    other_row = np.zeros(len(table), np.int64) if table.other is None else table.other.astype(np.int64)
    inputs, ranks = _groups_of_metadata(table)
    for begin in range(0, len(table), _ROWS_AT_ONCE):
        end = min(begin + _ROWS_AT_ONCE, len(table))
        rows = slice(begin, end)
        # Encode the parents of all rows at once, then cut them at the rows
        ptr = table.dep_ptr[begin : end + 1]
        ids = _varints(table.node_id[table.dep[ptr[0] : ptr[-1]]])
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(ids.sizes)])
        body = _interleaved(
            [
                _numbers(_ID, table.node_id[rows]),
                _behind_length(_NAME, _Field(*table.names.pieces(begin, end))),
                _numbers(_TYPE, table.type[rows].astype(np.uint64)),
                _behind_length(_DATA_DEPS, _Field(ids.data, np.diff(ends[ptr - ptr[0]]))),
                _numbers(_START, table.start_time_micros[rows].astype(np.uint64)),
                _numbers(_DURATION, table.duration_micros[rows].astype(np.uint64)),
                _sparse(inputs, begin, end),
                attributes.of(row_of_list[rows]),
                _sparse(ranks, begin, end),
                others.of(other_row[rows]),
            ]
        )
        # Each node behind its length
        yield _interleaved([_varints(body.sizes.astype(np.uint64)), body]).data.tobytes()


class _Texts:
    """Byte strings that rows refer to, concatenated; sizes: int64[texts], bytes of each."""

    def __init__(self, data: UInt8, sizes: Int64) -> None:
        self._data = data
        self._sizes = sizes
        self._begin = np.cumsum(self._sizes) - self._sizes

    def of(self, rows: Int64) -> _Field:
        """Return the strings of rows, one after the other.

        Args:
            rows: The rows of the strings, int64[].
        """
        sizes = self._sizes[rows]
        return _Field(self._data[spans(self._begin[rows], sizes)[1]], sizes)


def _fields_of(attributes_of_node: Iterable[Sequence[bytes]]) -> _Texts:
    """Return the bytes of each node's attribute fields, from the serialized attributes of each."""
    # A field's tag is its number, shifted by three bits, and its wire type: 10 << 3 | 2 for an attribute
    texts = [b"".join((bytes([_ATTR << 3 | _LENGTH]) + frame(text)) for text in each) for each in attributes_of_node]
    return _Texts(np.frombuffer(b"".join(texts), np.uint8), np.array([len(text) for text in texts], np.int64))


def _others(lists: Sequence[tuple[bytes, ...]]) -> _Texts:
    """Return lists of other attributes as fields; those of a large file are encoded already."""
    if isinstance(lists, OtherAttributes):
        return _Texts(lists.fields, np.diff(lists.offsets))
    return _fields_of(lists)


def _attribute_lists(table: TraceTable) -> tuple[list[list[bytes]], Int64]:
    """Return the distinct lists of attributes in the table, and int64[n], the list of each row."""
    names = [*INTEGERS, "group", "involved_dim", "in_split_size", "out_split_size", "operators"]
    key = np.zeros(len(table), np.int64)
    for name in names:
        column = getattr(table, name)
        if len(column) and np.any(column != column[0]):
            value = np.unique(column, return_inverse=True)[1].astype(np.int64)
            # Each column refines the numbers of distinct rows; unique keeps them small
            key = np.unique(key * (int(value.max()) + 1) + value, return_inverse=True)[1].astype(np.int64)
    # A row with each distinct list
    first = np.unique(key, return_index=True)[1]
    known: dict[tuple[str, int], bytes | None] = {}
    lists = []
    for values in zip(*(getattr(table, name)[first].tolist() for name in names), strict=True):
        texts = []
        for named in zip(names, values, strict=True):
            if named not in known:
                known[named] = _encoded(table, *named)
            text = known[named]
            if text is not None:
                texts.append(text)
        lists.append(texts)
    return lists, key


def _encoded(table: TraceTable, column: str, cell: int) -> bytes | None:
    """Return an attribute for a value of its column; None if the value means absent."""
    if column in INTEGERS:
        is_absent = column != "is_cpu_op" and cell == INTEGERS[column].absent
        content: Any = cell
    elif column == "involved_dim":
        # Bit d of the cell is dimension d; Chakra's list of booleans needs no entries behind the last true one
        is_absent, content = cell < 0, [bool(cell >> d & 1) for d in range(max(cell.bit_length(), 1))]
    else:
        distinct = {"group": table.group_names, "operators": table.operator_lists}.get(column, table.split_sizes)
        is_absent, content = cell == 0, distinct[cell]
    column = "pg_name" if column == "group" else column
    return None if is_absent else attribute(column, KINDS[column], content).SerializeToString(deterministic=True)


def _groups_of_metadata(table: TraceTable) -> tuple[Mapping[int, bytes], Mapping[int, bytes]]:
    """Return the fields `inputs`, and further attributes, of the METADATA nodes that define groups, by row.

    A node that names a group gets its ranks. Others are in the inputs of the first node without one, as in PyTorch.
    """
    left = dict(table.metadata_groups)
    ranks: dict[int, bytes] = {}
    inputs: dict[int, bytes] = {}
    rows = np.flatnonzero(table.type == NodeType.METADATA_NODE).tolist() if left else []
    for row in rows:
        name = table.group_names[table.group[row]]
        if name in left:
            text = attribute("ranks", "int32_list", left.pop(name)).SerializeToString(deterministic=True)
            ranks[row] = bytes([_ATTR << 3 | _LENGTH]) + frame(text)
    free = [row for row in rows if table.group[row] == 0]
    if left and free:
        listed = json.dumps([{"pg_name": name, "ranks": list(members)} for name, members in left.items()])
        inputs[free[0]] = bytes([_INPUTS << 3 | _LENGTH]) + frame(
            IOInfo(values=listed).SerializeToString(deterministic=True)
        )
    return inputs, ranks


def _sparse(text_of_row: Mapping[int, bytes], begin_row: int, end_row: int) -> _Field:
    """Return a field that few of the rows from `begin_row` to `end_row` have."""
    sizes = np.zeros(end_row - begin_row, np.int64)
    own = [(row, text) for row, text in sorted(text_of_row.items()) if begin_row <= row < end_row]
    for row, text in own:
        sizes[row - begin_row] = len(text)
    return _Field(np.frombuffer(b"".join(text for _, text in own), np.uint8), sizes)


def _numbers(field_number: int, values: UInt64) -> _Field:
    """Return a field of integers; as in proto3, rows with 0 omit it."""
    field = _varints(values)
    is_there = values > 0
    data = field.data[np.repeat(is_there, field.sizes)]
    return _tagged(field_number << 3 | _VARINT, _Field(data, np.where(is_there, field.sizes, 0)), is_there)


def _behind_length(field_number: int, field: _Field) -> _Field:
    """Return a length-delimited field; rows of no bytes omit it."""
    is_there = field.sizes > 0
    length = _varints(field.sizes[is_there].astype(np.uint64))
    sizes = np.zeros(len(field.sizes), np.int64)
    sizes[is_there] = length.sizes
    return _tagged(field_number << 3 | _LENGTH, _interleaved([_Field(length.data, sizes), field]), is_there)


def _tagged(tag: int, field: _Field, is_there: Mask) -> _Field:
    tags = _Field(np.full(int(np.count_nonzero(is_there)), tag, np.uint8), is_there.astype(np.int64))
    return _interleaved([tags, field])


def _varints(values: UInt64) -> _Field:
    """Return each number as a base-128 varint, lowest seven bits first; only the last byte is below 128."""
    digits = np.ones(len(values), np.int64)
    for k in range(1, 10):
        # A varint has a byte for every started seven bits
        digits += values >= np.uint64(1 << 7 * k)
    # uint64[values, places]: 300 has the septets 44 and 2 and becomes 0xAC 0x02; the high bit means "more"
    places = np.arange(int(digits.max(initial=1)))
    septets = (values[:, None] >> (np.uint64(7) * places.astype(np.uint64))) & np.uint64(0x7F)
    more = places < digits[:, None] - 1
    return _Field((septets.astype(np.uint8) | (more * np.uint8(0x80)))[places < digits[:, None]], digits)


def _interleaved(fields: Sequence[_Field]) -> _Field:
    """Return the fields of the same rows as one: for each row its part of the first, of the second, ..."""
    sizes = np.stack([field.sizes for field in fields], axis=1)
    # Row by row, the end of each field's part in the result
    ends = np.cumsum(sizes).reshape(sizes.shape)
    data = np.empty(int(sizes.sum()), np.uint8)
    for field, begin in zip(fields, (ends - sizes).T, strict=True):
        data[spans(begin, field.sizes)[1]] = field.data
    return _Field(data, sizes.sum(axis=1))
