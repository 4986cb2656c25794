"""Load balancing: the choice of a switch among equal-cost links for a packet. One file per rule, found here.

A file holds TITLE and a hook `pick(world_address, node, first_port, count, word1, word2, now_ps)` that returns a number
below `count`. ECMP, the default, is in routing.py. A rule may only use the switch's own state and past, so that its
choices are the same on any partition.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from pdes.core.errors import RunError


@dataclass(frozen=True)
class Balancing:
    """The rule of a run."""

    name: str
    pick: Callable | None  # hook that chooses the link, None for ECMP
    reorders: bool = False  # packets of one flow may overtake each other
    has_flowlets: bool = False  # the rule needs the table `flowlet` of Routes
    remembers: bool = False  # its choices depend on packets before a pause (pdes/network/own_counts.py)
    by_host: bool = False  # the rule needs the table `host` of Routes
    by_destination: bool = False  # only the destination matters, so that traffic between two NPUs has one path


ECMP = Balancing("ecmp", None)


def names() -> list[str]:
    """Return the names of all rules that a run may use."""
    return ["ecmp", *sorted(module.name for module in pkgutil.iter_modules(__path__))]


def balancing(name: str) -> Balancing:
    """Return the rule with a name; RunError if it is unknown."""
    if name not in names():
        raise RunError(f"load balancing {name!r}; expected one of {', '.join(names())}")
    if name == "ecmp":
        return ECMP
    module = importlib.import_module(f"{__name__}.{name}")
    flags = ("reorders", "has_flowlets", "remembers", "by_host", "by_destination")
    return Balancing(name, module.pick, **{flag: getattr(module, flag.upper(), False) for flag in flags})
