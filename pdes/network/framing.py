"""Framing of NVLink: flits in place of Ethernet headers.

A flit is 16 bytes. 128 bytes of payload travel with a header flit, and a response flit for them returns in the other
direction, which carries the same load: 32 bytes in each direction per 128 of payload, so 80 % of the rate is payload
(NVIDIA Tesla P100 white paper, "NVLink": packets of a header flit and up to 16 data flits; writes of an SM are lines of
128 bytes). Any other packet on such a link (acknowledgement, pause) is one flit.
"""

from typing import Any

import numpy as np

from nadi.pdes.core import Bools, Framing, Graph, Int64
from nadi.pdes.core.jit import inline
from nadi.pdes.core.packet import FLAG_ACK, FLAG_TRIMMED, PAUSE_FRAME, destination, flags

FLIT_BYTES = 16
LINE_BYTES = 128
PER_LINE_BYTES = 2 * FLIT_BYTES  # overhead per line: a header flit, and a response flit for the other direction

NVSWITCH_KIND = 2  # word of graph.node_kind that marks an NVSwitch
AGGREGATOR_KIND = 3  # word of graph.node_kind that marks an aggregator


@inline
def framed_bytes(net, word1, size_bytes):
    """Return the bytes of a packet on NVLink.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        word1: Word 1 of the packet (pdes/core/packet.py).
        size_bytes: Size in bytes of the packet on other links.
    """
    if flags(word1) & (FLAG_ACK | FLAG_TRIMMED) != 0 or destination(word1) == PAUSE_FRAME:
        return np.int64(FLIT_BYTES)
    # 4096 bytes of payload are 32 lines of 128, each with 32 bytes: 5120 bytes on the link, of which 80 % are payload
    payload = size_bytes - net.const.header_bytes
    return payload + max(1, (payload + LINE_BYTES - 1) // LINE_BYTES) * PER_LINE_BYTES


def is_framed(graph: Graph, settings: Framing) -> Bools:
    """Return bool[links]: links of NVSwitches, if the run frames them.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings that determine the lengths of packets.
    """
    return is_nvlink(graph) & settings.nvlink_framing


def is_ample(graph: Graph) -> Bools:
    """Return bool[links]: links of aggregators, which are faster than all other links of their switches together.

    Args:
        graph: The fabric (`Graph`).
    """
    kind = graph.node_kind == AGGREGATOR_KIND
    return kind[graph.link_src] | kind[graph.link_dst]


def is_nvlink(graph: Graph) -> Bools:
    """Return bool[links]: links of NVSwitches.

    Args:
        graph: The fabric (`Graph`).
    """
    kind = graph.node_kind == NVSWITCH_KIND
    return kind[graph.link_src] | kind[graph.link_dst]


def domain_switches(graph: Graph) -> Bools:
    """Return bool[nodes]: NVSwitches that join an NVLink domain alone: no path over switches leads to another kind.

    Args:
        graph: The fabric (`Graph`).
    """
    switches = np.arange(graph.nodes) >= graph.npus
    outer = switches & (graph.node_kind != NVSWITCH_KIND)
    while True:
        # switches next to one that leads elsewhere: a breadth-first search over all links at once, one tier per round
        reached = np.zeros(graph.nodes, bool)
        reached[graph.link_dst[outer[graph.link_src]]] = True
        if not (reached & switches & ~outer).any():
            return switches & ~outer
        # a switch joined to one that leads elsewhere leads there too
        outer |= reached & switches


def is_in_domain(graph: Graph) -> Bools:
    """Return bool[links]: links within an NVLink domain, those of its NVSwitches.

    Args:
        graph: The fabric (`Graph`).
    """
    switches = domain_switches(graph)
    return switches[graph.link_src] | switches[graph.link_dst]


def wire_bytes(payload_bytes: Any, is_framed: Any, settings: Framing) -> Int64:
    """Return the bytes of a data packet on a link; arrays and numbers are broadcast as in NumPy.

    Args:
        payload_bytes: Payload of the packet in bytes; a number or an array.
        is_framed: Whether the link carries flits; a bool or an array.
        settings: Settings that determine the lengths of packets.
    """
    # -(-a // b) is a / b rounded up; an empty packet has a line, too, as it has a header flit
    lines = np.maximum(1, -(-payload_bytes // LINE_BYTES))
    return np.where(is_framed, payload_bytes + lines * PER_LINE_BYTES, payload_bytes + settings.header_bytes)


def acknowledgement_bytes(framed: Any, settings: Framing) -> Int64:
    """Return the bytes of an acknowledgement on a link, likewise.

    Args:
        framed: Whether the link carries flits; a bool or an array.
        settings: Settings that determine the lengths of packets.
    """
    return np.where(framed, FLIT_BYTES, settings.ack_bytes)
