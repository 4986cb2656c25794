"""NCCL's messages from one GPU to another: protocol, channels, their rate, and the time before the first byte.

All-to-alls are groups of such sends and receives, and so are the messages of a pipeline. The rules are those of NCCL
2.30: `addP2pToPlan` and `scheduleP2pTasksToPlan` in src/enqueue.cc (channels and protocol of a message),
`ncclTopoGetNchannels` and `ncclTopoComputeP2pChannels` in src/graph/paths.cc (channels of a peer), `computeBuffSizes`
in src/init.cc (chunks), and src/device/sendrecv.h (half of a block's warps send, the other half receives).

NCCL publishes no rate of a sending channel. In a ring, a block with all of its warps reaches at most the tuning model's
perChMaxRingLL128Bws (20 GB/s up to Ampere, 36.7 on Hopper, 40 on Blackwell); Nadi assumes half of it for half of the
warps. On GH200 that is 18.35 GB/s; one channel was measured at 18.3 GB/s (nccl issue 1272). Launch and what a receiver
still does after the last byte, among GPUs of one NVLink domain, are those of `generations.KernelTimes`.
"""

import math
from typing import NamedTuple

from nadi.inputs.units import KIB, PS_PER_US
from nadi.workload.collectives.nccl import tuning
from nadi.workload.collectives.nccl.decision import HALF_A_BLOCK, NVLINK_PAYLOAD, UNLIMITED_CONNECTIONS
from nadi.workload.collectives.nccl.tuning import base_ps
from nadi.workload.collectives.plans.plan import Lane
from nadi.workload.shape import GroupShape

AUTO = "auto"  # value in place of a protocol: NCCL's own choice
_CHANNEL_NET_GBPS = 14  # network bandwidth in GB/s per channel of a peer (NCCL_P2P_PER_CHANNEL_NET_BW)
_CHANNELS_PER_NVLINK = 2
_CHANNELS_OVER_PCIE = 2
_NVLINK_CHUNK_BYTES = 512 * KIB  # step of a message between GPUs with NVLink (NCCL_P2P_NVL_CHUNKSIZE)
# Step over PCIe, and in every communicator of several hosts (NCCL_P2P_PCI_CHUNKSIZE, NCCL_P2P_NET_CHUNKSIZE)
_OTHER_CHUNK_BYTES = 128 * KIB
_MAX_LL_BYTES = 16 * KIB  # maximum bytes per channel of a message that uses LL inside a host (NCCL_P2P_LL_THRESHOLD)
_SLOTS = 8  # number of slots of a connection (NCCL_STEPS)
# Connections of messages with one channel: in one host, and in groups over several hosts inside and between hosts.
# Those of 2, 4, ... 64 channels follow. Rings in one host use the connections from 32 on.
_FIRST_CONNECTION, _FIRST_INSIDE, _FIRST_BETWEEN = UNLIMITED_CONNECTIONS, 50, 57
_MAX_CHANNELS = 64  # maximum number of channels of a communicator (MAXCHANNELS)


class Communicator(NamedTuple):
    """The properties of a group's communicator that the rules use."""

    host: tuning.TuningInput  # the group and its GPUs, as NCCL's model sees them
    channels: int  # number of channels of the communicator, a power of two
    per_peer: int  # maximum number of channels of one message, a power of two
    paced: bool  # whether channels have a rate of their own (ways.PLANNED); else a message uses its whole port


class MessageTransport(NamedTuple):
    """The transport of a message."""

    protocol: str  # "ll" or "simple"
    channels: int  # number of parallel channels
    base_ps: int  # time from the launch of the kernel until the message begins
    hop_ps: int  # time of an empty message from then on, latency of the fabric's path included
    gb_per_s: float  # rate on the wire of all its channels in GB/s; infinite if they are not paced
    first_connection: int  # connection of such messages with one channel

    @property
    def transport(self) -> tuning.Protocol:
        """The protocol's constants."""
        return tuning.PROTOCOLS[self.protocol]

    @property
    def connection(self) -> int:
        """The connection to a peer for messages with as many channels; 0 if they are not paced."""
        return 0 if math.isinf(self.gb_per_s) else self.first_connection + (self.channels - 1).bit_length()

    def wait_ps(self, shape: GroupShape, *, between_hosts: bool) -> int:
        """Return `hop_ps` less the latency of the fabric's path.

        Args:
            shape: The positions of the group's members on the fabric.
            between_hosts: Whether sender and receiver are in different hosts.
        """
        return max(0, self.hop_ps - (shape.outside_ps if between_hosts else shape.inside_ps))

    def lane(self, shape: GroupShape, wait_ps: int, *, between_hosts: bool, is_paced: bool) -> Lane:
        """Return a lane for sends: at the channels' rate on a connection of its own, or at the port's rate.

        Over several NICs all sends have the ports' rates: messages are cut into stripes (plans.extent), and no numbers
        of connections are left for rates of their own.

        Args:
            shape: The positions of the group's members on the fabric.
            wait_ps: The time before each step in picoseconds.
            between_hosts: Whether sender and receiver are in different hosts.
            is_paced: Whether the lane has the rate of its channels.
        """
        if not is_paced or (between_hosts and len(shape.nic_shares) > 1):
            return Lane(latency_ps=wait_ps, wire=self.transport.wire)
        shares = self.shares(shape, between_hosts=between_hosts)
        return Lane(latency_ps=wait_ps, wire=self.transport.wire, connection=self.connection, shares=shares)

    def shares(self, shape: GroupShape, *, between_hosts: bool, is_divided: bool = False) -> float:
        """Return the divisor of the port's rate that gives the message's rate; 1 = a whole port.

        Args:
            shape: The positions of the group's members on the fabric.
            between_hosts: Whether sender and receiver are in different hosts.
            is_divided: Whether the message goes over all NICs, each at that share of its rate, or else over one NIC.
        """
        nics = 1 if is_divided else max(1, len(shape.nic_shares))
        port = 1 / nics if between_hosts else NVLINK_PAYLOAD
        line_gb_per_s = shape.lines_bps[between_hosts] / 8e9 * port
        # Connections have numbers for powers of two: 3 channels share the connection of 4, and have its rate, so that
        # messages of any sizes of a group agree about the rate of a connection
        return max(1.0, line_gb_per_s / (self.gb_per_s / self.channels * _power_of_two(self.channels)))


def communicator(host: tuning.TuningInput, channels: int = 0, *, is_paced: bool) -> Communicator:
    """Return a group's communicator, as `ncclTopoComputeP2pChannels` does.

    Args:
        host: The group and its hosts, as NCCL's tuning model sees them.
        channels: The number of channels that the user asks for; 0 = NCCL's choice.
        is_paced: Whether sends use the rate of their channels; else that of the port.
    """
    plan, generation = host.plan, host.generation
    max_channels = _power_of_two(channels or plan.used)
    per_path = []
    if host.members > plan.hosts:
        links = int(plan.nvlink / (generation.nvlink_line * generation.nvlink_payload) + 1e-6)
        per_path.append(_CHANNELS_PER_NVLINK * max(1, links) if plan.nvlink else _CHANNELS_OVER_PCIE)
    if plan.hosts > 1:
        per_path.append(max(1, -(-int(plan.net) // _CHANNEL_NET_GBPS)))
    return Communicator(host, max_channels, min(max_channels, _power_of_two(min(per_path))), is_paced)


def message(
    group: Communicator, size_bytes: float, *, between_hosts: bool, proto: str = AUTO, peers: int = 1
) -> MessageTransport:
    """Return the transport of a message in a group.

    Args:
        group: The communicator of the group.
        size_bytes: The size of the message in bytes, a fraction for equal parts of some buffers.
        between_hosts: Whether sender and receiver are in different hosts.
        proto: The protocol that the user names, or AUTO.
        peers: The number of peers to which the sender sends as much at once.
    """
    channels = _channels(group, size_bytes)
    # NCCL has no LL buffers between hosts for sends and receives (NCCL_ALLOC_P2P_NET_LL_BUFFERS is 0)
    is_small = not between_hosts and size_bytes <= channels * _MAX_LL_BYTES
    chosen = tuning.LL.name if is_small else tuning.SIMPLE.name
    protocol = chosen if proto == AUTO else proto
    generation = group.host.generation
    gb_per_s = channels * HALF_A_BLOCK * generation.message_block_gb_per_s if group.paced else math.inf
    hop_ps = tuning.message_hop_ps(group.host, protocol, between_hosts=between_hosts)
    first = _FIRST_BETWEEN if between_hosts else _FIRST_INSIDE if group.host.plan.hosts > 1 else _FIRST_CONNECTION
    kernel = group.host.kernel
    if not kernel or not group.paced:
        launch_ps = base_ps(tuning.RING, protocol, group.host.site)
        return MessageTransport(protocol, channels, launch_ps, hop_ps, gb_per_s, first)
    launch_ps = round((kernel.message_us[protocol == tuning.SIMPLE.name] + peers * kernel.peer_us) * PS_PER_US) - hop_ps
    if protocol == tuning.LL.name:
        slowest_ps = tuning.LL.wire_bytes(size_bytes) / (channels * HALF_A_BLOCK * kernel.ll_block_gb_per_s) * 1e3
        waits_ps = slowest_ps - tuning.LL.wire_bytes(size_bytes) / gb_per_s * 1e3
    else:  # what fills the receiver's buffers is emptied after the last byte has come, unless the channels are slower
        port_gb_per_s = group.host.plan.nvlink / generation.nvlink_payload * NVLINK_PAYLOAD
        held_bytes = min(size_bytes, _SLOTS * _NVLINK_CHUNK_BYTES)
        all_bytes = (size_bytes + kernel.drain * held_bytes) * peers
        sent_ps = size_bytes / min(gb_per_s, port_gb_per_s / peers) * 1e3
        waits_ps = all_bytes / (port_gb_per_s * kernel.message_wire) * 1e3 - sent_ps
    hop_ps += max(0, round(waits_ps))
    return MessageTransport(protocol, channels, launch_ps, hop_ps, gb_per_s, first)


def _channels(group: Communicator, size_bytes: float) -> int:
    """Return the channels of a message of a size: one per part of the minimum size, more if parts are large."""
    several = group.host.plan.hosts > 1
    step_bytes = _OTHER_CHUNK_BYTES if several or not group.host.plan.nvlink else _NVLINK_CHUNK_BYTES
    min_bytes, max_bytes = (step_bytes // 2, step_bytes) if several else (step_bytes // 8, step_bytes * 32)
    shared = group.channels
    if group.host.kernel:
        max_bytes, shared = group.host.kernel.message_part_bytes, min(shared, group.host.kernel.message_channels)
    first = group.per_peer
    # NCCL halves the channels of a peer until all peers together fit into the communicator's channels
    while first * group.host.members > shared and first > 1:
        first //= 2
    # No more channels than parts of the minimum size
    used = max(1, min(first, math.ceil(size_bytes / min_bytes)))
    while max(min_bytes, size_bytes / used) > max_bytes and used <= group.per_peer // 2:
        used *= 2
    return used


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below a count."""
    return min(_MAX_CHANNELS, 1 << (count - 1).bit_length())
