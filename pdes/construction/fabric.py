"""Figures of the fabric that all logical processes share, and the first state of switches that share a buffer."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nadi.pdes.construction.schedule import fastest_psb, link_changes, slowest
from nadi.pdes.construction.settings import PAUSE_FRAME_BYTES, Settings, SharedBuffer
from nadi.pdes.core import Bools, Graph, ImpossibleRunError, Int32, Int64, Record, Rows, packet, state as s
from nadi.pdes.core.jit import rows_of, zeros
from nadi.pdes.core.rows.network import (
    Gate,
    LinkClass,
    LinkSample,
    MarkDraws,
    SampleEntry,
    SwitchBuffer,
    Telemetry,
    VirtualLane,
)
from nadi.pdes.network import lane_credits
from nadi.pdes.network.credit_switch import QUEUES_OF_CONTROL
from nadi.pdes.network.framing import FLIT_BYTES, NVSWITCH_KIND, domain_switches, is_ample, is_framed, is_in_domain
from nadi.pdes.nic.receiver_credits import MAX_WINDOW_BDPS

if TYPE_CHECKING:
    from nadi.pdes.construction.layout import Part

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
        self.cut = (settings.cut_through & switches).astype(np.int8)  # [nodes] 1 = the switch cuts through
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
        self.smallest_bytes = settings.smallest_bytes
        if settings.switch:
            self.smallest_bytes = min(self.smallest_bytes, PAUSE_FRAME_BYTES)
        if settings.credits:
            self.smallest_bytes = min(self.smallest_bytes, settings.credits.credit_frame_bytes)
        if framed.any():
            self.smallest_bytes = min(self.smallest_bytes, FLIT_BYTES)
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
        if settings.credits:
            # a switch knows the link over which a packet came by its own link in the other direction
            special = special | s.RISES * graph.routing.rising_links(graph)[np.arange(graph.links) ^ 1]
        delay_ps, switch = self.delay_ps, settings.switch
        rows = rows_of(
            LinkClass, len(seen_bytes), ps_per_byte=self.psb, delay_ps=delay_ps, seen_bytes=seen_bytes, special=special
        )
        if switch:
            scale = s.PS_PER_BYTE_AT_1_BPS / self.psb / REFERENCE_BPS
            # a switch marks packets where they leave it
            rows.kmin_bytes = at_tiers(graph, switch, "ecn_kmin_bytes")[graph.link_src] * scale
            rows.kmax_bytes = at_tiers(graph, switch, "ecn_kmax_bytes")[graph.link_src] * scale
            rows.pmax = at_tiers(graph, switch, "ecn_pmax")[graph.link_src] * 2**32
            for rate_bps, kmin_bytes, kmax_bytes, pmax in switch.ecn_by_rate:
                own = self._rate_bps == rate_bps
                rows.kmin_bytes[own], rows.kmax_bytes[own] = kmin_bytes, kmax_bytes
                rows.pmax[own] = int(pmax * 2**32)
        words = rows[: len(seen_bytes)].view(np.int64).reshape(-1, LinkClass.words)
        kinds, number = np.unique(words, axis=0, return_inverse=True)
        return kinds.reshape(-1).view(LinkClass.dtype).view(np.recarray), number.reshape(-1)


def at_tiers(graph: Graph, switch: SharedBuffer, key: str) -> NDArray[np.number[Any]]:
    """Return values of a key of shared buffers, [nodes]: that of the node's tier, if it has one, else that of all.

    Args:
        graph: The fabric (`Graph`).
        switch: Settings of switches that share a buffer.
        key: The name of a field of `TierBuffer`.
    """
    values = np.full(graph.nodes, getattr(switch, key))
    for tier in switch.tiers:
        if getattr(tier, key) is not None:
            of_tier = [tier_word(name) == tier.word for name in graph.switch_names]
            values[graph.npus :][of_tier] = getattr(tier, key)
    return values


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
    routing: Any = graph.routing
    # a detour is two paths one after the other
    hops = routing.longest_links() * (2 if settings.routing.route else 1)
    psb = s.PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps.min()
    wire = settings.mtu_bytes + settings.header_bytes + settings.ack_bytes
    per_hop = 2 * int(graph.link_delay_ps.max()) + wire * psb + 2 * int(graph.node_latency_ps.max(initial=0))
    return int(hops * per_hop), hops


WEIGHT_BYTES = 64  # bytes of a unit of the weights of virtual lanes (IBTA volume 1, 7.6.9.2)
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


def credit_window_bytes(graph: Graph, settings: Settings) -> int:
    """Return the largest credit of a queue pair: credit_window_bytes if set, else 1.5 bandwidth-delay products.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    # UecSrc::initRccc of uet-htsim, as NSCC's largest window
    from_npu = int(graph.link_rate_bps[graph.node_kind[graph.link_src] == NPU_KIND].max())
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
    is_port = graph.node_kind[graph.link_src] == NPU_KIND
    from_npu = int(graph.link_rate_bps[is_port].max())
    if settings.spreads_ports:
        is_port &= graph.node_kind[graph.link_dst] != NVSWITCH_KIND
        from_npu = max(from_npu, int(np.bincount(graph.link_src[is_port], graph.link_rate_bps[is_port]).max(initial=0)))
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
    # with pauses and automatic headrooms nothing overflows, so there is no limit
    given = settings.switch and at_tiers(graph, settings.switch, "pfc_headroom_bytes")[graph.npus :].any()
    if settings.switch and not (settings.switch.pfc and not given):
        # a queue alone in the buffer grows to alpha / (1 + alpha) of it
        largest_bytes = int(at_tiers(graph, settings.switch, "buffer_bytes")[graph.npus :].max(initial=0))
        limit = largest_bytes * settings.switch.pfc_alpha / (1 + settings.switch.pfc_alpha)
    if not limit and settings.faults.can_lose(settings):
        limit = QUEUE_BYTES
    if settings.rto_ps or not limit:
        return settings.rto_ps
    rtt, hops = round_trip_ps(graph, settings)
    rate_bps, added_ps = slowest(settings.faults, int(graph.link_rate_bps.min()))
    queue = limit * s.PS_PER_BYTE_AT_1_BPS / rate_bps
    return min(int(4 * (rtt + hops * (queue + 2 * added_ps))) + 1_000_000, MAX_RTO_PS)


# The initial state of switches that share a buffer: how much their queues may share, and the headroom of each port.
#
# Also the state of links that are sampled.

_SAMPLE_ENTRIES = 1 << 14  # entries of the log of samples beside those that one action may use: 512 KB


def classes_in_use(settings: Settings) -> int:
    """Return the number of data classes of a run.

    Args:
        settings: Settings of the run.
    """
    return 1 + settings.p2p_class


def headrooms(graph: Graph, fabric: Fabric, settings: Settings) -> Int64:
    """Return int64[links], bytes per class that may still arrive over a link after its receiver asks for a pause.

    The value is 0 for NVLink within a domain, which knows no pauses.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        settings: Settings of the run.
    """
    # The pause frame waits behind a packet that has just begun, both directions take their propagation time, and the
    # other end may just have begun a packet; one more packet is the one that caused the pause. (IEEE 802.1Qbb annex O
    # counts the same terms.)
    packet = settings.mtu_bytes + settings.header_bytes
    round_trip_ps = fabric.delay_ps + fabric.delay_ps[np.arange(graph.links) ^ 1]
    found = np.ceil(round_trip_ps / fabric.psb).astype(np.int64) + 3 * packet + PAUSE_FRAME_BYTES
    if settings.switch:
        given = at_tiers(graph, settings.switch, "pfc_headroom_bytes")[graph.link_dst].astype(np.int64)
        found = np.where(given > 0, given, found)
    found[fabric.inside] = 0
    return found


def _facing(graph: Graph, part: "Part") -> Int32:
    """Return int32[links of the fabric], the own outgoing link of `part` whose reverse each link is."""
    facing: Int32 = zeros(graph.links, np.int32)
    # links 2k and 2k + 1 are the directions of one cable
    facing[part.links ^ 1] = np.arange(len(part.links))
    return facing


def _check_buffers(pool: Rows, buffer_bytes: Int64, part: "Part", settings: Settings, switches: Int64) -> None:
    """Raise ImpossibleRunError if headrooms leave nothing to share at a switch, or a packet could never enter one.

    `switches` are the places of those with shared buffers among the nodes of `part`, whose buffers have buffer_bytes.
    """
    switch = settings.switch or SharedBuffer()
    too_small = switches[pool.shared_bytes[switches] <= 0]
    if len(too_small):
        node = int(part.nodes[too_small[0]])
        own_bytes = int(buffer_bytes[too_small[0]])
        need = own_bytes - int(pool.shared_bytes[too_small[0]])
        raise ImpossibleRunError(
            f"switch {node}: a buffer of {own_bytes} bytes, but the headrooms of its ports take "
            f"{need}; expected a larger buffer or smaller headrooms"
        )
    packet = settings.mtu_bytes + settings.header_bytes
    smallest_bytes = int(buffer_bytes[switches].min(initial=2**62))
    max_queue_bytes = min(1024, round(1024 * switch.pfc_alpha)) * smallest_bytes >> 10
    if len(switches) and not switch.pfc and max_queue_bytes < packet:
        raise ImpossibleRunError(
            f"a switch with a buffer of {smallest_bytes} bytes and pfc_alpha {switch.pfc_alpha} "
            f"lets {max_queue_bytes} bytes wait in a queue; expected at least a packet of {packet}"
        )


def _set_limits(gate: Rows, graph: Graph, part: "Part", settings: Settings) -> None:
    """Set the thresholds of the ports of an LP's switches, rows `gate`, and which of them lead to NPUs."""
    to_npu = graph.link_dst[part.links] < graph.npus
    gate.is_last_hop[:] = to_npu
    switch = settings.switch
    if switch is not None and switch.trim_threshold_bytes:
        factor = np.where(to_npu, switch.trim_last_hop, 1.0) * graph.link_rate_bps[part.links] / REFERENCE_BPS
        limits = switch.trim_threshold_bytes * factor
        gate.limit_bytes[:] = np.maximum(limits, settings.mtu_bytes + settings.header_bytes)


def shared_buffers(graph: Graph, fabric: Fabric, part: "Part", settings: Settings) -> dict[str, Any]:
    """Return the arrays of an LP for shared buffers, from `gate` to `pause_log`, by name; {} without such buffers.

    The log has room for twice the pauses that are kept, so that no more are lost in the cell during which it fills up.
    Raises ImpossibleRunError: the headrooms of a switch leave nothing to share, or no packet could ever enter a buffer.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        part: Nodes and links of the LP (`Part`).
        settings: Settings of the run.
    """
    if settings.switch is None:
        return {}
    gate = rows_of(Gate, len(part.links))
    pool = rows_of(SwitchBuffer, len(part.nodes))
    buffer_bytes = at_tiers(graph, settings.switch, "buffer_bytes")[part.nodes].astype(np.int64)
    pool.shared_bytes = buffer_bytes
    if settings.switch.pfc and len(part.links):
        headroom = headrooms(graph, fabric, settings)[part.links ^ 1]
        gate.headroom_bytes[:] = headroom
        # each port and class has a headroom of its own, and all share the rest
        node_headroom = np.bincount(part.local[graph.link_src[part.links]], headroom, len(part.nodes)).astype(np.int64)
        pool.shared_bytes -= node_headroom * classes_in_use(settings)
    _set_limits(gate, graph, part, settings)
    of_domain = domain_switches(graph)[part.nodes]
    _check_buffers(pool, buffer_bytes, part, settings, np.flatnonzero((part.nodes >= graph.npus) & ~of_domain))
    pool.shared_bytes[of_domain] = 0
    samples = len(part.links) * settings.queue_samples
    return {
        "gate": gate,
        "pool": pool,
        "backlog": zeros(len(part.links), np.int32),
        "facing": _facing(graph, part),
        "mark_draws": rows_of(MarkDraws, len(part.links) if settings.switch.ecn else 1),
        "depth": zeros(samples, np.int32),
        "marks": zeros(samples if settings.switch.ecn else 1, np.int32),
        "pause_log": zeros(2 * 2 * settings.logged_pauses),
    }


SMALLEST_LANE_BYTES = 51_200  # minimum of an automatic buffer (Settings.CreditSwitch)


def lane_units(graph: Graph, fabric: Fabric, settings: Settings) -> Int64:
    """Return int64[links], the size in units of each virtual lane's buffer at the end of a link.

    An automatic buffer covers the time from the begin of a full packet until its credits are back: two propagation
    times, the packet, its frame, and a packet that the frame waits for; and one more packet.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        settings: Settings of the run, with credits.

    Raises:
        ImpossibleRunError: A buffer has no room for a packet, or more than a frame can return.
    """
    rules = settings.credits
    assert rules is not None, "the caller checks it"  # noqa: S101 - for mypy
    full_bytes = settings.mtu_bytes + settings.header_bytes
    if rules.lane_buffer_bytes:
        found_bytes = np.full(graph.links, rules.lane_buffer_bytes, np.int64)
    else:
        round_trip_ps = fabric.delay_ps + fabric.delay_ps[np.arange(graph.links) ^ 1]
        found_bytes = np.ceil(round_trip_ps / fabric.psb).astype(np.int64) + 3 * full_bytes + rules.credit_frame_bytes
        # aggregators' links are so fast that their round trip holds more than any buffer
        most_bytes = (lane_credits.MAX_UNITS - 1) * rules.credit_unit_bytes
        found_bytes = np.minimum(np.maximum(found_bytes, SMALLEST_LANE_BYTES), most_bytes)
    units = found_bytes // rules.credit_unit_bytes
    need = -(-full_bytes // rules.credit_unit_bytes)
    if units.min(initial=need) < need or units.max(initial=0) >= lane_credits.MAX_UNITS:
        raise ImpossibleRunError(
            f"buffers of virtual lanes of {int(units.min())} to {int(units.max())} units of {rules.credit_unit_bytes} "
            f"bytes; expected at least the {need} of a packet, and at most {lane_credits.MAX_UNITS - 1}"
        )
    return units


def credit_lanes(graph: Graph, fabric: Fabric, part: "Part", settings: Settings) -> dict[str, Any]:
    """Return arrays gate, lane, lane_weight, pool, backlog, facing and depth of an LP; {} without credits.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        part: Nodes and links of the LP (`Part`).
        settings: Settings of the run.
    """
    if settings.credits is None:
        return {}
    rules = settings.credits
    queues = rules.virtual_lanes + QUEUES_OF_CONTROL
    lane = rows_of(VirtualLane, max(1, len(part.links) * queues))
    lane.free_units[: len(part.links) * queues] = np.repeat(lane_units(graph, fabric, settings)[part.links], queues)
    pool = rows_of(SwitchBuffer, len(part.nodes))
    pool.shared_bytes = ~domain_switches(graph)[part.nodes]
    weights = zeros(packet.MAX_DATA_CLASSES)
    # without weights a turn is a packet
    weights[: rules.virtual_lanes] = WEIGHT_BYTES * np.array(rules.lane_weights or [1] * rules.virtual_lanes)
    return {
        "gate": rows_of(Gate, len(part.links)),
        "lane": lane,
        "lane_weight": weights,
        "pool": pool,
        "backlog": zeros(len(part.links), np.int32),
        "facing": _facing(graph, part),
        "depth": zeros(len(part.links) * settings.queue_samples, np.int32),
    }


def samples(rows: int, const: Record) -> dict[str, Any]:
    """Return arrays sample and sample_log of an LP, {} if links are not sampled.

    Args:
        rows: Number of rows of `tx`, each of which gets a row of `sample`.
        const: Constants of the LP (a row `Constants`).
    """
    if const.sample_ps == 0:
        return {}
    entries = _SAMPLE_ENTRIES + int(const.reserve_samples)
    return {"sample": rows_of(LinkSample, rows), "sample_log": rows_of(SampleEntry, entries)}
