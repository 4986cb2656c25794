"""Input of a check: files, the NPUs that run each, and the groups that their collectives name."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

AS_WRITTEN = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Sources:
    """T distinct traces of some NPUs.

    Attributes:
        path: Path that the user gave for all of them.
        files: The trace files.
        users: int64[] per trace, NPUs that run it, ascending.
        examples: For each trace, the NPU whose peers are as written; peers of other users shift by the user's number
            minus the example's. AS_WRITTEN = -1: peers are as written for all users.
        npus: Number of NPUs, which are 0 .. npus-1.
        groups: Members of each group in the group file, by name.
        families: Groups of each family in a trace set, by name; an NPU is in at most one group of a family.
        groups_file: File of `groups`, "" = none.
        is_complete: False = one file out of several, so that its peers cannot be checked.
    """

    path: Path
    files: tuple[Path, ...]
    users: tuple[Int64, ...]
    examples: tuple[int, ...]
    npus: int
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    families: Mapping[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    groups_file: str = ""
    is_complete: bool = True

    def shifts(self, trace: int) -> Int64:
        """Return int64[users], the number added to peers for each user of a trace."""
        users, example = self.users[trace], self.examples[trace]
        return np.zeros(len(users), np.int64) if example == AS_WRITTEN else users - example

    def place(self, npu: int) -> tuple[int, int] | None:
        """Return the trace that an NPU runs and its place among the trace's users; None if it runs none."""
        for trace, users in enumerate(self.users):
            at = int(np.searchsorted(users, npu))
            if at < len(users) and users[at] == npu:
                return trace, at
        return None
