"""View of one trace for the simulator, independent of groups and NPUs: kinds of rows, order, counts."""

import numpy as np

from nadi.et import NodeType, TraceTable, topological_order
from nadi.et.arrays import Int32, Int64
from nadi.et.order import occurrence
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import ALL_TO_ALL, KIND_OF_COMM_TYPE, KINDS
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, COMPUTE_LANE, MEMORY, MEMORY_LANE, NOOP, RECV, SEND

WHOLE = -1  # Dimensions of a collective in which the whole group takes part
AS_WRITTEN = -1  # Example NPU of a trace whose peers are the same for all NPUs

_KIND_OF_NODE_TYPE = np.array([NOOP, NOOP, MEMORY, MEMORY, COMPUTE, SEND, RECV, COLLECTIVE], np.int8)


class TraceView:
    """A trace of n nodes in file order, with the kinds of its rows.

    A collective of the host without comm_type is COMPUTE on the CPU lane: PyTorch writes the call in addition to the
    kernel that does the work. METADATA is NOOP. `dims` are the sizes of the fabric's dimensions; None = ignore
    involved_dim. `example` is the NPU whose peers the trace has; for another NPU, the difference of their numbers is
    added to the peers. AS_WRITTEN (-1) = the peers are the same for all NPUs. Raises WorkloadError: a collective of all
    NPUs takes part in none of the dimensions.
    """

    def __init__(self, table: TraceTable, dims: tuple[int, ...] | None = None, example: int = AS_WRITTEN) -> None:
        """Compute the columns; table: trace; dims, example: see the class."""
        self.table = table
        self.example = example
        self.kind = _KIND_OF_NODE_TYPE[table.type]  # int8[n], NOOP, COMPUTE, MEMORY, SEND, RECV or COLLECTIVE
        self.kind[(self.kind == COLLECTIVE) & (table.comm_type < 0)] = COMPUTE
        # int8[n], lane of COMPUTE, MEMORY and COLLECTIVE, whose kernels use multiprocessors; else 0
        self.lane = np.zeros(len(table), np.int8)
        on_cpu = table.is_cpu_op | (table.type == NodeType.COMM_COLL_NODE)
        self.lane[(self.kind == COMPUTE) & ~on_cpu] = COMPUTE_LANE
        self.lane[self.kind == MEMORY] = MEMORY_LANE
        self.lane[self.kind == COLLECTIVE] = COMPUTE_LANE
        order = topological_order(table)
        kind = self.kind[order]
        # int32[c], rows of the collectives in topological order, the smallest first among unordered rows
        self.coll_rows = order[kind == COLLECTIVE]
        self.coll_kind = KIND_OF_COMM_TYPE[table.comm_type[self.coll_rows]]  # int8[c], rows of workload.kinds.KINDS
        # bool[c], whether a collective is an all-to-all with split sizes
        self.coll_uneven = (self.coll_kind == ALL_TO_ALL) & (table.in_split_size[self.coll_rows] > 0)
        keys = table.group[self.coll_rows].astype(np.int64) << 32 | (self._involved(dims) + 1)
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        slot_of_key = np.argsort(np.argsort(first)).astype(np.int32)
        self.coll_slot = slot_of_key[inverse]  # int32[c], slots of the collectives' groups
        by_slot = distinct[np.argsort(first)]
        # Name of each slot's group, in order of first use
        self.slot_names = tuple(table.group_names[i] for i in (by_slot >> 32).tolist())
        # Dimensions of the fabric that take part in a collective of all NPUs, per slot, bit d for dimension d; WHOLE
        # (-1) = the whole group
        self.slot_dims = tuple(((by_slot & (2**32 - 1)) - 1).tolist())
        self.coll_seq = occurrence(self.coll_slot)  # int32[c], number of earlier collectives of the same group
        rows = self.p2p_rows = order[(kind == SEND) | (kind == RECV)]  # int32[p], messages in topological order
        is_send = self.kind[rows] == SEND
        # int32[p], numbers of the other NPU and of the own one in the trace, -1 = missing
        self.p2p_peer = np.where(is_send, table.comm_dst[rows], table.comm_src[rows])
        self.p2p_own = np.where(is_send, table.comm_src[rows], table.comm_dst[rows])
        self.p2p_tag = np.maximum(table.comm_tag[rows], 0)  # int32[p], message tags, 0 if missing
        # int32[p], numbers of earlier messages of the same kind, peer and tag
        self.p2p_seq = occurrence(self.kind[rows], self.p2p_peer, self.p2p_tag)

    def _involved(self, dims: tuple[int, ...] | None) -> Int64:
        """Return int64[c]: dimensions that take part in each collective, WHOLE if the group alone defines it."""
        involved = self.table.involved_dim[self.coll_rows].astype(np.int64)
        if dims is None:
            return np.full(len(involved), WHOLE, np.int64)
        known = sum(1 << d for d, extent in enumerate(dims) if extent > 1)
        restricted = (self.table.group[self.coll_rows] == 0) & (involved & known != known)
        nobody = restricted & (involved & known == 0)
        if np.any(nobody):
            row = int(self.coll_rows[np.argmax(nobody)])
            raise WorkloadError(f"{self.node(row)}: involved_dim names none of the fabric's {len(dims)} dimensions")
        return np.where(restricted, involved & known, WHOLE)

    def shift(self, npu: int) -> int:
        """Return the number to add to the trace's peers for an NPU."""
        return 0 if self.example == AS_WRITTEN else npu - self.example

    def slot_rows(self, slot: int) -> Int32:
        """Return the rows of a slot's collectives in order."""
        return self.coll_rows[self.coll_slot == slot]

    def node(self, row: int) -> str:
        """Return file and node as the beginning of a message."""
        return f"{self.table.path}: node {self.table.node_id[row]}"

    def collective(self, row: int) -> str:
        """Return a text with kind and size of a collective; uneven ones have no common size."""
        kind = KINDS[KIND_OF_COMM_TYPE[self.table.comm_type[row]]]
        if kind == KINDS[ALL_TO_ALL] and self.table.in_split_size[row] > 0:
            return f"{kind} with split sizes"
        return kind if kind == "barrier" else f"{kind} of {self.table.comm_size[row]} B"

    def first_use(self, slot: int) -> str:
        """Return file, node and group of a slot's first collective as the beginning of a message."""
        return f'{self.node(int(self.slot_rows(slot)[0]))}: group "{self.slot_names[slot]}"'
