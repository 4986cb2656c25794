"""Which rows of a trace are before or after every other row in the same lane, or on the network.

The order of becoming ready at the same moment matters only between two rows that do not wait for each other.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from et.order import children
from et.reshape.partners import is_communication
from et.schema import NodeType
from et.table import TraceTable

Mask = NDArray[np.bool_]

_MAX_BITS = 1 << 31  # 256 MiB for exact reachability: a bit per pair of rows
NOTHING, HOST, COMPUTE, MEMORY, NETWORK = range(5)


def lanes_of(table: TraceTable) -> NDArray[np.int8]:
    """Return int8[n], what each row occupies: NOTHING (METADATA), the HOST, COMPUTE or MEMORY lane, or the NETWORK."""
    found = np.full(len(table), NOTHING, np.int8)
    is_compute = table.type == NodeType.COMP_NODE
    found[is_compute & ~table.is_cpu_op] = COMPUTE
    found[is_compute & table.is_cpu_op] = HOST
    found[(table.type == NodeType.MEM_LOAD_NODE) | (table.type == NodeType.MEM_STORE_NODE)] = MEMORY
    found[is_communication(table)] = NETWORK
    found[(table.type == NodeType.COMM_COLL_NODE) & (table.comm_type < 0)] = HOST  # a call on the host
    return found


def is_ordered(table: TraceTable, order: Sequence[int], chosen: Mask) -> Mask:
    """Return bool[n], whether a chosen row is before or after each other chosen row; True for rows that are not chosen.

    If a trace is too large to compare all pairs, rows count as ordered only if all chosen rows are in one chain.

    Args:
        table: Trace with the rows.
        order: Rows, parents before children.
        chosen: bool[n], rows to compare.
    """
    count = int(np.count_nonzero(chosen))
    before = _reach(table.dep_ptr.tolist(), table.dep.tolist(), order, chosen, count)
    child_ptr, child = children(table)
    after = _reach(child_ptr.tolist(), child.tolist(), order[::-1], chosen, count)
    return ~chosen | (before + after == count + 1)


def _reach(ptr: list[int], to: list[int], order: Sequence[int], chosen: Mask, count: int) -> NDArray[np.int64]:
    """Return int64[n], the number of chosen rows that each row reaches, itself included.

    If there are too many rows for that, it is the number of chosen rows on the row's longest path.
    """
    counted = np.zeros(len(chosen), np.int64)
    is_chosen = chosen.tolist()
    if count * len(is_chosen) > _MAX_BITS:
        longest = [0] * len(is_chosen)
        for row in order:
            longest[row] = is_chosen[row] + max((longest[other] for other in to[ptr[row] : ptr[row + 1]]), default=0)
        counted[:] = longest
        return counted
    bits = [0] * len(is_chosen)
    number = 0
    for row in order:
        found = 0
        for other in to[ptr[row] : ptr[row + 1]]:
            found |= bits[other]
        if is_chosen[row]:
            found |= 1 << number
            number += 1
        bits[row] = found
        counted[row] = found.bit_count()
    return counted
