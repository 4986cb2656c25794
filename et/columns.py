"""Columns of a TraceTable while its nodes are read, and the rows of parents, which nodes name by id.

Nodes are decoded as RawNode, which has the wire format of Node but leaves names and attributes undecoded. Names are
stored as bytes. Attributes repeat a few values in a trace, so each distinct one is decoded once.
"""

import array
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import DTypeLike, NDArray

from nadi.et import schema
from nadi.et.errors import StrictTraceError, TraceError
from nadi.et.files import Groups, groups_of_metadata_node
from nadi.et.schema import AttributeProto, CollectiveCommType, NodeType, RawNode
from nadi.et.table import NameTable, TraceTable
from nadi.inputs.arrays import Int8, Int32, Int64, Mask, UInt64

# Conversion of parents, which nodes name by id, to rows: the CSR arrays of a table.

Path = str | os.PathLike[str]


class Parents(NamedTuple):
    """The parents that n nodes name, data or control, as ids."""

    ids: UInt64  # uint64[m], the parents of all nodes, node by node
    counts: Int64  # int64[n], number of parents of each node


def resolve(path: Path, ids: UInt64, parents: Sequence[Parents], *, strict: bool) -> tuple[Int64, Int32, int]:
    """Return parents given by id as CSR rows: dep_ptr int64[n+1], dep int32[], and the number of parents dropped.

    Rows are sorted and without repeats.

    Args:
        path: The path of the file, for errors.
        ids: The ids of the n nodes of the file, uint64[n].
        parents: The parents that the nodes name, data and control.
        strict: Whether a parent that the file lacks is an error; else it is dropped.
    """
    named = [kind for kind in parents if len(kind.ids)] or list(parents[:1])
    parent_ids = np.concatenate([kind.ids for kind in named])
    row = np.concatenate([np.repeat(np.arange(len(ids)), kind.counts) for kind in named])
    place, is_there = _rows_of(path, ids, parent_ids)
    dangling = len(parent_ids) - int(np.count_nonzero(is_there))
    if dangling and strict:
        first = int(np.argmin(is_there))
        raise StrictTraceError(
            f"{path}: node {ids[row[first]]}: depends on node {parent_ids[first]}, which the file lacks "
            f"({dangling:,} such dependencies), expected an id of the file",
            "drops such dependencies",
        )
    if dangling:
        row, place = row[is_there], place[is_there]
    return *compress(len(ids), row, place), dangling


def _rows_of(path: Path, ids: UInt64, parent_ids: UInt64) -> tuple[Int64, Mask]:
    """Return int64[m], the row of each parent, and bool[m], whether the file has that parent."""
    first_id = ids[0] if len(ids) else np.uint64(0)
    if np.array_equal(ids, np.arange(len(ids), dtype=np.uint64) + first_id):  # as most files number their nodes
        place = parent_ids - first_id  # wraps around for ids below first_id
        return place.view(np.int64), place < len(ids)
    by_id = np.argsort(ids, kind="stable")
    sorted_ids = ids[by_id]
    is_repeat = sorted_ids[1:] == sorted_ids[:-1]
    if np.any(is_repeat):
        raise TraceError(f"{path}: node {sorted_ids[1:][is_repeat][0]}: the id occurs twice, expected each id once")
    # Ids in any order: look each parent up among the sorted ids
    place = np.searchsorted(sorted_ids, parent_ids)
    is_there = place < len(ids)
    is_there[is_there] = sorted_ids[place[is_there]] == parent_ids[is_there]
    return by_id[np.where(is_there, place, 0)] if len(ids) else place, is_there


def compress(num_rows: int, row: Int64, parent: Int64) -> tuple[Int64, Int32]:
    """Return pairs of row and parent, sorted and each once, as CSR arrays: int64[num_rows+1] and int32[pairs].

    Args:
        num_rows: The number of rows.
        row: The row of each pair, int64[].
        parent: The parent's row of each pair, int64[].
    """
    # One number per pair: sorting and removing repeats are one sort each
    pairs = row * max(num_rows, 1) + parent
    if not np.all(pairs[1:] > pairs[:-1]):
        pairs = np.sort(pairs, kind="stable")  # stable: fast where most are in order already
        # A node may name a parent twice, as data and as control dependency
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        row, parent = np.divmod(pairs, max(num_rows, 1))
    dep_ptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=num_rows), out=dep_ptr[1:])
    return dep_ptr, parent.astype(np.int32)


# Limits of the cache of decoded attributes: a trace of distinct attributes must not fill the memory.
_MAX_CACHED_ATTRIBUTES = 1 << 16
_MAX_CACHED_BYTES = 32 << 20
_SPLITS = ("in_split_size", "out_split_size")

# Rows and values of a sparse column, and a value to append.
_Cell = tuple[list[int], list[int], int]


class Columns:
    """Columns that grow by one node at a time; `table` checks and finishes them."""

    def __init__(self, path: str | os.PathLike[str], *, keep_others: bool = False) -> None:
        self._path = path
        self._keep_others = keep_others
        # Row in `other_attributes` of each node
        self._other: list[int] = []
        # Lists of attributes that no column takes, each with its row
        self._other_row: dict[tuple[bytes, ...], int] = {(): 0}
        # An array grows like a list, with eight bytes per value
        self._ids = array.array("Q")
        self._names: list[bytes] = []
        self._types = array.array("q")
        self._starts = array.array("Q")
        self._durations = array.array("Q")
        self._parent_ids = {kind: array.array("Q") for kind in ("data", "control")}
        self._parent_counts = {kind: array.array("q") for kind in ("data", "control")}
        # Each distinct group, list of split sizes and list of operators has a row; row 0 is the default
        self._group_row = {schema.ALL_NPUS: 0}
        self._split_row: dict[tuple[int, ...], int] = {(): 0}
        self._operator_row = {"": 0}
        self._metadata_groups: Groups = {}
        names = (*schema.INTEGERS, "pg_name", "involved_dim", *_SPLITS, "operators")
        # Most nodes lack most attributes: rows and values of those that have one
        self._cells: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in names}
        # The cell of each attribute by its bytes, because traces repeat attributes
        self._decoded: dict[bytes, _Cell | None] = {}
        self._cached_bytes = 0

    def add(self, offset: int, message: bytes) -> None:
        """Append the node in a message.

        Args:
            offset: The position of the message in the file in bytes, for errors.
            message: The bytes of the message.
        """
        try:
            node = RawNode.FromString(message)
            self._add_fields(node)
            self._add_attributes(node)
        except DecodeError as error:
            raise TraceError(f"{self._path}: byte {offset}: corrupt message ({error}), expected a Node") from error
        except ValueError as error:
            raise TraceError(f"{self._path}: node {node.id}: {error}") from error

    def table(self, version: str, *, strict: bool, with_control: bool = True) -> TraceTable:
        """Check everything but cycles, and return the table, with or without control dependencies.

        Args:
            version: The version of the schema.
            strict: Whether dependencies on missing nodes, and control dependencies that close cycles, are errors; else
                they are dropped.
            with_control: Whether control dependencies count.
        """
        data, control = self._parents("data"), self._parents("control")
        ids, types = self._ids_and_types()
        integers = {name: self._column(name, c.dtype, c.absent) for name, c in schema.INTEGERS.items()}
        is_wrong = (types <= NodeType.INVALID_NODE) | (types > max(NodeType))
        if np.any(is_wrong):
            row = int(np.argmax(is_wrong))
            place = f"{self._path}: node {self._ids_and_types()[0][row]}"
            raise TraceError(f"{place}: node type {types[row]}, expected 1 to 7")
        integers["comm_type"] = self._collectives(types, integers["comm_type"], integers["is_cpu_op"])
        other, other_attributes = self._others()
        parents = (data, control) if with_control else (data,)
        dep_ptr, dep, dangling = self._resolved(ids, parents, strict=strict)
        return TraceTable(
            path=str(self._path),
            version=version,
            node_id=ids,
            names=self._name_table(),
            type=types.astype(np.int8, copy=False),
            start_time_micros=self._micros("start_time_micros"),
            duration_micros=self._micros("duration_micros"),
            group=self._column("pg_name", np.int32, 0),
            group_names=tuple(self._group_row),
            involved_dim=self._column("involved_dim", np.int32, -1),
            **{name: self._column(name, np.int32, 0) for name in _SPLITS},
            split_sizes=tuple(self._split_row),
            operators=self._column("operators", np.int32, 0),
            operator_lists=tuple(self._operator_row),
            dep_ptr=dep_ptr,
            dep=dep,
            dangling=dangling,
            dropped_control=0 if with_control else len(control.ids),
            dangling_control=0,
            control_cycle="",
            metadata_groups=self._metadata_groups,
            other=other,
            other_attributes=other_attributes,
            **integers,
        )

    def _add_fields(self, node: Message) -> None:
        """Append id, name, type, times and parents of a node."""
        self._ids.append(node.id)
        self._names.append(node.name)
        self._types.append(node.type)
        self._starts.append(node.start_time_micros)
        self._durations.append(node.duration_micros)
        for kind, deps in (("data", node.data_deps), ("control", node.ctrl_deps)):
            self._parent_ids[kind].fromlist(deps[:])  # a slice is a list, which is faster than iterating
            self._parent_counts[kind].append(len(deps))

    def _add_attributes(self, node: Message) -> None:
        """Append the attributes of the last node to their columns, and the groups that it defines."""
        row, known = len(self._ids) - 1, self._decoded
        for message in node.attr:
            cell = known[message] if message in known else self._decode(message)
            if cell is not None:
                rows, values, value = cell
                rows.append(row)
                values.append(value)
        if self._keep_others:
            others = tuple(message for message in node.attr if self._is_other(node.type, message))
            self._other.append(self._other_row.setdefault(others, len(self._other_row)))
        if node.type == NodeType.METADATA_NODE:
            self._metadata_groups.update(groups_of_metadata_node(node))

    def _decode(self, message: bytes) -> _Cell | None:
        """Return the column that takes an attribute, and its value; None if no column takes it."""
        attribute = AttributeProto.FromString(message)
        name = attribute.name
        cell = (*self._cells[name], self._value(attribute)) if name in self._cells else None
        # When the cache is full, known attributes stay: those that a trace repeats mostly come early
        if len(self._decoded) < _MAX_CACHED_ATTRIBUTES and self._cached_bytes + len(message) <= _MAX_CACHED_BYTES:
            self._decoded[message] = cell
            self._cached_bytes += len(message)
        return cell

    def _is_other(self, node_type: int, message: bytes) -> bool:
        """Return whether neither a column nor the groups that METADATA nodes define use an attribute."""
        # No column takes "ranks", but METADATA nodes define groups with it, so there it is not among the others
        if message in self._decoded and (self._decoded[message] is not None or node_type != NodeType.METADATA_NODE):
            return self._decoded[message] is None
        name = AttributeProto.FromString(message).name
        return name not in self._cells and not (node_type == NodeType.METADATA_NODE and name == "ranks")

    def _value(self, attribute: Message) -> int:
        """Return the integer that a column holds for an attribute: its value, a bit set, or the row of a list."""
        if attribute.name == "pg_name":
            return self._group_row.setdefault(schema.group_name(attribute), len(self._group_row))
        if attribute.name == "involved_dim":
            return schema.dimension_bits(attribute)
        if attribute.name in _SPLITS:
            return self._split_row.setdefault(schema.split_sizes(attribute), len(self._split_row))
        if attribute.name == "operators":
            return self._operator_row.setdefault(schema.text(attribute), len(self._operator_row))
        return schema.integer(attribute)

    def _others(self) -> tuple[Int32 | None, Sequence[tuple[bytes, ...]]]:
        """Return TraceTable.other and TraceTable.other_attributes."""
        return np.array(self._other, np.int32) if self._keep_others else None, tuple(self._other_row)

    def _column(self, name: str, dtype: DTypeLike, absent: int) -> NDArray[Any]:
        """Return a column with a row per node: the cells that were read, and `absent` elsewhere."""
        column = np.full(len(self._ids), absent, dtype)
        rows, values = self._cells[name]
        column[rows] = values
        return column

    def _ids_and_types(self) -> tuple[UInt64, NDArray[Any]]:
        return np.array(self._ids, np.uint64), np.array(self._types, np.int64)

    def _parents(self, kind: str) -> Parents:
        """Return data or control dependencies."""
        return Parents(np.array(self._parent_ids[kind], np.uint64), np.array(self._parent_counts[kind], np.int64))

    def _resolved(self, ids: UInt64, parents: Sequence[Parents], *, strict: bool) -> tuple[Int64, Int32, int]:
        """Return the CSR rows of the parents, as et.columns.resolve does."""
        return resolve(self._path, ids, parents, strict=strict)

    def _is_given(self, name: str) -> Mask:
        """Return bool[n], whether each node has an attribute."""
        is_given = np.zeros(len(self._ids), np.bool_)
        is_given[self._cells[name][0]] = True
        return is_given

    def _micros(self, name: str) -> Int64:
        """Return start_time_micros or duration_micros of all nodes; raise TraceError if one is 2^63 or more."""
        # The file has unsigned times; the table has signed ones
        column = np.array(self._starts if name == "start_time_micros" else self._durations, np.uint64)
        if len(column) and column.max() >= 2**63:
            row = int(column.argmax())
            raise TraceError(f"{self._path}: node {self._ids[row]}: {name} is {column[row]}, expected less than 2^63")
        return column.astype(np.int64)

    def _name_table(self) -> NameTable:
        """Return the names of all nodes; raise TraceError if one is not UTF-8."""
        try:
            return NameTable.of(self._names)
        except UnicodeDecodeError as error:
            node_id = self._ids[self._names.index(error.object)]
            raise TraceError(f"{self._path}: node {node_id}: name {error.object!r}, expected UTF-8") from error

    def _collectives(self, node_types: NDArray[Any], comm_type: NDArray[Any], is_cpu_op: NDArray[Any]) -> Int8:
        """Return comm_type of the collectives, checked; -1 on other nodes, which may carry meaningless numbers."""
        is_collective = node_types == NodeType.COMM_COLL_NODE
        is_given = self._is_given("comm_type")
        is_known = (comm_type >= 0) & (comm_type <= max(CollectiveCommType))
        # PyTorch also writes a collective's call on the host, without comm_type: only the kernel's node does the work
        is_wrong = is_collective & ~is_known & (is_given | ~is_cpu_op)
        if np.any(is_wrong):
            row = int(np.argmax(is_wrong))
            found = f"comm_type {comm_type[row]}" if is_given[row] else "a collective without comm_type"
            place = f"{self._path}: node {self._ids_and_types()[0][row]}"
            raise TraceError(f"{place}: {found}, expected a comm_type from 0 to 9")
        return np.where(is_collective, comm_type, -1).astype(np.int8)
