"""Fast construction of a TraceTable: a block of rows is made once and added many times.

A generator of training steps repeats a few dozen blocks (a layer's forward pass, its backward pass, ...) for every
layer and micro-batch. `Block` holds the rows of one of them. `TraceColumns.stamp` records that the block occurs once
more, with another name prefix and other parents; `TraceColumns.table` builds all columns at the end in one pass.
"""

import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from nadi.et.columns import compress
from nadi.et.schema import ALL_NPUS, COLUMNS, SCHEMA_VERSION, CollectiveCommType, NodeType
from nadi.et.table import ComposedNames, NameTable, TraceTable
from nadi.inputs.arrays import Int32, Int64

Ports = Mapping[str, int | Sequence[int]]  # parent row or rows of each port

_PEER_OF_STAMP = -2  # in comm_src or comm_dst of a block: the peer that the stamp gives
_SPLITS = ("in_split_size", "out_split_size")
_ABSENT: dict[str, Any] = {name: absent for name, (_, absent) in COLUMNS.items()} | {
    "group": ALL_NPUS,
    "operators": "",
    "in_split_size": (),
    "out_split_size": (),
    "other": (),
    "name": b"",
}  # values of a block's row, and those of rows that lack them


class RowLinks(TypedDict, total=False):
    """Further arguments of all methods of Block."""

    # parents: numbers of earlier rows of the block, or *ports* (any text), which each stamp connects to rows outside it
    after: Iterable[int | str]
    attrs: Iterable[Message]  # further attributes, made by et.attribute


class Block:
    """Nodes of a trace (rows) that `TraceColumns.stamp` adds together; each method adds one and returns its row.

    Rows count from the block's first. Sizes are in bytes. Parameters are attributes of Chakra nodes of the same name.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {name: [] for name in _ABSENT}
        self._children: list[int] = []
        self._parents: list[int] = []
        self._ports: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._values["type"])

    def comp(
        self,
        name: str,
        *,
        num_ops: int = -1,
        tensor_size: int = -1,
        operators: str = "",
        duration_micros: int = 0,
        is_cpu_op: bool = False,
        **links: Unpack[RowLinks],
    ) -> int:
        """Add a computation, given by its work or by its duration.

        Args:
            name: The name of the node.
            num_ops: The number of floating-point operations; -1 = unknown.
            tensor_size: The bytes that it reads and writes; -1 = unknown.
            operators: The operators that it consists of, as text; "" = unknown.
            duration_micros: The duration in microseconds.
            is_cpu_op: Whether the host runs the node.
            **links: The parents of the row and further attributes (RowLinks).
        """
        values = {"num_ops": num_ops, "tensor_size": tensor_size, "operators": operators}
        values |= {"duration_micros": duration_micros, "is_cpu_op": is_cpu_op}
        return self.add(name, NodeType.COMP_NODE, values, links)

    def mem(
        self, name: str, node_type: NodeType, tensor_size: int, *, tensor_loc: int = 0, **links: Unpack[RowLinks]
    ) -> int:
        """Add a memory access.

        Args:
            name: The name of the node.
            node_type: NodeType.MEM_LOAD_NODE or NodeType.MEM_STORE_NODE.
            tensor_size: The size of the tensor in bytes.
            tensor_loc: The place of the tensor: 0 = local memory, others = remote memory.
            **links: The parents of the row and further attributes (RowLinks).
        """
        return self.add(name, node_type, {"tensor_size": tensor_size, "tensor_loc": tensor_loc}, links)

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
        **links: Unpack[RowLinks],
    ) -> int:
        """Add a collective.

        Args:
            name: The name of the node.
            comm_type: The kind of the collective.
            comm_size: The bytes of each member, as comm_size of traces.
            group: The name of a group in a group file or of a family; "" = all NPUs.
            comm_priority: The priority of the collective.
            in_split_size: The parts of comm_size for each receiver of an uneven all-to-all; () = even.
            out_split_size: The parts from each sender, in the same unit; () = even, or not given.
            **links: The parents of the row and further attributes (RowLinks).
        """
        values = {"comm_type": comm_type, "comm_size": comm_size, "comm_priority": comm_priority}
        splits = {"in_split_size": tuple(in_split_size), "out_split_size": tuple(out_split_size)}
        values_of_row = {**values, **splits, "group": ALL_NPUS if group == "0" else group}
        return self.add(name, NodeType.COMM_COLL_NODE, values_of_row, links)

    def send(
        self,
        name: str,
        comm_size: int,
        *,
        peer: int | None = None,
        tag: int = 0,
        group: str = ALL_NPUS,
        **links: Unpack[RowLinks],
    ) -> int:
        """Add a message to an NPU.

        Args:
            name: The name of the node.
            comm_size: The bytes of the message.
            peer: The NPU at the other end; None = the stamp gives it.
            tag: The tag of the message, to which the stamp's tag is added.
            group: The name of the communicator; "" = all NPUs.
            **links: The parents of the row and further attributes (RowLinks).
        """
        other_end = _PEER_OF_STAMP if peer is None else peer
        values = {"comm_size": comm_size, "comm_dst": other_end, "comm_tag": tag, "group": group}
        return self.add(name, NodeType.COMM_SEND_NODE, values, links)

    def recv(
        self,
        name: str,
        comm_size: int,
        *,
        peer: int | None = None,
        tag: int = 0,
        group: str = ALL_NPUS,
        **links: Unpack[RowLinks],
    ) -> int:
        """Add the receipt of a message from another NPU.

        Args:
            name: The name of the node.
            comm_size: The bytes of the message.
            peer: The NPU at the other end; None = the stamp gives it.
            tag: The tag of the message, to which the stamp's tag is added.
            group: The name of the communicator; "" = all NPUs.
            **links: The parents of the row and further attributes (RowLinks).
        """
        other_end = _PEER_OF_STAMP if peer is None else peer
        values = {"comm_size": comm_size, "comm_src": other_end, "comm_tag": tag, "group": group}
        return self.add(name, NodeType.COMM_RECV_NODE, values, links)

    def add(self, name: str, node_type: NodeType, values: Mapping[str, Any], links: RowLinks) -> int:
        """Add a row, and return its number in the block.

        Args:
            name: The name of the node.
            node_type: The type of the node.
            values: The values of columns by name; other columns get the value that means absent.
            links: The parents of the row and further attributes (RowLinks).
        """
        row = len(self)
        for parent in links.get("after", ()):
            if isinstance(parent, str):
                self._ports.setdefault(parent, []).append(row)
            elif 0 <= parent < row:
                self._children.append(row)
                self._parents.append(parent)
            else:
                raise ValueError(f"row {row} of a block, {name}: after row {parent}, expected an earlier row")
        other = tuple(attribute.SerializeToString(deterministic=True) for attribute in links.get("attrs", ()))
        values_of_row = {"type": node_type, "name": name.encode(), "other": other, **values}
        for column, absent in _ABSENT.items():
            self._values[column].append(values_of_row.get(column, absent))
        return row


class TraceColumns:
    """The trace of NPU `npu` as it grows stamp by stamp; `table` builds it, with the name `path` in messages."""

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

    def stamp(self, block: Block, prefix: str = "", *, after: Ports | None = None, tag: int = 0, peer: int = -1) -> int:
        """Add the rows of a block; return the row of its first one, to which callers add numbers within the block.

        Args:
            block: The rows; the block must not grow after its first stamp.
            prefix: The text at the beginning of all node names of the stamp.
            after: The parent row or rows for each port of the block; a port that is left out gets no parents. None = no
                port has parents.
            tag: The number added to the tags of the block's sends and receives.
            peer: The NPU at the other end of sends and receives that the block gives no peer.
        """
        number = self._number.get(id(block), -1)
        if number < 0:
            number = self._number[id(block)] = len(self._blocks)
            # The list keeps the block alive, so that no later one gets its id
            self._blocks.append(block)
            self._sizes.append(len(block))
        elif self._sizes[number] != len(block):
            # All stamps of a block copy the same rows: it would grow in the earlier ones as well
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
        # The row of the concatenated blocks that each row of the trace copies
        # For blocks of 2 and 3 rows, stamped as 0, 1, 0: rows 0 1 2 3 4 0 1.
        at = np.arange(self._rows) + (_starts(sizes)[block] - first)[stamp]
        columns: dict[str, Any] = {}
        for name, (dtype, _) in COLUMNS.items():
            values = [value for block_ in self._blocks for value in block_._values[name]]  # noqa: SLF001
            columns[name] = np.array(values, dtype)[at]
        self._place_messages(columns, stamp)
        words = {name: self._distinct_values(name) for name in _ABSENT.keys() - COLUMNS.keys()}
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

    def _place_messages(self, columns: dict[str, NDArray[Any]], stamp_of_row: Int64) -> None:
        """Fill in the NPU's own end of sends and receives, the stamp's tag, and the stamp's peer for open ends."""
        sends, recvs = (columns["type"] == kind for kind in (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE))
        columns["comm_src"][sends] = self._npu
        columns["comm_dst"][recvs] = self._npu
        # A block's tags tell its own messages apart, the stamp's tag those of its repetitions
        columns["comm_tag"][sends | recvs] += np.array(self._tag, np.int32)[stamp_of_row[sends | recvs]]
        for column in (columns["comm_src"], columns["comm_dst"]):
            open_ends = np.flatnonzero(column == _PEER_OF_STAMP)
            column[open_ends] = np.array(self._peer, np.int32)[stamp_of_row[open_ends]]
            if np.any(column[open_ends] < 0):
                prefix = self._prefixes[int(stamp_of_row[open_ends][np.argmax(column[open_ends] < 0)])]
                raise ValueError(f"{prefix}: a send or receive without a peer, expected one of the block or the stamp")

    def _distinct_values(self, name: str) -> tuple[Int32, tuple[Any, ...]]:
        """Return the distinct values of a column, beginning with the absent value, and each row's index into them.

        The rows are those of all blocks, concatenated. in_split_size and out_split_size share one list of values.
        """
        number: dict[Any, int] = {} if name == "name" else {_ABSENT[name]: 0}
        for column in _SPLITS if name in _SPLITS else (name,):
            for block in self._blocks:
                for value in block._values[column]:  # noqa: SLF001
                    number.setdefault(value, len(number))
        rows = [number[value] for block in self._blocks for value in block._values[name]]  # noqa: SLF001
        return np.array(rows, np.int32), tuple(number)

    def _dependencies(self, block_of_stamp: Int64, first_row_of_stamp: Int64) -> tuple[Int64, Int32]:
        """Return TraceTable.dep_ptr and dep, from the parents within blocks and those of ports."""
        counts = np.array([len(b._children) for b in self._blocks], np.int64)  # noqa: SLF001
        child, parent = (
            np.array([row for b in self._blocks for row in getattr(b, name)], np.int64)
            for name in ("_children", "_parents")
        )
        stamp = np.repeat(np.arange(len(block_of_stamp)), counts[block_of_stamp])
        # The same for the dependencies within blocks
        edges = np.arange(len(stamp)) + (_starts(counts)[block_of_stamp] - _starts(counts[block_of_stamp]))[stamp]
        children = np.concatenate([first_row_of_stamp[stamp] + child[edges], np.array(self._children, np.int64)])
        parents = np.concatenate([first_row_of_stamp[stamp] + parent[edges], np.array(self._parents, np.int64)])
        return compress(self._rows, children, parents)


def _starts(sizes: Int64) -> Int64:
    """Return the offset at which each part begins when parts of these sizes are concatenated."""
    return np.cumsum(sizes) - sizes
