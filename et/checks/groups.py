"""Check for names of groups that are undefined, and for groups that do not fit the NPUs."""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import ALL, UNKNOWN, Check, CheckContext, CheckedTrace
from nadi.et.checking.finding import ERROR, NOTE, WARNING, Example, Finding

LOOKS_FOR = "groups that neither the group file nor METADATA nodes define, their members, and groups of one"


class TraceCheck(Check):
    """Reports groups that collectives use, names once per trace and members once per group.

    `group` is the row of a name in the trace's group_names; `number` is that of a group with known members, and `users`
    are NPUs that run the trace.
    """

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._reported: set[int] = set()

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Return unknown groups, NPUs that are no members, and problems of the members.

        Args:
            checked: The trace to check.
        """
        users = self.sources.users[checked.trace]
        for group in np.unique(checked.collectives.group).tolist():
            numbers = self.context.communicators.of(checked.table, group, users)
            yield from self._unknown(checked, group, numbers, users)
            # Users of one trace may be in different groups of a family
            for number in np.unique(numbers[numbers > ALL]).tolist():
                yield from self._outsiders(checked, group, number, users[numbers == number])
                if number not in self._reported:
                    # Several traces may use the group: report its members once
                    self._reported.add(number)
                    yield from self._members(checked, group, number)

    def _unknown(
        self, checked: CheckedTrace, group: int, number_of_user: np.ndarray, users: np.ndarray
    ) -> Iterable[Finding]:
        """Return names that are undefined for some users."""
        name = checked.table.group_names[group]
        lost = users[number_of_user == UNKNOWN]
        if len(lost) == 0:
            return
        if name in self.sources.families:
            text = f'NPU {lost[0]} runs it but is in no group of the family "{name}"'
            yield self._finding(ERROR, "NPUs are in no group of a family that their trace names", checked, group, text)
            return
        groups_file = self.sources.groups_file or "no group file"
        text = f'group "{name}", which {groups_file} and METADATA nodes lack'
        # for a single file, the user may not have named the group file
        severity = ERROR if self.sources.is_complete or self.sources.groups_file else WARNING
        yield self._finding(severity, "groups are unknown", checked, group, text)

    def _outsiders(self, checked: CheckedTrace, group: int, number: int, users: np.ndarray) -> Iterable[Finding]:
        """Return NPUs that use a group but are not in it."""
        members = self.context.communicators.members[number]
        outside = users[~np.isin(users, members)]
        if len(outside) and self.sources.is_complete:
            name = checked.table.group_names[group]
            text = f'group "{name}": NPU {outside[0]} is not one of its {len(members)} members'
            yield self._finding(ERROR, "NPUs use groups that they are not in", checked, group, text)

    def _members(self, checked: CheckedTrace, group: int, number: int) -> Iterable[Finding]:
        """Return members that do not exist or occur twice, and groups of one."""
        members = self.context.communicators.members[number]
        name = checked.table.group_names[group]
        distinct = np.unique(members)
        if len(distinct) < len(members):
            text = f'group "{name}": {len(members)} members, but {len(distinct)} different NPUs'
            yield self._finding(ERROR, "groups have a member twice", checked, group, text)
        beyond = distinct[(distinct < 0) | (distinct >= self.sources.npus)]
        if len(beyond) and self.sources.is_complete:
            text = f'group "{name}": member NPU {beyond[0]}, but the traces are of {self.sources.npus} NPUs'
            yield self._finding(ERROR, "groups have members that have no trace", checked, group, text)
        if len(members) == 1 and self.sources.is_complete:
            text = f'group "{name}": its collectives take no time'
            yield self._finding(NOTE, "groups have one member", checked, group, text)

    def _finding(self, severity: str, problem: str, checked: CheckedTrace, group: int, example_text: str) -> Finding:
        """Return a finding of a problem, whose example is the first collective of a group in a trace."""
        colls = checked.collectives
        row = int(colls.row[np.argmax(colls.group == group)])
        return Finding(severity, problem, 1, (Example(checked.table.path, checked.node(row), example_text),))
