"""Latency and bandwidth of whole messages (docs/fidelity.md)."""

from typing import Any

import pdes
from nadi.config import NetworkSection
from nadi.fidelities.endpoints import of_endpoints

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings."""
    kind = "congestion_aware" if network.congestion_aware else "congestion_unaware"
    resolution_ps = network.resolution or 1
    return {"fidelity": pdes.fidelity.fidelity(kind, resolution_ps=resolution_ps, **of_endpoints(network))}
