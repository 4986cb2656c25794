"""Findings of a check: for each kind of problem a severity, a count and a few examples."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""ERROR: `nadi run` refuses the trace, or deadlocks. WARNING: it runs, but is hardly intended. NOTE: information."""

MAX_EXAMPLES = 100
"""Examples kept per kind of problem over all files, so that a report on a million wrong nodes stays small."""


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
    severity: str,
    what: str,
    path: str,
    node_id: NDArray[np.uint64],
    rows: NDArray[np.integer],
    text: Callable[[int], str],
) -> Iterable[Finding]:
    """Yield a finding on some rows of a trace, or nothing without rows.

    Args:
        severity: Severity as in Finding.
        what: Kind of problem as in Finding.
        path: Path of the trace.
        node_id: uint64[n], ids of its nodes.
        rows: int[k], rows with the problem.
        text: Function that describes the problem of a row.
    """
    if len(rows):
        examples = tuple(Example(path, int(node_id[row]), text(row)) for row in rows[:MAX_EXAMPLES].tolist())
        yield Finding(severity, what, len(rows), examples)
