"""TraceTable, one trace file as arrays, with its names and other attributes; TraceTables, those of several NPUs.

`write_table` writes a table as a trace file, without a message per node: rows are assembled in large batches, as arrays
of bytes. A trace repeats few lists of attributes, so protobuf encodes each of them once; NumPy encodes ids, names and
parents. The bytes are those that `et.write_trace` writes for the nodes that et.schema makes (Protocol Buffers,
"Encoding": varints, length-delimited fields).
"""

import dataclasses
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from nadi.et.framing import frame, read_length, write_frames
from nadi.et.schema import INTEGERS, KINDS, AttributeProto, IOInfo, NodeType, attribute, metadata
from nadi.inputs.arrays import Int8, Int32, Int64, Mask, UInt8, UInt64, spans

# Names of the nodes of a trace: as one text, or composed of heads and tails, which often repeat.


@dataclasses.dataclass(frozen=True, eq=False)
class NameTable:
    """The names of n nodes, held as one UTF-8 blob: name i is blob[offsets[i]:offsets[i+1]]."""

    blob: UInt8  # uint8[bytes], all names, concatenated
    offsets: Int64  # int64[n+1], offset in `blob` of each name, and the end

    @classmethod
    def of(cls, names: Iterable[bytes]) -> "NameTable":
        """Return a table of names. Raises UnicodeDecodeError: a name is not UTF-8.

        Args:
            names: The names in UTF-8.
        """
        parts = list(names)
        blob = b"".join(parts)
        if not blob.isascii():
            for part in parts:
                part.decode()
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        offsets.setflags(write=False)
        return cls(np.frombuffer(blob, np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        row = range(len(self))[row]
        return self.blob[self.offsets[row] : self.offsets[row + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        blob = self.blob.tobytes()
        return (blob[begin:end].decode() for begin, end in pairwise(self.offsets.tolist()))

    def pieces(self, begin: int, end: int) -> tuple[UInt8, Int64]:
        """Return consecutive names: their bytes, concatenated, uint8[bytes], and their lengths, int64[end-begin].

        Args:
            begin: The row of the first name.
            end: The row after the last name.
        """
        offsets = self.offsets[begin : end + 1]
        return self.blob[offsets[0] : offsets[-1]], np.diff(offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedNames:
    """The names of n nodes: name i is heads[head[i]] + tails[tail[i]], composed on demand."""

    heads: NameTable  # beginnings of names, such as "step0/forward/mb3/layer17/"
    tails: NameTable  # ends of names, such as "attention"
    head: Int32  # int32[n], row of `heads` for each node
    tail: Int32  # int32[n], row of `tails` for each node

    def __len__(self) -> int:
        return len(self.head)

    def __getitem__(self, row: int) -> str:
        return self.heads[self.head[row]] + self.tails[self.tail[row]]

    def __iter__(self) -> Iterator[str]:
        heads, tails = list(self.heads), list(self.tails)
        return (heads[h] + tails[t] for h, t in zip(self.head.tolist(), self.tail.tolist(), strict=True))

    def pieces(self, begin: int, end: int) -> tuple[UInt8, Int64]:
        """Return consecutive names in the form of NameTable.pieces.

        Args:
            begin: The row of the first name.
            end: The row after the last name.
        """
        # Head and tail of each name alternate
        row = np.arange(2 * (end - begin)) // 2 + begin
        is_tail = np.arange(2 * (end - begin)) % 2 == 1
        place = np.where(is_tail, self.tail[row] + len(self.heads), self.head[row])
        # Rows of `_bytes` in the order head, tail, head, tail, ...: adding each two sizes gives the lengths of names
        size = np.diff(self._offsets)[place]
        return self._bytes[spans(self._offsets[place], size)[1]], size.reshape(-1, 2).sum(axis=1)

    @cached_property
    def _bytes(self) -> UInt8:
        """Bytes of all heads, then of all tails."""
        return np.concatenate([self.heads.blob, self.tails.blob])

    @cached_property
    def _offsets(self) -> Int64:
        """int64[heads + tails + 1], offset of each head and tail in `_bytes`."""
        return np.concatenate([self.heads.offsets, self.tails.offsets[1:] + len(self.heads.blob)])


@dataclasses.dataclass(frozen=True, eq=False)
class TraceTable:
    """One trace file: n nodes in file order, all arrays read-only."""

    path: str  # path of the file, or another source, for messages
    version: str  # GlobalMetadata.version, or the attribute "schema", which traces of PyTorch have instead; or ""
    node_id: UInt64  # uint64[n], distinct ids of the nodes
    names: NameTable | ComposedNames  # names of the nodes
    type: Int8  # int8[n], NodeType, never INVALID_NODE
    is_cpu_op: Mask  # bool[n], absent = False
    start_time_micros: Int64  # int64[n], start time in microseconds
    duration_micros: Int64  # int64[n], duration in microseconds
    num_ops: Int64  # int64[n], floating-point operations, absent = -1
    tensor_size: Int64  # int64[n], bytes, absent = -1
    tensor_loc: Int8  # int8[n], absent = 0
    comm_type: Int8  # int8[n], CollectiveCommType of COMM_COLL nodes, -1 on others and where absent (host collectives)
    comm_size: Int64  # int64[n], bytes, absent = -1
    comm_src: Int32  # int32[n], NPU, absent = -1
    comm_dst: Int32  # int32[n], NPU, absent = -1
    comm_tag: Int32  # int32[n], absent = -1
    comm_priority: Int32  # int32[n], absent = 0
    group: Int32  # int32[n], row of group_names
    group_names: tuple[str, ...]  # names of communicators; group_names[0] is "" (all NPUs; "0" reads as "")
    involved_dim: Int32  # int32[n], bit d set = dimension d takes part, absent = -1
    in_split_size: Int32  # int32[n], row of split_sizes: parts of an all-to-all's comm_size for each receiver
    out_split_size: Int32  # int32[n], row of split_sizes: parts from each sender, in the same unit
    split_sizes: tuple[tuple[int, ...], ...]  # distinct lists of one number per member; the first is (), even or absent
    operators: Int32  # int32[n], row of operator_lists: operators that a compute node runs in sequence
    # distinct texts, such as "gemm 2048x4608x12288 bf16; norm 2048x12288 bf16"; the first is ""
    operator_lists: tuple[str, ...]
    dep_ptr: Int64  # int64[n+1], parents of row i are dep[dep_ptr[i]:dep_ptr[i+1]]
    dep: Int32  # int32[], rows of parents, data and control combined, sorted, without repeats
    dangling: int = 0  # number of dependencies on nodes that the file lacks, dropped by read_trace(strict=False)
    dropped_control: int = 0  # number of control dependencies dropped by read_trace(strict=False), all or none of them
    dangling_control: int = 0  # number of dropped control dependencies on nodes that the file lacks
    control_cycle: str = ""  # cycle that the dropped control dependencies close, as ids, `3 -> 5 -> 3`; otherwise ""
    # NPUs of the communicators that METADATA nodes define, by name; () = all NPUs
    metadata_groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # int32[n] or None, row of other_attributes: attributes that no column takes, if they are kept
    other: Int32 | None = None
    other_attributes: Sequence[tuple[bytes, ...]] = ((),)  # distinct lists of AttributeProto, as bytes; the first is ()

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __len__(self) -> int:
        return len(self.node_id)


@dataclasses.dataclass(frozen=True, eq=False)
class TraceTables:
    """Traces of some NPUs."""

    # trace of each NPU. A mapping may read or make a trace at each access, so access each once
    tables: Mapping[int, TraceTable]
    # members of communicators by the names that the traces use, the content of a group file
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences on what was assumed and what was lost
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # assumptions and losses, for JSON
    nodes_each: int = 0  # number of nodes in every trace, where all traces have the same number; 0 = unknown


class LazyTraces(Mapping[int, TraceTable]):
    """Traces by NPU; each access reads or makes the trace, and nothing is kept."""

    def __init__(self, npus: Collection[int], make: Callable[[int], TraceTable]) -> None:
        self._npus, self._make = npus, make

    def __getitem__(self, npu: int) -> TraceTable:
        if npu not in self._npus:
            raise KeyError(npu)
        return self._make(npu)

    def __iter__(self) -> Iterator[int]:
        return iter(self._npus)

    def __len__(self) -> int:
        return len(self._npus)


# Attributes that no column takes, in the encoding of the file, and the numbers in two of them.
#
# A collective on a device is under way from the start of its own member. If a trace has `wait_micros` for it, the rest
# is without the waiting for other members: start_time_micros is when the last member arrived, and duration_micros is
# the transfer. `duration_nanos` is the time of a computation of a GOAL schedule that is no whole number of
# microseconds, `cpu` and `nic` are the numbers of where a schedule puts an operation.


Others = tuple[bytes, ...]
WAIT_MICROS, NANOS = "wait_micros", "duration_nanos"
CPU, NIC = "cpu", "nic"


class OtherAttributes(Sequence[Others]):
    """Lists of AttributeProto, each as its bytes, made on demand from the fields of their nodes.

    The fields are attribute fields of Nodes (tag, length and message); list i is fields[offsets[i]:offsets[i+1]].
    """

    def __init__(self, fields: UInt8, offsets: Int64) -> None:
        self.fields, self.offsets = fields, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> Others: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[Others, ...]: ...
    def __getitem__(self, row: int | slice) -> Others | tuple[Others, ...]:
        if isinstance(row, slice):
            return tuple(self[i] for i in range(*row.indices(len(self))))
        row = range(len(self))[row]
        return tuple(_messages(self.fields[self.offsets[row] : self.offsets[row + 1]].tobytes()))

    def __iter__(self) -> Iterator[Others]:
        return (tuple(_messages(self.fields[begin:end].tobytes())) for begin, end in pairwise(self.offsets.tolist()))


def _messages(fields: bytes) -> Iterator[bytes]:
    """Yield the messages in protobuf fields, one after the other, each with a tag of one byte."""
    at = 0
    while at < len(fields):
        length, begin = read_length("<memory>", fields, at + 1, 0)
        at = begin + length
        yield fields[begin:at]


def waited_micros(table: TraceTable) -> Int64:
    """Return int64[n], the waiting of collectives, 0 without the attribute and in tables without `keep_others`.

    Args:
        table: The trace as a table of columns.
    """
    waited = np.zeros(len(table), np.int64)
    for row, micros in other_numbers(table, WAIT_MICROS, np.flatnonzero(table.comm_type >= 0)).items():
        waited[row] = max(micros, 0)
    return waited


def other_numbers(table: TraceTable, name: str, rows: NDArray[np.integer]) -> dict[int, int]:
    """Return the values of a 64-bit integer attribute that no column takes, by row; rows without it are left out.

    Args:
        table: The trace as a table of columns.
        name: The name of the attribute.
        rows: The rows to search, int[].
    """
    if table.other is None:
        return {}
    numbers: dict[int, int] = {}
    # Nodes share lists of attributes: decode each distinct list once
    for i in np.unique(table.other[rows]).tolist():
        for message in table.other_attributes[i]:
            # Search the bytes first: most attributes have another name, and decoding is slow
            if name.encode() in message:
                attribute = AttributeProto.FromString(message)
                if attribute.name == name and attribute.WhichOneof("value") in {"int64_val", "uint64_val"}:
                    numbers[i] = int(attribute.int64_val or attribute.uint64_val)
    return {row: numbers[i] for row, i in zip(rows.tolist(), table.other[rows].tolist(), strict=True) if i in numbers}


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
