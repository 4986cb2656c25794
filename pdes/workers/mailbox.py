"""The interface between the processes of a run: a team, outboxes, and the merging of their outcomes.

There are three kinds: `SingleProcess`, one process whose workers are threads; processes of this machine
(`pdes.workers.processes`); MPI ranks, each with threads (`pdes.workers.ranks`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np

from nadi.pdes.construction.layout import Layout, Outboxes, Part
from nadi.pdes.core import Int64, RunError
from nadi.pdes.core.jit import between_guards, zeros
from nadi.pdes.core.packet import WORD_BYTES
from nadi.pdes.core.rows.run import LINE_WORDS
from nadi.pdes.outcomes.outcome import LpResults
from nadi.pdes.workers.batches import MessageBatches, Words, no_batches
from nadi.pdes.workers.team import Team, found_team, team_in, team_words


class ProcessPlace(NamedTuple):
    """The position of one process in a run, and its memory."""

    parts: Sequence[Part]  # parts of its LPs
    post: Outboxes | None  # outboxes of the LPs and their neighbours; None = their worlds are built
    team: Team  # see pdes.workers.team; set up already
    batches: MessageBatches  # packets of the LPs to and from other teams
    first: int = 0  # number within the team of its first worker
    threads: int = 1  # number of its workers
    rank: int = 0  # MPI rank
    exchange: Callable[[], None] | None = None  # exchanges batches with other teams: for its first worker, if needed
    ranks: Sequence[int] = ()  # MPI rank of each process of the team; () = there are no ranks


Share = Callable[[ProcessPlace], LpResults]  # one process's part of a run, from building its worlds to their outcome


class Mailbox(ABC):
    """The cooperation of a run's processes, each with a Place; defaults for no other process before the run."""

    failure: type[RunError] = RunError  # raised for a failure that every process finds

    def lps(self, layout: Layout) -> range:
        """Return the LPs of this process, before it starts others itself.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
        """
        return range(layout.lps)

    def sum(self, value: int) -> int:
        """Return the sum of a value over all processes that exist before any is started."""
        return value

    def have_all(self, is_done: bool) -> bool:
        """Wait until all processes call this during the run, and return whether is_done is true in each."""
        return is_done

    def merged(self, own: LpResults) -> tuple[LpResults, LpResults] | None:
        """Return what `everywhere` returns; all processes call this during the run. None: another process gets it.

        Args:
            own: LpResults of this process.
        """
        return own, own

    @abstractmethod
    def everywhere(self, layout: Layout, threads: int, work: Share) -> tuple[LpResults, LpResults]:
        """Let every process do its work, called once after every kernel is compiled.

        Returns the merged outcome, and the outcome whose trace rows the results of this process hold. Raises RunError
        if a process failed.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
            threads: Maximum number of workers of a process.
            work: Function of a process's ProcessPlace that returns its LpResults.
        """

    def windows(self) -> AbstractContextManager:
        """Return a context for this process's windows: all enter together; it reports early ends."""
        return nullcontext()


class Segment:
    """Zeroed int64 words from which pieces are taken one after another, with guards between (pdes.core.jit)."""

    # Processes that share the words take the same pieces in the same order.

    def __init__(self, words: Int64) -> None:
        self._bytes = words.view(np.uint8)
        self._used_bytes = 0

    def take(self, words: int) -> Int64:
        """Return the next int64[words] of the segment, on cache-line pairs of its own."""
        begin = self._used_bytes
        # whole pairs of lines: processors prefetch lines in pairs, so a neighbour's writes would take the line from
        # this reader
        self._used_bytes += WORD_BYTES * segment_words(words)
        memory = self._bytes[begin : self._used_bytes]
        return between_guards(memory, WORD_BYTES * words, WORD_BYTES * LINE_WORDS).view(np.int64)


def segment_words(words: int) -> int:
    """Return the number of words of a Segment that a piece takes with its guards."""
    return rounded(words) + 2 * LINE_WORDS


def rounded(words: Words) -> Words:
    """Return words rounded up to whole pairs of cache lines."""
    return -(-words // LINE_WORDS) * LINE_WORDS


class SingleProcess(Mailbox):
    """One process, whose workers are threads; it has all LPs (parts), whose worlds are built already."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def everywhere(self, layout: Layout, threads: int, work: Share) -> tuple[LpResults, LpResults]:
        """Do all work in this process; return its outcome twice. As Mailbox.everywhere.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
            threads: Maximum number of workers of a process.
            work: Function of a process's ProcessPlace that returns its LpResults.
        """
        # a worker without an LP would only wait
        threads = min(threads, len(self._parts))
        team = team_in(zeros(team_words(threads)))
        found_team(team, layout.grid_ps, layout.lookahead_ps, pool_size=threads)
        own = work(ProcessPlace(self._parts, None, team, no_batches(self._parts), 0, threads))
        return own, own
