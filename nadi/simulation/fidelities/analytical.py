"""Message-level models: latency and bandwidth (docs/explanation/fidelity.md)."""

from collections.abc import Sequence
from typing import Any

import pdes
from nadi.configuration.faults import FaultSection
from nadi.configuration.sections import NetworkSection, engine_settings
from nadi.errors import ConfigError

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings; without packets there are no NVLink flits, so the whole rate is payload."""
    model = engine_settings(pdes.Fidelity, network)
    kind = "congestion_aware" if model.pop("congestion_aware") else "congestion_unaware"
    return {"fidelity": pdes.fidelity.fidelity(kind, **model), "nvlink_framing": False}


def check_faults(faults: Sequence[FaultSection]) -> None:
    """Refuse all faults.

    Args:
        faults: Faults of the run file.

    Raises:
        ConfigError: There are faults.
    """
    if faults:
        raise ConfigError(
            '[[faults]]: found with [network] fidelity = "analytical"; expected "packet", "flow" or "closed-form"'
        )
