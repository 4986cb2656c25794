"""Files that cannot be read as a trace: cut off, of another kind, with messages or values that make no sense."""

from collections.abc import Iterable

from et.checking.check import Check
from et.checking.finding import ERROR, Example, Finding
from et.checking.opened import OpenedTrace

NAME = "framing"
LOOKS_FOR = "files that are cut off or of another kind, and nodes with values that make no sense"


class Look(Check):
    """Of each file what reading it says."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Unreadable: other checks do not look at it."""
        if opened.error:
            example = Example(opened.path, None, opened.error.removeprefix(f"{opened.path}: "))
            yield Finding(ERROR, "traces cannot be read", 1, (example,))
