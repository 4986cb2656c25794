"""Models of the network by the value of [network] fidelity (docs/explanation/fidelity.md).

"packet" has packets, queues, transport and congestion control (docs/explanation/fabric.md). "analytical" has messages
that take latency and bandwidth. "closed-form" has collectives at their closed forms and messages alone on their paths,
without contention. Others are files of pdes/messages/fidelity, as "flow": fluids on the routes of packets, which share
links max-min fairly.
"""

from dataclasses import replace
from typing import Any

import pdes
from nadi.configuration.sections import MESSAGE_LEVEL, NetworkSection, engine_settings, fidelity_like
from nadi.simulation.fidelities import fabric_settings as fabric
from pdes import congestion

QUEUE_SAMPLES = 64  # maximum number of intervals of time for which a port records its queue
LOGGED_PAUSES = 1 << 16  # maximum number of pauses and resumes that a run records
# overrides for a fabric without queues and losses, so that no check of switches and windows applies
_WITHOUT_QUEUES = {"switch": None, "congestion_control": congestion.NO_CONTROL, "selective_repeat": False}


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings for [network]; refuse, with a ConfigError, contradictory values."""
    model = engine_settings(pdes.Fidelity, network)
    is_aware = model.pop("congestion_aware", True)
    if fidelity_like(network.fidelity) == "analytical":
        name = network.fidelity
        if name == "analytical":
            name = "congestion_aware" if is_aware else "congestion_unaware"
        # without packets there are no NVLink flits, so the whole rate is payload
        return {"fidelity": pdes.fidelity.fidelity(name, **model), "nvlink_framing": False}
    fidelity = pdes.fidelity.fidelity("packet", **model)
    keywords = engine_settings(pdes.Settings, network) | {
        "fidelity": fidelity,
        "switch": fabric.shared_buffer(network),
        "congestion_control": fabric.control(network),
        "load_balancing": fabric.load_balancing(network),
        "queue_samples": QUEUE_SAMPLES,
        "logged_pauses": LOGGED_PAUSES,
    }
    if network.fidelity in MESSAGE_LEVEL:
        whole = pdes.fidelity.fidelity(network.fidelity, **model | {"acknowledged": False})
        keywords |= _WITHOUT_QUEUES | {"fidelity": whole}
    if network.fidelity == "closed-form":  # closed forms are computed from the settings of packets
        keywords |= _WITHOUT_QUEUES | {"fidelity": replace(fidelity, name="closed_form", is_closed_form=True)}
    return keywords


def on_one_worker(network: NetworkSection) -> bool:
    """Return whether one worker does the whole run, whatever the run file requests."""
    return network.fidelity != "packet"
