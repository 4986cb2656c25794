"""Nodes that wait for each other in a circle."""

from collections.abc import Iterable

import numpy as np

from et.checking.check import Check
from et.checking.finding import ERROR, MOST_EXAMPLES, Example, Finding
from et.checking.opened import Opened

NAME = "cycles"
LOOKS_FOR = "dependencies that close a cycle, with its path"


class Look(Check):
    """Of files that cannot be read at once."""

    def file(self, opened: Opened) -> Iterable[Finding]:
        """Loops of data dependencies; and those that only control dependencies close."""
        raw = opened.raw
        if raw is None or len(raw.node_id) == 0:
            return
        control = raw.dependencies.is_control
        for what, among in (
            ("data dependencies close a cycle", ~control),
            ("control dependencies close a cycle", np.ones(len(control), np.bool_)),
        ):
            count, cycles = raw.cycles(among, MOST_EXAMPLES)
            if count:
                examples = tuple(
                    Example(raw.path, int(raw.node_id[row]), f"dependency cycle {path}") for row, path in cycles
                )
                yield Finding(ERROR, what, count, examples)
                return
