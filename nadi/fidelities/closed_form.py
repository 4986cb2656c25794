"""Collectives at their closed forms, messages alone on their paths, no contention (docs/fidelity.md)."""

from dataclasses import replace
from typing import Any

from nadi.config import NetworkSection
from nadi.fidelities import packet

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings: those of packets, of which the closed forms are.

    Raises:
        ConfigError: as with packets.
    """
    found = packet.settings(network)
    return found | {"fidelity": replace(found["fidelity"], name="closed_form", is_closed_form=True)}
