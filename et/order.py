"""The dependency graph of a trace: children, order, depth, cycles, and removal of nodes that keeps the order."""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.compiling.decorators import jit_enabled
from nadi.et.errors import TraceError
from nadi.et.kernels import nodes
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int32, Int64, Mask

_MAX_NODES_SHOWN = 12  # of a cycle in a message
_MIN_KERNEL_DEPENDENCIES = 100_000  # fewer are not worth waiting for a compiler


def parent_rows(table: TraceTable) -> Int64:
    """Return int64[len(dep)], for each entry of `table.dep` the row that has this parent.

    Args:
        table: The trace as a table of columns.
    """
    return _rows(table.dep_ptr)


def children(table: TraceTable) -> tuple[Int64, Int32]:
    """Return child_ptr int64[n+1], child int32[]: child[child_ptr[i]:child_ptr[i+1]] are row i's children, in order.

    Args:
        table: The trace as a table of columns.
    """
    return _children(table.dep_ptr, table.dep)


def _children(dep_ptr: Int64, dep: Int32) -> tuple[Int64, Int32]:
    """Return the children of n rows as CSR arrays, int64[n+1] and int32[], from the parents, dep_ptr and dep."""
    child_ptr = np.zeros(len(dep_ptr), np.int64)
    np.cumsum(np.bincount(dep, minlength=len(dep_ptr) - 1), out=child_ptr[1:])
    # Dependencies sorted by parent: the stable sort leaves the children of a parent in ascending order
    return child_ptr, _rows(dep_ptr)[np.argsort(dep, kind="stable")].astype(np.int32)


def _rows(dep_ptr: Int64) -> Int64:
    """Return int64[len(dep)], the row of each dependency."""
    return np.repeat(np.arange(len(dep_ptr) - 1), np.diff(dep_ptr))


def topological_order(table: TraceTable) -> Int32:
    """Return int32[n], the rows, parents before children; among the rows that could come next, the smallest is first.

    A cycle raises TraceError, whose text holds it as node ids, `3 -> 5 -> 3`.

    Args:
        table: The trace as a table of columns.
    """
    order, waits_for = order_of(table.dep_ptr, table.dep)
    if len(order) < len(table):
        raise TraceError(f"{table.path}: dependency cycle {_cycle(table, waits_for)}, expected no cycle")
    return order


def dependency_cycle(table: TraceTable) -> str:
    """Return a cycle of the dependencies as node ids, `3 -> 5 -> 3`; "" if no cycle exists.

    Args:
        table: The trace as a table of columns.
    """
    if jit_enabled() and len(table.dep) >= _MIN_KERNEL_DEPENDENCIES and _is_acyclic(table):
        return ""
    order, waits_for = order_of(table.dep_ptr, table.dep)
    return _cycle(table, waits_for) if len(order) < len(table) else ""


def _is_acyclic(table: TraceTable) -> bool:
    """Return whether the dependencies have no cycle, as a kernel finds."""
    if np.all(table.dep < parent_rows(table)):
        return True
    children_left = np.bincount(table.dep, minlength=len(table)).astype(np.int64)
    ready = np.zeros(len(table) + 1, np.int64)
    return nodes.without_cycle(table.dep_ptr.copy(), table.dep.astype(np.int64), children_left, ready) == len(table)


def order_of(dep_ptr: Int64, dep: Int32) -> tuple[Int32, list[int]]:
    """Return rows in topological order, without those behind a cycle, and the number of unfinished parents of each row.

    Args:
        dep_ptr: The pointers to the parents of each row, int64[n+1].
        dep: The rows of parents, int32[].
    """
    if np.all(dep < _rows(dep_ptr)):  # the file has this order already, like most files
        return np.arange(len(dep_ptr) - 1, dtype=np.int32), []
    waits_for = np.diff(dep_ptr).tolist()
    child_ptr, child = (array.tolist() for array in _children(dep_ptr, dep))
    ready = [row for row, parents in enumerate(waits_for) if parents == 0]  # ascending, therefore a heap
    order = []
    while ready:
        row = heapq.heappop(ready)
        order.append(row)
        for other in child[child_ptr[row] : child_ptr[row + 1]]:
            waits_for[other] -= 1
            if waits_for[other] == 0:
                heapq.heappush(ready, other)
    return np.array(order, np.int32), waits_for


def occurrence(*keys: NDArray[np.integer]) -> Int32:
    """Return int32[n], the number of earlier entries with equal keys.

    Args:
        *keys: The arrays of keys, int[n] each.
    """
    order = np.lexsort(keys)
    is_repeat = np.zeros(len(order), np.bool_)
    # Sorted by the keys, equal entries follow each other in their original order
    is_repeat[1:] = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
    place = np.arange(len(order))
    # For keys 5 7 5 5 the counts are 0 0 1 2
    count = np.empty(len(order), np.int32)
    # The distance to the first entry of each run of equal ones
    count[order] = place - np.maximum.accumulate(np.where(is_repeat, 0, place))
    return count


def depth(table: TraceTable) -> int:
    """Return the number of nodes on the longest path of dependencies, 0 for a trace without nodes.

    Args:
        table: The trace as a table of columns.
    """
    dep_ptr, dep = table.dep_ptr.tolist(), table.dep.tolist()
    level = [0] * len(table)
    for row in topological_order(table).tolist():
        level[row] = 1 + max((level[parent] for parent in dep[dep_ptr[row] : dep_ptr[row + 1]]), default=0)
    return max(level, default=0)


def _cycle(table: TraceTable, parents_left: list[int]) -> str:
    """Return a cycle among the rows that still wait, as ids that each wait for the next, smallest row first."""
    row = next(row for row, parents in enumerate(parents_left) if parents > 0)
    path: list[int] = []
    place: dict[int, int] = {}
    while row not in place:  # a waiting row has a waiting parent, so the walk must return
        place[row] = len(path)
        path.append(row)
        parents = table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist()
        row = next(parent for parent in parents if parents_left[parent] > 0)
    cycle = path[place[row] :]
    first = cycle.index(min(cycle))
    ids = [str(table.node_id[row]) for row in cycle[first:] + cycle[:first]]
    return cycle_text(ids, ids[0])


def cycle_text(node_ids: list[str], last_id: str) -> str:
    """Return a cycle as text with arrows; long cycles are shortened.

    Args:
        node_ids: The ids of the nodes of the cycle, where each node waits for the next.
        last_id: The id that the text ends with, that of the first node.
    """
    if len(node_ids) > _MAX_NODES_SHOWN:
        node_ids = [*node_ids[:_MAX_NODES_SHOWN], f"... ({len(node_ids) - _MAX_NODES_SHOWN} more)"]
    return " -> ".join([*node_ids, last_id])


# Removal of nodes from a trace so that the order of the remaining nodes is preserved.
#
# A node that waited for a removed node waits for that node's parents instead. Among the new dependencies, those that a
# direct look at the parents shows to be implied are omitted. Where there would be far more than before, the node
# stays as a joint, which does nothing.


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
