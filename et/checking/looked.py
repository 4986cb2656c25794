"""A trace as checks look at it: its table, in the order of execution, and what had to be left out to have one."""

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from et.order import occurrence, topological_order
from et.schema import CollectiveCommType, NodeType
from et.table import TraceTable

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNEVEN = -2
WHOLE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class MessageNodes:
    """The p sends and receives of a trace in topological order.

    Attributes:
        row: int32[p], of the table.
        is_send: bool[p].
        peer: int64[p], as written, -1 = missing.
        tag: int64[p], 0 where missing.
        seq: int32[p], how many of the same direction, peer and tag come before.
        size: int64[p], bytes, -1 = missing.
    """

    row: Int32
    is_send: Mask
    peer: Int64
    tag: Int64
    seq: Int32
    size: Int64


@dataclasses.dataclass(frozen=True, eq=False)
class CollectiveNodes:
    """The c collectives of a trace in topological order; calls of the host without comm_type are none.

    Attributes:
        row: int32[c], of the table.
        group: int32[c], row of the table's group_names.
        dims: int32[c], involved_dim where it leaves some out, else WHOLE = -1.
        kind: int8[c], CollectiveCommType, both reduce-scatters as one.
        size: int64[c], bytes, 0 of barriers, -1 = missing, UNEVEN = -2 where members need not have the same.
    """

    row: Int32
    group: Int32
    dims: Int32
    kind: NDArray[np.int8]
    size: Int64


class CheckedTrace:
    """A trace that could be read.

    Attributes:
        trace: its number in Sources.
        table: as read; without the dependencies that checks of single files complain about.
    """

    def __init__(self, trace: int, table: TraceTable) -> None:
        self.trace = trace
        self.table = table

    @cached_property
    def order(self) -> Int32:
        """int32[n]: rows, parents before children."""
        return topological_order(self.table)

    @cached_property
    def messages(self) -> MessageNodes:
        """See Messages."""
        table = self.table
        of_order = table.type[self.order]
        row = self.order[(of_order == NodeType.COMM_SEND_NODE) | (of_order == NodeType.COMM_RECV_NODE)]
        is_send = table.type[row] == NodeType.COMM_SEND_NODE
        peer = np.where(is_send, table.comm_dst[row], table.comm_src[row]).astype(np.int64)
        tag = np.maximum(table.comm_tag[row], 0).astype(np.int64)
        return MessageNodes(row, is_send, peer, tag, occurrence(is_send, peer, tag), table.comm_size[row])

    @cached_property
    def collectives(self) -> CollectiveNodes:
        """See Collectives."""
        table = self.table
        row = self.order[(table.type[self.order] == NodeType.COMM_COLL_NODE) & (table.comm_type[self.order] >= 0)]
        kind = table.comm_type[row]
        kind = np.where(kind == CollectiveCommType.REDUCE_SCATTER_BLOCK, CollectiveCommType.REDUCE_SCATTER, kind)
        size = np.where(kind == CollectiveCommType.BARRIER, 0, table.comm_size[row])
        size[(kind == CollectiveCommType.ALL_TO_ALL) & (table.in_split_size[row] > 0)] = UNEVEN
        dims = np.where(table.group[row] == 0, table.involved_dim[row], WHOLE)
        every = int(dims.max(initial=WHOLE))
        if every > 0 and every & (every + 1) == 0:  # all dimensions that this trace knows of
            dims[dims == every] = WHOLE
        return CollectiveNodes(row, table.group[row], dims, kind.astype(np.int8), size)

    def node(self, row: int) -> int:
        """The id of a row."""
        return int(self.table.node_id[row])
