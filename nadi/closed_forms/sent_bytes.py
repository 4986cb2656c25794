"""Bytes that links would send in a run at closed forms, which itself sends nothing over links.

Who sends how much to whom stands in traces and schedules. It is spread over all equal ways alike, with a header for
each packet and an acknowledgement back. Nothing is lost, sent twice or paused.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import partition
from nadi.energy.bill import PortUse
from nadi.energy.ports import port_uses
from nadi.wiring.in_network import with_reducers
from pdes.build.settings import Settings
from pdes.network.framing import LINE_BYTES, NVSWITCH_KIND, PER_LINE_BYTES, acknowledgement_bytes, is_framed
from topologies import Graph
from workload import Program
from workload.program.traffic import sample

MOST_PAIRS = 1 << 17
"""That are looked at; of more, some stand for the others."""


class SentByPorts(NamedTuple):
    """What ports would send.

    Attributes:
        ports: by sort, see nadi.energy.bill.PORTS.
        unused: switches that serve no NPU and would send nothing, whose ports are not among these.
    """

    ports: dict[str, PortUse]
    unused: int


def sent_by_ports(graph: Graph, program: Program, settings: Settings) -> SentByPorts:
    """What the ports of a fabric would send, by sort.

    Args:
        graph: the fabric.
        program: of all NPUs.
        settings: of packets.
    """
    is_npu, is_nvswitch = np.arange(graph.nodes) < graph.npus, graph.node_kind == NVSWITCH_KIND
    sent = sent_by_links(graph, program, settings)
    return SentByPorts(*port_uses(graph.link_src, graph.link_dst, is_npu, is_nvswitch, graph.link_rate_bps, sent))


def sent_by_links(graph: Graph, program: Program, settings: Settings) -> NDArray[np.float64]:
    """float64[links]: bytes, with headers and acknowledgements; arguments as above."""
    fabric, running, _ = with_reducers(graph, program)
    found = sample(running, MOST_PAIRS)
    keep = found.src != found.dst
    src, dst, weight = found.src[keep], found.dst[keep], found.weight[keep]
    messages = np.maximum(found.messages[keep], 1)
    packets = weight * messages * np.maximum(-(-found.bytes[keep] // (messages * settings.mtu_bytes)), 1)
    payload, data, answers = (
        partition.link_loads(fabric, *ends, amount)[: graph.links]
        for ends, amount in (((src, dst), weight * found.bytes[keep]), ((src, dst), packets), ((dst, src), packets))
    )
    framed = is_framed(graph, settings)
    of_data = np.where(framed, np.maximum(payload / LINE_BYTES, data) * PER_LINE_BYTES, data * settings.header_bytes)
    return payload + of_data + answers * acknowledgement_bytes(framed, settings)
