"""Program: what all NPUs do, as arrays; docs/reference/interfaces.md says how they belong together."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload.collectives.schedules.packed import Schedules

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class InNetworkGroup(NamedTuple):
    """A group with collectives that switches reduce.

    Attributes:
        group: its number.
        members: int32[n], its NPUs.
        switches: nodes of the fabric that hold its aggregators, members n, n + 1, ...; one may hold several.
        schedule: int32[k], of all its collectives in order; -1 = not in the network.
        bytes: int64[k], buffers.
        priority: int32[k].
    """

    group: int
    members: Int32
    switches: tuple[int, ...]
    schedule: Int32
    bytes: Int64
    priority: Int32


class Channels(NamedTuple):
    """How messages between two NPUs go, k ways, where they are NCCL's (workload.program.sends).

    Attributes:
        connection: int8[k], number of the connection between the two NPUs; no other way has it.
        shares: float64[k], the connection is driven at one of so many equal shares of its port's line rate.
        between_hosts: bool[k], to NPUs of other hosts.
    """

    connection: Int8
    shares: NDArray[np.float64]
    between_hosts: NDArray[np.bool_]


NO_CHANNELS = Channels(np.zeros(0, np.int8), np.zeros(0, np.float64), np.zeros(0, np.bool_))


class Program(NamedTuple):
    """What all NPUs do. N nodes in T distinct traces; docs/reference/interfaces.md says more.

    NPUs whose rows are equal share a trace, even if ids, names of nodes and names of groups differ. Row r of an NPU's
    trace is row r of its TraceTable. A rank has what its own NPUs do; NPUs and groups are numbered over all ranks.

    Attributes:
        npus: number of NPUs, of all ranks.
        trace_of_npu: int32[npus], the distinct trace; an NPU without work has an empty one. -1 = another rank's NPU.
        trace_ptr: int64[T+1], nodes of a trace.
        node_kind: int8[N], NOOP 0, COMPUTE 1, MEMORY 2, SEND 3, RECV 4, COLLECTIVE 5.
        node_lane: int8[N], CPU 0, COMPUTE 1, MEMORY 2, REMOTE 3. Of a collective, what does it: COMPUTE, kernels that
            take multiprocessors, or MEMORY, copy engines.
        node_duration_ps: int64[N], of COMPUTE and MEMORY; of SEND from when it starts until its message is posted.
        node_bytes: int64[N], the message as it is on the wire, or a collective's whole buffer.
        node_peer: int32[N], the other NPU minus the own.
        node_tag: int32[N], of SEND and RECV.
        node_seq: int32[N], how many with this peer and tag, or of this group, come before.
        node_group: int32[N], the NPU's own slot of the group.
        node_schedule: int32[N], -1 = done at once.
        node_collective: int8[N], kind of a COLLECTIVE, a row of workload.KINDS; -1 = none, or an aggregator's part.
        node_uneven: bool[N], an all-to-all with split sizes.
        node_channel: int32[N], of SEND its row of channels, -1 = at its port's line rate.
        node_priority: int32[N], comm_priority of the trace; where phases wait for a dimension, higher ones go first.
        node_deps: int32[N], number of parents.
        child_ptr: int64[N+1], children of a node.
        child: int32[], rows within the trace.
        slot_ptr: int64[npus+1], slots of an NPU; none of another rank's.
        slot_group: int32[], their groups.
        slot_member: int32[], the NPU's member number there.
        group_ptr: int64[G+1], members of a group; none where no NPU of this rank uses it. Group 0 is all NPUs.
        group_member: int32[], NPUs.
        group_names: as traces call the G groups; "" = all NPUs, or a line of them, or no NPU of this rank uses it.
        trace_slot_ptr: int64[T+1], entries of coll_ptr that are a trace's slots.
        coll_ptr: int64[slots of all traces + 1], collectives of a slot.
        coll_node: int32[], their rows within the trace, in order.
        recv_ptr: int64[T+1], receives of a trace.
        recv_key: int64[], sorted within a trace: (peer + 2^19) << 44 | tag << 20 | seq, wrapped into int64.
        recv_node: int32[], their rows within the trace.
        schedules: the collectives as steps.
        in_network: groups that are reduced in switches, of all ranks; see workload.program.aggregation.
        channels: ways of messages between two NPUs, of this rank.
    """

    npus: int
    trace_of_npu: Int32
    trace_ptr: Int64
    node_kind: Int8
    node_lane: Int8
    node_duration_ps: Int64
    node_bytes: Int64
    node_peer: Int32
    node_tag: Int32
    node_seq: Int32
    node_group: Int32
    node_schedule: Int32
    node_collective: Int8
    node_uneven: NDArray[np.bool_]
    node_channel: Int32
    node_priority: Int32
    node_deps: Int32
    child_ptr: Int64
    child: Int32
    slot_ptr: Int64
    slot_group: Int32
    slot_member: Int32
    group_ptr: Int64
    group_member: Int32
    group_names: tuple[str, ...]
    trace_slot_ptr: Int64
    coll_ptr: Int64
    coll_node: Int32
    recv_ptr: Int64
    recv_key: Int64
    recv_node: Int32
    schedules: Schedules
    in_network: tuple[InNetworkGroup, ...] = ()
    channels: Channels = NO_CHANNELS
