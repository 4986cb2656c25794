"""The contract between the engine, which knows what a checkpoint holds, and its owner, who keeps files and signals."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nadi.pdes.results import Results
from nadi.pdes.workers.snapshot_points import NO_SNAPSHOT


class SavedState(NamedTuple):
    """A part of a checkpoint: values of JSON, and flat arrays of numbers by name."""

    values: dict[str, Any]
    arrays: Mapping[str, np.ndarray]


class Checkpoints(ABC):
    """The checkpoints of a run; every process of the run has one."""

    interval_s: float = 0.0  # wall time between two checkpoints, 0 = only on request
    request: int = NO_SNAPSHOT  # pdes.workers.snapshot_points: a signal handler of this process sets it
    resumed: SavedState | None = None  # the run's part of the checkpoint from which it continues, None = it begins
    # receives the results so far after each checkpoint, on the processes that get the results; None = nobody does
    publish: Callable[[Results], None] | None = None

    @abstractmethod
    def listen(self) -> None:
        """Let signals to this process set `request`, from the main thread."""

    @abstractmethod
    def write(self, name: str, state: SavedState) -> None:
        """Write a part of the next checkpoint; OSError: the part is not written.

        Args:
            name: Name of the part.
            state: Values and arrays of the part.
        """

    @abstractmethod
    def commit(self, state: SavedState) -> None:
        """Complete the checkpoint, once all processes have written their parts; one process calls this.

        state: the run's part. OSError: there is no new checkpoint, and the one before is the newest.
        """

    @abstractmethod
    def discard(self, reason: str) -> None:
        """Drop the parts of a checkpoint that could not be written; one process calls this.

        Args:
            reason: Why the checkpoint is incomplete, as text for the user.
        """

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether the checkpoint from which the run continues has a part.

        Args:
            name: Name of the part.
        """

    @abstractmethod
    def read(self, name: str) -> SavedState:
        """Return a part of the checkpoint from which the run continues; raises if it is damaged.

        Args:
            name: Name of the part.
        """
