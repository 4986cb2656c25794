"""What a check says: sorts of findings with how many there are, and a few of them in words."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""`nadi run` refuses it, or somebody waits for ever; it runs, but hardly means that; good to know."""

MOST_EXAMPLES = 100
"""Of a sort, over all files: a report of a million wrong nodes stays small."""


class Example(NamedTuple):
    """One of many.

    Attributes:
        path: the file; "" where it is about all of them.
        node: its id there; None where it is about no single one.
        text: what was found and what was expected.
    """

    path: str
    node: int | None
    text: str

    def __str__(self) -> str:
        place = self.path + (f": node {self.node}" if self.node is not None else "")
        return f"{place}: {self.text}" if place else self.text


@dataclass(frozen=True)
class Finding:
    """Something wrong, of one sort.

    Attributes:
        severity: one of SEVERITIES.
        what: the sort in words, the same for all files.
        count: how often.
        examples: a few of them.
    """

    severity: str
    what: str
    count: int
    examples: tuple[Example, ...]


def at_nodes(
    severity: str,
    what: str,
    path: str,
    node_id: NDArray[np.uint64],
    rows: NDArray[np.integer],
    text: Callable[[int], str],
) -> Iterable[Finding]:
    """The finding of some rows of a trace; nothing where there are none.

    Args:
        severity: see Finding.
        what: see Finding.
        path: of the trace.
        node_id: uint64[n], its ids.
        rows: int[k], those that are wrong.
        text: says what is wrong with a row.
    """
    if len(rows):
        examples = tuple(Example(path, int(node_id[row]), text(row)) for row in rows[:MOST_EXAMPLES].tolist())
        yield Finding(severity, what, len(rows), examples)
