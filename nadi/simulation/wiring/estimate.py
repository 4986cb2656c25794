"""How much work a run will be, before it begins: packets, packet-hops, pairs of NPUs, memory, time.

It is what progress counts against, and what refuses a run that this machine cannot hold or end.
"""

from typing import NamedTuple

import numpy as np

from nadi.launching.gather import ALONE, RankGather
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings
from topologies import Graph
from topologies.lengths import path_links
from workload import Program
from workload.program.traffic import sample

MOST_PAIRS = 1 << 18
"""Of which ways and packets are counted; where there are more, they stand for the others."""
_PAIR_BYTES = 450
_CONTROLLED_PAIR_BYTES = 250
_MESSAGE_BYTES = 120
_LINK_BYTES, _NPU_BYTES, _BASE_BYTES = 1000, 3000, 60_000_000
"""Seen with fabrics of 10^3 to 10^4 NPUs, 2026-11-22; _MESSAGE_BYTES where flows are recorded, and beside those rows
of the trace."""
_ROW_BYTES, _ROW_TIMES_BYTES = 4, 16
"""A row of an NPU's trace: how many parents are left; where they are recorded, when it began and ended."""


class Estimate(NamedTuple):
    """Work of a run, or of a rank's NPUs.

    Attributes:
        messages: of data.
        packets: of data; at message level, as many as messages.
        packet_hops: of data and acknowledgements; at message level, of messages.
        wire_bytes: of data with its headers, and acknowledgements.
        pairs: senders and receivers, counted for each size that a collective has.
        memory_bytes: about what the engine takes for it, rows of each NPU too, beside the fabric and the files.
    """

    messages: float
    packets: float
    packet_hops: float
    wire_bytes: float
    pairs: float
    memory_bytes: float

    def __add__(self, other: object) -> "Estimate":
        """Of both together."""
        return Estimate(*(a + b for a, b in zip(self, other, strict=True))) if isinstance(other, Estimate) else self


def estimate(graph: Graph, program: Program, settings: Settings) -> Estimate:
    """Work of a program on a fabric; of a rank, of its NPUs.

    Packets are lost nowhere, and a link that fails has no ways around. Messages of a pair are taken to be of equal
    size.
    """
    fabric, running, _ = with_reducers(graph, program)
    found = sample(running, MOST_PAIRS)
    messages = np.maximum(found.messages, 1)
    whole = settings.fidelity.act is not None
    each = 1 if whole else np.maximum(-(-found.bytes // (messages * settings.mtu_bytes)), 1)
    packets = found.weight * messages * each
    hops = packets * path_links(fabric, found.src, found.dst) * (1 if whole else 2)
    sent = float((found.weight * found.messages).sum())
    pairs = float(found.weight.sum())
    per_pair = _PAIR_BYTES + (_CONTROLLED_PAIR_BYTES if settings.congestion_control.update else 0)
    memory = (
        fabric_bytes(graph)
        + per_pair * min(pairs, float(graph.npus) ** 2)
        + _MESSAGE_BYTES * sent * settings.record_flows
    )
    memory += _rows(program) * (_ROW_BYTES + _ROW_TIMES_BYTES * settings.record_nodes)
    wire = float((found.weight * found.bytes).sum())
    wire += 0 if whole else float(packets.sum()) * (settings.header_bytes + settings.ack_bytes)
    return Estimate(sent, float(packets.sum()), float(hops.sum()), wire, pairs, memory)


def fabric_bytes(graph: Graph) -> float:
    """Return the memory in bytes that the engine takes for a fabric, on every rank."""
    return _BASE_BYTES + _LINK_BYTES * graph.links + _NPU_BYTES * graph.npus


def _rows(program: Program) -> int:
    """Rows of the traces of all NPUs that the program has; NPUs that share a trace each have their own."""
    of_npu = program.trace_of_npu[program.trace_of_npu >= 0]
    return int(np.diff(program.trace_ptr)[of_npu].sum())


def of_all_ranks(own: Estimate, ranks: RankGather = ALONE) -> Estimate:
    """The sum over all ranks, on each of them."""
    total, *others = ranks.exchange(own)
    for other in others:
        total += other
    return total


def work(expected: Estimate, settings: Settings) -> float:
    """What progress counts: packet-hops, or messages at message level."""
    return expected.messages if settings.fidelity.act else expected.packet_hops
