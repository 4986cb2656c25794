"""Settings of the engine for [network], whose models of the network are declared in pdes/fidelity."""

from collections.abc import Mapping
from typing import Any

import pdes
from nadi.configuration.sections import NetworkSection, engine_settings
from nadi.simulation.fidelities import fabric_settings as fabric
from pdes import congestion

QUEUE_SAMPLES = 64  # maximum number of intervals of time for which a port records its queue
LOGGED_PAUSES = 1 << 16  # maximum number of pauses and resumes that a run records
# overrides for a fabric without queues and losses, so that no check of switches and windows applies
_WITHOUT_QUEUES = {"switch": None, "congestion_control": congestion.NO_CONTROL, "selective_repeat": False}


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings for [network]; refuse, with a ConfigError, contradictory values."""
    model = network.model
    keywords = engine_settings(pdes.Settings, network) | {
        "fidelity": pdes.Fidelity(model, **engine_settings(pdes.Fidelity, network, model.keys)),
        "switch": fabric.shared_buffer(network),
        "congestion_control": fabric.control(network),
        "load_balancing": fabric.load_balancing(network),
        "queue_samples": QUEUE_SAMPLES,
        "logged_pauses": LOGGED_PAUSES,
    }
    if not model.has_packets:
        keywords |= _WITHOUT_QUEUES
    if not model.has_headers:  # without packets there are no NVLink flits, so the whole rate is payload
        keywords["nvlink_framing"] = False
    return keywords


def fidelities() -> list[dict[str, str | bool]]:
    """Return what each model of the network declares: name, message, use, capabilities, faults and keys."""
    return [
        {
            "fidelity": model.name,
            "message": model.title,
            "use": model.use,
            "several_workers": model.several_workers,
            "queues": model.has_packets,
            "links": model.has_links,
            "faults": _faults(model.refused_faults),
            "keys": " ".join(sorted(model.keys)),
        }
        for model in pdes.fidelity.networks().values()
    ]


def _faults(refused: Mapping[str, str] | None) -> str:
    """Return which faults a model takes that refuses some."""
    if refused is None:
        return "none"
    return f"all but {', '.join(refused)}" if refused else "all"


def documentation() -> str:
    """Return a Markdown table of all models of the network, a model per column."""
    known = fidelities()
    rows = []
    for fact in known[0]:
        values = ["yes" if model[fact] is True else str(model[fact] or "no") for model in known]
        rows.append(f"| {fact.replace('_', ' ')} | {' | '.join(values)} |")
    return "\n".join([rows[0], "| --- " * (1 + len(known)) + "|", *rows[1:]]) + "\n"
