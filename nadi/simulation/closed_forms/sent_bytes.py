"""Bytes that links would send in a run at closed forms, which itself sends nothing over links.

Traces and schedules contain the bytes per pair of NPUs. They are spread evenly over all equal-cost paths, with a header
per packet and an acknowledgement back. Nothing is lost, retransmitted or paused.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import partition
from nadi.energy import PortUse, port_uses
from nadi.inputs.arrays import Int64
from nadi.pdes import Settings
from nadi.pdes.wire import NVSWITCH_KIND, acknowledgement_bytes, wire_bytes
from nadi.simulation.wiring.engine_inputs import engine_inputs
from nadi.topologies import Graph, TableRouting
from nadi.workload import Program
from nadi.workload.program.traffic import sample

_MAX_PAIRS = 1 << 17  # maximum number of pairs of NPUs; of more, a weighted sample represents the others
_MAX_ROUTED_PAIRS = 1 << 14  # maximum number of pairs whose bytes are spread over links


class SentByPorts(NamedTuple):
    """Bytes that ports would send."""

    ports: dict[str, PortUse]  # use of the ports by kind of port, see nadi.energy.PORTS
    unused: int  # number of switches that serve no NPU and send nothing, whose ports `ports` omits


def sent_by_ports(graph: Graph, program: Program, settings: Settings) -> SentByPorts:
    """Return the bytes that the ports of a fabric would send, by kind of port.

    An acknowledgement counts on the path of its packet, because on the way back it passes the same number of ports of
    each kind.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: Settings of the run.
    """
    fabric, running, _ = engine_inputs(graph, program)
    pairs = sample(running, _MAX_PAIRS)
    messages = np.maximum(pairs.messages, 1)
    packets = messages * np.maximum(-(-pairs.bytes // (messages * settings.mtu_bytes)), 1)
    framed = _shares_nvswitch(fabric, pairs.src, pairs.dst) & settings.nvlink_framing
    packet_bytes = wire_bytes(pairs.bytes // packets, framed, settings) + acknowledgement_bytes(framed, settings)
    sent_bytes = pairs.weight * (packets * packet_bytes + pairs.bytes % packets)
    order = np.flatnonzero(pairs.src != pairs.dst)
    order = order[np.argsort(~framed[order], kind="stable")]  # a sample then represents the pairs on NVSwitches
    src, dst, sent_bytes = pairs.src[order], pairs.dst[order], sent_bytes[order]
    if len(src) > _MAX_ROUTED_PAIRS:  # systematic sampling gives each chosen pair an equal number of bytes
        ends = np.cumsum(sent_bytes)
        step = float(ends[-1]) / _MAX_ROUTED_PAIRS
        chosen = np.minimum(np.searchsorted(ends, (np.arange(_MAX_ROUTED_PAIRS) + 0.5) * step), len(ends) - 1)
        src, dst, sent_bytes = src[chosen], dst[chosen], np.full(_MAX_ROUTED_PAIRS, step)
    link_bytes = partition.link_loads(fabric, src, dst, sent_bytes)[: graph.links]
    is_npu, is_nvswitch = np.arange(graph.nodes) < graph.npus, graph.node_kind == NVSWITCH_KIND
    return SentByPorts(*port_uses(graph.link_src, graph.link_dst, is_npu, is_nvswitch, graph.link_rate_bps, link_bytes))


def _shares_nvswitch(graph: Graph, src: Int64, dst: Int64) -> NDArray[np.bool_]:
    """Return bool[p], True if one NVSwitch connects both NPUs of a pair."""
    if not isinstance(graph.routing, TableRouting):
        return np.zeros(len(src), np.bool_)
    home = graph.routing.home
    is_nvswitch = (graph.node_kind[graph.routing.home_node[home]] == NVSWITCH_KIND) & (home >= 0)
    shares = np.zeros(len(src), np.bool_)
    # an NPU may have several homes: each one of the sender is compared with all of the receiver
    for column in range(home.shape[1]):
        meets = (home[src, column][:, None] == home[dst]).any(axis=1)
        shares |= meets & is_nvswitch[src, column]
    return shares
