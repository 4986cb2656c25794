"""Traces of all NPUs, those of one rank, and the view that the simulator has of a trace.

NPUs with the same work share one trace.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from nadi.et import NodeType, TraceTable, occurrence, topological_order
from nadi.et.checking.matching import MessageNodes
from nadi.inputs.arrays import Int32, Int64
from nadi.workload.errors import NOBODY, WorkloadError, first_of
from nadi.workload.kinds import ALL_TO_ALL, KIND_OF_COMM_TYPE, KINDS
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, COMPUTE_LANE, MEMORY, MEMORY_LANE, NOOP, RECV, SEND

Families = Mapping[str, tuple[tuple[int, ...], ...]]

NO_GROUP = -1


@dataclass(frozen=True, eq=False)
class TraceSet:
    """Distinct traces, and the NPUs that run them.

    NPUs with the same work share a trace, even if their groups and peers differ. The trace's sends and receives have
    the peers of its example NPU; for another NPU, the difference between its number and the example's is added to them.
    Its collectives name families of groups: for each NPU, the name means the group of the family that contains it.
    """

    traces: Sequence[TraceTable]  # T distinct traces
    trace_of_npu: Int32  # int32[npus], trace of each NPU; IDLE (-1) = no trace, ELSEWHERE (-2) = another rank's NPU
    example_npu: Int32  # int32[T], example NPU of each trace; AS_WRITTEN (-1) = its peers are the same for all NPUs
    # Groups of each family by name, NPUs in member order; an NPU is in at most one group of a family
    families: Families = field(default_factory=dict)
    framework: str = ""  # Framework of the training steps ("megatron", "deepspeed" or "fsdp"); "" = unknown
    copied: frozenset[str] = frozenset()  # Families whose collectives run on copy engines, not multiprocessors
    # Number of multiprocessors that the kernels of a dispatcher of tokens hold beside other computation; 0 = none
    dispatch_sms: int = 0
    leaves_sms: bool = True  # Whether Megatron's products leave the multiprocessors that NCCL holds free

    @classmethod
    def of(cls, tables: Sequence[TraceTable | None], groups: Mapping[str, Sequence[int]] | None = None) -> "TraceSet":
        """Return a trace set of one trace per NPU; the peers of a shared trace are the same for all its NPUs.

        Raises WorkloadError: there is no trace, a table is no trace, or a group is empty, has a member twice or out of
        range, or is named "" or "0", which always mean all NPUs.

        Args:
            tables: The traces of NPU 0, 1, ...; None = the NPU is idle.
            groups: The members of each group that the traces name, NPU numbers in member order; None = no groups.
        """
        distinct: dict[int, TraceTable] = {}
        for npu, table in enumerate(tables):
            if table is not None and not isinstance(table, TraceTable):
                raise WorkloadError(
                    f"trace of NPU {npu}: found a {type(table).__name__}, expected a TraceTable or None"
                )
            if table is not None:
                # By identity: to compare contents would read every column of every trace
                distinct.setdefault(id(table), table)
        if not distinct:
            raise WorkloadError(f"traces of {len(tables)} NPUs: found none, expected one or more")
        row = {key: number for number, key in enumerate(distinct)}
        trace_of_npu = np.array([IDLE if table is None else row[id(table)] for table in tables], np.int32)
        example_npu = np.full(len(distinct), AS_WRITTEN, np.int32)
        families = {name: (_members(name, members, len(tables)),) for name, members in (groups or {}).items()}
        return cls(tuple(distinct.values()), trace_of_npu, example_npu, families)

    @property
    def npus(self) -> int:
        """Number of NPUs, including idle ones."""
        return len(self.trace_of_npu)


def _members(name: str, members: Sequence[int], npus: int) -> tuple[int, ...]:
    """Return the members of a named group after a check; WorkloadError if one is no NPU or occurs twice."""
    numbers = tuple(int(member) for member in members)
    if name in {"", "0"}:
        raise WorkloadError(f"group {name!r}: always all NPUs, expected another name")
    if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= member < npus for member in numbers):
        raise WorkloadError(f"group {name!r}: members {numbers!r:.80}, expected NPUs from 0 to {npus - 1}, each once")
    return numbers


def group_of_npu(groups: Sequence[tuple[int, ...]], npus: int) -> Int32:
    """Return int32[npus]: the group of each NPU in a family, NO_GROUP (-1) = no group.

    Args:
        groups: The members of each group of the family; those beyond `npus` do not count.
        npus: The number of NPUs.
    """
    group_of = np.full(npus, NO_GROUP, np.int32)
    member = np.array([npu for members in groups for npu in members], np.int64)
    group = np.repeat(np.arange(len(groups)), [len(members) for members in groups])
    is_valid = (member >= 0) & (member < npus)
    group_of[member[is_valid]] = group[is_valid]
    return group_of


# View of one trace for the simulator, independent of groups and NPUs: kinds of rows, order, counts.


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
        """Compute the columns of the view.

        Args:
            table: The trace as a table of columns.
            dims: The sizes of the fabric's dimensions, fastest first; None = involved_dim is ignored.
            example: The NPU whose peers the trace has; AS_WRITTEN (-1) = they are the same for all NPUs.
        """
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
        # One number for each (group, dimensions), numbered below in the order of first use
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
        self.messages = MessageNodes.of(table, order)

    def _involved(self, dims: tuple[int, ...] | None) -> Int64:
        """Return int64[c]: dimensions that take part in each collective, WHOLE if the group alone defines it."""
        involved = self.table.involved_dim[self.coll_rows].astype(np.int64)
        if dims is None:
            return np.full(len(involved), WHOLE, np.int64)
        # Dimensions of one NPU change nothing: of (2, 1, 4), bits 0 and 2 count
        known = sum(1 << d for d, extent in enumerate(dims) if extent > 1)
        restricted = (self.table.group[self.coll_rows] == 0) & (involved & known != known)
        nobody = restricted & (involved & known == 0)
        if np.any(nobody):
            row = int(self.coll_rows[np.argmax(nobody)])
            raise WorkloadError(f"{self.node(row)}: involved_dim names none of the fabric's {len(dims)} dimensions")
        return np.where(restricted, involved & known, WHOLE)

    def shift(self, npu: int) -> int:
        """Return the number to add to the trace's peers for an NPU.

        Args:
            npu: The number of the NPU.
        """
        return 0 if self.example == AS_WRITTEN else npu - self.example

    def slot_rows(self, slot: int) -> Int32:
        """Return the rows of the collectives of a slot, in order.

        Args:
            slot: The number of the slot.
        """
        return self.coll_rows[self.coll_slot == slot]

    def node(self, row: int) -> str:
        """Return file and node as the beginning of a message.

        Args:
            row: The row of the node in the trace.
        """
        return f"{self.table.path}: node {self.table.node_id[row]}"

    def collective(self, row: int) -> str:
        """Return a text with kind and size of a collective; uneven ones have no common size.

        Args:
            row: The row of the collective in the trace.
        """
        kind = KINDS[KIND_OF_COMM_TYPE[self.table.comm_type[row]]]
        if kind == KINDS[ALL_TO_ALL] and self.table.in_split_size[row] > 0:
            return f"{kind} with split sizes"
        return kind if kind == "barrier" else f"{kind} of {self.table.comm_size[row]} B"

    def first_use(self, slot: int) -> str:
        """Return file, node and group of a slot's first collective as the beginning of a message.

        Args:
            slot: The number of the slot.
        """
        return f'{self.node(int(self.slot_rows(slot)[0]))}: group "{self.slot_names[slot]}"'


# Traces that the NPUs of one rank run.


T = TypeVar("T")

IDLE = -1
ELSEWHERE = -2


class OwnTraces(NamedTuple):
    """Distinct traces of a rank, ordered by the first NPU that runs each."""

    views: list[TraceView]  # Distinct traces
    trace_of_npu: Int32  # int32[npus], index of the NPU's trace in `views`, -1 = idle or another rank's NPU
    users: list[Int64]  # int64[] per trace, NPUs of this rank that run it

    def each(self, work: Callable[[TraceView, Int64], T]) -> list[T]:
        """Call a function for each trace, and return the results; errors are those of the smallest NPU.

        Args:
            work: A function of the view of a trace and of this rank's NPUs that run it.
        """
        results: list[T] = []
        errors: list[WorkloadError] = []
        for view, users in zip(self.views, self.users, strict=True):
            try:
                results.append(work(view, users))
            except WorkloadError as error:
                error.npu = int(users[0]) if error.npu == NOBODY else error.npu
                errors.append(error)
        if errors:
            raise first_of(errors)
        return results


def own_traces(
    traces: Sequence[TraceTable],
    trace_of_npu: Int32,
    dims: tuple[int, ...] | None = None,
    example_npu: Int32 | None = None,
) -> OwnTraces:
    """Return the traces that NPUs of this rank run; the error of a wrong trace is that of the smallest NPU.

    Args:
        traces: The distinct traces of all NPUs.
        trace_of_npu: The index of each NPU's trace in `traces`, int32[npus]; negative = no trace here.
        dims: The sizes of the fabric's dimensions, fastest first; None = involved_dim is ignored.
        example_npu: The NPU whose peers each trace has, int32[traces]; None = AS_WRITTEN for all traces.
    """
    runners = np.flatnonzero(trace_of_npu >= 0)
    used, first, row = np.unique(trace_of_npu[runners], return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    place = np.empty(len(used), np.int32)
    # Traces are numbered by the first NPU that runs them, on any number of ranks
    place[by_first] = np.arange(len(used))
    own = np.full(len(trace_of_npu), IDLE, np.int32)
    own[runners] = place[row.reshape(-1)]
    by_trace = runners[np.argsort(own[runners], kind="stable")]
    ends = np.cumsum(np.bincount(own[runners], minlength=len(used)))
    users = np.split(by_trace, ends[:-1]) if len(used) else []
    views = []
    for trace, of_trace in zip(used[by_first].tolist(), users, strict=True):
        try:
            example = AS_WRITTEN if example_npu is None else int(example_npu[trace])
            views.append(TraceView(traces[trace], dims, example))
        except WorkloadError as error:
            error.npu = int(of_trace[0])
            raise
    return OwnTraces(views, own, users)
