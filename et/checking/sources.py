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
    """T distinct traces of some NPUs."""

    path: Path  # path that the user gave for all of them
    files: tuple[Path, ...]  # the trace files
    users: tuple[Int64, ...]  # int64[] per trace, NPUs that run it, ascending
    # for each trace, the NPU whose peers are as written; peers of other users shift by the user's number minus the
    # example's. AS_WRITTEN = -1: peers are as written for all users
    examples: tuple[int, ...]
    npus: int  # number of NPUs, which are 0 .. npus-1
    # members of each group in the group file, by name
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # groups of each family in a trace set, by name; an NPU is in at most one group of a family
    families: Mapping[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    groups_file: str = ""  # file of `groups`, "" = none
    is_complete: bool = True  # False = one file out of several, so that its peers cannot be checked

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
