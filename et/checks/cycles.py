"""Nodes that wait for each other in a circle."""

from collections.abc import Iterable

from et.checking.check import Check
from et.checking.finding import ERROR, MOST_EXAMPLES, Example, Finding
from et.checking.opened import OpenedTrace

NAME = "cycles"
LOOKS_FOR = "dependencies that close a cycle, with its path"


class Look(Check):
    """Of files that cannot be read at once."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Loops of data dependencies; and those that are left without these."""
        raw = opened.raw
        if raw is None or len(raw.node_id) == 0:
            return
        is_data = ~raw.dependencies.is_control
        others = ~raw.on_cycles(is_data)[0]
        for what, among in (
            ("cycles of data dependencies", is_data),
            ("cycles that control dependencies close", others),
        ):
            count, cycles = raw.cycles(among, MOST_EXAMPLES)
            examples = tuple(
                Example(raw.path, int(raw.node_id[row]), f"dependency cycle {path}") for row, path in cycles
            )
            if count:
                yield Finding(ERROR, what, count, examples)
