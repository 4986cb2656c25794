"""Settings of the engine for [network], whose models of the network are declared in pdes/fidelity."""

from typing import Any

from nadi import pdes
from nadi.configuration.sections import NetworkSection, SystemSection
from nadi.pdes import congestion
from nadi.simulation.fidelities import fabric_settings as fabric

QUEUE_SAMPLES = 64  # maximum number of intervals of time for which a port records its queue
LOGGED_PAUSES = 1 << 16  # maximum number of pauses and resumes that a run records
# overrides for models without packets, so that no check of switches, windows and protocols applies
_WITHOUT_PACKETS = {
    "switch": None,
    "congestion_control": congestion.NO_CONTROL,
    "selective_repeat": False,
    "rendezvous_bytes": 0,
    "collectives_in_flight": 0,
}


def network_settings(
    network: NetworkSection,
    system: SystemSection | None = None,
    *,
    seed: int = 1,
    record_nodes: bool = True,
    record_flows: bool = True,
) -> pdes.Settings:
    """Return the engine's settings for [network] and [system] and these options; refuse contradictory values.

    Args:
        network: Section [network] of the run file.
        system: Section [system]; None = its defaults.
        seed: Seed of the run's random choices.
        record_nodes: Whether results have a row per trace node.
        record_flows: Whether results have a row per message.
    """
    model, name, shared = network.model, network.congestion_control, network.switch != "output-queued"
    keywords = (system or SystemSection()).engine_settings(pdes.Settings) | network.engine_settings(pdes.Settings)
    keywords |= {
        "fidelity": pdes.Fidelity(model, own=network.own_keys, **network.engine_settings(pdes.Fidelity, model.keys)),
        "switch": fabric.shared_buffer(network.engine_settings(pdes.SharedBuffer)) if shared else None,
        "congestion_control": fabric.control(name, network.congestion, network.switch, ecn=network.ecn),
        "load_balancing": fabric.load_balancing(network.load_balancing, network.selective_repeat),
        "queue_samples": QUEUE_SAMPLES,
        "logged_pauses": LOGGED_PAUSES,
    }
    if not model.has_packets:
        keywords |= _WITHOUT_PACKETS
    if not model.has_headers:  # without packets there are no NVLink flits, so the whole rate is payload
        keywords["nvlink_framing"] = False
    return pdes.Settings(seed=seed, record_nodes=record_nodes, record_flows=record_flows, **keywords)


def fidelities() -> list[dict[str, Any]]:
    """Return what each model of the network declares; `refused_faults` are keys of [[faults]], null for all."""
    return [
        {
            "fidelity": model.name,
            "message": model.title,
            "use": model.use,
            **{name: getattr(model, name) for name in ("several_workers", "has_packets", "has_links")},
            "refused_faults": None if model.refused_faults is None else list(model.refused_faults),
            "keys": sorted(model.keys),
        }
        for model in pdes.fidelity.networks().values()
    ]


def documentation() -> str:
    """Return a Markdown table of all models of the network, a model per column."""
    known = fidelities()
    rows = [f"| {fact.replace('_', ' ')} | {' | '.join(shown(model[fact]) for model in known)} |" for fact in known[0]]
    return "\n".join([rows[0], "| --- " * (1 + len(known)) + "|", *rows[1:]]) + "\n"


def shown(value: Any) -> str:  # noqa: ANN401 - of any type
    """Return a value of `fidelities` as text."""
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return {True: "yes", False: "no", None: "all"}.get(value, str(value))
