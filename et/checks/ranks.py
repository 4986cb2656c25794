"""NPUs without a trace."""

from collections.abc import Iterable

import numpy as np

from et.checking.check import Check
from et.checking.finding import MOST_EXAMPLES, WARNING, Example, Finding

NAME = "ranks"
LOOKS_FOR = "NPUs without a trace"


class Look(Check):
    """A run leaves them idle; where a collective or a message needs them, other checks say so."""

    def end(self) -> Iterable[Finding]:
        """Each NPU that runs nothing."""
        sources = self.sources
        runs = np.zeros(sources.npus, np.bool_)
        for users in sources.users:
            runs[users] = True
        idle = np.flatnonzero(~runs)
        if len(idle):
            examples = tuple(
                Example(str(sources.path), None, f"NPU {npu} of 0 to {sources.npus - 1} has no trace")
                for npu in idle[:MOST_EXAMPLES].tolist()
            )
            yield Finding(WARNING, "NPUs have no trace", len(idle), examples)
