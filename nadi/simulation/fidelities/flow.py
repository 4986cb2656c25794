"""Flows that share links max-min fairly (docs/explanation/fidelity.md)."""

from typing import Any

import pdes
from nadi.configuration.sections import NetworkSection, engine_settings
from nadi.simulation.fidelities.packet import settings as packet_settings
from nadi.simulation.fidelities.closed_form import WITHOUT_QUEUES

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings: those of packets, without queues and losses.

    Raises:
        ConfigError: As for packets.
    """
    keywords = packet_settings(network)
    model = engine_settings(pdes.Fidelity, network) | {"acknowledged": False}
    return keywords | {"fidelity": pdes.fidelity.fidelity("flow", **model)} | WITHOUT_QUEUES
