"""Software profiles: how a version of a training framework fills in the keys of a plan that the user leaves open.

A TOML file of this folder is a profile, named by its file. `framework` is the framework that it belongs to, `summary`
and `source` describe it, and the table `plan` has its defaults of a plan's keys: which operators are fused, what
overlaps, which copies there are, and how long GPUs wait for their hosts. Keys that the user sets win.
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


class SoftwareProfile(BaseModel):
    """A version of a training framework."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    framework: str  # Training framework that it belongs to
    summary: str  # Description in one line
    source: str  # Publication or source code that shows the defaults
    plan: dict[str, Any] = {}  # Values of plan keys that the user does not set


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
