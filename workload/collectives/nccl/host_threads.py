"""The threads that hand messages to NICs, and what they cost rings, trees and messages between hosts.

Each GPU has one thread on the CPU, NCCL's proxy (src/proxy.cc, src/transport/net.cc), for all its channels that send to
other hosts or receive from them. It finds that the GPU has filled a slice, posts it to the NIC, waits for the end of
the transfer, reads back from the GPU's memory so that the data is visible there (Simple), and tells the GPU. So a step
of a ring takes at least what the thread needs for its messages: every slice that each of its channels sends, and every
one that it receives. NCCL's own model has a network overhead for each step of a ring, 1 or 2 us, three times that for
Simple, whatever the number of channels (getNetOverhead in src/graph/tuning.cc). Here as there, it comes in once for
each step, before the data: later loops of the buffer hide it, as their slices are filled meanwhile.
"""

from typing import NamedTuple

from nadi.inputs.units import PS_PER_US
from nadi.workload.collectives.nccl import tuning
from nadi.workload.collectives.nccl.generations import ROUND, KernelTimes
from nadi.workload.collectives.nccl.tuning import LL, SIMPLE, Protocol, TuningInput, column_of
from nadi.workload.shape import GroupShape

# What threads do for a message of a tree while nothing else goes on: post it, complete it, post its buffer, receive it
_HANDLINGS = 4
_TABLE: dict[str, float] = tuning.TABLES["ring_over_hosts"]


class HostRing(NamedTuple):
    """The times of a ring over hosts."""

    launch_ps: int  # time from when the collective is ready until its data flows, with the messages of all steps
    wait_ps: int  # time of a step that the links do not see: blocks are slower than the NIC
    shares: float  # divisor of the line rate of a NIC at which a channel sends; 1 = line rate


def messages(host: TuningInput, channels: int) -> int:
    """Return the number of messages of a GPU's thread in a step, for chunks of one slice.

    Args:
        host: The group and its hosts, as NCCL's tuning model sees them.
        channels: The number of channels in use.
    """
    # A channel leaves a host by another GPU than where it enters: a single channel sends here and receives there, as do
    # all channels of a NIC that several GPUs share
    both_ways = 2 if channels > 1 and host.plan.members_per_nic == 1 else 1
    return both_ways * -(-channels // host.plan.nics)


def tree_ps(host: TuningInput) -> int:
    """Return what a tree's hops between hosts take beyond NCCL's time of such a hop, up and down, in picoseconds.

    Args:
        host: The group and its hosts, as NCCL's tuning model sees them.
    """
    height = host.plan.hosts.bit_length() - 1
    return round(2 * height * _HANDLINGS * _message_us(host) * PS_PER_US)


def peers_ps(host: TuningInput, peers: int, size_bytes: float, waits_ps: int) -> int:
    """Return the time in picoseconds that a thread takes for a message to and one from each peer, beyond their data.

    The first send and receive are in NCCL's time of a hop. The thread hands on the next message while one is on the
    wire, so that each further message takes the longer of the two; the last one's data follow in any case.

    Args:
        host: The group and its hosts, as NCCL's tuning model sees them.
        peers: The number of members of other hosts to which a NIC sends, one or more.
        size_bytes: The size of each message in bytes.
        waits_ps: The time in picoseconds in which data are on the wire while others still wait for a hop.
    """
    thread_us, data_us = 2 * (peers - 1) * _message_us(host), (peers - 1) * size_bytes / host.plan.net / 1e3
    return max(0, round((thread_us - max(0.0, data_us - waits_ps / PS_PER_US)) * PS_PER_US))


def timed(
    kind: str,
    shape: GroupShape,
    host: TuningInput,
    kernel: KernelTimes,
    protocol: Protocol,
    channels: int,
    slices: int,
    message_bytes: float,
) -> HostRing:
    """Return the times of a ring over hosts.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        host: The group and its hosts, as NCCL's tuning model sees them.
        kernel: The times and rates of the GPU generation's kernels.
        protocol: The constants of the protocol.
        channels: The number of channels in use.
        slices: The number of slices of a chunk.
        message_bytes: The data of a slice in bytes.
    """
    steps, column = tuning.ring_steps(kind, shape.members), column_of(protocol.name)
    crossing = tuning.ring_steps(kind, host.plan.hosts)
    posts_us = _message_us(host) * messages(host, channels) * slices
    near_us = max(kernel.hop_us[column], posts_us)
    far_us = max(tuning.message_hop_ps(host, protocol.name, between_hosts=True) / PS_PER_US, posts_us)
    # NCCL's times of a step contain the latency of the path, which the fabric adds
    path_ps = (steps - crossing) * shape.inside_ps + crossing * shape.outside_ps
    steps_us = (steps - crossing) * near_us + crossing * far_us
    launch_ps = round((kernel.launch_us[column] + steps_us) * PS_PER_US) - path_ps
    # The last step of a loop moves data in the own memory only, as in one host (decision._ring_step_ps)
    local_step = (kernel.local_step[ROUND.index(kind)] if protocol.name == SIMPLE.name else 1.0) / steps
    block_gb_per_s = _block_gb_per_s(kind, host, kernel, protocol)
    nic_gb_per_s = shape.outside_bps / 8e9 * host.plan.members_per_nic
    of_nic = -(-channels // host.plan.nics)
    wire_bytes, shares = protocol.wire_bytes(message_bytes), 1.0
    block_us, nic_us = wire_bytes / block_gb_per_s / 1e3, wire_bytes * of_nic / nic_gb_per_s / 1e3
    if protocol.name == SIMPLE.name and len(shape.nic_shares) == 1 and block_us > nic_us:
        shares = max(1.0, shape.lines_bps[1] / 8e9 * host.plan.members_per_nic / block_gb_per_s)
        nic_us = block_us
    wait_us = max(0.0, block_us * (1 + local_step) - nic_us)
    return HostRing(max(0, launch_ps), round(wait_us * PS_PER_US), shares)


def _message_us(host: TuningInput) -> float:
    """Return the time of a GPU's thread per message in microseconds."""
    return _TABLE["message_us"] * host.site.nic


def _block_gb_per_s(kind: str, host: TuningInput, kernel: KernelTimes, protocol: Protocol) -> float:
    """Return the rate on the wire of a block that sends to a NIC or receives from one, in GB/s."""
    if protocol.name == SIMPLE.name:
        return _TABLE["block_gb_per_s"] * host.site.block
    if protocol.name == LL.name:
        return kernel.ll_block_gb_per_s / (2 if kind == "all-gather" else 1)
    return kernel.block_gb_per_s
