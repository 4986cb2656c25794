"""Names of groups that nothing explains, and groups that do not fit the NPUs."""

from collections.abc import Iterable

import numpy as np

from et.checking.check import Check, CheckContext
from et.checking.communicators import ALL, UNKNOWN
from et.checking.finding import ERROR, NOTE, WARNING, Example, Finding
from et.checking.looked import CheckedTrace

NAME = "groups"
LOOKS_FOR = "groups that neither the group file nor METADATA nodes define, their members, and groups of one"


class Look(Check):
    """Groups that collectives use; each once in a trace, each once for its members."""

    def __init__(self, around: CheckContext) -> None:
        super().__init__(around)
        self._told: set[int] = set()

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:
        """Unknown groups, NPUs that are no members, and what is wrong with the members."""
        users = self.sources.users[looked.trace]
        for group in np.unique(looked.collectives.group).tolist():
            numbers = self.around.communicators.of(looked.table, group, users)
            yield from self._unknown(looked, group, numbers, users)
            for number in np.unique(numbers[numbers > ALL]).tolist():
                yield from self._outsiders(looked, group, number, users[numbers == number])
                if number not in self._told:
                    self._told.add(number)
                    yield from self._members(looked, group, number)

    def _unknown(self, looked: CheckedTrace, group: int, numbers: np.ndarray, users: np.ndarray) -> Iterable[Finding]:
        """A name that means nothing."""
        name = looked.table.group_names[group]
        lost = users[numbers == UNKNOWN]
        if len(lost) == 0:
            return
        if name in self.sources.families:
            text = f'NPU {lost[0]} runs it but is in no group of the family "{name}"'
            yield self._finding(ERROR, "NPUs are in no group of a family that their trace names", looked, group, text)
            return
        beside = self.sources.groups_file or "no group file"
        text = f'group "{name}", which {beside} and METADATA nodes lack'
        # of one file alone nobody may have been told where its groups stand
        severity = ERROR if self.sources.whole or self.sources.groups_file else WARNING
        yield self._finding(severity, "groups are unknown", looked, group, text)

    def _outsiders(self, looked: CheckedTrace, group: int, number: int, users: np.ndarray) -> Iterable[Finding]:
        """NPUs that use a group without being in it."""
        members = self.around.communicators.members[number]
        outside = users[~np.isin(users, members)]
        if len(outside) and self.sources.whole:
            name = looked.table.group_names[group]
            text = f'group "{name}": NPU {outside[0]} is not one of its {len(members)} members'
            yield self._finding(ERROR, "NPUs use groups that they are not in", looked, group, text)

    def _members(self, looked: CheckedTrace, group: int, number: int) -> Iterable[Finding]:
        """Members that do not exist or stand twice, and groups of one."""
        members = self.around.communicators.members[number]
        name = looked.table.group_names[group]
        distinct = np.unique(members)
        if len(distinct) < len(members):
            text = f'group "{name}": {len(members)} members, but {len(distinct)} different NPUs'
            yield self._finding(ERROR, "groups have a member twice", looked, group, text)
        beyond = distinct[(distinct < 0) | (distinct >= self.sources.npus)]
        if len(beyond) and self.sources.whole:
            text = f'group "{name}": member NPU {beyond[0]}, but the traces are of {self.sources.npus} NPUs'
            yield self._finding(ERROR, "groups have members that no trace is of", looked, group, text)
        if len(members) == 1 and self.sources.whole:
            text = f'group "{name}": its collectives are done at once'
            yield self._finding(NOTE, "groups have one member", looked, group, text)

    def _finding(self, severity: str, what: str, looked: CheckedTrace, group: int, text: str) -> Finding:
        """At the first collective of the group."""
        colls = looked.collectives
        row = int(colls.row[np.argmax(colls.group == group)])
        return Finding(severity, what, 1, (Example(looked.table.path, looked.node(row), text),))
