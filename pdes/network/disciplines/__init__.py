"""Switch disciplines: the choice of the data class whose packet a port sends next. One file per discipline, found here.

A file holds TITLE and a hook `pick(world_address, link, ready_classes)`, which returns the data class whose first
packet leaves the port `link` of a switch that shares its buffer. `ready_classes` is a bit set, never 0, of the classes
with packets that no pause holds back: 1 = class 0, 2 = class 1. The words `net.gate[link].discipline` of the port are
the discipline's own; they are 0 at first. Strict priority of class 0, the default, is in port_queues.py, which calls no
hook for it. There too, pause frames, control packets and trimmed packets have their turns before or among data,
whatever the discipline.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from pdes.core.errors import RunError


@dataclass(frozen=True)
class Discipline:
    """The switch discipline of a run."""

    name: str
    pick: Callable | None  # hook that chooses the class, None for strict priority


STRICT = Discipline("strict", None)


def names() -> list[str]:
    """Return the names of all disciplines that a run may use."""
    return ["strict", *sorted(module.name for module in pkgutil.iter_modules(__path__))]


def discipline(name: str) -> Discipline:
    """Return the discipline with a name; RunError if it is unknown."""
    if name not in names():
        raise RunError(f"discipline {name!r}; expected one of {', '.join(names())}")
    return STRICT if name == "strict" else Discipline(name, importlib.import_module(f"{__name__}.{name}").pick)
