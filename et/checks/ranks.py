"""Check for NPUs without a trace."""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import Check
from nadi.et.checking.finding import MAX_EXAMPLES, WARNING, Example, Finding

LOOKS_FOR = "NPUs without a trace"


class TraceCheck(Check):
    """Reports NPUs that a run leaves idle; other checks report collectives and messages that need them."""

    def end(self) -> Iterable[Finding]:
        """Return each NPU that runs nothing."""
        sources = self.sources
        runs = np.zeros(sources.npus, np.bool_)
        for users in sources.users:
            runs[users] = True
        idle = np.flatnonzero(~runs)
        if len(idle):
            examples = tuple(
                Example(str(sources.path), None, f"NPU {npu} of 0 to {sources.npus - 1} has no trace")
                for npu in idle[:MAX_EXAMPLES].tolist()
            )
            yield Finding(WARNING, "NPUs have no trace", len(idle), examples)
