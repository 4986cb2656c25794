"""What the workers of a run share, behind one interface: a team, outboxes, and what all of them bring in the end.

There are three kinds: `SingleProcess`, one process whose workers are threads; processes of this machine
(`pdes.workers.processes`); MPI ranks, each with threads (`pdes.workers.ranks`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np

from pdes.build.layout import Layout
from pdes.build.part import Outboxes, Part
from pdes.core.errors import RunError
from pdes.core.guards import between_guards
from pdes.core.inputs import Int64
from pdes.core.memory import zeros
from pdes.core.rows.workers import LINE_WORDS
from pdes.harvest.gathering import Harvest
from pdes.network.boundary import WORD_BYTES
from pdes.workers.parcels import Parcels, Words, no_parcels
from pdes.workers.team import Team, found_team, team_in, team_words


class ProcessPlace(NamedTuple):
    """What one process of a run has."""

    parts: Sequence[Part]  # the LPs that it does
    post: Outboxes | None  # their outboxes, and where to find those of their neighbours; None = their worlds are built
    team: Team  # see pdes.workers.team; found already
    parcels: Parcels  # what the LPs send to other teams and get from them
    first: int = 0  # number in the team of the first of its workers
    threads: int = 1  # how many they are
    rank: int = 0  # of MPI
    exchange: Callable[[], None] | None = (
        None  # sends the team's parcels, takes others: for its first worker, if needed
    )


Share = Callable[[ProcessPlace], Harvest]
"""What one process does of a run, from building its worlds to what they have brought."""


class Mailbox(ABC):
    """How the processes of a run, each with a Place, work together; as it is where there are none before the run."""

    failure: type[RunError] = RunError  # what a failure is raised as that all processes find alike

    def lps(self, layout: Layout) -> range:
        """The LPs for which this process answers, before there are others that it starts itself."""
        return range(layout.lps)

    def sum(self, value: int) -> int:
        """The sum of a value over all processes that are there before any is started."""
        return value

    @abstractmethod
    def everywhere(self, layout: Layout, threads: int, share: Share) -> tuple[Harvest, Harvest]:
        """Have every process do its share.

        Args:
            layout: the fabric divided among LPs.
            threads: workers of each process, at most.
            share: called once in each process; before that every kernel is compiled.

        Returns:
            What all have brought, and the part whose trace rows the results of this process are to hold.

        Raises:
            RunError: a process failed.
        """

    def windows(self) -> AbstractContextManager:
        """A block in which this process does its windows: all begin it at once. What ends it early is said here."""
        return nullcontext()


class Segment:
    """Zeroed int64 words that pieces are taken from, one behind the other, with guards between them (pdes.core.guards).

    Processes that share the words take the same pieces in the same order.
    """

    def __init__(self, words: Int64) -> None:
        self._bytes = words.view(np.uint8)
        self._used_bytes = 0

    def take(self, words: int) -> Int64:
        """int64[words], beginning on a pair of cache lines of its own."""
        begin = self._used_bytes
        self._used_bytes += WORD_BYTES * segment_words(words)
        memory = self._bytes[begin : self._used_bytes]
        return between_guards(memory, WORD_BYTES * words, WORD_BYTES * LINE_WORDS).view(np.int64)


def segment_words(words: int) -> int:
    """How many words of a Segment a piece takes with its guards."""
    return rounded(words) + 2 * LINE_WORDS


def rounded(words: Words) -> Words:
    """Whole pairs of cache lines."""
    return -(-words // LINE_WORDS) * LINE_WORDS


class SingleProcess(Mailbox):
    """One process, whose workers are threads; it has all LPs (parts), whose worlds are built already."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def everywhere(self, layout: Layout, threads: int, share: Share) -> tuple[Harvest, Harvest]:
        """Do all of it here."""
        threads = min(threads, len(self._parts))
        team = team_in(zeros(team_words(threads)))
        found_team(team, layout.fabric.cell_ps, layout.lookahead_ps, crew_size=threads)
        own = share(ProcessPlace(self._parts, None, team, no_parcels(self._parts), 0, threads))
        return own, own
