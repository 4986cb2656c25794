"""Latency and bandwidth of whole messages (docs/fidelity.md)."""

from typing import Any

import pdes
from nadi.config import NetworkSection

ONE_WORKER = True
_BYTE_PS = 8e12


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings."""
    kind = "congestion_aware" if network.congestion_aware else "congestion_unaware"
    rate_bps = network.reduction_bandwidth
    return {
        "fidelity": pdes.fidelity.fidelity(
            kind,
            endpoint_delay_ps=network.endpoint_delay or 0,
            reduction_psb=0.0 if rate_bps is None else _BYTE_PS / rate_bps,
            resolution_ps=network.resolution or 1,
        )
    }
