"""Switch disciplines: the choice of the data class whose packet a port sends next. One file per discipline.

`inputs.plug_ins` finds the files. A file holds TITLE and a hook `pick(world_address, link, ready_classes)`, which
returns the data class whose first packet leaves the port `link` of a switch that shares its buffer. `ready_classes` is
a bit set, never 0, of the classes with packets that no pause holds back: 1 = class 0, 2 = class 1. The words
`net.gate[link].discipline` of the port are the discipline's own; they are 0 at first. Strict priority of class 0, the
default, is in port_queues.py, which calls no hook for it. There too, pause frames, control packets and trimmed packets
have their turns before or among data, whatever the discipline.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nadi.inputs import plug_ins
from nadi.pdes.core.plug_ins import module_of


@dataclass(frozen=True)
class Discipline:
    """The switch discipline of a run."""

    name: str
    pick: Callable | None  # hook that chooses the class, None for strict priority


STRICT = Discipline("strict", None)
KIND = "switch discipline"


def names() -> list[str]:
    """Return the names of all disciplines that a run may use."""
    return plug_ins.names(KIND)


def discipline(name: str) -> Discipline:
    """Return the discipline of a name or file; RunError if it is unknown or wrong."""
    return STRICT if name == "strict" else Discipline(name, module_of(KIND, name, "pick", parameters=3).pick)
