"""Fast construction of a TraceTable: a block of rows is made once and added many times.

A generator of training steps repeats a few dozen blocks (a layer's forward pass, its backward pass, ...) for every
layer and micro-batch. `Block` holds the rows of one of them. `TraceColumns.stamp` records that the block occurs once
more, with another name prefix and other parents; `TraceColumns.table` builds all columns at the end in one pass.
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

_PEER_OF_STAMP = -2  # in comm_src or comm_dst of a block: the peer that the stamp gives
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
    """Rows that are stamped together; each method adds one row and returns its number within the block.

    In the methods, `after` names parents, which are numbers of earlier rows of the block or *ports* (any text). Each
    stamp connects a port to rows of the trace outside the block. Sizes are in bytes. `attrs` are further attributes,
    made by et.attribute.
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
        """Add a computation: num_ops floating-point operations and tensor_size bytes, or a duration; -1: not given."""
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
        """Add a memory access; node_type is NodeType.MEM_LOAD_NODE or MEM_STORE_NODE."""
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
        """Add a collective; `group` is a name in a group file or of a family, or "" for all NPUs."""
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
        """Add a message to another NPU, by default the stamp's peer; the stamp's tag is added to `tag`.

        `group` is the name of the communicator that carries the message, as in `coll`.
        """
        numbers = {"comm_size": comm_size, "comm_dst": _PEER_OF_STAMP if peer is None else peer, "comm_tag": tag}
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
        """Add the receipt of a message from another NPU; the parameters are those of `send`."""
        numbers = {"comm_size": comm_size, "comm_src": _PEER_OF_STAMP if peer is None else peer, "comm_tag": tag}
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
        values = {"type": node_type, **numbers}
        for column, (_, absent) in _ABSENT.items():
            self._columns[column].append(values.get(column, absent))
        other = tuple(attribute.SerializeToString(deterministic=True) for attribute in attrs)
        words_of_row = {"group": "", "operators": "", "in_split_size": (), "out_split_size": (), **words}
        for column, value in (words_of_row | {"other": other, "name": name.encode()}).items():
            self._words[column].append(value)
        return row


class TraceColumns:
    """The trace of one NPU as it grows stamp by stamp; `table` builds it.

    Args:
        npu: NPU that runs the trace: comm_src of its sends, comm_dst of its receives.
        path: Name of the table in messages.
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
        """Add the rows of a block; return the row of its first one, to which callers add numbers within the block.

        Args:
            block: The rows; the block must not grow after its first stamp.
            prefix: Text at the beginning of all node names of the stamp.
            after: Parent row or rows for each port of the block; a port that is left out gets no parents.
            tag: Number added to the tags of the block's sends and receives.
            peer: NPU at the other end of sends and receives that the block gives no peer.

        Raises:
            ValueError: The block lacks a port or has grown, or a parent is not an earlier row.
        """
        number = self._number.get(id(block), -1)
        if number < 0:
            number = self._number[id(block)] = len(self._blocks)
            self._blocks.append(block)
            self._sizes.append(len(block))
        elif self._sizes[number] != len(block):
            raise ValueError(f"{prefix}: a block has grown from {self._sizes[number]} rows to {len(block)}")
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
        """Return the trace; the id of a node is its row."""
        block = np.array(self._block, np.int64)
        sizes = np.array(self._sizes, np.int64)
        first = _starts(sizes[block])
        stamp = np.repeat(np.arange(len(block)), sizes[block])
        at = np.arange(self._rows) + (_starts(sizes)[block] - first)[stamp]
        columns: dict[str, Any] = {name: self._column(name)[at] for name in _ABSENT}
        self._place_messages(columns, stamp)
        words = {name: self._distinct_values(name) for name in _WORDS}
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
        """Return a column of all blocks, concatenated."""
        dtype, _ = _ABSENT[name]
        parts: list[NDArray[Any]] = [np.array(block._columns[name], dtype) for block in self._blocks]  # noqa: SLF001
        return np.concatenate([np.zeros(0, dtype), *parts])

    def _place_messages(self, columns: dict[str, NDArray[Any]], stamp: Int64) -> None:
        """Fill in the NPU's own end of sends and receives, the stamp's tag, and the stamp's peer for open ends."""
        sends, recvs = (columns["type"] == kind for kind in (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE))
        columns["comm_src"][sends] = self._npu
        columns["comm_dst"][recvs] = self._npu
        columns["comm_tag"][sends | recvs] += np.array(self._tag, np.int32)[stamp[sends | recvs]]
        for column in (columns["comm_src"], columns["comm_dst"]):
            open_ends = np.flatnonzero(column == _PEER_OF_STAMP)
            column[open_ends] = np.array(self._peer, np.int32)[stamp[open_ends]]
            if np.any(column[open_ends] < 0):
                prefix = self._prefixes[int(stamp[open_ends][np.argmax(column[open_ends] < 0)])]
                raise ValueError(f"{prefix}: a send or receive without a peer, expected one of the block or the stamp")

    def _distinct_values(self, name: str) -> tuple[NDArray[np.int32], tuple[Any, ...]]:
        """Return the distinct values of a column, beginning with the absent value, and each row's index into them.

        The rows are those of all blocks, concatenated. in_split_size and out_split_size share one list of values.
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
        """Return dep_ptr and dep, made from the parents within blocks and those of ports."""
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
    """Return the offset at which each part begins when parts of these sizes are concatenated."""
    return np.cumsum(sizes) - sizes
