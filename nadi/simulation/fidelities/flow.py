"""Flows that share links max-min fairly (docs/explanation/fidelity.md)."""

from collections.abc import Sequence
from typing import Any

import pdes
from nadi.configuration.faults import FaultSection
from nadi.configuration.sections import NetworkSection, engine_settings
from nadi.errors import ConfigError
from nadi.simulation.fidelities import packet
from nadi.simulation.fidelities.closed_form import WITHOUT_QUEUES

ONE_WORKER = True


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings: those of packets, without queues and losses.

    Raises:
        ConfigError: As for packets.
    """
    model = engine_settings(pdes.Fidelity, network) | {"acknowledged": False}
    return packet.settings(network) | {"fidelity": pdes.fidelity.fidelity("flow", **model)} | WITHOUT_QUEUES


def check_faults(faults: Sequence[FaultSection]) -> None:
    """Refuse faults that lose packets; rates, latencies, failures and slow NPUs may change at any time.

    Args:
        faults: Faults of the run file.

    Raises:
        ConfigError: A link loses packets.
    """
    for number, fault in enumerate(faults):
        if fault.what == "error_rate":
            raise ConfigError(
                f"[faults.{number}] error_rate: flows lose nothing; expected another fault, or "
                '[network] fidelity = "packet"'
            )
