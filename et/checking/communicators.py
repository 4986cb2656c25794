"""The group that a name in a trace means for each NPU, as in runs; unknown names are for a check to report."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from et.attributes import ALL_NPUS
from et.checking.sources import Sources
from et.table import TraceTable

Int64 = NDArray[np.int64]

UNKNOWN = -1
ALL = 0


class Communicators:
    """The groups met so far, numbered in that order; 0 is all NPUs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.names = [ALL_NPUS]
        self.members: list[Int64] = [np.arange(sources.npus)]
        self._number: dict[tuple[str, tuple[int, ...]], int] = {}
        self._families: dict[str, Int64] = {}

    def of(self, table: TraceTable, group: int, users: Int64) -> Int64:
        """Return int64[users], the number of each user's group, UNKNOWN = -1.

        Args:
            table: Trace that names the group.
            group: Row of its group_names.
            users: int64[], NPUs that run the trace.
        """
        name = table.group_names[group]
        if name == ALL_NPUS:
            return np.full(len(users), ALL)
        if name in self._sources.families:
            return self._family(name)[users]
        members = self._sources.groups.get(name, table.metadata_groups.get(name))
        if members is None:
            return np.full(len(users), UNKNOWN)
        key = name, tuple(members)
        if key not in self._number:
            self._number[key] = self._add(name, members or range(self._sources.npus))
        return np.full(len(users), self._number[key])

    def _family(self, name: str) -> Int64:
        """Return int64[npus], the group of each NPU in a family."""
        if name not in self._families:
            found = np.full(self._sources.npus, UNKNOWN)
            for members in self._sources.families[name]:
                found[list(members)] = self._add(name, members)
            self._families[name] = found
        return self._families[name]

    def _add(self, name: str, members: Sequence[int]) -> int:
        self.names.append(name)
        self.members.append(np.array(members, np.int64))
        return len(self.members) - 1
