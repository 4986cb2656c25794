"""Packets, queues, transport and congestion control (docs/fabric.md)."""

from typing import Any

import pdes
from nadi.config import NetworkSection
from nadi.fidelities import fabric_settings as fabric
from nadi.fidelities.endpoints import of_endpoints

ONE_WORKER = False
QUEUE_SAMPLES = 64
LOGGED_PAUSES = 1 << 16


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings.

    Raises:
        ConfigError: no such congestion control or parameter of it, or the switches do not give what it needs.
    """
    acknowledged = network.completion == "acknowledged"
    return {
        "fidelity": pdes.messages.fidelity.fidelity(
            "packet", send_latency_ps=network.send_latency, acknowledged=acknowledged, **of_endpoints(network)
        ),
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
