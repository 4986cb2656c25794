"""How NCCL sends one message from a GPU to another: protocol, channels, their rate, and the time before the first byte.

All-to-alls are groups of such sends and receives, and so are the messages of a pipeline. The rules are those of NCCL
2.30: `addP2pToPlan` and `scheduleP2pTasksToPlan` in src/enqueue.cc (channels and protocol of a message),
`ncclTopoGetNchannels` and `ncclTopoComputeP2pChannels` in src/graph/paths.cc (channels of a peer), `computeBuffSizes`
in src/init.cc (chunks), and src/device/sendrecv.h (half of a block's warps send, the other half receives).

NCCL publishes no rate of a channel that sends. A block does no more in a ring than what the tuning model knows as
perChMaxRingLL128Bws (20 GB/s up to Ampere, 36.7 on Hopper, 40 on Blackwell), with all of its warps; half of them are
taken to reach half of it. On GH200 that is 18.35 GB/s; measured on one channel were 18.3 (nccl issue 1272).
"""

import math
from typing import NamedTuple

from inputs.units import KIB
from workload.collectives.nccl.protocols import LL, PROTOCOLS, SIMPLE, Protocol
from workload.collectives.nccl.tuning import RING, TuningInput, base_ps, message_hop_ps
from workload.collectives.nccl.ways import NVLINK_PAYLOAD, UNDRIVEN_CONNECTIONS
from workload.collectives.plans.plan import Lane
from workload.shape import Shape

AUTO = "auto"
"""In place of a protocol: NCCL's own choice."""
_CHANNEL_NET_GBPS = 14
"""GB/s of the network for which NCCL counts one channel of a peer (NCCL_P2P_PER_CHANNEL_NET_BW)."""
_CHANNELS_PER_NVLINK = 2
_CHANNELS_OVER_PCIE = 2
_NVLINK_CHUNK_BYTES = 512 * KIB
"""Step of a message between GPUs that NVLink joins (NCCL_P2P_NVL_CHUNKSIZE)."""
_OTHER_CHUNK_BYTES = 128 * KIB
"""The same over PCIe, and in every communicator of several hosts (NCCL_P2P_PCI_CHUNKSIZE, NCCL_P2P_NET_CHUNKSIZE)."""
_MOST_LL_BYTES = 16 * KIB
"""Of a message, per channel, that goes by LL inside a host (NCCL_P2P_LL_THRESHOLD)."""
_SENDING_SHARE = 0.5
"""Of a block's warps, those that send (`nSendWarpPerWork` in src/device/sendrecv.h)."""
_FIRST_CONNECTION, _FIRST_INSIDE, _FIRST_BETWEEN = UNDRIVEN_CONNECTIONS, 50, 57
"""Numbers of the connections of messages with one channel: in one host, and of groups over several hosts inside a host
and between hosts. Those of 2, 4, ... 64 channels follow. Rings in one host have the numbers from 32 on."""
_MOST_CHANNELS = 64
"""Of a communicator (MAXCHANNELS)."""


class Communicator(NamedTuple):
    """What the rules ask of the group whose communicator a message goes by.

    Attributes:
        host: the group and its GPUs, as NCCL's model knows them.
        channels: channels of the communicator, a power of two.
        per_peer: the most channels of one message, a power of two.
        paced: channels have their own rate (workload.collectives.nccl.ways.PLANNED); else a message takes its whole
            port.
    """

    host: TuningInput
    channels: int
    per_peer: int
    paced: bool


class MessageTransport(NamedTuple):
    """How a message goes.

    Attributes:
        protocol: ll or simple.
        channels: side by side.
        base_ps: from the launch of the kernel until it begins.
        hop_ps: what a message with no bytes takes from then on, the fabric's own path included.
        gbps: GB/s on the wire of all its channels together; infinite where they are not paced.
        first_connection: number of the connection of such messages with one channel.
    """

    protocol: str
    channels: int
    base_ps: int
    hop_ps: int
    gbps: float
    first_connection: int

    @property
    def transport(self) -> Protocol:
        """The protocol itself."""
        return PROTOCOLS[self.protocol]

    @property
    def connection(self) -> int:
        """Number of the connection to a peer for messages with as many channels; 0 where they are not paced."""
        return 0 if math.isinf(self.gbps) else self.first_connection + self.channels.bit_length() - 1

    def wait_ps(self, shape: Shape, *, between_hosts: bool) -> int:
        """What is left of `hop_ps` beside the fabric's own path."""
        return max(0, self.hop_ps - (shape.outside_ps if between_hosts else shape.inside_ps))

    def lane(self, shape: Shape, wait_ps: int, *, between_hosts: bool, paced: bool) -> Lane:
        """A lane whose sends go so.

        Args:
            shape: of the group.
            wait_ps: from when a step is ready until its send is posted.
            between_hosts: the sends go to other hosts.
            paced: at the rate of the channels, over a connection of their own; else at that of the port.
        """
        if not paced:
            return Lane(latency_ps=wait_ps, wire=self.transport.wire)
        shares = self.shares(shape, between_hosts=between_hosts)
        return Lane(latency_ps=wait_ps, wire=self.transport.wire, connection=self.connection, shares=shares)

    def shares(self, shape: Shape, *, between_hosts: bool) -> float:
        """Into how many such messages' rates the sender's port divides; 1 = the message can take all of it."""
        line_gbps = shape.lines_bps[between_hosts] / 8e9 * (1 if between_hosts else NVLINK_PAYLOAD)
        return max(1.0, line_gbps / self.gbps)


def communicator(host: TuningInput, channels: int = 0, *, paced: bool) -> Communicator:
    """The communicator of a group.

    Args:
        host: the group.
        channels: that the user gives it, 0 = as NCCL's search finds.
        paced: channels have their own rate.

    A message takes no more channels than the peer with the fewest would (`ncclTopoComputeP2pChannels` takes the least).
    """
    plan, made = host.plan, host.generation
    most = _power_of_two(channels or plan.used)
    wanted = []
    if host.members > plan.hosts:
        links = int(plan.nvlink / (made.nvlink_line * made.nvlink_payload) + 1e-6)
        wanted.append(_CHANNELS_PER_NVLINK * max(1, links) if plan.nvlink else _CHANNELS_OVER_PCIE)
    if plan.hosts > 1:
        wanted.append(max(1, -(-int(plan.net) // _CHANNEL_NET_GBPS)))
    return Communicator(host, most, min(most, _power_of_two(min(wanted))), paced)


def message(group: Communicator, size_bytes: float, *, between_hosts: bool, proto: str = AUTO) -> MessageTransport:
    """How a message of a size goes.

    Args:
        group: the communicator.
        size_bytes: of the data; of equal parts of a buffer it may be a fraction.
        between_hosts: whether sender and receiver are on two hosts.
        proto: a protocol that the user asks for, or AUTO.
    """
    channels = _channels(group, size_bytes)
    # NCCL has no LL buffers between hosts for sends and receives (NCCL_ALLOC_P2P_NET_LL_BUFFERS is 0)
    is_small = not between_hosts and size_bytes <= channels * _MOST_LL_BYTES
    chosen = LL.name if is_small else SIMPLE.name
    protocol = chosen if proto == AUTO else proto
    made = group.host.generation
    gbps = channels * _SENDING_SHARE * made.ring_ll128[group.host.column] if group.paced else math.inf
    hop_ps = message_hop_ps(group.host, protocol, between_hosts=between_hosts)
    first = _FIRST_BETWEEN if between_hosts else _FIRST_INSIDE if group.host.plan.hosts > 1 else _FIRST_CONNECTION
    return MessageTransport(protocol, channels, base_ps(RING, protocol), hop_ps, gbps, first)


def _channels(group: Communicator, size_bytes: float) -> int:
    """Channels of a message: one for each part of the least size, more once parts are large."""
    several = group.host.plan.hosts > 1
    step_bytes = _OTHER_CHUNK_BYTES if several or not group.host.plan.nvlink else _NVLINK_CHUNK_BYTES
    least_bytes, most_bytes = (step_bytes // 2, step_bytes) if several else (step_bytes // 8, step_bytes * 32)
    first = group.per_peer
    while first * group.host.members > group.channels and first > 1:
        first //= 2
    used = max(1, min(first, math.ceil(size_bytes / least_bytes)))
    while max(least_bytes, size_bytes / used) > most_bytes and used <= group.per_peer // 2:
        used *= 2
    return used


def _power_of_two(count: int) -> int:
    """The least power of two that is not below a count."""
    return min(_MOST_CHANNELS, 1 << (count - 1).bit_length())
