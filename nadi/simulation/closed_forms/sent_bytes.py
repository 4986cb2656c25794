"""Bytes that links would send in a run at closed forms, which itself sends nothing over links.

Traces and schedules contain the bytes per pair of NPUs. They are spread evenly over all equal-cost paths, with a header
per packet and an acknowledgement back. Nothing is lost, retransmitted or paused.
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

_MAX_PAIRS = 1 << 17  # maximum number of pairs of NPUs; of more, a weighted sample represents the others
_MAX_ROUTED_PAIRS = 1 << 14  # maximum number of pairs whose bytes are spread over links
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class SentByPorts(NamedTuple):
    """Bytes that ports would send."""

    ports: dict[str, PortUse]  # use of the ports by kind of port, see nadi.energy.bill.PORTS
    unused: int  # number of switches that serve no NPU and send nothing, whose ports `ports` omits


def sent_by_ports(graph: Graph, program: Program, settings: Settings) -> SentByPorts:
    """Return the bytes that the ports of a fabric would send, by kind of port.

    An acknowledgement counts on the path of its packet, because on the way back it passes the same number of ports of
    each kind.
    """
    fabric, running, _ = with_reducers(graph, program)
    pairs = sample(running, _MAX_PAIRS)
    link_bytes = partition.link_loads(fabric, *_sampled(_pairs(fabric, pairs, settings)))[: graph.links]
    is_npu, is_nvswitch = np.arange(graph.nodes) < graph.npus, graph.node_kind == NVSWITCH_KIND
    return SentByPorts(*port_uses(graph.link_src, graph.link_dst, is_npu, is_nvswitch, graph.link_rate_bps, link_bytes))


class _Sent(NamedTuple):
    """Bytes on the wire between p pairs."""

    src: Int64  # int64[p], sending NPU
    dst: Int64  # int64[p], receiving NPU
    amount: Float64  # float64[p], bytes on the wire


def _pairs(graph: Graph, pairs: PairSample, settings: Settings) -> _Sent:
    """Return the pairs with packet headers and acknowledgements; pairs with a common NVSwitch come first."""
    messages = np.maximum(pairs.messages, 1)
    packets = messages * np.maximum(-(-pairs.bytes // (messages * settings.mtu_bytes)), 1)
    framed = _shares_nvswitch(graph, pairs.src, pairs.dst) & settings.nvlink_framing
    packet_bytes = wire_bytes(pairs.bytes // packets, framed, settings) + acknowledgement_bytes(framed, settings)
    amount = pairs.weight * (packets * packet_bytes + pairs.bytes % packets)
    order = np.flatnonzero(pairs.src != pairs.dst)
    order = order[np.argsort(~framed[order], kind="stable")]
    return _Sent(pairs.src[order], pairs.dst[order], amount[order])


def _shares_nvswitch(graph: Graph, src: Int64, dst: Int64) -> NDArray[np.bool_]:
    """Return bool[p], True if one NVSwitch connects both NPUs of a pair."""
    if not isinstance(graph.routing, TableRouting):
        return np.zeros(len(src), np.bool_)
    home = graph.routing.home
    is_nvswitch = (graph.node_kind[graph.routing.home_node[home]] == NVSWITCH_KIND) & (home >= 0)
    shares = np.zeros(len(src), np.bool_)
    for column in range(home.shape[1]):
        meets = (home[src, column][:, None] == home[dst]).any(axis=1)
        shares |= meets & is_nvswitch[src, column]
    return shares


def _sampled(sent: _Sent) -> _Sent:
    """Return at most _MAX_ROUTED_PAIRS pairs; systematic sampling gives each of them an equal number of bytes."""
    if len(sent.src) <= _MAX_ROUTED_PAIRS:
        return sent
    ends = np.cumsum(sent.amount)
    step = float(ends[-1]) / _MAX_ROUTED_PAIRS
    at = np.minimum(np.searchsorted(ends, (np.arange(_MAX_ROUTED_PAIRS) + 0.5) * step), len(ends) - 1)
    return _Sent(sent.src[at], sent.dst[at], np.full(_MAX_ROUTED_PAIRS, step))
