"""A trace as checks use it: its table, order, messages and collectives, and hashes that compare sets of rows."""

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nadi.et.order import occurrence, topological_order
from nadi.et.schema import CollectiveCommType, NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int8, Int32, Int64, Mask, UInt64

UNEVEN = -2  # size of a collective whose members need not have the same size
WHOLE = -1  # involved_dim of a collective over all dimensions


@dataclasses.dataclass(frozen=True, eq=False)
class MessageNodes:
    """The p sends and receives of a trace in topological order."""

    row: Int32  # int32[p], row of the table
    is_send: Mask  # bool[p], whether it is a send
    peer: Int64  # int64[p], other end as written, -1 = missing
    tag: Int64  # int64[p], tag, 0 where missing
    seq: Int32  # int32[p], number of earlier messages of the same direction, peer and tag
    size: Int64  # int64[p], bytes, -1 = missing


@dataclasses.dataclass(frozen=True, eq=False)
class CollectiveNodes:
    """The c collectives of a trace in topological order, without host calls that have no comm_type."""

    row: Int32  # int32[c], row of the table
    group: Int32  # int32[c], row of the table's group_names
    dims: Int32  # int32[c], involved_dim if it omits dimensions, otherwise WHOLE = -1
    kind: Int8  # int8[c], CollectiveCommType; both kinds of reduce-scatter are one
    size: Int64  # int64[c], bytes, 0 for barriers, -1 = missing, UNEVEN = -2 if the members' sizes may differ


class CheckedTrace:
    """A trace that could be read."""

    def __init__(self, trace: int, table: TraceTable) -> None:
        self.trace = trace  # number in Sources
        self.table = table  # without the dependencies that checks of single files report

    @cached_property
    def order(self) -> Int32:
        """int32[n], rows, parents before children."""
        return topological_order(self.table)

    @cached_property
    def messages(self) -> MessageNodes:
        """Sends and receives of the trace."""
        table = self.table
        of_order = table.type[self.order]
        row = self.order[(of_order == NodeType.COMM_SEND_NODE) | (of_order == NodeType.COMM_RECV_NODE)]
        is_send = table.type[row] == NodeType.COMM_SEND_NODE
        peer = np.where(is_send, table.comm_dst[row], table.comm_src[row]).astype(np.int64)
        tag = np.maximum(table.comm_tag[row], 0).astype(np.int64)
        return MessageNodes(row, is_send, peer, tag, occurrence(is_send, peer, tag), table.comm_size[row])

    @cached_property
    def collectives(self) -> CollectiveNodes:
        """Collectives of the trace."""
        table = self.table
        row = self.order[(table.type[self.order] == NodeType.COMM_COLL_NODE) & (table.comm_type[self.order] >= 0)]
        kind = table.comm_type[row]
        kind = np.where(kind == CollectiveCommType.REDUCE_SCATTER_BLOCK, CollectiveCommType.REDUCE_SCATTER, kind)
        size = np.where(kind == CollectiveCommType.BARRIER, 0, table.comm_size[row])
        size[(kind == CollectiveCommType.ALL_TO_ALL) & (table.in_split_size[row] > 0)] = UNEVEN
        dims = np.where(table.group[row] == 0, table.involved_dim[row], WHOLE)
        all_dims = int(dims.max(initial=WHOLE))
        # All bits from 0 on: then the set of these dimensions is the whole fabric, as far as the trace shows
        if all_dims > 0 and all_dims & (all_dims + 1) == 0:  # all dimensions that this trace mentions
            dims[dims == all_dims] = WHOLE
        return CollectiveNodes(row, table.group[row], dims, kind.astype(np.int8), size)

    def node(self, row: int) -> int:
        """Return the id of a node.

        Args:
            row: The row of the node.
        """
        return int(self.table.node_id[row])


def mixed(*columns: NDArray[np.integer]) -> UInt64:
    """Return uint64[n], a hash of each row, mixed as in splitmix64 (Steele, Lea and Flood, OOPSLA 2014).

    Args:
        *columns: The columns of the rows, int[n] each.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    # Mixed after each column, so that (1, 2) and (2, 1) have different hashes
    for column in columns:
        hashes += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    return hashes
