"""Message-level models: latency and bandwidth (docs/explanation/fidelity.md)."""

from typing import Any

import pdes
from nadi.configuration.sections import NetworkSection, engine_settings

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings; without packets there are no NVLink flits, so the whole rate is payload."""
    model = engine_settings(pdes.Fidelity, network)
    kind = "congestion_aware" if model.pop("congestion_aware") else "congestion_unaware"
    return {"fidelity": pdes.fidelity.fidelity(kind, **model), "nvlink_framing": False}
