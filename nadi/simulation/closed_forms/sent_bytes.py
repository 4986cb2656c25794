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
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings
from pdes.wire import NVSWITCH_KIND, acknowledgement_bytes, wire_bytes
from topologies import Graph, TableRouting
from workload import Program
from workload.program.traffic import PairSample, sample

MOST_PAIRS = 1 << 17
"""That are looked at; of more, some stand for the others."""
MOST_SPREAD = 1 << 14
"""Whose bytes are spread over links."""
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


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

    An acknowledgement is counted on the way of its packet: back it passes as many ports of each sort.

    Args:
        graph: the fabric.
        program: of all NPUs.
        settings: of packets.
    """
    fabric, running, _ = with_reducers(graph, program)
    found = sample(running, MOST_PAIRS)
    of_links = partition.link_loads(fabric, *_few(_pairs(fabric, found, settings)))[: graph.links]
    is_npu, is_nvswitch = np.arange(graph.nodes) < graph.npus, graph.node_kind == NVSWITCH_KIND
    return SentByPorts(*port_uses(graph.link_src, graph.link_dst, is_npu, is_nvswitch, graph.link_rate_bps, of_links))


class _Sent(NamedTuple):
    """Bytes on the wire of p pairs, int64[p], int64[p] and float64[p]."""

    src: Int64
    dst: Int64
    amount: Float64


def _pairs(graph: Graph, found: PairSample, settings: Settings) -> _Sent:
    """Pairs with their packets' headers and acknowledgements; those that meet in an NVSwitch first."""
    messages = np.maximum(found.messages, 1)
    packets = messages * np.maximum(-(-found.bytes // (messages * settings.mtu_bytes)), 1)
    framed = _in_nvswitch(graph, found.src, found.dst) & settings.nvlink_framing
    each = wire_bytes(found.bytes // packets, framed, settings) + acknowledgement_bytes(framed, settings)
    amount = found.weight * (packets * each + found.bytes % packets)
    order = np.flatnonzero(found.src != found.dst)
    order = order[np.argsort(~framed[order], kind="stable")]
    return _Sent(found.src[order], found.dst[order], amount[order])


def _in_nvswitch(graph: Graph, src: Int64, dst: Int64) -> NDArray[np.bool_]:
    """bool[p]: both hang on one NVSwitch."""
    if not isinstance(graph.routing, TableRouting):
        return np.zeros(len(src), np.bool_)
    home = graph.routing.home
    is_nvswitch = (graph.node_kind[graph.routing.home_node[home]] == NVSWITCH_KIND) & (home >= 0)
    found = np.zeros(len(src), np.bool_)
    for column in range(home.shape[1]):
        meets = (home[src, column][:, None] == home[dst]).any(axis=1)
        found |= meets & is_nvswitch[src, column]
    return found


def _few(sent: _Sent) -> _Sent:
    """Of very many pairs some, each for as many bytes: pairs that send more stand more often (systematic sampling)."""
    if len(sent.src) <= MOST_SPREAD:
        return sent
    ends = np.cumsum(sent.amount)
    step = float(ends[-1]) / MOST_SPREAD
    at = np.minimum(np.searchsorted(ends, (np.arange(MOST_SPREAD) + 0.5) * step), len(ends) - 1)
    return _Sent(sent.src[at], sent.dst[at], np.full(MOST_SPREAD, step))
