"""Models of the network: one module per value of [network] fidelity.

`settings(network)` returns the keywords of pdes.Settings for the section, and `check_faults(faults)` refuses faults
that the model does not support. `ONE_WORKER` is True if a run has only one worker, whatever the run file requests.
"""

from types import ModuleType
from typing import Any

from nadi.configuration.sections import NetworkSection, RunConfig
from nadi.simulation.fidelities import analytical, closed_form, flow, packet

_MODULES: dict[str, ModuleType] = {
    "analytical": analytical,
    "closed-form": closed_form,
    "flow": flow,
    "packet": packet,
}


def settings(network: NetworkSection) -> dict[str, Any]:
    """Return the keywords of pdes.Settings for the section [network].

    Raises:
        ConfigError: The values contradict each other.
    """
    keywords: dict[str, Any] = _MODULES[network.fidelity].settings(network)
    return keywords


def check_faults(config: RunConfig) -> None:
    """Refuse faults that the model of the network does not support.

    Raises:
        ConfigError: The run file has such a fault.
    """
    _MODULES[config.network.fidelity].check_faults(config.faults)


def on_one_worker(network: NetworkSection) -> bool:
    """Return whether one worker does the whole run."""
    return bool(_MODULES[network.fidelity].ONE_WORKER)
