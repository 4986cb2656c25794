"""The constants of a run that kernels read and never change."""

from collections.abc import Sequence

import numpy as np

from pdes.build.fabric import round_trip_ps, rto_ps, window_packets
from pdes.build.layout import Layout, Part, offsets
from pdes.build.settings import PAUSE_FRAME_BYTES, SCHEDULINGS, Settings
from pdes.core import state as s
from pdes.core.inputs import Int32, Program, Record, Schedules
from pdes.core.memory import row_of
from pdes.core.packet import SHARE_UNITS
from pdes.core.rows.run import Constants
from pdes.nic.driven import DRIVEN

OF_SETTINGS = (  # constants named like the fields of Settings that give their values
    "seed mtu_bytes header_bytes ack_bytes queue_limit_bytes max_retries cnp_interval_ps p2p_class flowlet_gap_ps "
    "collectives_in_flight record_nodes record_flows"
)
OF_FIDELITY = "endpoint_delay_ps resolution_ps send_latency_ps"  # constants named like fields of Fidelity


def _max_peer_steps(schedules: Schedules, peers: Int32) -> int:
    """Return the maximum number of steps of one plan that send to a peer, or that receive from one."""
    ends = offsets(peers >= 0)[schedules.lane_ptr[schedules.plan_ptr]]
    return int(np.diff(ends).max(initial=0))


def constants_of(layout: Layout, program: Program, settings: Settings, part: Part, routing: Sequence[int]) -> Record:
    """Return the constants of a run; routing: the constants dimensions and homes."""
    graph, fabric, schedules, switch = layout.graph, layout.fabric, program.schedules, settings.switch
    has_control = settings.rendezvous_bytes > 0 or settings.collectives_in_flight > 0  # requests, answers or calls
    # rows of messages that one action may take; with rendezvous, a send takes a row while it waits and one for its
    # request, a receive one for an answer and one for a call
    sends = max(1, _max_peer_steps(schedules, schedules.send_peer))
    if has_control:
        sends = 2 * sends + 2 * _max_peer_steps(schedules, schedules.recv_peer) + 2
    connections = 1 + int(schedules.lane_connection.max(initial=0))
    degree = int(np.diff(part.out_ptr).max(initial=0))
    const = row_of(Constants)
    for name in OF_SETTINGS.split():
        const[name] = getattr(settings, name)
    for name in OF_FIDELITY.split():
        const[name] = getattr(settings.fidelity, name)
    const.window_packets = window_packets(graph, settings)
    const.window_fixed = settings.congestion_control.update in {None, DRIVEN.update}
    const.rto_ps = rto_ps(graph, settings)
    const.cell_ps = fabric.cell_ps
    const.lookahead_ps = layout.lookahead_ps
    const.neighbours = len(part.neighbours)
    const.dimensions, const.homes = routing
    const.npus, const.nodes = part.npus, len(part.nodes)
    const.outer, const.splits = part.outer, part.splits
    const.lane_stride = 1 + max(1, int(np.diff(schedules.plan_ptr).max(initial=0)))
    const.reserve_blocks = fabric.batch // s.BLOCK_RECORDS + 2 * s.SIDES * degree + 64
    const.reserve_messages = sends
    const.reserve_queue_pairs = min(sends, graph.npus * (connections + has_control))
    const.serial_collectives = not settings.concurrent_collectives
    const.cut_bytes = settings.header_bytes
    const.crossing_words = fabric.crossing_words
    const.carries_send_time = "rtt" in settings.congestion_control.signals
    const.base_rtt_ps = round_trip_ps(graph, settings)[0]
    const.p2p_shares = round(SHARE_UNITS / settings.p2p_share) if settings.p2p_share < 1 else 0
    const.tokens = settings.phases_per_dimension
    const.gated_dimensions = 1 + int(schedules.lane_gate.max(initial=-1))
    const.phase_stride = 1 + int(schedules.lane_phase.max(initial=-1))
    const.scheduling = SCHEDULINGS.index(settings.scheduling)
    const.rendezvous_bytes = settings.rendezvous_bytes or s.INF
    const.control_bytes = settings.rendezvous_control_bytes
    const.handshakes = has_control
    slow_1000ths = round(s.SLOWDOWN_UNIT * settings.compute_slowdown)
    const.compute_slow_1000ths = slow_1000ths if slow_1000ths > s.SLOWDOWN_UNIT else 0
    const.reorder_packets = settings.reorder_packets or 2 * s.SELECTIVE_PACKETS
    const.reduces = settings.fidelity.reduction_psb > 0
    if switch:
        weights = switch.class_weights or (1, 1)
        const.depths = settings.queue_samples
        const.pfc, const.ecn, const.trim = switch.pfc, switch.ecn, switch.trimming
        const.pause_frame_bytes = PAUSE_FRAME_BYTES
        const.alpha_1024ths = round(1024 * switch.pfc_alpha)
        const.resume_offset_bytes = switch.pfc_resume_offset_bytes
        const.class_weights = weights[0] | weights[1] << 16
        const.reserve_blocks += fabric.batch // s.BLOCK_RECORDS + 4 * degree
    return const
