"""Collectives at their closed forms, messages alone on their paths, no contention (docs/fidelity.md)."""

from dataclasses import replace
from typing import Any

from nadi.configuration.sections import NetworkSection
from nadi.simulation.fidelities import packet
from pdes import congestion

ONE_WORKER = True
_WITHOUT_QUEUES = {"switch": None, "congestion_control": congestion.NO_CONTROL, "selective_repeat": False}
"""Nothing waits in a switch or gets lost, so what the fabric must fit for that is not asked of it."""


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings: those of packets, of which the closed forms are.

    Raises:
        ConfigError: as with packets.
    """
    found = packet.settings(network)
    fidelity = replace(found["fidelity"], name="closed_form", is_closed_form=True)
    return found | {"fidelity": fidelity} | _WITHOUT_QUEUES
