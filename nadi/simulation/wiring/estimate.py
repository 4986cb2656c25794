"""Estimate of the work of a run before it begins: packets, packet-hops, pairs of NPUs, memory and time.

The progress display counts against the estimate. Checks refuse a run that needs too much memory or time.
"""

from typing import NamedTuple

import numpy as np

from nadi.launching.world import ALONE, RankGather
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings
from topologies import Graph
from topologies.routing import path_links
from workload import Program
from workload.program.traffic import sample

MAX_PAIRS = 1 << 18
"""Maximum number of pairs of NPUs whose paths and packets are counted; of more, a sample represents the others."""
_PAIR_BYTES = 450
_CONTROLLED_PAIR_BYTES = 250
_MESSAGE_BYTES = 120
_LINK_BYTES, _NPU_BYTES, _BASE_BYTES = 1000, 3000, 60_000_000
"""Memory in bytes per pair of NPUs, more per pair with congestion control, per recorded message, per link, per NPU, and
per rank. Measured with fabrics of 10^3 to 10^4 NPUs, 2026-11-22. Rows of traces come on top."""
_ROW_BYTES, _ROW_TIMES_BYTES = 4, 16
"""Memory in bytes per row of an NPU's trace: the count of unfinished parents; and, if recorded, start and end."""


class Estimate(NamedTuple):
    """Work of a run, or of one rank's NPUs.

    Attributes:
        messages: Number of data messages.
        packets: Number of data packets; at message level, the number of messages.
        packet_hops: Packet-hops of data and acknowledgements; at message level, message-hops.
        wire_bytes: Bytes on the wire of data packets with their headers, and of acknowledgements.
        pairs: Number of pairs of sender and receiver, counted per size that a collective has.
        memory_bytes: Approximate memory of the engine in bytes, including rows of traces, excluding the fabric and
            files.
    """

    messages: float
    packets: float
    packet_hops: float
    wire_bytes: float
    pairs: float
    memory_bytes: float

    def __add__(self, other: object) -> "Estimate":
        """Return the sum of two estimates."""
        return Estimate(*(a + b for a, b in zip(self, other, strict=True))) if isinstance(other, Estimate) else self


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
    memory = (
        fabric_bytes(graph)
        + per_pair * min(pairs, float(graph.npus) ** 2)
        + _MESSAGE_BYTES * sent * settings.record_flows
    )
    memory += _rows(program) * (_ROW_BYTES + _ROW_TIMES_BYTES * settings.record_nodes)
    wire = float((sampled.weight * sampled.bytes).sum())
    wire += 0 if message_level else float(packets.sum()) * (settings.header_bytes + settings.ack_bytes)
    return Estimate(sent, float(packets.sum()), float(hops.sum()), wire, pairs, memory)


def fabric_bytes(graph: Graph) -> float:
    """Return the memory in bytes that the engine takes for a fabric, on every rank."""
    return _BASE_BYTES + _LINK_BYTES * graph.links + _NPU_BYTES * graph.npus


def _rows(program: Program) -> int:
    """Return the number of rows of the traces of all NPUs in the program, counted per NPU."""
    of_npu = program.trace_of_npu[program.trace_of_npu >= 0]
    return int(np.diff(program.trace_ptr)[of_npu].sum())


def of_all_ranks(own: Estimate, ranks: RankGather = ALONE) -> Estimate:
    """Return the sum of the estimates of all ranks; every rank must call this function."""
    total, *others = ranks.exchange(own)
    for other in others:
        total += other
    return total


def work(expected: Estimate, settings: Settings) -> float:
    """Return the unit of progress: packet-hops, or messages at message level."""
    return expected.messages if settings.fidelity.act else expected.packet_hops
