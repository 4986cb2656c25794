"""Program: the work of all NPUs as arrays; docs/reference/interfaces.md explains how they relate."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int8, Int32, Int64, Mask, pointers, spans
from nadi.inputs.limits import PEER_BIAS
from nadi.workload.collectives.schedules.packed import DONE_AT_ONCE, Schedules
from nadi.workload.node_kinds import COLLECTIVE, RECV, SEND
from nadi.workload.trace_sets.groups import GroupTable


class InNetworkGroup(NamedTuple):
    """A group with collectives that switches reduce."""

    group: int  # Number of the group
    members: Int32  # int32[n], NPUs of the group
    switches: tuple[int, ...]  # Fabric's nodes with its aggregators, members n, n + 1, ...; one may hold several
    schedule: Int32  # int32[k], schedules of all its collectives in order; -1 = not in the network
    bytes: Int64  # int64[k], buffer sizes in bytes
    priority: Int32  # int32[k], priorities of the collectives


class Channels(NamedTuple):
    """The k kinds of connections of NCCL's messages between two NPUs (workload.program.sends)."""

    connection: Int8  # int8[k], number of the connection between the two NPUs, unique per way
    shares: NDArray[np.float64]  # float64[k], in how many shares the line rate is cut; the connection uses one
    between_hosts: Mask  # bool[k], whether the way is between NPUs of different hosts


class FabricJobs(NamedTuple):
    """J jobs that share a fabric; each has ranks and groups of its own."""

    names: tuple[str, ...]  # Name of each job
    rank_ptr: Int64  # int64[J+1], pointers to the NPUs of each job in `npu`
    npu: Int32  # int32[npus], NPUs of the ranks of all jobs, job by job; then those without a job
    place: Int32  # int32[npus], index of each NPU in `npu`
    group_ptr: Int64  # int64[J+1], groups of each job, as ranges of group numbers; the first of each is all its ranks
    begin_ps: Int64  # int64[J], time at which each job starts
    queue_pairs: tuple[
        str, ...
    ]  # Queue pairs of the messages of each job, "pair" or "message"; "" = as the settings say

    def npus_of(self, job: int) -> Int32:
        """Return the NPUs of a job in the order of its ranks.

        Args:
            job: The number of the job.
        """
        return self.npu[self.rank_ptr[job] : self.rank_ptr[job + 1]]

    def of_npus(self) -> Int32:
        """Return int32[npus]: the job of each NPU by its number, -1 = none."""
        return self._of(self.rank_ptr, len(self.npu))[self.place]

    def of_groups(self) -> Int32:
        """Return int32[G]: the job of each group by its number."""
        return self._of(self.group_ptr, int(self.group_ptr[-1]))

    @staticmethod
    def _of(ptr: Int64, length: int) -> Int32:
        """Return int32[length]: the job of each item, whose ranges `ptr` delimits, -1 = none."""
        job = np.full(length, -1, np.int32)
        job[: int(ptr[-1])] = np.repeat(np.arange(len(ptr) - 1, dtype=np.int32), np.diff(ptr))
        return job


NO_CHANNELS = Channels(np.zeros(0, np.int8), np.zeros(0, np.float64), np.zeros(0, np.bool_))


class Program(NamedTuple):
    """The work of all NPUs: N nodes in T distinct traces; see docs/reference/interfaces.md.

    NPUs whose rows are equal share a trace, even if ids, names of nodes and names of groups differ. Row r of an NPU's
    trace is row r of its TraceTable. A rank has the work of its own NPUs; NPUs and groups are numbered over all ranks.
    """

    npus: int  # Number of NPUs of all ranks
    trace_of_npu: Int32  # int32[npus], distinct trace of each NPU, an empty one without work; -1 = another rank's NPU
    trace_ptr: Int64  # int64[T+1], pointers to the nodes of each trace
    node_kind: Int8  # int8[N], NOOP 0, COMPUTE 1, MEMORY 2, SEND 3, RECV 4, COLLECTIVE 5
    # int8[N], CPU 0, COMPUTE 1, MEMORY 2, REMOTE 3; of a collective COMPUTE, or MEMORY for copy engines
    node_lane: Int8
    node_duration_ps: Int64  # int64[N], durations of COMPUTE and MEMORY; times of SEND from start to posting
    node_bytes: Int64  # int64[N], bytes of the message on the wire, or of a collective's whole buffer
    node_peer: Int32  # int32[N], rank of the other NPU minus the own rank, within the job
    node_tag: Int32  # int32[N], tags of SEND and RECV
    node_seq: Int32  # int32[N], number of earlier messages with this peer and tag, or collectives of this group
    node_group: Int32  # int32[N], the NPU's own slot of the group
    node_schedule: Int32  # int32[N], schedule of the collective, -1 = ends at once
    node_collective: Int8  # int8[N], kind of a COLLECTIVE, a row of workload.KINDS; -1 = none, or an aggregator's part
    node_uneven: Mask  # bool[N], an all-to-all with split sizes
    # int32[N], row of channels of a SEND, or of its first part, -1 = it uses its port's line rate
    node_channel: Int32
    node_parts: Int8  # int8[N], messages that a SEND or RECV is divided into (workload.program.program), 1 = none
    node_priority: Int32  # int32[N], comm_priority of the trace; phases that wait for a dimension start by priority
    node_deps: Int32  # int32[N], number of parents
    child_ptr: Int64  # int64[N+1], pointers to the children of each node
    child: Int32  # int32[], rows of children within the trace
    slot_ptr: Int64  # int64[npus+1], pointers to the slots of each NPU; other ranks' NPUs have no slots
    slot_group: Int32  # int32[], group of each slot
    slot_member: Int32  # int32[], member number of the slot's NPU in the group
    # int64[G+1], pointers to the members of each group, empty if no NPU of this rank uses it. Group 0 is all NPUs (of
    # the first job).
    group_ptr: Int64
    group_member: Int32  # int32[], NPUs of the groups in member order
    group_names: tuple[str, ...]  # Names in traces; "" = all NPUs, or a line of them, or unused on this rank
    trace_slot_ptr: Int64  # int64[T+1], pointers to the entries of coll_ptr for each trace's slots
    coll_ptr: Int64  # int64[slots of all traces + 1], pointers to the collectives of each slot
    coll_node: Int32  # int32[], rows of collectives within the trace, in order
    recv_ptr: Int64  # int64[T+1], pointers to the receives of each trace
    recv_key: Int64  # int64[], sorted within a trace: (peer + 2^19) << 44 | tag << 20 | seq, wrapped into int64
    recv_node: Int32  # int32[], rows of receives within the trace
    schedules: Schedules  # Steps of the collectives
    in_network: tuple[InNetworkGroup, ...] = ()  # Groups of all ranks that switches reduce; see aggregation.py
    channels: Channels = NO_CHANNELS  # Ways of messages between two NPUs on this rank
    jobs: FabricJobs | None = None  # Jobs that share the fabric; None = one job, whose ranks are the NPUs
    whole_row: Int32 = np.zeros(0, np.int32)  # int32[N], row before sends were divided; empty = rows are as they were

    @property
    def has_divided_sends(self) -> bool:
        """Whether a SEND or RECV has several parts."""
        return bool(self.node_parts.max(initial=1) > 1)

    def peers(self, npu: NDArray[np.integer], difference: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the NPUs of other ranks of the same jobs.

        Args:
            npu: The NPUs from which ranks are counted, int[].
            difference: The rank of each other NPU minus the NPU's own rank, int[].
        """
        return npu + difference if self.jobs is None else self.jobs.npu[self.jobs.place[npu] + difference]

    @property
    def begins_ps(self) -> Int64:
        """Time at which the job of each NPU starts, int64[npus]; 0 without a job."""
        if self.jobs is None:
            return np.zeros(self.npus, np.int64)
        return np.append(self.jobs.begin_ps, 0)[self.jobs.of_npus()]

    def ranks_apart(self, npu: NDArray[np.integer], other: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the ranks of other NPUs minus those of some NPUs.

        Args:
            npu: The NPUs from which ranks are counted, int[].
            other: The other NPUs, each of the same job, int[].
        """
        if self.jobs is None:
            return other - npu
        place = self.jobs.place.astype(np.int64)
        return place[other] - place[npu]


# Assembly of a Program from the rows of distinct traces: children, collectives and receives.


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


# Sends over several NICs: a message between two NPUs as several, which take turns on the sender's links.
#
# A communication library sends a message over all NICs of a GPU (NCCL: each channel of a peer uses the next NIC,
# `ncclTopoGetLocalNet` in src/graph/topo.cc). A Program has one row for such a send and one for its receive, both with
# the number of their parts (`node_parts`). The engine runs the program of `divided`, where each part is a message of
# its own, on a connection of its own; parts have consecutive connections, which take turns on the NICs by their rates.


_LISTED = ("kind", "peer", "tag", "seq", "group")  # columns that lists of collectives and receives are made from


def divided(program: Program) -> Program:
    """Return the program whose sends and receives of several parts are as many rows; itself if there are none.

    Part p of k is the stripe of the message's bytes from p / k on, and message number seq x k + p of its peer and tag.
    The parts follow each other in the place of their row; they have its parents and its children.
    """
    if not program.has_divided_sends:
        return program
    parts = program.node_parts.astype(np.int64)
    first = pointers(parts)  # of each row, the first of its parts
    row = np.repeat(np.arange(len(parts)), parts)
    part, of = np.arange(len(row)) - first[row], parts[row]
    columns = {name: getattr(program, name)[row] for name in program._fields if name.startswith("node_")}
    size_bytes, channel = columns["node_bytes"], columns["node_channel"]
    # 10 bytes in 3 parts are 3, 3 and 4: no byte is lost or sent twice
    columns["node_bytes"] = (part + 1) * size_bytes // of - part * size_bytes // of
    # Message 2 of its tag, in 3 parts, becomes 6, 7 and 8. Send and receive have equal parts, and so match again.
    columns["node_seq"] = (columns["node_seq"] * of + part).astype(np.int32)
    columns["node_channel"] = np.where((of > 1) & (columns["node_kind"] == SEND), channel + part, channel)
    columns["node_channel"] = columns["node_channel"].astype(np.int32)
    columns["node_parts"] = np.ones_like(columns["node_parts"])
    trace_begin = np.repeat(program.trace_ptr[:-1], np.diff(program.trace_ptr))  # of each row
    whole_row = (np.arange(len(parts)) - trace_begin)[row].astype(np.int32)
    trace_ptr = first[program.trace_ptr]
    # children of each row, each with all of its parts, and then of each part of the row
    parent, edge = spans(program.child_ptr[:-1], np.diff(program.child_ptr))
    child = trace_begin[parent] + program.child[edge]
    edge, at = spans(first[child], parts[child])
    child_ptr = pointers(np.bincount(parent[edge], minlength=len(parts)))
    child = at - first[trace_begin[parent[edge]]]
    counts = np.diff(child_ptr)[row]
    # Each part of a row at the begin of an edge is a parent of the row at its end
    ends = child + first[trace_begin[parent[edge]]]
    columns["node_deps"] = np.bincount(ends, parts[parent[edge]], len(row)).astype(np.int32)
    names = {name: columns[f"node_{name}"] for name in _LISTED}
    slots_of_trace = np.diff(program.trace_slot_ptr)
    trace_slot_ptr, coll_ptr, coll_node = collective_lists(names, trace_ptr, slots_of_trace)
    recv_ptr, recv_key, recv_node = receive_lists(names, trace_ptr)
    return program._replace(
        **columns,
        trace_ptr=trace_ptr,
        child_ptr=pointers(counts),
        child=child[spans(child_ptr[row], counts)[1]].astype(np.int32),
        trace_slot_ptr=trace_slot_ptr,
        coll_ptr=coll_ptr,
        coll_node=coll_node,
        recv_ptr=recv_ptr,
        recv_key=recv_key,
        recv_node=recv_node,
        whole_row=whole_row,
    )


def further_rows(program: Program) -> int:
    """Return the number of rows that the NPUs of a rank have in the divided program beyond those in the program."""
    if not program.has_divided_sends:
        return 0
    further = pointers(program.node_parts.astype(np.int64) - 1)[program.trace_ptr]
    return int(np.diff(further)[program.trace_of_npu[program.trace_of_npu >= 0]].sum())


def joined(program: Program, npu_node_ptr: Int64, start_ps: Int64, finish_ps: Int64) -> tuple[Int64, Int64, Int64]:
    """Return pointers, begins and ends of the rows of a program from those of its divided one.

    A row begins with the first of its parts and ends with the last; it is not over (-1) before all of them are.

    Args:
        program: The program before it was divided.
        npu_node_ptr: int64[npus + 1], the rows of each NPU in the results of a run; none of NPUs that are not here.
        start_ps: int64[rows], the begin of each row of the divided program in picoseconds, -1 = it has not begun.
        finish_ps: int64[rows], the end of each row of the divided program in picoseconds, -1 = it is not over.
    """
    trace = program.trace_of_npu[: len(npu_node_ptr) - 1]
    is_here = np.diff(npu_node_ptr) > 0
    rows = np.where(is_here, np.diff(program.trace_ptr)[trace], 0)
    parts = program.node_parts[spans(program.trace_ptr[trace], rows)[1]].astype(np.int64)
    first = pointers(parts)[:-1]
    if not len(first):
        return npu_node_ptr, start_ps, finish_ps
    # Every row has at least one part, so that reduceat meets no empty range
    is_over = np.minimum.reduceat(finish_ps, first) >= 0
    ends_ps = np.where(is_over, np.maximum.reduceat(finish_ps, first), -1)
    return pointers(rows), np.minimum.reduceat(start_ps, first), ends_ps
