"""Leaving nodes out of a trace so that what came after one another still does.

What waited for a node that goes waits for what that node waited for. Of the dependencies that this makes, those that
others imply are left out where that is seen at a glance; where it would make far more than there were, the node stays
as a joint, which does nothing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from et.order import children, topological_order
from et.table import TraceTable

Mask = NDArray[np.bool_]

_ADDED_FREELY = 64


class BridgedDependencies(NamedTuple):
    """The dependencies among the nodes that stay.

    Attributes:
        parents: rows that each row waits for, by row; only of rows that stay.
        joints: bool[n], rows that stay although they were to go, as they join many to many.
        added: dependencies that stand for ways through nodes that went.
    """

    parents: dict[int, set[int]]
    joints: Mask
    added: int


def bridge(table: TraceTable, keep: Mask) -> BridgedDependencies:
    """Leave out the rows that are not kept.

    Args:
        table: the trace, without cycles.
        keep: bool[n].

    Raises:
        TraceError: the dependencies have a cycle.
    """
    dep_ptr, dep = table.dep_ptr.tolist(), table.dep.tolist()
    heirs = np.diff(children(table)[0]).tolist()
    stays = keep.tolist()
    joints = np.zeros(len(table), np.bool_)
    through: dict[int, set[int]] = {}
    parents: dict[int, set[int]] = {}
    added = 0
    for row in topological_order(table).tolist():
        direct = {parent for parent in dep[dep_ptr[row] : dep_ptr[row + 1]] if stays[parent]}
        found = set(direct)
        for parent in dep[dep_ptr[row] : dep_ptr[row + 1]]:
            if not stays[parent]:
                found |= through[parent]
        if len(found) > len(direct):
            found = direct | _without_implied(found - direct, found, parents)
        if stays[row]:
            added += len(found) - len(direct)
            parents[row] = found
        elif len(found) * heirs[row] > len(found) + heirs[row] + _ADDED_FREELY:
            stays[row] = joints[row] = True
            added += len(found) - len(direct)
            parents[row] = found
        else:
            through[row] = found
    return BridgedDependencies(parents, joints, added)


def _without_implied(new: set[int], all_of_them: set[int], parents: dict[int, set[int]]) -> set[int]:
    """Those of the new parents for which no other parent waits itself."""
    implied: set[int] = set()
    for row in all_of_them:
        implied |= parents[row] & new
    return new - implied
