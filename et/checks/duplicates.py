"""Ids that stand more than once in a file."""

from collections.abc import Iterable

from et.checking.check import Check
from et.checking.finding import ERROR, Finding, at_nodes
from et.checking.opened import OpenedTrace

NAME = "duplicates"
LOOKS_FOR = "ids that stand more than once in a file"


class Look(Check):
    """Of files that cannot be read at once."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Each node whose id an earlier one has."""
        raw = opened.raw
        if raw is not None:
            yield from at_nodes(
                ERROR,
                "nodes have an id that an earlier node of the file has",
                raw.path,
                raw.node_id,
                raw.repeats,
                lambda row: f"the id stands again at place {row} of the file, expected each id once",
            )
