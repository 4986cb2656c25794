"""Snapshot points: all workers of a run stop before the same window, where the state of all LPs is consistent.

A process asks for a snapshot point in the word `asked` of its team. The first worker of the team copies it at the end
of a window; batches of the next window carry it to the other teams; at the end of that window all teams know of it, and
every worker leaves the kernel (`pdes.workers.team.SNAPSHOT`) before the window after.
"""

from abc import ABC, abstractmethod

from nadi.pdes.core.errors import AgreedRunError
from nadi.pdes.workers.team import Team

NO_SNAPSHOT, SAVE, SAVE_AND_END = range(3)  # what a process asks for, the strongest last


class StoppedError(AgreedRunError):
    """A run was asked to end, and its state is saved."""

    exit_code = 143  # as shells report SIGTERM: 128 + 15


class SnapshotPoints(ABC):
    """What the workers of one process do at snapshot points (pdes.checkpoint.saver)."""

    @abstractmethod
    def wanted(self) -> int:
        """Return NO_SNAPSHOT, SAVE or SAVE_AND_END, whatever this process asks for now."""

    @abstractmethod
    def save(self, team: Team, begin_ps: int) -> None:
        """Save the state of this process, whose workers are at a snapshot point.

        All processes of the run call this together. Raises StoppedError if the run is to end.

        Args:
            team: Memory that all workers of the team share.
            begin_ps: Begin of the next window in ps.
        """
