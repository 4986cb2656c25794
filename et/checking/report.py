"""Report of all findings: kinds of problems with counts and a few examples."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from et.checking.finding import ERROR, MAX_EXAMPLES, SEVERITIES, Example, Finding


@dataclass(frozen=True)
class FindingGroup:
    """Findings of one check and kind, over all files."""

    check: str  # name of the check
    severity: str  # severity as in Finding
    what: str  # kind of problem as in Finding
    count: int  # number of occurrences in all files
    examples: tuple[Example, ...]  # the first occurrences


class CheckReport:
    """All findings; `traces` and `nodes` count distinct files and their nodes."""

    def __init__(self, path: str, npus: int) -> None:
        self.path = path
        self.npus = npus
        self.traces = 0
        self.nodes = 0
        self._groups: dict[tuple[str, str, str], tuple[int, list[Example]]] = {}

    def add(self, check: str, findings: Iterable[Finding]) -> None:
        """Add the findings of a check."""
        for finding in findings:
            key = check, finding.severity, finding.what
            count, examples = self._groups.get(key, (0, []))
            examples += finding.examples[: MAX_EXAMPLES - len(examples)]
            self._groups[key] = count + finding.count, examples

    @property
    def groups(self) -> list[FindingGroup]:
        """Findings by severity, most severe first, then by check."""
        found = [FindingGroup(*key, count, tuple(examples)) for key, (count, examples) in self._groups.items()]
        return sorted(found, key=lambda group: (SEVERITIES.index(group.severity), group.check, group.what))

    def count(self, severity: str) -> int:
        """Return the number of findings of a severity."""
        return sum(group.count for group in self.groups if group.severity == severity)

    @property
    def is_clean(self) -> bool:
        """Whether there is no error."""
        return self.count(ERROR) == 0

    def described(self, max_examples: int) -> dict[str, Any]:
        """Return the report as values that JSON can hold, with at most `max_examples` examples per kind."""
        return {
            "path": self.path,
            "npus": self.npus,
            "traces": self.traces,
            "nodes": self.nodes,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "findings": [
                {
                    "check": group.check,
                    "severity": group.severity,
                    "what": group.what,
                    "count": group.count,
                    "examples": [example._asdict() for example in group.examples[:max_examples]],
                }
                for group in self.groups
            ],
        }
