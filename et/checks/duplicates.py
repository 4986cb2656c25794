"""Check for ids that occur more than once in a file."""

from collections.abc import Iterable

from nadi.et.checking import Check, OpenedTrace
from nadi.et.checking.finding import ERROR, Finding, at_nodes

LOOKS_FOR = "ids that occur more than once in a file"


class TraceCheck(Check):
    """Reports repeated ids in files that et.read_trace refuses."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Return the nodes whose id an earlier node has.

        Args:
            opened: The file, readable or not.
        """
        raw = opened.raw
        if raw is not None:
            yield from at_nodes(
                ERROR,
                "nodes have an id that an earlier node of the file has",
                raw,
                raw.repeats,
                lambda row: f"the id occurs again at place {row} of the file, expected each id once",
            )
