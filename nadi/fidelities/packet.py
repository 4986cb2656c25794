"""Packets, queues, transport and congestion control (docs/fabric.md)."""

from typing import Any

from nadi import fabric
from nadi.config import NetworkSection

ONE_WORKER = False
QUEUE_SAMPLES = 64
LOGGED_PAUSES = 1 << 16


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings.

    Raises:
        ConfigError: no such congestion control or parameter of it, or the switches do not give what it needs.
    """
    return {
        "mtu_bytes": network.mtu,
        "header_bytes": network.header_bytes,
        "ack_bytes": network.ack_bytes,
        "window_bytes": network.window,
        "queue_limit_bytes": network.queue_limit,
        "nvlink_framing": network.nvlink_framing,
        "cut_through": network.switching == "cut-through",
        "cut_through_header_bytes": network.header_bytes,
        "rto_ps": network.retransmit_timeout,
        "max_retries": network.max_retries,
        "switch": fabric.shared_buffer(network),
        "control": fabric.control(network),
        "cnp_interval_ps": network.cnp_interval,
        "p2p_class": network.p2p_class or 0,
        "flowlet_gap_ps": network.flowlet_gap,
        "queue_samples": QUEUE_SAMPLES,
        "logged_pauses": LOGGED_PAUSES,
        **fabric.transport(network),
    }
