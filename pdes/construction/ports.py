"""The first state of ports: shared buffers by tier and data class, headrooms, credits by lane, samples of links."""

from typing import TYPE_CHECKING, Any

import numpy as np

from nadi.pdes.construction.fabric import NPU_KIND, REFERENCE_BPS, Fabric, at_tiers, nic_rate_bps
from nadi.pdes.construction.settings import PAUSE_FRAME_BYTES, Settings, SharedBuffer, TierSwitch
from nadi.pdes.core import Graph, ImpossibleRunError, Int32, Int64, Record, Rows, packet, state as s
from nadi.pdes.core.jit import aligned, rows_of, zeros
from nadi.pdes.core.rows.network import (
    Gate,
    LinkSample,
    MarkDraws,
    SampleEntry,
    SwitchBuffer,
    VirtualLane,
)
from nadi.pdes.core.rows.run import ClassMarks
from nadi.pdes.network import lane_credits, port_queues
from nadi.pdes.network.credit_switch import QUEUES_OF_CONTROL
from nadi.pdes.network.framing import domain_switches
from nadi.pdes.network.shared_switch import trimmed_a_turn
from nadi.pdes.nic.several_ports import READ_AHEAD_PS

if TYPE_CHECKING:
    from nadi.pdes.construction.layout import Part

WEIGHT_BYTES = 64  # bytes of a unit of the weights of virtual lanes (IBTA volume 1, 7.6.9.2)
_SAMPLE_ENTRIES = 1 << 14  # entries of the log of samples beside those that one action may use: 512 KB


def headrooms(graph: Graph, fabric: Fabric, settings: Settings) -> Int64:
    """Return int64[links], bytes per class that may still arrive over a link after its receiver asks for a pause.

    The value is 0 for NVLink within a domain, and for links to switches without PFC, which know no pauses.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        settings: Settings of the run.
    """
    # The pause frame waits behind a packet that has just begun, both directions take their propagation time, and the
    # other end may just have begun a packet; one more packet is the one that caused the pause. (IEEE 802.1Qbb annex O
    # counts the same terms.) What a port of a NIC has stored leaves all the same.
    packet = settings.mtu_bytes + settings.header_bytes
    round_trip_ps = fabric.delay_ps + fabric.delay_ps[np.arange(graph.links) ^ 1]
    found = np.ceil(round_trip_ps / fabric.psb).astype(np.int64) + 3 * packet + PAUSE_FRAME_BYTES
    if settings.spreads_ports:
        read_ahead_bytes = READ_AHEAD_PS * nic_rate_bps(graph, settings) // int(s.PS_PER_BYTE_AT_1_BPS)
        found[graph.node_kind[graph.link_src] == NPU_KIND] += read_ahead_bytes
    if settings.switch:
        given = at_tiers(graph, settings, "pfc_headroom_bytes")[graph.link_dst].astype(np.int64)
        found = np.where(given > 0, given, found)
        found[~at_tiers(graph, settings, "pfc")[graph.link_dst].astype(bool)] = 0
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
    too_small = switches[pool.shared_bytes[switches] <= 0]
    if len(too_small):
        node = int(part.nodes[too_small[0]])
        own_bytes = int(buffer_bytes[too_small[0]])
        need = own_bytes - int(pool.shared_bytes[too_small[0]])
        raise ImpossibleRunError(
            f"switch {node}: a buffer of {own_bytes} bytes, but the headrooms of its ports take "
            f"{need}; expected a larger buffer or smaller headrooms"
        )
    full_bytes = settings.mtu_bytes + settings.header_bytes
    max_queue_bytes = np.minimum(1024, pool.alpha_1024ths[switches].astype(np.int64)) * buffer_bytes[switches] >> 10
    drops = (pool.pfc[switches] & lossless_bits(settings)) != sum(1 << each for each in settings.data_classes)
    too_small = np.flatnonzero(drops & (max_queue_bytes < full_bytes))
    if len(too_small):
        first = too_small[0]
        raise ImpossibleRunError(
            f"a switch with a buffer of {buffer_bytes[switches][first]} bytes and pfc_alpha "
            f"{pool.alpha_1024ths[switches][first] / 1024:g} lets {max_queue_bytes[first]} bytes wait in a queue; "
            f"expected at least a packet of {full_bytes}"
        )


def lossless_bits(settings: Settings) -> int:
    """Return the data classes whose senders a switch with PFC pauses, as a bit set.

    Args:
        settings: Settings of the run.
    """
    return sum(1 << each for each in settings.lossless_classes)


def _set_tiers(pool: Rows, graph: Graph, part: "Part", settings: Settings) -> None:
    """Set what the switches of a tier have in common, in the rows `pool` of an LP's nodes."""
    switch = settings.switch or SharedBuffer()
    of_node = {key: at_tiers(graph, settings, key)[part.nodes] for key in TierSwitch._fields[3:]}
    pool.pfc[:] = of_node["pfc"].astype(bool) * lossless_bits(settings)
    pool.trim[:] = of_node["trimming"]
    pool.alpha_1024ths[:] = np.round(1024 * of_node["pfc_alpha"].astype(np.float64))
    pool.resume_offset_bytes[:] = of_node["pfc_resume_offset_bytes"]
    full_bytes = settings.mtu_bytes + settings.header_bytes
    trimmed_bytes = switch.trimmed_size_bytes or settings.header_bytes
    shares = of_node["trim_share"].astype(np.float64)
    for share in np.unique(shares):
        pool.trimmed_a_turn[shares == share] = trimmed_a_turn(float(share), full_bytes, trimmed_bytes)


def _set_limits(gate: Rows, graph: Graph, part: "Part", settings: Settings) -> None:
    """Set the thresholds of the ports of an LP's switches, rows `gate`, which mark packets, and which lead to NPUs."""
    switch = settings.switch or SharedBuffer()
    to_npu, source = graph.link_dst[part.links] < graph.npus, graph.link_src[part.links]
    marks = at_tiers(graph, settings, "ecn")[source].astype(bool) & (switch.ecn_last_hop | ~to_npu)
    gate.traits[:] = (
        port_queues.TO_NPU * to_npu + (port_queues.MARKS_BY_CLASS if switch.ecn_by_class else port_queues.MARKS) * marks
    )
    factor = np.where(to_npu, switch.trim_last_hop, 1.0) * graph.link_rate_bps[part.links] / REFERENCE_BPS
    limits = at_tiers(graph, settings, "trim_threshold_bytes")[source].astype(np.float64) * factor
    smallest = settings.mtu_bytes + settings.header_bytes
    pauses = at_tiers(graph, settings, "pfc")[source].astype(bool)
    gate.limit_bytes[:] = np.where((limits > 0) & ~pauses, np.maximum(limits, smallest), 0)


def class_arrays(settings: Settings, part: "Part") -> dict[str, Any]:
    """Return arrays group_class and p2p_class of an LP.

    Args:
        settings: Settings of the run.
        part: Nodes and links of the LP (`Part`).
    """
    of_npus = np.full(part.npus, settings.p2p_class)
    if settings.p2p_classes is not None:
        own = part.nodes[: part.npus]
        known = own < len(settings.p2p_classes)  # aggregators, which come after the NPUs, send collectives alone
        of_npus[known] = settings.p2p_classes[own[known]]
    groups = np.zeros(1) if settings.group_classes is None else settings.group_classes
    return {"group_class": aligned(groups, np.int8), "p2p_class": aligned(of_npus, np.int8)}


def _class_marks(switch: SharedBuffer) -> Rows:
    """Return the rows `ClassMarks` of switches, by data class."""
    rows = rows_of(ClassMarks, packet.MAX_DATA_CLASSES)
    for number, kmin_bytes, kmax_bytes, pmax in switch.ecn_by_class:
        rows.kmin_bytes[number], rows.kmax_bytes[number] = kmin_bytes, kmax_bytes
        rows.pmax[number], rows.is_own[number] = int(pmax * 2**32), 1
    return rows


def _queues_of_ports(graph: Graph, part: "Part", settings: Settings) -> dict[str, Any]:
    """Return the arrays of ports that queue packets, whether they share buffers or have credits, by name."""
    return {
        "gate": rows_of(Gate, len(part.links)),
        "pool": rows_of(SwitchBuffer, len(part.nodes)),
        "lane_weight": zeros(packet.MAX_DATA_CLASSES),
        "backlog": zeros(len(part.links), np.int32),
        "facing": _facing(graph, part),
        "depth": zeros(len(part.links) * settings.queue_samples, np.int32),
    }


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
    queues = _queues_of_ports(graph, part, settings)
    gate, pool, weights = queues["gate"], queues["pool"], queues["lane_weight"]
    buffer_bytes = at_tiers(graph, settings, "buffer_bytes")[part.nodes].astype(np.int64)
    pool.shared_bytes = buffer_bytes
    _set_tiers(pool, graph, part, settings)
    if len(part.links):
        headroom = headrooms(graph, fabric, settings)[part.links ^ 1]
        gate.headroom_bytes[:] = headroom
        # each port and class has a headroom of its own, and all share the rest
        node_headroom = np.bincount(part.local[graph.link_src[part.links]], headroom, len(part.nodes)).astype(np.int64)
        pool.shared_bytes -= node_headroom * len(settings.lossless_classes)
    _set_limits(gate, graph, part, settings)
    of_domain = domain_switches(graph)[part.nodes]
    _check_buffers(pool, buffer_bytes, part, settings, np.flatnonzero((part.nodes >= graph.npus) & ~of_domain))
    pool.shared_bytes[of_domain] = 0
    weights[:] = 1
    weights[: len(settings.switch.class_weights)] = settings.switch.class_weights
    return queues | {
        "class_marks": _class_marks(settings.switch),
        "mark_draws": rows_of(MarkDraws, len(part.links) if settings.has_ecn else 1),
        "marks": zeros(len(queues["depth"]) if settings.has_ecn else 1, np.int32),
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
    lanes = rules.virtual_lanes + QUEUES_OF_CONTROL
    lane = rows_of(VirtualLane, max(1, len(part.links) * lanes))
    lane.free_units[: len(part.links) * lanes] = np.repeat(lane_units(graph, fabric, settings)[part.links], lanes)
    queues = _queues_of_ports(graph, part, settings)
    queues["pool"].shared_bytes = ~domain_switches(graph)[part.nodes]
    # without weights a turn is a packet
    weights_bytes = WEIGHT_BYTES * np.array(rules.lane_weights or [1] * rules.virtual_lanes)
    queues["lane_weight"][: rules.virtual_lanes] = weights_bytes
    return queues | {"lane": lane}


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
