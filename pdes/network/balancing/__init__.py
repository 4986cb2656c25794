"""Load balancing: which of several equal links a switch takes for a packet. One file each, found here.

A file holds TITLE and a hook `pick(address, node, first, count, w1, w2, now)` that gives a number below `count`.
ECMP, the rule of all others by default, stands in routing.py. What a rule decides may depend on the switch's own
state and past only, so it is the same on any partition.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from pdes.core.errors import RunError


@dataclass(frozen=True)
class Balancing:
    """The rule of a run; pick is None for ECMP.

    reorders: packets of one flow may overtake each other. has_flowlets, by_host: what the rule needs in Routes.
    by_destination: it goes by nothing else, so what one NPU sends another takes one way.
    """

    name: str
    pick: Callable | None
    reorders: bool = False
    has_flowlets: bool = False
    by_host: bool = False
    by_destination: bool = False


ECMP = Balancing("ecmp", None)


def names() -> list[str]:
    """Every rule that a run may name."""
    return ["ecmp", *sorted(module.name for module in pkgutil.iter_modules(__path__))]


def balancing(name: str) -> Balancing:
    """The rule of that name.

    Raises:
        RunError: there is none.
    """
    if name not in names():
        raise RunError(f"load balancing {name!r}; expected one of {', '.join(names())}")
    if name == "ecmp":
        return ECMP
    module = importlib.import_module(f"{__name__}.{name}")
    told = ("reorders", "has_flowlets", "by_host", "by_destination")
    return Balancing(name, module.pick, **{each: getattr(module, each.upper(), False) for each in told})
