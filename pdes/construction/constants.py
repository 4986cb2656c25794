"""What kernels read and never change: the constants of a run, and its hooks.

Hooks are functions that kernels call by address, for optional parts of the engine that not every run uses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nadi.pdes.construction.fabric import credit_window_bytes, round_trip_ps, rto_ps, tie_pause_ps, window_packets
from nadi.pdes.construction.layout import Layout, Part, offsets
from nadi.pdes.construction.settings import PAUSE_FRAME_BYTES, SCHEDULINGS, CreditSwitch, Settings, SharedBuffer
from nadi.pdes.core import Bools, Graph, ImpossibleRunError, Int32, Program, Record, Schedules, state as s
from nadi.pdes.core.jit import row_of
from nadi.pdes.core.packet import SHARE_UNITS
from nadi.pdes.core.rows.run import Constants
from nadi.pdes.fidelity import flow, networks
from nadi.pdes.fidelity.flows_with_packets import npus_with_flows, packets_are_in, post_by_kind
from nadi.pdes.messages import coupled, whole
from nadi.pdes.network import balancing, credit_switch, detours, disciplines, framing, shared_switch, telemetry
from nadi.pdes.network.balancing import _flows, _tiers
from nadi.pdes.network.credit_switch import QUEUES_OF_CONTROL
from nadi.pdes.network.routing import cell_of_several, make_changes, port_of_several
from nadi.pdes.nic import (
    congestion,
    entropy,
    pacing,
    paths,
    receiver_credits,
    rendezvous,
    selective,
    selective_receiver,
    several_ports,
    transport,
)
from nadi.pdes.npu import collective, delivery, endpoints, in_flight, npu_window
from nadi.pdes.reuse_kernels.domains import enter_domain, leave_domain

OF_SETTINGS = (  # constants named like the fields of Settings that give their values
    "seed mtu_bytes header_bytes ack_bytes queue_limit_bytes max_retries max_resends cnp_interval_ps "
    "flowlet_gap_ps collectives_in_flight record_nodes record_flows one_at_a_time remote_sharers sample_ps tick_ps "
    "paths cnp_delay_ps"
)
OF_FIDELITY = "endpoint_delay_ps resolution_ps send_latency_ps"  # constants named like fields of Fidelity


def _max_peer_steps(schedules: Schedules, peer_of_step: Int32) -> int:
    """Return the maximum number of steps of a plan with a peer; peer_of_step: send_peer or recv_peer, -1 = none."""
    ends = offsets(peer_of_step >= 0)[schedules.lane_ptr[schedules.plan_ptr]]
    return int(np.diff(ends).max(initial=0))


def constants_of(layout: Layout, program: Program, settings: Settings, part: Part, routing: Sequence[int]) -> Record:
    """Return the row `Constants` of `part` from layout, program, settings, and routing: dimensions and homes."""
    graph, fabric, schedules = layout.graph, layout.fabric, program.schedules
    has_control = settings.rendezvous_bytes > 0 or settings.collectives_in_flight > 0  # requests, answers or calls
    # rows of messages that one action may take; with rendezvous, a send takes a row while it waits and one for its
    # request, a receive one for an answer and one for a call
    sends = max(1, _max_peer_steps(schedules, schedules.send_peer))
    if has_control:
        sends = 2 * sends + 2 * _max_peer_steps(schedules, schedules.recv_peer) + 2
    lanes = max(1, int(np.diff(schedules.plan_ptr).max(initial=0)))
    stages = coupled.MAX_STAGES if settings.coupled is not None else 0
    if settings.coupled is not None and settings.coupled.is_coupled.all():
        sends = lanes = 1
    connections = 1 + int(schedules.lane_connection.max(initial=0))
    degree = int(np.diff(part.out_ptr).max(initial=0))
    const = row_of(Constants)
    for name in OF_SETTINGS.split():
        const[name] = getattr(settings, name)
    const.grade_bytes[:] = settings.grade_thresholds
    for name in OF_FIDELITY.split():
        const[name] = getattr(settings.fidelity, name)
    _set_transport(const, graph, settings)
    const.tie_pause_ps = tie_pause_ps(graph, settings)
    const.circuits_period_ps = settings.faults.circuits.period_ps
    const.cell_ps = const.long_cell_ps = fabric.cell_ps
    const.lookahead_ps = layout.lookahead_ps
    const.lists = part.lists
    const.dimensions, const.homes = routing
    const.several_nics = routing[0] == 0 and has_several_nics(graph)
    const.npus, const.nodes = part.npus, len(part.nodes)
    const.outer, const.splits = part.outer, part.splits
    const.lane_stride = 1 + lanes
    const.reserve_blocks = fabric.batch // s.BLOCK_RECORDS + 2 * s.SIDES * degree + 64
    const.reserve_messages = sends + (settings.tick_ps > 0) + (settings.cnp_delay_ps > 0)
    const.reserve_queue_pairs = max(stages, min(sends, graph.npus * (connections + has_control)))
    const.serial_collectives = not settings.concurrent_collectives
    const.cut_bytes = settings.header_bytes
    const.crossing_words = fabric.crossing_words
    const.base_rtt_ps = round_trip_ps(graph, settings)[0]
    const.p2p_shares = round(SHARE_UNITS / settings.p2p_share) if settings.p2p_share < 1 else 0
    const.tokens = settings.phases_per_dimension
    const.gated_dimensions = 1 + int(schedules.lane_gate.max(initial=-1))
    const.phase_stride = 1 + int(schedules.lane_phase.max(initial=-1))
    const.scheduling = SCHEDULINGS.index(settings.scheduling)
    const.rendezvous_bytes = settings.rendezvous_bytes or s.INF
    const.control_bytes = settings.rendezvous_control_bytes
    const.handshakes = has_control
    const.slows_compute = settings.slows_compute
    const.reduces = settings.fidelity.reduction_psb > 0
    const.spreads = settings.overtakes
    const.reserve_samples = 8 * (fabric.batch + degree) if settings.sample_ps else 0  # up to 3 per packet, twice
    const.nominal_classes = graph.links if settings.flow_groups is not None else 0
    # no path crosses a link twice; as many for acknowledgements, and one for a coupled flow of which paths are sought
    const.reserve_hops = (2 if settings.coupled is None else 3) * graph.links
    _set_port_queues(const, settings, fabric.batch, degree)
    return const


def reorder_packets(settings: Settings, window: int) -> int:
    """Return the reordering in packets beyond which a packet counts as lost.

    Args:
        settings: Settings of the run.
        window: Packets that a queue pair may have unacknowledged.
    """
    if settings.reorder_packets:
        return settings.reorder_packets
    # Rules that look for broken paths need losses before the timeout. A window fills about a round trip, which is as
    # long as the queue from which switches trim (Ultra Ethernet 1.0.2, page 460), so what arrives at all is not much
    # later. Where a window counts from the first unacknowledged packet, no more than the rest of it arrives behind one
    # that is lost, so half of it must do.
    if settings.entropy.probes:
        return window if settings.by_flight else max(1, window // 2)
    return 2 * s.SELECTIVE_PACKETS


def _set_transport(const: Record, graph: Graph, settings: Settings) -> None:
    """Set the constants of queue pairs: windows, timeouts, credits, and how they find losses."""
    const.window_packets = window_packets(graph, settings)
    const.window_fixed = settings.congestion_control.update is None
    const.rto_ps = rto_ps(graph, settings)
    const.carries_send_time = "rtt" in settings.congestion_control.signals
    const.reorder_packets = reorder_packets(settings, int(const.window_packets))
    const.probes = settings.entropy.probes
    _set_denied(const, graph, settings)
    const.extends_transport = settings.selective_repeat or settings.receiver_credits or bool(settings.entropy.act)
    const.by_flight = settings.by_flight
    # without their conditions both keys are without effect
    chooses_early = settings.routing.reads_queues and all(rule.name == "ecmp" for rule in settings.balancings)
    const.routing_delay_ps = settings.routing_delay_ps * chooses_early
    const.sleek = settings.sleek and settings.selective_repeat
    const.ack_every_bytes = settings.ack_every_bytes * settings.coalesces
    if settings.receiver_credits:
        const.credit_window_bytes = credit_window_bytes(graph, settings)
        # oversubscribed_cc.cpp, setOversubscriptionRatio
        const.min_pull_rate = max(0.01, 0.9 / settings.oversubscription) if settings.oversubscription > 1 else 1.0


PORT_RULES = ("one", "first", "hash", "all")  # values of `Settings.nic_ports`


def _set_denied(const: Record, graph: Graph, settings: Settings) -> None:
    """Set the constants of ports, and of the planes, spines and paths that an operator denies to senders."""
    const.port_rule = PORT_RULES.index(settings.nic_ports)
    const.denies = bool(settings.denied_paths)
    is_nic = is_nic_link(graph)
    ports = np.bincount(graph.link_src[is_nic], minlength=1)
    const.planes = max(1, ports.max()) if settings.spreads_ports else 1
    const.turned_ports = max(1, ports.max()) if settings.nic_ports in {"one", "all"} else 1
    up = np.isin(graph.link_src, graph.link_dst[is_nic]) & (graph.link_dst >= graph.npus)
    const.uplinks = max(1, np.bincount(graph.link_src[up], minlength=1).max())
    spines, paths = np.zeros((entropy.MAX_PLANES, entropy.MAX_SPINES), np.int64), np.zeros(s.MAX_PATHS, np.int64)
    for plane, spine, path in entropy.denied_of(settings.denied_paths):
        if plane >= const.planes or spine >= min(const.uplinks, entropy.MAX_SPINES) or path >= settings.paths:
            raise ImpossibleRunError(
                f"denied_paths: plane {plane}, spine {spine} or path {path} of {const.planes} planes with "
                f"{const.uplinks} spines and {settings.paths} paths; expected smaller numbers, counted from 0"
            )
        if path >= 0:
            paths[path] = 1
        else:
            spines[plane if plane >= 0 else slice(None), spine if spine >= 0 else slice(None)] = 1
    if spines[: const.planes, : const.uplinks].all() or paths[: settings.paths].all():
        raise ImpossibleRunError("denied_paths: all paths are denied; expected some that are left")
    bits = np.concatenate([spines.ravel(), paths]).reshape(-1, 32)
    const.denied = (bits << np.arange(32)).sum(axis=1)


def is_nic_link(graph: Graph) -> Bools:
    """Return bool[links], whether a link of `graph` leads from an NPU to an ordinary switch."""
    to_switch = (graph.link_dst >= graph.npus) & (graph.node_kind[graph.link_dst] != framing.NVSWITCH_KIND)
    is_nic: Bools = (graph.link_src < graph.npus) & to_switch
    return is_nic


def has_several_nics(graph: Graph) -> bool:
    """Return whether some NPU has several links to ordinary switches.

    Args:
        graph: The fabric (`Graph`).
    """
    return bool(np.bincount(graph.link_src[is_nic_link(graph)]).max(initial=0) > 1)


def _set_port_queues(const: Record, settings: Settings, batch: int, degree: int) -> None:
    """Set the constants of switches with queues at their ports; batch: packets of a cell, degree: links of a node."""
    if settings.switch:
        _set_switch(const, settings.switch, settings)
    if settings.credits:
        _set_credits(const, settings.credits, settings)
    if settings.has_port_queues:
        # a queue that is not empty has a block; with credits, a departure may need one for its frame
        const.reserve_blocks += (
            batch // s.BLOCK_RECORDS + 2 * max(2, len(settings.data_classes), int(const.queues)) * degree
        )


def _set_switch(const: Record, switch: SharedBuffer, settings: Settings) -> None:
    """Set the constants of switches with shared buffers."""
    const.depths = settings.queue_samples
    const.ecn = settings.has_ecn
    const.trim = settings.trims
    const.trimmed_bytes = switch.trimmed_size_bytes or settings.header_bytes
    const.pause_frame_bytes = PAUSE_FRAME_BYTES
    const.classes = sum(1 << each for each in settings.data_classes)
    rising = (1 << switch.pfc_rising_classes - 1) - 1  # all but the last one, from the class of a message on
    const.rising_lanes = sum(rising << each for each in settings.message_classes)
    const.strict_classes = sum(1 << i for i, weight in enumerate(switch.class_weights) if weight == 0)


def _set_credits(const: Record, rules: CreditSwitch, settings: Settings) -> None:
    """Set the constants of links with credits."""
    const.depths = settings.queue_samples
    const.lanes = rules.virtual_lanes
    const.queues = rules.virtual_lanes + QUEUES_OF_CONTROL
    const.credit_bytes = rules.credit_unit_bytes
    const.full_units = -(-(settings.mtu_bytes + settings.header_bytes) // rules.credit_unit_bytes)
    const.return_units = rules.credit_return_bytes // rules.credit_unit_bytes
    const.credit_frame_bytes = rules.credit_frame_bytes
    const.high_lanes = ((1 << rules.high_lanes) - 1) << (rules.virtual_lanes - rules.high_lanes)
    const.high_limit_bytes = rules.high_limit_bytes
    # all lanes but the last one of collectives, and of point-to-point messages
    const.rising_lanes = ((1 << rules.virtual_lanes - 1) - 1) & ~(1 << settings.p2p_class >> 1)


Hook = Callable[..., Any]


def _choices(
    settings: Settings,
    control: congestion.Control,
    *,
    one_home: bool,
    one_port: bool,
    has_domains: bool,
    has_nics: bool,
) -> list[tuple[str, Any, Any]]:
    """Return (word of `Hooks`, whether the run calls it, hook); control: the run's congestion control."""
    # one_home, one_port: whether each NPU has only one. has_domains: whether the fabric has NVLink domains that may be
    # replayed. has_nics: whether some NPU has several NICs, or ports of one.
    ends = settings.fidelity
    pick = settings.switch.discipline.pick if settings.switch and settings.switch.discipline else None
    return [
        *_of_senders(settings, control, has_nics=has_nics),
        *_of_balancing(settings),
        ("detour", settings.routing.route, settings.routing.route),
        ("publish", settings.routing.publish, settings.routing.publish),
        ("shared_switches", settings.switch, shared_switch.shared_switches),
        ("shared_switches", settings.credits, credit_switch.credit_switches),
        ("discipline", pick, pick),
        ("route", not one_home, cell_of_several),
        ("choose_port", not one_port, port_of_several),
        ("make_changes", settings.faults, make_changes),
        *_message_choices(settings),
        ("join", has_domains, enter_domain),
        ("leave_domain", has_domains, leave_domain),
        ("is_acknowledged", ends.acknowledged, endpoints.is_acknowledged),
        (
            "first_allowed",
            settings.has_port_queues or control.update or settings.selective_repeat,
            pacing.first_allowed,
        ),
    ]


def _of_balancing(settings: Settings) -> list[tuple[str, Any, Any]]:
    """Return those of `_choices` that belong to load balancing, of all switches or by tier."""
    rules = settings.balancings
    picks = [rule.pick or (_flows.pick if settings.entropy.act else None) for rule in rules]
    own = [(f"balancing_{number}", pick, pick) for number, pick in enumerate(picks) if len(rules) > 1]
    return [("balancing", len(rules) == 1 and picks[0], picks[0]), ("balancing", len(rules) > 1, _tiers.pick), *own]


def _message_choices(settings: Settings) -> list[tuple[str, Any, Any]]:
    """Return what `_choices` returns, of the hooks for messages and their endpoints."""
    ends, hooks = settings.fidelity, settings.fidelity.hooks
    by_message, is_mixed = hooks.act is not None, settings.flow_groups is not None
    acts_later = ends.endpoint_delay_ps or ends.reduction_psb or ends.acknowledged
    has_control = settings.rendezvous_bytes or settings.collectives_in_flight
    return [
        ("post", by_message, whole.post_whole),
        ("post", is_mixed, post_by_kind),
        ("post", not by_message and (ends.send_latency_ps or ends.acknowledged), endpoints.post_at_ends),
        ("act", by_message, hooks.act),
        ("settle", hooks.settle, hooks.settle),
        ("settle", is_mixed, flow.settle),
        ("npus_with_flows", is_mixed, npus_with_flows),
        ("join", settings.coupled is not None, coupled.join),
        ("ask", settings.rendezvous_bytes, rendezvous.ask),
        ("expect", has_control, collective.expect),
        ("message_by_kind", has_control, delivery.message_by_kind),
        ("may_start", settings.collectives_in_flight, in_flight.may_start),
        ("running", settings.collectives_in_flight or settings.slows_compute, in_flight.running),
        ("is_in", not by_message and acts_later, endpoints.is_in),
        ("is_in", is_mixed, packets_are_in),
        ("do_later", not by_message, endpoints.do_later),
        ("wait_for_tick", settings.tick_ps, npu_window.wait_for_tick),
        ("post_later", not by_message, endpoints.post_later),
        ("post_later", by_message, whole.post_whole_later),
    ]


def _of_senders(settings: Settings, control: congestion.Control, *, has_nics: bool) -> list[tuple[str, Any, Any]]:
    """Return those of `_choices` that belong to queue pairs and NICs."""
    is_rate_limited = control == pacing.RATE_LIMITED
    return [
        ("congestion_control", control.update, control.update),
        ("pace", control.update and not is_rate_limited, pacing.pace),
        ("pace", is_rate_limited, pacing.limit_rate),
        ("begin_message", is_rate_limited, pacing.begin_message),
        ("notify", "cnp" in control.signals, transport.notify),
        ("notify", "cnp" in control.signals and settings.cnp_delay_ps, endpoints.notify_later),
        ("telemetry", "telemetry" in control.signals, telemetry.carry),
        ("credits", settings.receiver_credits, receiver_credits.manage),
        ("selective_sender", settings.selective_repeat, selective.sender),
        ("selective_receiver", settings.selective_repeat, selective_receiver.receive),
        ("paths", settings.entropy.act, paths.steer),
        ("entropy", settings.entropy.act, settings.entropy.act),
        ("nic_send", (has_nics and settings.spreads_ports) or settings.credits, several_ports.nic_send),
    ]


def all_hooks() -> list[Hook]:
    """Return every hook that any run may use."""
    choices = _choices(Settings(), congestion.NO_CONTROL, one_home=True, one_port=True, has_domains=True, has_nics=True)
    ours = [hook for _, _, hook in choices]
    controls = [control.update for control in (pacing.RATE_LIMITED, *map(congestion.control, congestion.names()))]
    rules = [_flows.pick, *(balancing.balancing(name).pick for name in balancing.names())]
    rules += [hook for rule in map(detours.detours, detours.names()) for hook in (rule.route, rule.publish)]
    orders = [disciplines.discipline(name).pick for name in disciplines.names()]
    spreads = [entropy.entropy_rule(name).act for name in entropy.names()]
    moves = [hook for model in networks().values() for hooks in model.hooks for hook in (hooks.act, hooks.settle)]
    return [hook for hook in dict.fromkeys(ours + controls + rules + orders + spreads + moves) if hook]


def hooks_of(layout: Layout, settings: Settings) -> dict[str, Hook]:
    """Return the hooks of a run: name (of `Hooks`) -> hook.

    Args:
        layout: Division of the fabric among LPs (`Layout`).
        settings: Settings of the run.
    """
    graph = layout.graph
    one_way = graph.routing.dimensions == 0 and graph.routing.homes_per_npu == 1
    ports = np.bincount(graph.link_src[graph.link_src < graph.npus]).max(initial=0)
    choices = _choices(
        settings,
        layout.control,
        one_home=one_way,
        one_port=ports <= 1,
        has_domains=layout.replays,
        has_nics=has_several_nics(graph),
    )
    return {name: hook for name, is_called, hook in choices if is_called}
