"""Dependencies on nodes that the file lacks."""

from collections.abc import Iterable

import numpy as np

from et.checking.check import Check
from et.checking.finding import ERROR, MOST_EXAMPLES, Example, Finding
from et.checking.opened import OpenedTrace

NAME = "dangling"
LOOKS_FOR = "dependencies on nodes that the file lacks"


class Look(Check):
    """Of files that cannot be read at once."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Data and control dependencies apart."""
        raw = opened.raw
        if raw is None:
            return
        deps = raw.dependencies
        for kind, of_kind in (("data", ~deps.is_control), ("control", deps.is_control)):
            at = np.flatnonzero(raw.dangling & of_kind)
            examples = tuple(
                Example(raw.path, int(raw.node_id[deps.row[i]]), f"depends on node {deps.parent_id[i]} ({kind})")
                for i in at[:MOST_EXAMPLES].tolist()
            )
            if len(at):
                yield Finding(ERROR, f"{kind} dependencies are on nodes that the file lacks", len(at), examples)
