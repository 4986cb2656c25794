"""Building a TraceTable fast: a block of rows is made once and stamped many times.

A generator of training steps repeats a few dozen blocks (a layer's forward pass, its backward pass, ...) for every
layer and micro-batch. `Block` holds the rows of one; `TraceColumns.stamp` notes that it comes once more, under another
beginning of its names and after other rows; the columns are put together at the end, all at once.
"""

import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from et.attributes import ALL_NPUS
from et.builders import SCHEMA_VERSION
from et.dependencies import compress
from et.names import ComposedNames, NameTable
from et.schema import CollectiveCommType, NodeType
from et.table import TraceTable

Int64 = NDArray[np.int64]

After = Iterable[int | str]
Rows = int | Sequence[int]

_OF_STAMP = -2
_ABSENT = {
    "type": (np.int8, 0),
    "duration_micros": (np.int64, 0),
    "num_ops": (np.int64, -1),
    "tensor_size": (np.int64, -1),
    "tensor_loc": (np.int8, 0),
    "comm_type": (np.int8, -1),
    "comm_size": (np.int64, -1),
    "comm_src": (np.int32, -1),
    "comm_dst": (np.int32, -1),
    "comm_tag": (np.int32, -1),
    "comm_priority": (np.int32, 0),
    "is_cpu_op": (np.bool_, 0),
}
_WORDS = ("group", "operators", "in_split_size", "out_split_size", "other", "name")


class Block:
    """Rows that are stamped together; each method adds one and returns its number within the block.

    `after` names parents: numbers of earlier rows of the block, and *ports* (any text), which each stamp connects to
    rows of the trace outside the block. Sizes are bytes. `attrs` are further attributes, made by et.attribute.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[int]] = {name: [] for name in _ABSENT}
        self._words: dict[str, list[Any]] = {name: [] for name in _WORDS}
        self._children: list[int] = []
        self._parents: list[int] = []
        self._ports: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._columns["type"])

    def comp(
        self,
        name: str,
        *,
        num_ops: int = -1,
        tensor_size: int = -1,
        operators: str = "",
        duration_micros: int = 0,
        is_cpu_op: bool = False,
        after: After = (),
        attrs: Iterable[Message] = (),
    ) -> int:
        """A computation: num_ops floating-point operations and tensor_size bytes, or a duration; -1 = not said."""
        numbers = {"num_ops": num_ops, "tensor_size": tensor_size, "duration_micros": duration_micros}
        words = {"operators": operators}
        return self._add(name, NodeType.COMP_NODE, numbers | {"is_cpu_op": is_cpu_op}, words, after, attrs)

    def mem(
        self,
        name: str,
        node_type: NodeType,
        tensor_size: int,
        *,
        tensor_loc: int = 0,
        after: After = (),
        attrs: Iterable[Message] = (),
    ) -> int:
        """A memory access: node_type is NodeType.MEM_LOAD_NODE or MEM_STORE_NODE."""
        numbers = {"tensor_size": tensor_size, "tensor_loc": tensor_loc}
        return self._add(name, node_type, numbers, {}, after, attrs)

    def coll(
        self,
        name: str,
        comm_type: CollectiveCommType,
        comm_size: int,
        *,
        group: str = ALL_NPUS,
        comm_priority: int = 0,
        in_split_size: Iterable[int] = (),
        out_split_size: Iterable[int] = (),
        after: After = (),
        attrs: Iterable[Message] = (),
    ) -> int:
        """A collective of a group, a group file's or a family's name; "" for all NPUs."""
        numbers = {"comm_type": comm_type, "comm_size": comm_size, "comm_priority": comm_priority}
        words = {
            "group": ALL_NPUS if group == "0" else group,
            "in_split_size": tuple(in_split_size),
            "out_split_size": tuple(out_split_size),
        }
        return self._add(name, NodeType.COMM_COLL_NODE, numbers, words, after, attrs)

    def send(
        self,
        name: str,
        comm_size: int,
        *,
        peer: int | None = None,
        tag: int = 0,
        group: str = ALL_NPUS,
        after: After = (),
        attrs: Iterable[Message] = (),
    ) -> int:
        """A message to another NPU; None: to that of the stamp. The stamp's tag is added to this one.

        group: whose communicator it goes by, as of `coll`.
        """
        numbers = {"comm_size": comm_size, "comm_dst": _OF_STAMP if peer is None else peer, "comm_tag": tag}
        return self._add(name, NodeType.COMM_SEND_NODE, numbers, {"group": group}, after, attrs)

    def recv(
        self,
        name: str,
        comm_size: int,
        *,
        peer: int | None = None,
        tag: int = 0,
        group: str = ALL_NPUS,
        after: After = (),
        attrs: Iterable[Message] = (),
    ) -> int:
        """The receipt of a message from another NPU, as send."""
        numbers = {"comm_size": comm_size, "comm_src": _OF_STAMP if peer is None else peer, "comm_tag": tag}
        return self._add(name, NodeType.COMM_RECV_NODE, numbers, {"group": group}, after, attrs)

    def _add(
        self,
        name: str,
        node_type: NodeType,
        numbers: Mapping[str, int],
        words: Mapping[str, object],
        after: After,
        attrs: Iterable[Message],
    ) -> int:
        row = len(self)
        for parent in after:
            if isinstance(parent, str):
                self._ports.setdefault(parent, []).append(row)
            elif 0 <= parent < row:
                self._children.append(row)
                self._parents.append(parent)
            else:
                raise ValueError(f"row {row} of a block, {name}: after row {parent}, expected an earlier row")
        said = {"type": node_type, **numbers}
        for column, (_, absent) in _ABSENT.items():
            self._columns[column].append(said.get(column, absent))
        other = tuple(attribute.SerializeToString(deterministic=True) for attribute in attrs)
        said_words = {"group": "", "operators": "", "in_split_size": (), "out_split_size": (), **words}
        for column, value in (said_words | {"other": other, "name": name.encode()}).items():
            self._words[column].append(value)
        return row


class TraceColumns:
    """The trace of one NPU as it grows, stamp by stamp; `table` puts it together.

    Args:
        npu: whose trace it is: comm_src of what it sends, comm_dst of what it receives.
        path: name of the table, for messages.
    """

    def __init__(self, npu: int = 0, path: str = "<memory>") -> None:
        self._npu, self._path = npu, path
        self._blocks: list[Block] = []
        self._sizes: list[int] = []
        self._number: dict[int, int] = {}
        self._block = array.array("i")
        self._tag = array.array("i")
        self._peer = array.array("i")
        self._prefixes: list[str] = []
        self._children = array.array("q")
        self._parents = array.array("q")
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def stamp(
        self, block: Block, prefix: str = "", *, after: Mapping[str, Rows] | None = None, tag: int = 0, peer: int = -1
    ) -> int:
        """Add the rows of a block; return the row of the first one, to which numbers within the block are added.

        Args:
            block: the rows; it must not grow any more.
            prefix: what the names of its nodes begin with.
            after: for each port of the block the row or rows that its rows come after; a port left out: none.
            tag: added to the tags of its sends and receives.
            peer: of those sends and receives that the block gives no peer.

        Raises:
            ValueError: a port that the block lacks, a parent that is no earlier row, or a block that has grown.
        """
        number = self._number.get(id(block), -1)
        if number < 0:
            number = self._number[id(block)] = len(self._blocks)
            self._blocks.append(block)
            self._sizes.append(len(block))
        elif self._sizes[number] != len(block):
            raise ValueError(f"{prefix}: a block of {self._sizes[number]} rows has {len(block)} now, expected no more")
        first = self._rows
        self._block.append(number)
        self._tag.append(tag)
        self._peer.append(peer)
        self._prefixes.append(prefix)
        if after:
            ports = block._ports  # noqa: SLF001 - the two classes are one builder
            for port, given in after.items():
                parents = (given,) if isinstance(given, int | np.integer) else given
                if port not in ports:
                    raise ValueError(f"{prefix}: the block has no port {port}, expected {', '.join(ports) or 'none'}")
                for parent in parents:
                    if not 0 <= parent < first:
                        raise ValueError(f"{prefix}: after row {parent}, expected a row below {first}")
                    for row in ports[port]:
                        self._children.append(first + row)
                        self._parents.append(parent)
        self._rows += self._sizes[number]
        return first

    def table(self) -> TraceTable:
        """The trace: ids are numbers of rows.

        Raises:
            ValueError: a send or receive without a peer.
        """
        block = np.array(self._block, np.int64)
        sizes = np.array(self._sizes, np.int64)
        first = _starts(sizes[block])
        stamp = np.repeat(np.arange(len(block)), sizes[block])
        at = np.arange(self._rows) + (_starts(sizes)[block] - first)[stamp]
        columns: dict[str, Any] = {name: self._column(name)[at] for name in _ABSENT}
        self._place_messages(columns, stamp)
        words = {name: self._rows_of(name) for name in _WORDS}
        rows = {name: row[at] for name, (row, _) in words.items()}
        dep_ptr, dep = self._dependencies(block, first)
        heads = NameTable.of(prefix.encode() for prefix in self._prefixes)
        return TraceTable(
            path=self._path,
            version=SCHEMA_VERSION,
            node_id=np.arange(self._rows, dtype=np.uint64),
            names=ComposedNames(heads, NameTable.of(words["name"][1]), stamp.astype(np.int32), rows["name"]),
            start_time_micros=np.zeros(self._rows, np.int64),
            group=rows["group"],
            group_names=words["group"][1],
            involved_dim=np.full(self._rows, -1, np.int32),
            in_split_size=rows["in_split_size"],
            out_split_size=rows["out_split_size"],
            split_sizes=words["in_split_size"][1],
            operators=rows["operators"],
            operator_lists=words["operators"][1],
            dep_ptr=dep_ptr,
            dep=dep,
            other=rows["other"],
            other_attributes=words["other"][1],
            **columns,
        )

    def _column(self, name: str) -> NDArray[Any]:
        """A column of all blocks, one after another."""
        dtype, _ = _ABSENT[name]
        parts: list[NDArray[Any]] = [np.array(block._columns[name], dtype) for block in self._blocks]  # noqa: SLF001
        return np.concatenate([np.zeros(0, dtype), *parts])

    def _place_messages(self, columns: dict[str, NDArray[Any]], stamp: Int64) -> None:
        """Give sends and receives their own end, the stamp's tag, and its peer where they have none."""
        sends, recvs = (columns["type"] == kind for kind in (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE))
        columns["comm_src"][sends] = self._npu
        columns["comm_dst"][recvs] = self._npu
        columns["comm_tag"][sends | recvs] += np.array(self._tag, np.int32)[stamp[sends | recvs]]
        for column in (columns["comm_src"], columns["comm_dst"]):
            open_ends = np.flatnonzero(column == _OF_STAMP)
            column[open_ends] = np.array(self._peer, np.int32)[stamp[open_ends]]
            if np.any(column[open_ends] < 0):
                prefix = self._prefixes[int(stamp[open_ends][np.argmax(column[open_ends] < 0)])]
                raise ValueError(f"{prefix}: a send or receive without a peer, expected one of the block or the stamp")

    def _rows_of(self, name: str) -> tuple[NDArray[np.int32], tuple[Any, ...]]:
        """Of all blocks, one after another: rows of the distinct values, and these; the first one means absent.

        Both kinds of split sizes are rows of one list.
        """
        number: dict[Any, int] = {} if name == "name" else {"" if name in {"group", "operators"} else (): 0}
        if name in {"in_split_size", "out_split_size"}:
            for both in ("in_split_size", "out_split_size"):
                for block in self._blocks:
                    for value in block._words[both]:  # noqa: SLF001
                        number.setdefault(value, len(number))
        rows = [
            number.setdefault(value, len(number))
            for block in self._blocks
            for value in block._words[name]  # noqa: SLF001
        ]
        return np.array(rows, np.int32), tuple(number)

    def _dependencies(self, block: Int64, first: Int64) -> tuple[Int64, NDArray[np.int32]]:
        """dep_ptr and dep, from the parents within blocks and those of ports."""
        counts = np.array([len(b._children) for b in self._blocks], np.int64)  # noqa: SLF001
        child, parent = (
            np.array([row for b in self._blocks for row in getattr(b, name)], np.int64)
            for name in ("_children", "_parents")
        )
        stamp = np.repeat(np.arange(len(block)), counts[block])
        edges = np.arange(len(stamp)) + (_starts(counts)[block] - _starts(counts[block]))[stamp]
        children = np.concatenate([first[stamp] + child[edges], np.array(self._children, np.int64)])
        parents = np.concatenate([first[stamp] + parent[edges], np.array(self._parents, np.int64)])
        return compress(self._rows, children, parents)


def _starts(sizes: Int64) -> Int64:
    """Where each of several parts begins that stand one after another."""
    return np.cumsum(sizes) - sizes
