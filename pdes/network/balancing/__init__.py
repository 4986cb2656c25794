"""Load balancing: the choice of a switch among equal-cost links for a packet. One file per rule.

`inputs.plug_ins` finds the files. A file holds TITLE and a hook
`pick(world_address, node, first_port, count, word1, word2, now_ps)` that returns a number below `count`. ECMP, the
default, is in routing.py. A rule may only use the switch's own state and past, so that its choices are the same on any
partition.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nadi.inputs import plug_ins
from nadi.pdes.core.plug_ins import module_of


@dataclass(frozen=True)
class Balancing:
    """The rule of a run."""

    name: str
    pick: Callable | None  # hook that chooses the link, None for ECMP
    reorders: bool = False  # packets of one flow may overtake each other
    has_flowlets: bool = False  # the rule needs the table `flowlet` of Routes
    remembers: bool = False  # its choices depend on packets before a pause (pdes/network/batch.py)
    by_host: bool = False  # the rule needs the table `host` of Routes
    by_destination: bool = False  # only the destination matters, so that traffic between two NPUs has one path


ECMP = Balancing("ecmp", None)
MAX_RULES = 4  # rules of a run, where tiers differ: words `balancing_0` to `balancing_3` of `Hooks`
KIND = "load balancing"


def names() -> list[str]:
    """Return the names of all rules that a run may use."""
    return plug_ins.names(KIND)


def balancing(name: str) -> Balancing:
    """Return the rule of a name or file; RunError if it is unknown or wrong."""
    if name == "ecmp":
        return ECMP
    module = module_of(KIND, name, "pick", parameters=7)
    flags = ("reorders", "has_flowlets", "remembers", "by_host", "by_destination")
    return Balancing(name, module.pick, **{flag: getattr(module, flag.upper(), False) for flag in flags})
