"""What is checked: files, which NPUs run each, and the groups that their collectives name."""

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
        path: as the user names all of them.
        files: the traces.
        users: int64[] for each, the NPUs that run it, ascending.
        examples: for each the NPU whose numbers its peers are, for others they shift by own number minus example;
            AS_WRITTEN = -1: for nobody.
        npus: NPUs are 0 .. npus-1.
        groups: of the group file, name to members.
        families: of a trace set, name to its groups, of which an NPU is in one at most.
        groups_file: where `groups` are from, "" = there is none.
        whole: False = one file out of several: nothing can be said about its peers.
    """

    path: Path
    files: tuple[Path, ...]
    users: tuple[Int64, ...]
    examples: tuple[int, ...]
    npus: int
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    families: Mapping[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    groups_file: str = ""
    whole: bool = True

    def shifts(self, trace: int) -> Int64:
        """int64[users]: what is added to the numbers of peers for each user of a trace."""
        users, example = self.users[trace], self.examples[trace]
        return np.zeros(len(users), np.int64) if example == AS_WRITTEN else users - example

    def place(self, npu: int) -> tuple[int, int] | None:
        """Which trace an NPU runs and its place among the users; None: it has none."""
        for trace, users in enumerate(self.users):
            at = int(np.searchsorted(users, npu))
            if at < len(users) and users[at] == npu:
                return trace, at
        return None
