"""Program: the work of all NPUs as arrays; docs/reference/interfaces.md explains how they relate."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int8, Int32, Int64, Mask
from nadi.workload.collectives.schedules.packed import Schedules


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
    node_parts: Int8  # int8[N], messages that a SEND or RECV is divided into (workload.program.dividing), 1 = none
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
