"""Removal of nodes from a trace so that the order of the remaining nodes is preserved.

A node that waited for a removed node waits for that node's parents instead. Among the new dependencies, those that a
direct look at the parents shows to be implied are omitted. Where there would be far more than before, the node
stays as a joint, which does nothing.
"""

from typing import NamedTuple

import numpy as np

from nadi.et.order import children, topological_order
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Mask

_MAX_ADDED_PER_NODE = 64  # dependencies that a removed node may add before it becomes a joint


class BridgedDependencies(NamedTuple):
    """The dependencies among the nodes that stay."""

    parents: dict[int, set[int]]  # parents of each row that stays
    joints: Mask  # bool[n], rows that stay only because they connect many parents to many children
    added: int  # number of dependencies that replace paths through removed nodes


def bridge(table: TraceTable, keep: Mask) -> BridgedDependencies:
    """Return the dependencies among the nodes to keep, which preserve their order without the removed nodes.

    Args:
        table: The whole trace.
        keep: bool[n], whether each node stays.
    """
    dep_ptr, dep = table.dep_ptr.tolist(), table.dep.tolist()
    child_counts = np.diff(children(table)[0]).tolist()
    stays = keep.tolist()
    joints = np.zeros(len(table), np.bool_)
    through: dict[int, set[int]] = {}
    parents: dict[int, set[int]] = {}
    added = 0
    for row in topological_order(table).tolist():
        direct = {parent for parent in dep[dep_ptr[row] : dep_ptr[row + 1]] if stays[parent]}
        # The kept nodes that must come before, directly or through removed nodes
        found = set(direct)
        for parent in dep[dep_ptr[row] : dep_ptr[row + 1]]:
            if not stays[parent]:
                found |= through[parent]
        if len(found) > len(direct):
            # a new parent is left out if it is the parent of another parent
            found = direct | (found - direct).difference(*(parents[parent] for parent in found))
        if stays[row]:
            added += len(found) - len(direct)
            parents[row] = found
        # A removed node replaces a + b dependencies by a * b
        elif len(found) * child_counts[row] > len(found) + child_counts[row] + _MAX_ADDED_PER_NODE:
            stays[row] = joints[row] = True
            added += len(found) - len(direct)
            parents[row] = found
        else:
            through[row] = found
    return BridgedDependencies(parents, joints, added)
