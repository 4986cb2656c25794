"""How the network is modelled: one file for each value of [network] fidelity, with its `settings(network)`.

`settings` gives the keywords of pdes.Settings that say what the section does. `ONE_WORKER` says whether a run has but
one worker, whatever else is given.
"""

from types import ModuleType
from typing import Any

from nadi.configuration.sections import NetworkSection
from nadi.simulation.fidelities import analytical, closed_form, packet

_FILES: dict[str, ModuleType] = {"analytical": analytical, "closed-form": closed_form, "packet": packet}


def settings(network: NetworkSection) -> dict[str, Any]:
    """Keywords of pdes.Settings.

    Raises:
        ConfigError: what is given does not go together.
    """
    found: dict[str, Any] = _FILES[network.fidelity].settings(network)
    return found


def on_one_worker(network: NetworkSection) -> bool:
    """Whether one worker does the whole run."""
    return bool(_FILES[network.fidelity].ONE_WORKER)
