"""What a kernel knows of a run and never changes."""

from collections.abc import Sequence

import numpy as np

from pdes.build.fabric import round_trip_ps, rto_ps, window_packets
from pdes.build.layout import Layout
from pdes.build.part import Part, offsets
from pdes.build.settings import PAUSE_FRAME_BYTES, SCHEDULINGS, Settings, SharedBuffer
from pdes.core import state as s
from pdes.core.inputs import Program, Record, Schedules
from pdes.core.memory import row_of_zeros
from pdes.core.packet import SHARE_UNITS
from pdes.core.rows.run import Constants
from pdes.nic.driven import DRIVEN


def _most_sends(schedules: Schedules) -> int:
    """The most sends that one plan holds: what one action may post."""
    if len(schedules.send_peer) == 0:
        return 1
    sends = offsets((np.asarray(schedules.send_peer) >= 0).astype(np.int64))
    ends = np.asarray(schedules.lane_ptr)[np.asarray(schedules.plan_ptr)]
    return max(1, int(np.diff(sends[ends]).max(initial=0)))


def _has_control(settings: Settings) -> bool:
    """Whether NPUs send each other requests, answers or calls."""
    return settings.rendezvous_bytes > 0 or settings.collectives_in_flight > 0


def _most_posts(schedules: Schedules, settings: Settings) -> int:
    """The most rows of the pool of messages that one action may take.

    What is asked for takes a row while it waits, and one for its request; a receive an answer and a call.
    """
    sends = _most_sends(schedules)
    if not _has_control(settings):
        return sends
    receives = offsets((np.asarray(schedules.recv_peer) >= 0).astype(np.int64))
    ends = np.asarray(schedules.lane_ptr)[np.asarray(schedules.plan_ptr)]
    return 2 * sends + 2 * int(np.diff(receives[ends]).max(initial=0)) + 2


_AS_SET = (
    "seed",
    "mtu_bytes",
    "header_bytes",
    "ack_bytes",
    "queue_limit_bytes",
    "max_retries",
    "cnp_interval_ps",
    "p2p_class",
    "flowlet_gap_ps",
    "collectives_in_flight",
)
"""Constants that are settings by the same names."""


def constants_of(layout: Layout, program: Program, settings: Settings, part: Part, routing: Sequence[int]) -> Record:
    """The constants of a run; routing: mode, dimensions and homes."""
    graph, fabric = layout.graph, layout.fabric
    sends = _most_posts(program.schedules, settings)
    connections = 1 + int(program.schedules.lane_connection.max(initial=0))
    degree = int(np.diff(part.out_ptr).max(initial=0))
    const = row_of_zeros(Constants)
    for name in _AS_SET:
        const[name] = getattr(settings, name)
    for name, value in {
        "window_packets": window_packets(graph, settings),
        "window_fixed": int(settings.congestion_control.update in {None, DRIVEN.update}),
        "rto_ps": rto_ps(graph, settings),
        "cell_ps": fabric.cell_ps,
        "lookahead_ps": layout.lookahead_ps,
        "neighbours": len(part.neighbours),
        "route_mode": routing[0],
        "dimensions": routing[1],
        "homes": routing[2],
        "npus": part.npus,
        "nodes": len(part.nodes),
        "outer": part.outer,
        "splits": int(part.splits),
        "lane_stride": 1 + max(1, int(np.diff(program.schedules.plan_ptr).max(initial=0))),
        "reserve_blocks": fabric.batch // s.BLOCK_RECORDS + 2 * s.SIDES * degree + 64,
        "reserve_messages": sends,
        "reserve_queue_pairs": min(sends, graph.npus * (connections + _has_control(settings))),
        "serial_collectives": int(not settings.concurrent_collectives),
        "record_nodes": int(settings.record_nodes),
        "record_flows": int(settings.record_flows),
        "cut_bytes": settings.header_bytes,
        "crossing_words": fabric.crossing_words,
        "carries_send_time": int("rtt" in settings.congestion_control.signals),
        "base_rtt_ps": round_trip_ps(graph, settings)[0],
        "p2p_shares": round(SHARE_UNITS / settings.p2p_share) if settings.p2p_share < 1 else 0,
        "tokens": settings.phases_per_dimension,
        "gated_dimensions": 1 + int(program.schedules.lane_gate.max(initial=-1)),
        "phase_stride": 1 + int(program.schedules.lane_phase.max(initial=-1)),
        "scheduling": SCHEDULINGS.index(settings.scheduling),
        "rendezvous_bytes": settings.rendezvous_bytes or s.INF,
        "control_bytes": settings.rendezvous_control_bytes,
        "handshakes": int(_has_control(settings)),
        "compute_slow_1000ths": _compute_slow(settings),
        "reorder_packets": settings.reorder_packets or 2 * s.SELECTIVE_PACKETS,
        "endpoint_delay_ps": settings.fidelity.endpoint_delay_ps,
        "reduces": int(settings.fidelity.reduction_psb > 0),
        "resolution_ps": settings.fidelity.resolution_ps,
        "send_latency_ps": settings.fidelity.send_latency_ps,
        "depths": settings.queue_samples if settings.switch else 0,
        **_of_shared_buffers(settings.switch),
    }.items():
        const[name] = value
    if settings.switch:
        const.reserve_blocks += fabric.batch // s.BLOCK_RECORDS + 4 * degree
    return const


def _compute_slow(settings: Settings) -> int:
    """`compute_slow_1000ths`."""
    factor = round(s.SLOWDOWN_UNIT * settings.compute_slowdown)
    return factor if factor > s.SLOWDOWN_UNIT else 0


def _of_shared_buffers(switch: SharedBuffer | None) -> dict[str, int]:
    """Constants of switches that share their buffer."""
    if switch is None:
        return {}
    weights = switch.class_weights or (0, 0)
    return {
        "pfc": int(switch.pfc),
        "pause_frame_bytes": PAUSE_FRAME_BYTES,
        "alpha_1024ths": round(1024 * switch.pfc_alpha),
        "resume_offset_bytes": switch.pfc_resume_offset_bytes,
        "ecn": int(switch.ecn),
        "trim": int(switch.trimming),
        "class_weights": weights[0] | weights[1] << 16,
    }
