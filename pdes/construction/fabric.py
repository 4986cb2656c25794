"""Figures of the fabric that all logical processes share: links by class, round trips, windows, timeouts."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.pdes.construction.schedule import fastest_psb, link_changes, slowest
from nadi.pdes.construction.settings import PAUSE_FRAME_BYTES, Settings
from nadi.pdes.core import Bools, Graph, ImpossibleRunError, Int64, Rows, packet, state as s
from nadi.pdes.core.jit import rows_of
from nadi.pdes.core.rows.network import (
    LinkClass,
    Telemetry,
)
from nadi.pdes.network.framing import FLIT_BYTES, NVSWITCH_KIND, is_ample, is_framed, is_in_domain
from nadi.pdes.nic.receiver_credits import MAX_WINDOW_BDPS

MAX_BATCH = 60_000  # packets that may arrive at one node during a cell: the limit of the arrays that sort them
MAX_CELL_PS = 1 << 36  # 69 ms: keeps times within a cell far below the width of the words that hold them
NEVER_CUT = 1 << 16  # bytes that a store-and-forward receiver waits for: more than any packet has
REFERENCE_BPS = 25e9  # link rate to which the marking thresholds of the settings refer
MAX_RTO_PS = 10**15  # maximum of the automatic timeout: doubled six times (port.MAX_BACKOFF), it is far below INF
NPU_KIND = 0  # word of graph.node_kind that marks an NPU
QUEUE_BYTES = 1_000_000  # assumed content of a full unlimited queue, for the timeout where packets can be lost


class Fabric:
    """Links by class, and the times that follow from them."""

    def __init__(self, graph: Graph, settings: Settings) -> None:
        """Compute the columns below from a graph, in ps, and from Settings, whose faults and switches change them."""
        self._rate_bps = graph.link_rate_bps  # [links] rate without faults
        self.psb = s.PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps.astype(np.float64)  # [links] ps per byte
        self.fastest_psb = fastest_psb(self.psb, settings.faults)  # [links] its minimum during the run
        switches = np.arange(graph.nodes) >= graph.npus
        # [nodes] 1 = the switch cuts through
        self.cut = (at_tiers(graph, settings, "cut_through").astype(bool) & switches).astype(np.int8)
        # [nodes] number of the node's rule of load balancing among those of the run
        rules = settings.balancings
        own = at_tiers(graph, settings, "load_balancing") if len(rules) > 1 else [rules[0]] * graph.nodes
        self.rule = np.array([rules.index(rule) for rule in own], np.int8)
        self.latency_ps = graph.node_latency_ps.astype(np.int64)  # [nodes] arrival to departure, unless in delay_ps
        self.delay_ps = graph.link_delay_ps.astype(np.int64)  # [links] propagation time
        if settings.has_port_queues:  # forwarding latency counts as a part of the link
            self.delay_ps = self.delay_ps + self.latency_ps[graph.link_dst]
            self.latency_ps = np.zeros_like(self.latency_ps)
        seen = np.where(self.cut[graph.link_dst] == 1, settings.header_bytes, NEVER_CUT)
        framed = is_framed(graph, settings)
        self.inside = is_in_domain(graph)  # [links] within an NVLink domain
        self.ample = is_ample(graph)  # [links] of aggregators
        self.classes, self.link_class = self._classes(graph, seen, framed, settings)  # table, [links] its rows
        smallest_bytes = settings.smallest_bytes
        if settings.switch:
            smallest_bytes = min(smallest_bytes, PAUSE_FRAME_BYTES)
        if settings.credits:
            smallest_bytes = min(smallest_bytes, settings.credits.credit_frame_bytes)
        self.smallest_bytes = np.where(framed, min(smallest_bytes, FLIT_BYTES), smallest_bytes)  # [links]
        # words of a packet in an outbox
        has_telemetry = "telemetry" in settings.congestion_control.signals
        self.crossing_words = packet.CROSSING_WORDS + Telemetry.words * has_telemetry
        # whether most packets carry a tag: their send time, or what a selective acknowledgement acknowledges
        self.has_tags = "rtt" in settings.congestion_control.signals or bool(settings.selective_repeat)
        # [links] time from the start of the smallest packet's sending until the other end may act on it
        first = np.minimum(self.smallest_bytes, seen)
        self.reach_ps = self.delay_ps + (first * self.fastest_psb + 0.5).astype(np.int64)
        smallest_packet_ps = np.maximum(1, (self.smallest_bytes * self.fastest_psb + 0.5).astype(np.int64))
        self._packets_per_ps = 1 / smallest_packet_ps  # [links]
        self._link_dst = graph.link_dst
        packets_per_ps = np.bincount(graph.link_dst, weights=self._packets_per_ps, minlength=graph.nodes)
        degree = np.bincount(graph.link_dst, minlength=graph.nodes)
        self._degree = int(degree.max(initial=0))
        max_cell_ps = self.longest_cell_ps(np.ones(graph.links, bool))
        self.cell_ps = int(min(self.reach_ps.min(), max_cell_ps, MAX_CELL_PS))  # length of a cell
        if max_cell_ps < 1 and not settings.fidelity.hooks.act:
            raise ImpossibleRunError(
                f"a node of {degree.max()} links receives {packets_per_ps.max():,.0f} packets a picosecond; at most "
                f"{MAX_BATCH} packets may arrive at a time"
            )
        # maximum number of packets that arrive at one node in a cell
        self.batch = self.batch_of(self.cell_ps, np.ones(graph.links, bool))
        if settings.flow_groups is not None:  # a class for the packets of each link, then those without flows
            self.classes = np.concatenate([self.classes[self.link_class]] * 2).view(np.recarray)
            self.link_class = np.arange(graph.links)
        # changes of links during the run, (ps, link, class) in time order
        self.changes, self.classes = link_changes(settings.faults, self.cell_ps, self.link_class, self.classes)
        kinds = graph.links if settings.flow_groups is not None else len(self.classes)
        if kinds > s.MAX_CLASSES:
            raise ImpossibleRunError(f"the fabric has {kinds} kinds of links; at most {s.MAX_CLASSES} are possible")

    def most_packets_per_ps(self, links: Bools) -> float:
        """Return the maximum number of packets per picosecond that may arrive at a node.

        Args:
            links: bool[links], links over which packets travel.
        """
        return float(np.bincount(self._link_dst[links], weights=self._packets_per_ps[links]).max(initial=0))

    def longest_cell_ps(self, links: Bools) -> float:
        """Return the longest cell in ps if packets travel over some links only.

        Args:
            links: bool[links], links over which packets travel.
        """
        return (MAX_BATCH - 2 * self._degree) / max(self.most_packets_per_ps(links), 1e-12)

    def batch_of(self, cell_ps: int, links: Bools) -> int:
        """Return the most packets that arrive at a node in a cell, if packets travel over some links only.

        Args:
            cell_ps: Length of the cell in ps.
            links: bool[links], the links over which packets travel in the cell.
        """
        return math.ceil(cell_ps * self.most_packets_per_ps(links)) + 2 * self._degree + 8

    def make_room(self, cell_ps: int, links: Bools) -> None:
        """Make room for the packets of a cell in which they travel over some links only.

        Args:
            cell_ps: Length of the cell in ps.
            links: bool[links], the links over which packets travel in the cell.
        """
        self.batch = max(self.batch, self.batch_of(cell_ps, links))

    def _classes(self, graph: Graph, seen_bytes: Int64, framed: Bools, settings: Settings) -> tuple[Rows, Int64]:
        """Return the table `link_class` without repetitions, and int64[links], the row of each link."""
        # seen_bytes: [links], bytes that must arrive before the receiving end may act. framed: bool[links], whether the
        # link carries NVLink's flits. settings: Settings of the packet network.
        needs_care = "telemetry" in settings.congestion_control.signals or settings.sample_ps > 0
        special = s.CARE * needs_care | s.FRAMED * framed | s.INSIDE * self.inside | s.AMPLE * self.ample
        if settings.credits or (settings.switch and settings.switch.pfc_rising_classes > 1):
            # a switch knows the link over which a packet came by its own link in the other direction
            special = special | s.RISES * graph.routing.rising_links(graph)[np.arange(graph.links) ^ 1]
        for circuit in settings.faults.circuits.circuits:
            special[list(circuit.links)] |= s.CIRCUIT | s.CARE
        delay_ps, switch = self.delay_ps, settings.switch
        rows = rows_of(
            LinkClass, len(seen_bytes), ps_per_byte=self.psb, delay_ps=delay_ps, seen_bytes=seen_bytes, special=special
        )
        if switch:
            scale = s.PS_PER_BYTE_AT_1_BPS / self.psb / REFERENCE_BPS
            # a switch marks packets where they leave it
            rows.kmin_bytes = at_tiers(graph, settings, "ecn_kmin_bytes")[graph.link_src] * scale
            rows.kmax_bytes = at_tiers(graph, settings, "ecn_kmax_bytes")[graph.link_src] * scale
            rows.pmax = at_tiers(graph, settings, "ecn_pmax")[graph.link_src] * 2**32
            for rate_bps, kmin_bytes, kmax_bytes, pmax in switch.ecn_by_rate:
                own = self._rate_bps == rate_bps
                rows.kmin_bytes[own], rows.kmax_bytes[own] = kmin_bytes, kmax_bytes
                rows.pmax[own] = int(pmax * 2**32)
        words = rows[: len(seen_bytes)].view(np.int64).reshape(-1, LinkClass.words)
        first, number = _distinct_rows(words)
        return words[first].reshape(-1).view(LinkClass.dtype).view(np.recarray), number


def _distinct_rows(words: Int64) -> tuple[Int64, Int64]:
    """Return the first place of each distinct row of `words`, int64[n, columns], in ascending order, and each's number.

    Sorts a column at a time, of those that are not equal throughout: ten times faster than to sort rows.
    """
    number, most = np.zeros(len(words), np.int64), 1
    for column in words.T:
        if len(column) and np.any(column != column[0]):
            values, place = np.unique(column, return_inverse=True)
            if most * len(values) > 1 << 62:
                kinds, number = np.unique(number, return_inverse=True)
                most = len(kinds)
            number = number * len(values) + place
            most *= len(values)
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    return first, number


def at_tiers(graph: Graph, settings: Settings, key: str) -> NDArray[np.number[Any]]:
    """Return values of a key of switches, [nodes]: that of the node's tier, if it has one, else that of all.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run; all keys but cut_through and load_balancing are of shared buffers.
        key: The name of a field of `TierSwitch`.
    """
    values = np.full(graph.nodes, getattr(settings if key in _OF_ANY_SWITCH else settings.switch, key))
    for tier in settings.tiers:
        if getattr(tier, key) is not None:
            of_tier = [tier_word(name) == tier.word for name in graph.switch_names]
            values[graph.npus :][of_tier] = getattr(tier, key)
    return values


_OF_ANY_SWITCH = {"cut_through", "load_balancing"}  # keys of tiers that are not those of shared buffers


def tier_word(switch_name: str) -> str:
    """Return the word of a switch's name that its tier shares: "leaf" of "leaf 2".

    Args:
        switch_name: The name of a switch.
    """
    return switch_name.rpartition(" ")[0] or switch_name


def round_trip_ps(graph: Graph, settings: Settings) -> tuple[int, int]:
    """Return an upper bound in ps of an idle round trip of a full packet and its acknowledgement, and its hops.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    # while circuits are dark, paths may be longer
    routings: list[Any] = [graph.routing, *(settings.faults.routings.values() if settings.faults.circuits else ())]
    # a detour is two paths one after the other
    hops = max(routing.longest_links() for routing in routings) * (2 if settings.routing.reorders else 1)
    if settings.routing.by_source and graph.source_routes:
        hops = max(hops, graph.source_routes.longest_links)
    psb = s.PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps.min()
    wire = settings.mtu_bytes + settings.header_bytes + settings.ack_bytes
    per_hop = 2 * int(graph.link_delay_ps.max()) + wire * psb + 2 * int(graph.node_latency_ps.max(initial=0))
    return int(hops * per_hop), hops


PAUSE_PACKETS = 16  # full packets on the slowest link: ties further apart are of different queues
MIN_TIE_PAUSE_PS = 10**6  # so that a few packets of the fastest links make no pause


def tie_pause_ps(graph: Graph, settings: Settings) -> int:
    """Return the time in ps without ties after which a node begins to count them again (pdes/network/batch.py).

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    wire_bits = 8 * (settings.mtu_bytes + settings.header_bytes)
    return max(MIN_TIE_PAUSE_PS, PAUSE_PACKETS * wire_bits * int(s.PS_PER_S) // int(graph.link_rate_bps.min()))


def nic_rate_bps(graph: Graph, settings: Settings) -> int:
    """Return the bits per second of the fastest port of `graph`, or of the NIC over whose ports `settings` spread."""
    is_port = graph.node_kind[graph.link_src] == NPU_KIND
    fastest = int(graph.link_rate_bps[is_port].max())
    if settings.spreads_ports:
        is_port &= graph.node_kind[graph.link_dst] != NVSWITCH_KIND
        fastest = max(fastest, int(np.bincount(graph.link_src[is_port], graph.link_rate_bps[is_port]).max(initial=0)))
    return fastest


def credit_window_bytes(graph: Graph, settings: Settings) -> int:
    """Return the largest credit of a queue pair: credit_window_bytes if set, else 1.5 bandwidth-delay products.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    # UecSrc::initRccc of uet-htsim, as NSCC's largest window
    from_npu = nic_rate_bps(graph, settings)
    bdp_bytes = round_trip_ps(graph, settings)[0] * from_npu / s.PS_PER_BYTE_AT_1_BPS
    return settings.credit_window_bytes or int(MAX_WINDOW_BDPS * bdp_bytes)


def window_packets(graph: Graph, settings: Settings) -> int:
    """Return the window of a queue pair in packets: window_bytes if set, else enough for the longest round trip.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    # Selective repeat limits the automatic window to SELECTIVE_PACKETS; go-back-N to a quarter of the sequence numbers.
    if settings.window_bytes:
        return max(1, settings.window_bytes // settings.mtu_bytes)
    max_packets = s.SELECTIVE_PACKETS if settings.selective_repeat else packet.HALF_PSN // 2
    return min(covering_packets(graph, settings), max_packets)


def covering_packets(graph: Graph, settings: Settings) -> int:
    """Return the number of packets that fill the fastest NPU port during the longest round trip, and one more.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    # Latency that faults add counts, no matter when they hold. A path crosses each cable once per direction, so
    # latencies of different cables add up, but for no more cables than the longest path has hops.
    from_npu = nic_rate_bps(graph, settings)
    rtt, hops = round_trip_ps(graph, settings)
    of_links: dict[tuple[int, ...], int] = {}
    for fault in settings.faults.links:
        of_links[fault.links] = max(fault.added_latency_ps, of_links.get(fault.links, 0))
    rtt += 2 * sum(sorted(of_links.values())[-hops:])
    wire_bits = 8 * (settings.mtu_bytes + settings.header_bytes)
    return math.ceil(rtt * from_npu / s.PS_PER_S / wire_bits) + 2


def rto_ps(graph: Graph, settings: Settings) -> int:
    """Return the retransmission timeout in ps: rto_ps if set, 0 if nothing can be lost, else four with full queues.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    limit: float = settings.queue_limit_bytes
    if settings.switch and can_drop(graph, settings):
        # a queue alone in the buffer grows to alpha / (1 + alpha) of it
        alpha = at_tiers(graph, settings, "pfc_alpha")[graph.npus :].astype(np.float64)
        buffer_bytes = at_tiers(graph, settings, "buffer_bytes")[graph.npus :].astype(np.float64)
        limit = float((buffer_bytes * alpha / (1 + alpha)).max(initial=0))
    if not limit and settings.faults.can_lose(settings):
        limit = QUEUE_BYTES
    if settings.rto_ps or not limit:
        return settings.rto_ps
    rtt, hops = round_trip_ps(graph, settings)
    rate_bps, added_ps = slowest(settings.faults, int(graph.link_rate_bps.min()))
    queue = limit * s.PS_PER_BYTE_AT_1_BPS / rate_bps
    return min(int(4 * (rtt + hops * (queue + 2 * added_ps))) + 1_000_000, MAX_RTO_PS)


def can_drop(graph: Graph, settings: Settings) -> bool:
    """Return whether a switch with a shared buffer may drop a packet: one without pauses, or with a given headroom.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run, with shared buffers.
    """
    # with pauses and automatic headrooms nothing overflows
    has_given = at_tiers(graph, settings, "pfc_headroom_bytes")[graph.npus :].any()
    pauses = at_tiers(graph, settings, "pfc")[graph.npus :].all()
    return bool(has_given or not pauses or settings.lossless_classes != settings.data_classes)
