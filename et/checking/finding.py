"""Findings of checks and the report of all: for each kind of problem a severity, a count and a few examples."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.et.checking.raw import RawTrace
from nadi.et.table import TraceTable

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""ERROR: `nadi run` refuses the trace, or deadlocks. WARNING: it runs, but is hardly intended. NOTE: information."""

MAX_EXAMPLES = 100  # examples kept per kind of problem over all files: a report on a million nodes stays small


class Example(NamedTuple):
    """An example of a problem."""

    path: str  # file with the problem; "" if it concerns all files
    node: int | None  # id of the node in the file; None if it concerns no single node
    text: str  # description of what was found and what was expected

    def __str__(self) -> str:
        place = self.path + (f": node {self.node}" if self.node is not None else "")
        return f"{place}: {self.text}" if place else self.text


@dataclass(frozen=True)
class Finding:
    """A kind of problem, in one file or in all together."""

    severity: str  # one of SEVERITIES
    what: str  # description of the kind, the same for all files
    count: int  # number of occurrences
    examples: tuple[Example, ...]  # some of the occurrences


def at_nodes(
    severity: str, what: str, trace: TraceTable | RawTrace, rows: NDArray[np.integer], text_of_row: Callable[[int], str]
) -> Iterable[Finding]:
    """Yield a Finding on some nodes of a trace, with examples; nothing if there are no nodes.

    Args:
        severity: The severity, one of SEVERITIES.
        what: The kind of problem, the same text for all files.
        trace: The trace with the nodes.
        rows: The rows of the nodes, int[].
        text_of_row: A function that returns what was found and expected at a row.
    """
    if len(rows):
        shown = rows[:MAX_EXAMPLES].tolist()
        examples = tuple(Example(trace.path, int(trace.node_id[row]), text_of_row(row)) for row in shown)
        yield Finding(severity, what, len(rows), examples)


@dataclass(frozen=True)
class FindingGroup(Finding):
    """Findings of one check and kind, over all files."""

    check: str  # name of the check


class CheckReport:
    """All findings; `traces` and `nodes` count distinct files and their nodes."""

    def __init__(self, path: str, npus: int) -> None:
        self.path = path
        self.npus = npus
        self.traces = 0
        self.nodes = 0
        self._groups: dict[tuple[str, str, str], tuple[int, list[Example]]] = {}

    def add(self, check_name: str, findings: Iterable[Finding]) -> None:
        """Add the findings of a check.

        Args:
            check_name: The name of the check.
            findings: The findings of all checks in a file.
        """
        for finding in findings:
            key = check_name, finding.severity, finding.what
            count, examples = self._groups.get(key, (0, []))
            examples += finding.examples[: MAX_EXAMPLES - len(examples)]
            self._groups[key] = count + finding.count, examples

    @property
    def groups(self) -> list[FindingGroup]:
        """Findings by severity, most severe first, then by check."""
        found = [
            FindingGroup(severity, what, count, tuple(examples), check)
            for (check, severity, what), (count, examples) in self._groups.items()
        ]
        return sorted(found, key=lambda group: (SEVERITIES.index(group.severity), group.check, group.what))

    def count(self, severity: str) -> int:
        """Return the number of findings of a severity.

        Args:
            severity: The severity, one of SEVERITIES.
        """
        return sum(group.count for group in self.groups if group.severity == severity)

    @property
    def is_clean(self) -> bool:
        """Whether there is no error."""
        return self.count(ERROR) == 0

    def described(self, max_examples: int) -> dict[str, Any]:
        """Return the report as values that JSON can hold.

        Args:
            max_examples: The maximum number of examples per kind of problem.
        """
        return {
            "path": self.path,
            "npus": self.npus,
            "traces": self.traces,
            "nodes": self.nodes,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "findings": [
                {key: getattr(group, key) for key in ("check", "severity", "what", "count")}
                | {"examples": [example._asdict() for example in group.examples[:max_examples]]}
                for group in self.groups
            ],
        }
