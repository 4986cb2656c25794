"""Models of the network, one file each: its name, keys, capabilities and hooks (contract.py).

The name of a model, a value of `[network] fidelity`, is that of its file (`inputs.plug_ins`).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from nadi.inputs import plug_ins
from nadi.pdes.core import RunError, setting, settings_of
from nadi.pdes.core.plug_ins import check_hook
from nadi.pdes.core.state import PS_PER_BYTE_AT_1_BPS
from nadi.pdes.fidelity import closed_form, flow, packet
from nadi.pdes.fidelity.contract import MessageHooks, NetworkModel

PACKET = packet.NETWORK
REFERENCE = packet.NETWORK.name  # most detailed model, the default of runs
FASTEST = closed_form.NETWORK.name  # model of plans and of the clock of serving
KIND = "network model"
FLUID = flow.NETWORK.name  # model whose solver of rates `nadi bench flow` measures


@cache
def networks() -> Mapping[str, NetworkModel]:
    """Return all models by name, those with more detail first, without those in files of the user's and wrong ones."""
    models = {name: plug_ins.own_module(KIND, name).NETWORK for name in plug_ins.own_files(KIND)}
    for name in plug_ins.installed_names(KIND):
        with suppress(RunError):  # who names it is told what is wrong
            models |= {name: _checked(name)}
    return dict(
        sorted(
            models.items(), key=lambda each: (not each[1].has_packets, not each[1].has_links, not each[1].has_headers)
        )
    )


def network(name: str) -> NetworkModel | None:
    """Return the model of a name or file, None if the name is unknown; RunError if a file or package holds no model."""
    is_outside = plug_ins.is_file(KIND, name) or name in plug_ins.installed_names(KIND)
    return _checked(name) if is_outside else networks().get(name)


def _checked(name: str) -> NetworkModel:
    """Return the model of a name or file; RunError if it is wrong."""
    model: NetworkModel = plug_ins.module(KIND, name, RunError).NETWORK
    if not isinstance(model, NetworkModel):
        raise RunError(f"{name}: NETWORK is {type(model).__name__}; expected a NetworkModel")
    for hook in (hook for hooks in model.hooks for hook in (hooks.act, hooks.settle) if hook is not None):
        check_hook(f"{name}: {hook.__name__}", hook, parameters=3)
    return model


def quoted(holds: Callable[[NetworkModel], bool]) -> str:
    """Return the names of the models for which a function holds, as '"packet" or "flow"'."""
    return " or ".join(f'"{model.name}"' for model in networks().values() if holds(model))


def accepts(model: NetworkModel, key: str) -> bool:
    """Return whether run files keep a key of [network] with a model; models with headers keep all keys of packets."""
    return key in model.keys or (model.has_headers and key in PACKET.keys)


@dataclass(frozen=True)
class Fidelity:
    """The model of a run with its parameters.

    `own` has the values of the model's own keys, an OwnKeys; None = their defaults.
    A reduction adds three times the message's bytes at reduction_bandwidth_bps (two reads and a write).
    """

    model: NetworkModel = setting(PACKET, "model of the network", is_given=False)
    endpoint_delay_ps: int = setting(0, "delay of a collective's first step, and of a receiver's action on a message")
    reduction_bandwidth_bps: float | None = setting(
        None, "memory bandwidth of reductions; without it, reductions take no time"
    )
    send_latency_ps: int = setting(0, "time from when a message is posted until its first packet may be sent")
    acknowledged: bool = setting(
        False,
        "a message is complete, at both ends, when its last acknowledgement is back, not when its last byte is in",
    )

    own: Any = setting(None, "keys of the model alone", is_given=False)

    def __post_init__(self) -> None:
        if self.own is None:
            object.__setattr__(self, "own", self.model.own())

    @property
    def name(self) -> str:
        """Name of the model, value of [network] fidelity."""
        return self.model.name

    @property
    def hooks(self) -> MessageHooks:
        """Hooks that move whole messages; without `act` for models that have none."""
        return self.model.hooks_with(self.own)

    @property
    def resolution_ps(self) -> int:
        """Unit to which times at message level are rounded down."""
        return self.own.unit_ps

    @property
    def reduction_psb(self) -> float:
        """Picoseconds per byte of the memory that reductions use; 0 = no time."""
        return PS_PER_BYTE_AT_1_BPS / self.reduction_bandwidth_bps if self.reduction_bandwidth_bps else 0.0


def fidelity(name: str, **parameters: Any) -> Fidelity:
    """Return the model with a name, of itself or of its hooks; RunError if it is unknown.

    Args:
        name: Name of a model, or of one of its hooks.
        **parameters: Settings of the model and fields of Fidelity, by name.
    """
    found = network(name)
    for model in networks().values() if found is None else [found]:
        for hooks in model.hooks:
            if found is model or name == hooks.name:
                names = {each.name for each in settings_of(model.own)} & parameters.keys()
                own = {**hooks.chosen_by, **{name: parameters.pop(name) for name in names}}
                return Fidelity(model, own=model.own(**own), **parameters)
    raise RunError(f"fidelity {name!r}; expected one of {', '.join(networks())}")
