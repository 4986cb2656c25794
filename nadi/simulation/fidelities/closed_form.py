"""Collectives at their closed forms, messages alone on their paths, no contention (docs/explanation/fidelity.md)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nadi.configuration.faults import FaultSection
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
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


def check_faults(faults: Sequence[FaultSection]) -> None:
    """Refuse faults that closed forms do not support: they support slow NPUs, and links slow for the whole run.

    Args:
        faults: Faults of the run file.

    Raises:
        ConfigError: A link is down, loses packets, or changes during the run.
    """
    for number, fault in enumerate(faults):
        where = f"[faults.{number}]"
        if fault.what not in {"slowdown", "rate", "added_latency"}:
            raise ConfigError(
                f"{where} {fault.what}: closed forms model no losses; expected slowdown, rate or added_latency, or "
                '[network] fidelity = "packet"'
            )
        if fault.npu is None and (fault.at > 0 or fault.until is not None):
            key = "at" if fault.at > 0 else "until"
            raise ConfigError(
                f"{where} {key}: at closed forms links are slow for the whole run; "
                'expected at = "0s" and no until, or [network] fidelity = "packet"'
            )
