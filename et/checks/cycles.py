"""Check for nodes that wait for each other in a cycle."""

from collections.abc import Iterable

from nadi.et.checking import Check, OpenedTrace
from nadi.et.checking.finding import ERROR, MAX_EXAMPLES, Example, Finding

LOOKS_FOR = "dependencies that close a cycle, with its path"


class TraceCheck(Check):
    """Reports cycles in files that et.read_trace refuses."""

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:
        """Yield cycles of data dependencies, and cycles among the dependencies that remain without those.

        Args:
            opened: The file, readable or not.
        """
        raw = opened.raw
        if raw is None or len(raw.node_id) == 0:
            return
        is_data = ~raw.dependencies.is_control
        others = ~raw.on_cycles(is_data)[0]
        for what, among in (
            ("cycles of data dependencies", is_data),
            ("cycles that control dependencies close", others),
        ):
            count, cycles = raw.cycles(among, MAX_EXAMPLES)
            ids = raw.node_id.tolist()
            examples = tuple(Example(raw.path, ids[row], f"dependency cycle {path}") for row, path in cycles)
            if count:
                yield Finding(ERROR, what, count, examples)
