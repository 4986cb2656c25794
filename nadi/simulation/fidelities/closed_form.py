"""Collectives at their closed forms, messages alone on their paths, no contention (docs/explanation/fidelity.md)."""

from dataclasses import replace
from typing import Any

from nadi.configuration.sections import NetworkSection
from nadi.simulation.fidelities import packet
from pdes import congestion

ONE_WORKER = True
WITHOUT_QUEUES = {"switch": None, "congestion_control": congestion.NO_CONTROL, "selective_repeat": False}
"""Overrides for a fabric without queues and losses, so that no check of switches and windows applies."""


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings: those of packets, from which closed forms are computed.

    Raises:
        ConfigError: As for packets.
    """
    keywords = packet.settings(network)
    fidelity = replace(keywords["fidelity"], name="closed_form", is_closed_form=True)
    return keywords | {"fidelity": fidelity} | WITHOUT_QUEUES
