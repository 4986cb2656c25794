"""A run under way: the logical processes of this process, and the results taken from them so far."""

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
    """One LP: its part of the fabric, its world, and the flow records taken from it.

    Attributes:
        part: Nodes and links of the LP.
        row_ptr: int64[own NPUs + 1], trace rows of its NPUs.
        address: Address of the world's directory, for kernels.
        flows_out, flows_in: Records of messages posted and complete.

    Args:
        hooks: Functions that kernels call by address: name (of `Hooks`) -> hook.
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
        """Let kernels look up the routes of acknowledgements in an LP of the whole fabric, which is kept alive."""
        self._back = back
        self._world.net.const.back = back.address

    @property
    def world(self) -> s.World:
        """The LP's whole state; replaced by one with longer arrays when a pool grows."""
        return self._world

    @world.setter
    def world(self, world: s.World) -> None:
        self._world = world
        self._directory.update(world)

    def check_guards(self) -> None:
        """Check that no kernel wrote past an end of any array of the world.

        Raises:
            MemoryDamageError: A kernel did.
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
    """Progress of a run; messages: number of messages received, at message level."""

    now_ps: int
    packet_hops: int
    nodes_done: int
    nodes_total: int
    wall_s: float
    messages: int | None = None


Progress = Callable[[Snapshot], None]
"""Callback that receives a snapshot from time to time."""
