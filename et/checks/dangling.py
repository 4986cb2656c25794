"""Check for dependencies on nodes that the file lacks."""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import Check, OpenedTrace
from nadi.et.checking.finding import ERROR, MAX_EXAMPLES, Example, Finding

LOOKS_FOR = "dependencies on nodes that the file lacks"


class TraceCheck(Check):
    """Reports dangling dependencies in files that et.read_trace refuses."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Return dangling data and control dependencies separately.

        Args:
            opened: The file, readable or not.
        """
        raw = opened.raw
        if raw is None:
            return
        deps = raw.dependencies
        for kind, of_kind in (("data", ~deps.is_control), ("control", deps.is_control)):
            at = np.flatnonzero(raw.dangling & of_kind)
            examples = tuple(
                Example(raw.path, int(raw.node_id[deps.row[i]]), f"depends on node {deps.parent_id[i]} ({kind})")
                for i in at[:MAX_EXAMPLES].tolist()
            )
            if len(at):
                yield Finding(ERROR, f"{kind} dependencies are on nodes that the file lacks", len(at), examples)
