"""Latency and bandwidth of whole messages (docs/fidelity.md)."""

from typing import Any

import pdes
from nadi.config import NetworkSection
from nadi.fidelities.endpoints import of_endpoints

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings. Messages are not cut, so links carry no flits: all of a rate is payload."""
    kind = "congestion_aware" if network.congestion_aware else "congestion_unaware"
    resolution_ps = network.resolution or 1
    model = pdes.messages.fidelity.fidelity(kind, resolution_ps=resolution_ps, **of_endpoints(network))
    return {"fidelity": model, "nvlink_framing": False}
