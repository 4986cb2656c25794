"""Software profiles: how a version of a training framework fills in the keys of a plan that the user leaves open.

A TOML file of this folder is a profile, named by its file. `framework` is the framework that it belongs to, `summary`
and `source` describe it, and the table `plan` has its defaults of a plan's keys: which operators are fused, what
overlaps, which copies there are. Keys that the user sets win. The table `host` describes the end of a step, at
which GPUs wait for their hosts.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from nadi import inputs

AUTO = "auto"
_FOLDER = Path(__file__).parent
_CURRENT = {"megatron": "megatron-core", "fsdp": "fsdp", "deepspeed": "deepspeed"}
"""Profile of a framework that a plan does not name."""


class HostWork(BaseModel):
    """Work of a GPU's host at the end of a step, which `workload.generators.training.step_end` places in the step.

    Times are those of one core. Until the host reads the norm of the gradients, its launches are ahead of the GPU; from
    then on the GPU waits for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reads_norm: bool = False  # Whether the host reads the norm of the gradients before it launches the optimizer
    optimizer_ns: int = 0  # Nanoseconds per parameter tensor from reading the norm to launching the optimizer
    copies_ns: int = 0  # Nanoseconds per parameter tensor to launch what follows the optimizer, while the GPU runs it
    statistics: int = 0  # Number of all-reduces of a number over the model's group that the host reads afterwards
    loop_us: int = 0  # Microseconds from the last number that the host reads to the next step's first kernel


class SoftwareProfile(BaseModel):
    """A version of a training framework."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    framework: str  # Training framework that it belongs to
    summary: str  # Description in one line
    source: str  # Publication or source code that shows the defaults
    plan: dict[str, Any] = {}  # Values of plan keys that the user does not set
    host: HostWork = HostWork()  # Work of the host at the end of a step


def profile_names() -> tuple[str, ...]:
    """Return the names of all profiles."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def one_of(name: str, known: Sequence[str]) -> str:
    """Return a name if it is known; else raise a pydantic error that lists all known names.

    Args:
        name: The name that the user gives.
        known: The known names.
    """
    if name not in known:
        raise PydanticCustomError("literal_error", "Input should be one of {known}", {"known": ", ".join(known)})
    return name


def known_profile(name: str) -> str:
    """Return the name of a profile if it is known; else raise a pydantic error.

    Args:
        name: The name of a profile, or AUTO.
    """
    return one_of(name, (AUTO, *profile_names()))


@functools.cache
def profile(name: str, framework: str) -> SoftwareProfile | None:
    """Return the profile of a plan, None = the framework has none (serving).

    Args:
        name: Name of the profile, or AUTO.
        framework: Framework of the plan, which determines the profile for AUTO.
    """
    chosen = _CURRENT.get(framework) if name == AUTO else name
    if chosen is None:
        return None
    return SoftwareProfile.model_validate(inputs.parse_toml(inputs.read_text(_FOLDER / f"{chosen}.toml")))
