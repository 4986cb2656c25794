"""A run under way: the logical processes of this process, and the results taken from them so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from nadi.pdes.construction.domains import Domain
from nadi.pdes.construction.layout import Layout, Part
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import state as s
from nadi.pdes.core.declared import grow
from nadi.pdes.core.inputs import Graph, Int64, Program, Rows
from nadi.pdes.core.jit import Directory, hook_address


class Replayer(Protocol):
    """Interface of pdes.reuse.replay.Replay, which finds the ends of replayed collectives."""

    def serve(self) -> None:
        """Find the ends of collectives that members have started."""

    def finish(self, before_ps: int = s.INF) -> None:
        """Count the episodes that are over before a time.

        Args:
            before_ps: Time in ps; INF = count all episodes.
        """

    @property
    def has_stopped(self) -> bool:
        """Whether collectives of these domains seldom repeat, so that all that start go by packets."""


class LogicalProcess:
    """One LP: its part of the fabric, its world, and the flow records taken from it."""

    def __init__(self, part: Part, world: s.World, row_ptr: Int64, hooks: Mapping[str, Callable[..., Any]]) -> None:
        """Take the state; row_ptr: int64[own NPUs + 1], its NPUs' trace rows; hooks: functions by names of `Hooks`."""
        self.part = part
        self.row_ptr = row_ptr
        self.flows_out: list[Rows] = []  # records of posted messages
        self.flows_in: list[Rows] = []  # records of complete messages
        self.samples: list[Rows] = []  # entries of the log of samples
        self._world = world
        self._directory = Directory(world, f"LP {part.number}")
        self.domains: list[Domain] = []  # NVLink domains whose collectives may be replayed
        self.replay: Replayer | None = None  # of the episodes in these domains
        self.back: LogicalProcess | None = (
            None  # LP of the whole fabric, where kernels look up acknowledgements' routes
        )
        world.net.const.address = self.address = self._directory.address  # of the world, for kernels
        for name, function in hooks.items():
            world.net.hooks[name] = hook_address(function)

    @property
    def world(self) -> s.World:
        """The LP's whole state; replaced by one with longer arrays when a pool grows."""
        return self._world

    @world.setter
    def world(self, world: s.World) -> None:
        self._world = world
        self._directory.update(world)

    def check_guards(self) -> None:
        """Raise MemoryDamageError if a kernel wrote past an end of any array of the world."""
        self._directory.check_guards()
        if self.back is not None:
            self.back.check_guards()

    def make_room(self, counter: str, need: int, rows: int) -> None:
        """Let a pool have at least `rows` free rows; counter: their word of `ctl`; need: NEED_* of the pool."""
        while self._world.net.ctl[counter] < rows:
            self._world.net.ctl.need = need
            self.world = grow(self._world)

    def take_samples(self) -> None:
        """Move the entries of the log of samples out of the world."""
        net = self._world.net
        if net.const.sample_ps:
            self.samples.append(net.sample_log[net.ctl.free_samples :].copy())
            net.ctl.free_samples = len(net.sample_log)

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


class LeastWaiting(NamedTuple):
    """The worker of a team that has waited least: the others have waited for it."""

    rank: int  # its MPI rank
    worker: int  # its number in the team
    waiting_share: float  # share of the time since the first window that it waited, 0 to 1
    mean_waiting_share: float  # mean of that share over the team


@dataclass(frozen=True)
class Snapshot:
    """Progress of a run."""

    now_ps: int
    packet_hops: int
    nodes_done: int
    nodes_total: int
    wall_s: float
    messages: int | None = None  # number of messages received, at message level
    slowest: LeastWaiting | None = None  # of the team of the first worker; None = it has one worker
    stopped_replaying: bool = False  # whether collectives of NVLink domains seldom repeat, so that all go by packets


Progress = Callable[[Snapshot], None]  # callback that receives a snapshot from time to time
