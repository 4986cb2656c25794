"""Routing that is not minimal: packets that go to their destination by way of another group. One file per rule.

`inputs.plug_ins` finds the files. A file holds TITLE and a hook `route(world_address, node, record, now_ps)` that
returns the cell (port set) of a switch for a packet in a record, and keeps the packet's state in its word 2. It may
hold CHANGES, how often switches of the source's group behind the first one may change its path, where they raise the
packet's virtual lane (topologies/deadlock.py), 0 if not given; RAISES_DETOURS, whether the first switch raises the lane
of packets that it sends on a detour; and READS_QUEUES, whether it compares the work of the switch's ports. What
rules share is in `state.py`. A rule may only use the switch's own state and past, and what the packet carries, so that
its choices are the same on any partition; one that reads other switches has a hook `publish(world_address)`, called at
the begin of each cell, and its runs have one part and reuse nothing, since cells are no part of what is simulated. With
BY_SOURCE = True a rule takes paths that are listed, and leaves word 2 alone. Minimal routing, the default, is in
pdes/network/routing.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nadi.inputs import plug_ins
from nadi.pdes.core import RunError
from nadi.pdes.core.plug_ins import module_of


@dataclass(frozen=True)
class Detours:
    """The rule of a run."""

    name: str
    route: Callable | None  # hook that chooses the port set, None for minimal routing
    changes: int = 0  # most times that switches behind the first one change the path of a packet
    publish: Callable | None = None  # hook that notes what switches show to others, None where they show nothing
    reads_queues: bool = False  # it compares the work that ports of the switch have
    raises_detours: bool = False  # the first switch raises the lane of packets that it sends on a detour
    by_source: bool = False  # packets take listed paths (`Graph.source_routes`), one for each entropy

    @property
    def reorders(self) -> bool:
        """Whether packets may take a detour over another group or switch, and so overtake others of their flow."""
        return self.route is not None and not self.by_source


MINIMAL = Detours("minimal", None)
KIND = "routing"


def names() -> list[str]:
    """Return the names of all rules that a run may use."""
    return plug_ins.names(KIND)


def detours(name: str) -> Detours:
    """Return the rule of a name or file; RunError if it is unknown or wrong."""
    if name == MINIMAL.name:
        return MINIMAL
    module = module_of(KIND, name, "route", parameters=4)
    flags = ("CHANGES", "READS_QUEUES", "RAISES_DETOURS", "BY_SOURCE", "publish")
    given = {flag.lower(): getattr(module, flag) for flag in flags if hasattr(module, flag)}
    return Detours(name, module.route, **given)


def known(name: str) -> Detours:
    """Return the rule of a name or file; MINIMAL if it is unknown or wrong, which others refuse."""
    try:
        return detours(name)
    except RunError:
        return MINIMAL
