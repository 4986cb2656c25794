"""Circuits of optical switches: cables that carry packets at some times only, and the routes that follow from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from nadi.pdes.core import Array, ImpossibleRunError, Int64
from nadi.pdes.core.jit import aligned
from nadi.pdes.core.rows import INF
from nadi.pdes.network.circuits import HEAD_WORDS

MAX_CHANGES = 1 << 20  # changes by circuits before the last fault begins or ends: 32 MB
LinkSets = list[tuple[int, frozenset[int]]]  # (ps, links from then on), in time order


@dataclass(frozen=True)
class Circuit:
    """A cable through an optical switch. A window is its begin and its end in ps; windows are ascending and apart.

    A packet whose bits do not pass within one window waits for the next one if the circuit holds, and else is lost, as
    it is if there is no other window.
    """

    cable: int  # its links are 2 * cable and 2 * cable + 1
    lit: tuple[tuple[int, int], ...]  # windows in which it carries packets
    routed: tuple[tuple[int, int], ...] | None = None  # windows in which routes use it; None = always
    holds: bool = False  # whether packets wait at the port for the next window

    @property
    def links(self) -> tuple[int, int]:
        """The numbers of both directed links."""
        return 2 * self.cable, 2 * self.cable + 1


@dataclass(frozen=True)
class Circuits:
    """The circuits of optical switches, with the period of their schedule."""

    circuits: tuple[Circuit, ...] = ()
    period_ps: int = 0  # the windows are those of one period, of which there is no first; 0 = they happen once

    def __bool__(self) -> bool:
        return bool(self.circuits)

    @property
    def change(self) -> bool:
        """Whether a circuit carries packets at some times only."""
        return any(each.lit != ((0, INF),) for each in self.circuits)

    @property
    def need_timers(self) -> bool:
        """Whether packets may get lost at a circuit, or overtake others as routes change, so that timers must run."""
        return any(
            each.lit != ((0, INF),) and (each.routed is not None or not each.holds or not self.period_ps)
            for each in self.circuits
        )

    def longest_wait_ps(self) -> int:
        """Return the longest time in ps from the end of a window of a circuit that holds until its next one."""
        waits = [0]
        for each in self.circuits:
            if each.holds and each.lit:
                begins, ends = zip(*each.lit, strict=True)
                following = [*begins[1:], begins[0] + self.period_ps] if self.period_ps else [*begins[1:]]
                waits += [begin - end for end, begin in zip(ends, following, strict=False)]
                waits.append(0 if self.period_ps else begins[0])
        return max(waits)

    def lit_changes(self) -> list[tuple[int, int]]:
        """Return (ps, link) of all changes of one period, ascending: the link begins or ceases to carry packets."""
        period_ps = self.period_ps or INF
        bounds = [
            (time % period_ps, link)
            for each in self.circuits
            for window in each.lit
            for time in window
            if time < INF
            for link in each.links
        ]
        return sorted({*bounds, *((0, link) for each in self.circuits for link in each.links)})

    def dark_links(self, *, for_routes: bool) -> LinkSets:
        """Return the circuits' links that carry nothing, after each change of one period; the first change is at 0.

        Args:
            for_routes: Whether to return the links that routes avoid instead.
        """
        timed = [(each, each.routed if for_routes else each.lit) for each in self.circuits]
        bounds = {time for _, windows in timed for window in windows or () for time in window if time < INF}
        times = sorted({0, *(time % self.period_ps if self.period_ps else time for time in bounds)})
        changes: LinkSets = []
        for time in times:
            # a window of the period before may reach into this one
            moments = {time, time + self.period_ps}
            dark = frozenset(
                link
                for each, windows in timed
                if windows is not None
                and not any(begin <= moment < end for begin, end in windows for moment in moments)
                for link in each.links
            )
            if not changes or dark != changes[-1][1]:
                changes.append((time, dark))
        return changes


@dataclass(frozen=True)
class FollowingCircuits(Circuits):
    """Circuits whose epochs follow the workload: nobody knows how long one is away, and what waits is not lost."""

    allowed_wait_ps: int = 0  # time that timeouts allow for waiting

    @property
    def need_timers(self) -> bool:
        """As of `Circuits`."""
        return any(each.lit != ((0, INF),) and (each.routed is not None or not each.holds) for each in self.circuits)

    def longest_wait_ps(self) -> int:
        """Return the time in ps that timeouts allow for waiting."""
        return self.allowed_wait_ps


NO_CIRCUITS = Circuits()


def route_changes(circuits: Circuits, down: LinkSets, after_ps: int) -> tuple[LinkSets, LinkSets]:
    """Return the links that routes avoid from each change on: changes that happen once, and then in every period.

    Args:
        circuits: Circuits of the run.
        down: Links that are down by faults and known to be so, from each time on.
        after_ps: Time in ps after which faults change nothing.
    """
    dark = circuits.dark_links(for_routes=True)
    # before time 0 all links are up
    once, repeated = unrolled(dark if len(dark) > 1 else [], circuits.period_ps, after_ps)
    last = down[-1][1] if down else frozenset[int]()
    changes = list(_joined(down, once if len(dark) > 1 else [each for each in dark if each[1]]))
    return changes, [(ps, links | last) for ps, links in repeated]


Changes = TypeVar("Changes", bound=tuple[int, Any])


def unrolled(changes: list[Changes], period_ps: int, after_ps: int) -> tuple[list[Changes], list[Changes]]:
    """Return changes of a period as those that happen once, up to a time, and those of the period that begins then.

    Args:
        changes: Changes of a period; the first value of each is its time in ps.
        period_ps: The period in ps; 0 = all happen once.
        after_ps: The time in ps.
    """
    if not period_ps:
        return changes, []
    rounds = -(-after_ps // period_ps)
    if rounds * len(changes) > MAX_CHANGES:
        raise ImpossibleRunError(
            f"optical switches make {rounds * len(changes):,} changes before the last fault begins or ends; "
            f"expected at most {MAX_CHANGES:,}"
        )

    def of_turn(turn: int) -> list[Changes]:
        return [(ps + turn * period_ps, *rest) for ps, *rest in changes]  # type: ignore[misc]

    return [change for turn in range(rounds) for change in of_turn(turn)], of_turn(rounds)


def _joined(first: LinkSets, second: LinkSets) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield the links of two lists of changes together, after each change of either."""
    now = [frozenset[int](), frozenset[int]()]
    changes = sorted(
        ((ps, which, links) for which, each in enumerate((first, second)) for ps, links in each), key=_order
    )
    for at, (ps, which, links) in enumerate(changes):
        now[which] = links
        if at + 1 == len(changes) or changes[at + 1][0] > ps:
            yield ps, now[0] | now[1]


def _order(change: tuple[int, int, frozenset[int]]) -> tuple[int, int]:
    """Return the order of a change among others: its time, then the number of its list."""
    return change[:2]


def lit_tables(circuits: Circuits, links: Int64, rows: int) -> dict[str, Array]:
    """Return the arrays `circuit` and `lit` of an LP (pdes/network/circuits.py), by name; {} without circuits.

    Args:
        circuits: Circuits of the run.
        links: int64[n], the LP's outgoing links.
        rows: Number of rows of `tx`.
    """
    if not circuits:
        return {}
    place = np.zeros(rows, np.int64)
    own = {link: row for row, link in enumerate(links.tolist())}
    table: list[Any] = []
    for each in circuits.circuits:
        rows_of_links = [own[link] for link in each.links if link in own]
        place[rows_of_links] = len(table)
        if rows_of_links:
            table += [int(each.holds), len(each.lit), *(time for window in each.lit for time in window)]
    return {"circuit": aligned(place), "lit": aligned(np.array(table or [0] * HEAD_WORDS, np.int64))}
