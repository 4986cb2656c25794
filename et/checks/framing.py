"""Check for files that cannot be read as a trace: truncated, of another kind, or with meaningless values."""

from collections.abc import Iterable

from nadi.et.checking import Check, OpenedTrace
from nadi.et.checking.finding import ERROR, Example, Finding

LOOKS_FOR = "files that are truncated or of another kind, and nodes with meaningless values"


class TraceCheck(Check):
    """Reports the reader's error on each file."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Return the file as unreadable; then other checks skip it.

        Args:
            opened: The file, readable or not.
        """
        if opened.error:
            example = Example(opened.path, None, opened.error.removeprefix(f"{opened.path}: "))
            yield Finding(ERROR, "traces cannot be read", 1, (example,))
