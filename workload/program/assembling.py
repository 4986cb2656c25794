"""Assembly of a Program from the rows of distinct traces: children, collectives and receives."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int8, Int32, Int64, Mask, pointers
from nadi.inputs.limits import PEER_BIAS
from nadi.workload.collectives.schedules.packed import DONE_AT_ONCE, Schedules
from nadi.workload.node_kinds import COLLECTIVE, RECV
from nadi.workload.program.program import Program
from nadi.workload.trace_sets.groups import GroupTable

NOT_HERE = -1  # Trace of another rank's NPU
NO_CHANNEL = -1  # Channel of a SEND that uses its port's line rate


class TraceRows(NamedTuple):
    """The rows of one distinct trace of n nodes: columns of Program, and its parents as CSR."""

    kind: Int8  # int8[n], kinds of nodes
    lane: Int8  # int8[n], lanes
    duration_ps: Int64  # int64[n], durations in ps
    bytes: Int64  # int64[n], bytes of messages and collectives
    peer: Int32  # int32[n], rank of the other end minus the own rank
    tag: Int32  # int32[n], tags of messages
    seq: Int32  # int32[n], number of earlier messages with the same peer and tag, or collectives of the group
    group: Int32  # int32[n], slot of a collective's group
    schedule: Int32  # int32[n], schedule of a collective
    collective: Int8  # int8[n], kind of a collective
    uneven: Mask  # bool[n], whether an all-to-all has split sizes
    channel: Int32  # int32[n], channel of a send
    parts: Int8  # int8[n], parts of a message over several NICs
    priority: Int32  # int32[n], priority of a collective
    dep_ptr: Int64  # int64[n+1], pointers to the parents of each node
    dep: Int32  # int32[], rows of the parents


_COLUMNS = tuple(name for name in TraceRows._fields if name not in {"dep_ptr", "dep"})


def empty_rows(n: int) -> TraceRows:
    """Return rows of n nodes without work, bytes or parents, for the caller to fill.

    Args:
        n: The number of nodes.
    """
    int8, int32, int64 = np.zeros(n, np.int8), np.zeros(n, np.int32), np.zeros(n, np.int64)
    return TraceRows(
        kind=int8,
        lane=int8.copy(),
        duration_ps=int64,
        bytes=int64.copy(),
        peer=int32,
        tag=int32.copy(),
        seq=int32.copy(),
        group=int32.copy(),
        schedule=np.full(n, DONE_AT_ONCE, np.int32),
        collective=np.full(n, -1, np.int8),
        uneven=np.zeros(n, np.bool_),
        channel=np.full(n, NO_CHANNEL, np.int32),
        parts=np.ones(n, np.int8),
        priority=int32.copy(),
        dep_ptr=np.zeros(n + 1, np.int64),
        dep=np.zeros(0, np.int32),
    )


def assemble(
    trace_of_npu: Int32, distinct: Sequence[TraceRows], group_table: GroupTable, schedules: Schedules
) -> Program:
    """Return a program of distinct traces.

    Args:
        trace_of_npu: The distinct trace of each NPU, int32[npus]; -1 = another rank's NPU.
        distinct: The rows of each distinct trace.
        group_table: The groups of all NPUs, with the members of those that this rank's NPUs use.
        schedules: The schedules of collectives as arrays.
    """
    trace_ptr = pointers([len(rows.kind) for rows in distinct])
    none = empty_rows(0)  # a rank may have no NPUs
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(rows, name) for rows in (none, *distinct)]) for name in _COLUMNS
    }
    deps = np.concatenate([np.diff(rows.dep_ptr) for rows in (none, *distinct)])
    parents = (rows.dep + start for rows, start in zip(distinct, trace_ptr[:-1], strict=True))
    parent = np.concatenate([np.zeros(0, np.int64), *parents])
    child_ptr, child = _children(deps, parent.astype(np.int64), trace_ptr)
    slots_of_trace = np.zeros(len(distinct), np.int64)
    here = trace_of_npu != NOT_HERE
    slots_of_trace[trace_of_npu[here]] = np.diff(group_table.slot_ptr)[here]
    trace_slot_ptr, coll_ptr, coll_node = collective_lists(columns, trace_ptr, slots_of_trace)
    recv_ptr, recv_key, recv_node = receive_lists(columns, trace_ptr)
    return Program(
        npus=len(trace_of_npu),
        trace_of_npu=trace_of_npu.astype(np.int32),
        trace_ptr=trace_ptr,
        **{f"node_{name}": column for name, column in columns.items()},
        node_deps=deps.astype(np.int32),
        child_ptr=child_ptr,
        child=child,
        slot_ptr=group_table.slot_ptr,
        slot_group=group_table.slot_group,
        slot_member=group_table.slot_member,
        group_ptr=group_table.group_ptr,
        group_member=group_table.group_member,
        group_names=group_table.names,
        trace_slot_ptr=trace_slot_ptr,
        coll_ptr=coll_ptr,
        coll_node=coll_node,
        recv_ptr=recv_ptr,
        recv_key=recv_key,
        recv_node=recv_node,
        schedules=schedules,
    )


def receive_key(peer: NDArray[np.integer], tag: NDArray[np.integer], seq: NDArray[np.integer]) -> Int64:
    """Return int64[]: keys that match messages with their receives; they wrap as int64 for peers from 0 on.

    Args:
        peer: The ranks of the peers minus the own rank, int[].
        tag: The tags of the messages, int[].
        seq: The number of earlier messages with the same peer and tag, int[].
    """
    # The bias makes negative peers positive; tag and number have fixed places below the peer
    biased = (peer.astype(np.int64) + PEER_BIAS) << 44
    return biased | (tag.astype(np.int64) << 20) | seq.astype(np.int64)


def _children(deps: Int64, parent: Int64, trace_ptr: Int64) -> tuple[Int64, Int32]:
    """Return the children in CSR form."""
    # `deps` is int64[N], the number of parents of each node; `parent` int64[], the rows of the parents over all traces,
    # node by node; `trace_ptr` int64[T+1], pointers to the nodes of each trace.
    row = np.repeat(np.arange(len(deps)), deps)
    start = np.repeat(trace_ptr[:-1], np.diff(trace_ptr))
    # Edges come sorted by child; a stable sort by parent leaves each parent's children in ascending order
    by_parent = np.argsort(parent, kind="stable")
    child = (row - start[row])[by_parent] if len(row) else row
    return pointers(np.bincount(parent, minlength=len(deps))), child.astype(np.int32)


def _trace_of_row(trace_ptr: Int64) -> Int64:
    return np.repeat(np.arange(len(trace_ptr) - 1), np.diff(trace_ptr))


def collective_lists(
    columns: Mapping[str, NDArray[np.integer]], trace_ptr: Int64, slots_of_trace: Int64
) -> tuple[Int64, Int64, Int32]:
    """Return trace_slot_ptr, coll_ptr and coll_node of Program.

    Args:
        columns: The columns of the rows of all traces, by name: "kind", "group" and "seq".
        trace_ptr: The pointers to the rows of each trace, int64[T+1].
        slots_of_trace: The number of groups of each trace, int64[T].
    """
    trace_slot_ptr = pointers(slots_of_trace)
    rows = np.flatnonzero(columns["kind"] == COLLECTIVE)
    trace = _trace_of_row(trace_ptr)[rows]
    entry = trace_slot_ptr[trace] + columns["group"][rows]
    # Slot by slot, in the order in which the NPU issues them
    order = np.lexsort((columns["seq"][rows], entry))
    counts = np.bincount(entry, minlength=int(trace_slot_ptr[-1]))
    return trace_slot_ptr, pointers(counts), (rows - trace_ptr[trace])[order].astype(np.int32)


def receive_lists(columns: Mapping[str, NDArray[np.integer]], trace_ptr: Int64) -> tuple[Int64, Int64, Int32]:
    """Return recv_ptr, recv_key and recv_node of Program.

    Args:
        columns: The columns of the rows of all traces, by name: "kind", "peer", "tag" and "seq".
        trace_ptr: The pointers to the rows of each trace, int64[T+1].
    """
    rows = np.flatnonzero(columns["kind"] == RECV)
    trace = _trace_of_row(trace_ptr)[rows]
    key = receive_key(*(columns[name][rows] for name in ("peer", "tag", "seq")))
    order = np.lexsort((key, trace))
    counts = np.bincount(trace, minlength=len(trace_ptr) - 1)
    return pointers(counts), key[order], (rows - trace_ptr[trace])[order].astype(np.int32)
