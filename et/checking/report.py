"""All findings of a look: sorts, with how many there are and a few in words."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from et.checking.finding import ERROR, MOST_EXAMPLES, SEVERITIES, Example, Finding


@dataclass(frozen=True)
class FindingGroup:
    """Findings of one check and sort, of all files.

    Attributes:
        check: its name.
        severity: see Finding.
        what: see Finding.
        count: see Finding.
        examples: the first ones.
    """

    check: str
    severity: str
    what: str
    count: int
    examples: tuple[Example, ...]


class CheckReport:
    """What was found. `traces` and `nodes` count distinct files and their nodes."""

    def __init__(self, path: str, npus: int) -> None:
        self.path = path
        self.npus = npus
        self.traces = 0
        self.nodes = 0
        self._sorts: dict[tuple[str, str, str], tuple[int, list[Example]]] = {}

    def add(self, check: str, findings: Iterable[Finding]) -> None:
        """Take in what a check says."""
        for finding in findings:
            key = check, finding.severity, finding.what
            count, examples = self._sorts.get(key, (0, []))
            examples += finding.examples[: MOST_EXAMPLES - len(examples)]
            self._sorts[key] = count + finding.count, examples

    @property
    def sorts(self) -> list[FindingGroup]:
        """The most severe first, then by check."""
        found = [FindingGroup(*key, count, tuple(examples)) for key, (count, examples) in self._sorts.items()]
        return sorted(found, key=lambda sort: (SEVERITIES.index(sort.severity), sort.check, sort.what))

    def count(self, severity: str) -> int:
        """How many findings there are of a severity."""
        return sum(sort.count for sort in self.sorts if sort.severity == severity)

    @property
    def is_clean(self) -> bool:
        """Whether there is no error."""
        return self.count(ERROR) == 0

    def described(self, most: int) -> dict[str, Any]:
        """The same in values that JSON can hold, with so many examples of each sort."""
        return {
            "path": self.path,
            "npus": self.npus,
            "traces": self.traces,
            "nodes": self.nodes,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "findings": [
                {
                    "check": sort.check,
                    "severity": sort.severity,
                    "what": sort.what,
                    "count": sort.count,
                    "examples": [example._asdict() for example in sort.examples[:most]],
                }
                for sort in self.sorts
            ],
        }
