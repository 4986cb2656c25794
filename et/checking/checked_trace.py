"""A trace as checks use it: its table, order, messages and collectives."""

import dataclasses
from functools import cached_property

import numpy as np

from nadi.et.checking.matching import MessageNodes
from nadi.et.order import topological_order
from nadi.et.schema import CollectiveCommType, NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int8, Int32, Int64

UNEVEN = -2  # size of a collective whose members need not have the same size
WHOLE = -1  # involved_dim of a collective over all dimensions


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
        return MessageNodes.of(self.table, self.order)

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
