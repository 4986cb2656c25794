"""Estimate of the work of a run before it begins: packets, packet-hops, pairs of NPUs, memory and time.

The progress display counts against the estimate. Checks refuse a run that needs too much memory or time.
"""

from typing import NamedTuple

import numpy as np

from nadi.launching.gather import RankGather
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings
from topologies import Graph
from topologies.lengths import path_links
from workload import Program
from workload.program.traffic import sample

MAX_PAIRS = 1 << 18
"""Maximum number of pairs of NPUs whose paths and packets are counted; of more, a sample represents the others."""
# Memory in bytes, measured with fabrics of 10^3 to 10^4 NPUs, 2026-11-22.
_PAIR_BYTES, _CONTROLLED_PAIR_BYTES = 450, 250  # per pair of NPUs, and more with congestion control
_MESSAGE_BYTES = 120  # per recorded message
_LINK_BYTES, _NPU_BYTES, _BASE_BYTES = 1000, 3000, 60_000_000  # per link, per NPU, and per rank
# per row of an NPU's trace: the count of unfinished parents; and, if recorded, start and end
_ROW_BYTES, _ROW_TIMES_BYTES = 4, 16


class Estimate(NamedTuple):
    """Work of a run, or of one rank's NPUs."""

    messages: float  # number of data messages
    packets: float  # number of data packets; at message level, the number of messages
    packet_hops: float  # packet-hops of data and acknowledgements; at message level, message-hops
    wire_bytes: float  # bytes on the wire of data packets with their headers, and of acknowledgements
    pairs: float  # number of pairs of sender and receiver, counted per size that a collective has
    # approximate memory of the engine in bytes, including rows of traces, excluding the fabric and files
    memory_bytes: float


def estimate(graph: Graph, program: Program, settings: Settings) -> Estimate:
    """Return the work of a program on a fabric; on a rank, of its NPUs.

    The estimate assumes no losses, no detours round failed links, and messages of equal size per pair.
    """
    fabric, running, _ = with_reducers(graph, program)
    sampled = sample(running, MAX_PAIRS)
    messages = np.maximum(sampled.messages, 1)
    message_level = settings.fidelity.act is not None
    packets_per_message = 1 if message_level else np.maximum(-(-sampled.bytes // (messages * settings.mtu_bytes)), 1)
    packets = sampled.weight * messages * packets_per_message
    hops = packets * path_links(fabric, sampled.src, sampled.dst) * (1 if message_level else 2)
    sent = float((sampled.weight * sampled.messages).sum())
    pairs = float(sampled.weight.sum())
    per_pair = _PAIR_BYTES + (_CONTROLLED_PAIR_BYTES if settings.congestion_control.update else 0)
    memory = fabric_bytes(graph) + per_pair * min(pairs, float(graph.npus) ** 2)
    memory += _MESSAGE_BYTES * sent * settings.record_flows
    rows = int(np.diff(program.trace_ptr)[program.trace_of_npu[program.trace_of_npu >= 0]].sum())
    memory += rows * (_ROW_BYTES + _ROW_TIMES_BYTES * settings.record_nodes)
    wire = float((sampled.weight * sampled.bytes).sum())
    wire += 0 if message_level else float(packets.sum()) * (settings.header_bytes + settings.ack_bytes)
    return Estimate(sent, float(packets.sum()), float(hops.sum()), wire, pairs, memory)


def fabric_bytes(graph: Graph) -> float:
    """Return the memory in bytes that the engine takes for a fabric, on every rank."""
    return _BASE_BYTES + _LINK_BYTES * graph.links + _NPU_BYTES * graph.npus


def of_all_ranks(own: Estimate, ranks: RankGather) -> Estimate:
    """Return the sum of the estimates of all ranks; every rank must call this function."""
    return Estimate(*(sum(column) for column in zip(*ranks.exchange(own), strict=True)))


def work(expected: Estimate, settings: Settings) -> float:
    """Return the unit of progress: packet-hops, or messages at message level."""
    return expected.messages if settings.fidelity.act else expected.packet_hops
