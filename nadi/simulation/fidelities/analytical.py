"""Message-level models: latency and bandwidth (docs/fidelity.md)."""

from typing import Any

import pdes
from nadi.configuration.sections import NetworkSection, engine_settings

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings. Messages are not cut, so links carry no flits: all of a rate is payload."""
    model = engine_settings(pdes.Fidelity, network)
    kind = "congestion_aware" if model.pop("congestion_aware") else "congestion_unaware"
    return {"fidelity": pdes.fidelity.fidelity(kind, **model), "nvlink_framing": False}
