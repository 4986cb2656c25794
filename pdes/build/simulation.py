"""A run under way: the logical processes that this process holds, and what has been taken out of them so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pdes.build.layout import Layout
from pdes.build.part import Part
from pdes.build.settings import Settings
from pdes.core import state as s
from pdes.core.inputs import Graph, Int64, Program, Rows
from pdes.core.jit import Directory, hook_address


class LogicalProcess:
    """One LP: its part of the fabric, its world, and the flow records taken out of it.

    Attributes:
        part: its nodes and links.
        row_ptr: int64[own NPUs + 1], trace rows of its NPUs.
        address: where kernels find the world.
        flows_out, flows_in: records of messages posted and complete.

    Args:
        hooks: what kernels call by address: name (of `Hooks`) -> hook.
    """

    def __init__(self, part: Part, world: s.World, row_ptr: Int64, hooks: Mapping[str, Callable[..., Any]]) -> None:
        self.part = part
        self.row_ptr = row_ptr
        self.flows_out: list[Rows] = []
        self.flows_in: list[Rows] = []
        self._world = world
        self._directory = Directory(world, f"LP {part.number}")
        self._back: LogicalProcess | None = None
        world.net.const.address = self.address = self._directory.address
        for name, function in hooks.items():
            world.net.hooks[name] = hook_address(function)

    def look_up_ways_back(self, back: "LogicalProcess") -> None:
        """Have kernels find the way of acknowledgements in the world of an LP of the whole fabric, which stays."""
        self._back = back
        self._world.net.const.back = back.address

    @property
    def world(self) -> s.World:
        """All its state; another one, of longer arrays, when a pool grows."""
        return self._world

    @world.setter
    def world(self, world: s.World) -> None:
        self._world = world
        self._directory.update(world)

    def check_guards(self) -> None:
        """Look whether kernels wrote past an end of any array of the world.

        Raises:
            MemoryDamageError: one did.
        """
        self._directory.check_guards()
        if self._back is not None:
            self._back.check_guards()

    def take_flows(self) -> None:
        """Move the flow records out of the world."""
        qps, ctl = self._world.qps, self._world.net.ctl
        for name, rows in (("flows_out", qps.flow_out), ("flows_in", qps.flow_in)):
            if ctl[name]:
                getattr(self, name).append(rows[: ctl[name]].copy())
                ctl[name] = 0


@dataclass
class Simulation:
    """A run, or this process's part of it."""

    layout: Layout
    program: Program
    settings: Settings
    lps: list[LogicalProcess]
    setup_s: float

    @property
    def graph(self) -> Graph:
        """The fabric."""
        return self.layout.graph


@dataclass(frozen=True)
class Snapshot:
    """How far a run is; messages: received, at message level."""

    now_ps: int
    packet_hops: int
    nodes_done: int
    nodes_total: int
    wall_s: float
    messages: int | None = None


Progress = Callable[[Snapshot], None]
"""What is told now and then how far a run is."""
