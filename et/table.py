"""TraceTable, one trace file as arrays, with its names and other attributes, and TraceTables, those of several NPUs."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from nadi.et.framing import read_length
from nadi.et.schema import AttributeProto
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
