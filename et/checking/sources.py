"""Input of a check: files, the NPUs that run each, and the groups that their collectives name, as in runs."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nadi.et.attributes import ALL_NPUS
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int64

AS_WRITTEN = -1

UNKNOWN = -1
ALL = 0


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

    def shifts(self, trace_number: int) -> Int64:
        """Return int64[users], the number added to peers for each user of a trace.

        Args:
            trace_number: The number of the trace in Sources.
        """
        return shifts_of(self.users[trace_number], self.examples[trace_number])

    def place(self, npu: int) -> tuple[int, int] | None:
        """Return the trace that an NPU runs and the NPU's index among its users; None if it runs no trace.

        Args:
            npu: The number of the NPU.
        """
        for trace, users in enumerate(self.users):
            at = int(np.searchsorted(users, npu))
            if at < len(users) and users[at] == npu:
                return trace, at
        return None


def shifts_of(users: Int64, example: int) -> Int64:
    """Return int64[users], the number added to peers for each user of a trace.

    Args:
        users: The NPUs that run the trace, int64[].
        example: The NPU whose peers are as written; AS_WRITTEN = they are the same for all users.
    """
    return np.zeros(len(users), np.int64) if example == AS_WRITTEN else users - example


class Communicators:
    """The groups met so far, numbered in that order; 0 is all NPUs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.names = [ALL_NPUS]
        self.members: list[Int64] = [np.arange(sources.npus)]
        self._number: dict[tuple[str, tuple[int, ...]], int] = {}
        self._families: dict[str, Int64] = {}

    def of(self, table: TraceTable, group: int, users: Int64) -> Int64:
        """Return int64[users], the number of the group that a name in a trace means for each user, UNKNOWN = -1.

        Args:
            table: The trace as a table of columns.
            group: The row of the name in `group_names` of the table.
            users: The NPUs that run the trace, int64[], ascending.
        """
        name = table.group_names[group]
        if name == ALL_NPUS:
            return np.full(len(users), ALL)
        if name in self._sources.families:
            if name not in self._families:
                found = np.full(self._sources.npus, UNKNOWN)
                for npus in self._sources.families[name]:
                    found[list(npus)] = self._add(name, npus)
                self._families[name] = found
            return self._families[name][users]
        members = self._sources.groups.get(name, table.metadata_groups.get(name))
        if members is None:
            return np.full(len(users), UNKNOWN)
        key = name, tuple(members)
        if key not in self._number:
            # A group without a list of members is that of all NPUs
            self._number[key] = self._add(name, members or range(self._sources.npus))
        return np.full(len(users), self._number[key])

    def _add(self, group_name: str, members: Sequence[int]) -> int:
        """Store a group, and return its new number."""
        self.names.append(group_name)
        self.members.append(np.array(members, np.int64))
        return len(self.members) - 1
