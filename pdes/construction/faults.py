"""Faults of a run: links that fail or are slower, NPUs that are slow, NICs that pause for ever, and circuits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nadi.pdes.construction.circuits import NO_CIRCUITS, Circuits, LinkSets, route_changes
from nadi.pdes.core import Setting, setting
from nadi.pdes.core.rows import INF

if TYPE_CHECKING:
    from nadi.pdes.construction.settings import Settings


@dataclass(frozen=True)
class LinkFault:
    """A fault of links from at_ps to before until_ps; a field that is 0 or False changes nothing."""

    links: tuple[int, ...]  # numbers of directed links
    at_ps: int
    until_ps: int = INF
    down: bool = False
    rate_bps: int = 0  # reduced or raised rate
    added_latency_ps: int = 0  # in addition to the propagation delay
    error_rate: float = 0.0  # probability that a packet is lost

    @property
    def is_lasting(self) -> bool:
        """Whether it holds from the begin of the run to its end, and loses no packet."""
        return self.at_ps == 0 and self.until_ps == INF and not self.down and self.error_rate == 0


@dataclass(frozen=True)
class NpuFault:
    """A slow NPU: compute that begins from at_ps to before until_ps takes `slowdown` times as long."""

    npu: int
    at_ps: int
    until_ps: int = INF
    slowdown: float = 1.0


@dataclass(frozen=True)
class PauseStorm:
    """A NIC that pauses the links to it (PFC) in all data classes from at_ps on, for ever."""

    links: tuple[int, ...]  # numbers of directed links to the NIC
    at_ps: int


@dataclass(frozen=True, eq=False)
class Faults:
    """The faults of a run, and the circuits of its optical switches."""

    links: tuple[LinkFault, ...] = setting((), "faults of links", is_given=False)
    npus: tuple[NpuFault, ...] = setting((), "faults of NPUs", is_given=False)
    detection_time_ps: int = setting(1_000_000_000, "time from a link's failure or recovery until routes change")
    routings: Mapping[frozenset[int], Any] = field(  # without each of the sets of links that `down_sets` returns
        default_factory=dict, metadata={"setting": Setting("routing without the links that are down", is_given=False)}
    )
    storms: tuple[PauseStorm, ...] = setting((), "NICs that pause links for ever", is_given=False)
    circuits: Circuits = setting(NO_CIRCUITS, "circuits of optical switches", is_given=False)

    def __bool__(self) -> bool:
        return bool(self.links or self.npus or self.storms or self.circuits)

    @property
    def never_change(self) -> bool:
        """Whether links and NPUs are as slow from the begin of the run to its end, and no packet is lost."""
        return self.only_repeat and not self.circuits.change

    @property
    def only_repeat(self) -> bool:
        """Whether nothing changes but circuits, again and again."""
        spans = {(fault.at_ps, fault.until_ps) for fault in self.npus}
        once = self.storms or (self.circuits.change and not self.circuits.period_ps)
        return spans <= {(0, INF)} and not once and all(fault.is_lasting for fault in self.links)

    def can_lose(self, settings: "Settings") -> bool:
        """Return whether packets may get lost, or overtake others where circuits change, so that timers must run.

        Args:
            settings: Settings of the run.
        """
        # with shared buffers any fault of a link counts: a late pause, or a rate beyond the headroom, can overflow them
        of_links = any(f.down or f.error_rate > 0 or settings.switch is not None for f in self.links)
        return of_links or self.circuits.need_timers

    def last_ps(self, cell_ps: int = 1) -> int:
        """Return a time in ps after which no fault changes anything.

        Args:
            cell_ps: Length of a cell in ps; changes may happen so much later.
        """
        times = [storm.at_ps for storm in self.storms]
        for faults in (self.links, self.npus):
            times += [time for fault in faults for time in (fault.at_ps, fault.until_ps) if time < INF]
        return max(times) + self.detection_time_ps + cell_ps if times else 0

    def route_changes(self, cell_ps: int = 1) -> tuple[LinkSets, LinkSets]:
        """Return the links that routes avoid from each change on: changes that happen once, and then in every period.

        Routes avoid a link that is down from the detection on, and a circuit by its schedule.

        Args:
            cell_ps: Length of a cell in ps; changes may happen so much later.
        """
        down = [(ps + self.detection_time_ps, links) for ps, links in down_sets(self.links)]
        return route_changes(self.circuits, down, self.last_ps(cell_ps))


NO_FAULTS = Faults()


def down_sets(links: Iterable[LinkFault]) -> list[tuple[int, frozenset[int]]]:
    """Return the links that are down after each change: (ps, frozenset of links) in time order."""
    times = sorted({t for f in links if f.down for t in (f.at_ps, f.until_ps) if t < INF})
    sets = []
    down: frozenset[int] = frozenset()
    # several faults of one link overlap: it is down while any of them holds
    for time in times:
        before, down = down, frozenset(n for f in links if f.down and f.at_ps <= time < f.until_ps for n in f.links)
        if down != before:
            sets.append((time, down))
    return sets
