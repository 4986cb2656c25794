"""Packets, queues, transport and congestion control (docs/explanation/fabric.md)."""

from collections.abc import Sequence
from typing import Any

import pdes
from nadi.configuration.faults import FaultSection
from nadi.configuration.sections import NetworkSection, engine_settings
from nadi.simulation.fidelities import fabric_settings as fabric

ONE_WORKER = False
QUEUE_SAMPLES = 64
"""Maximum number of intervals of time for which a port records its queue."""
LOGGED_PAUSES = 1 << 16
"""Maximum number of pauses and resumes that a run records."""


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings for packets.

    Raises:
        ConfigError: A congestion control or one of its parameters does not exist, or the switches lack a signal that it
            needs.
    """
    model = engine_settings(pdes.Fidelity, network)
    return engine_settings(pdes.Settings, network) | {
        "fidelity": pdes.fidelity.fidelity("packet", **model),
        "switch": fabric.shared_buffer(network),
        "congestion_control": fabric.control(network),
        "load_balancing": fabric.load_balancing(network),
        "queue_samples": QUEUE_SAMPLES,
        "logged_pauses": LOGGED_PAUSES,
    }


def check_faults(faults: Sequence[FaultSection]) -> None:
    """Refuse no fault: packets support all of them."""
