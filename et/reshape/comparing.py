"""Which rows of a trace are before or after every other row that wants the same lane, or the network.

Only between rows of which neither waits for the other does it matter in what order they become ready at one moment.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from et.order import children
from et.reshape.partners import is_communication
from et.schema import NodeType
from et.table import TraceTable

Mask = NDArray[np.bool_]

_MOST_BITS = 1 << 31
NOTHING, HOST, COMPUTE, MEMORY, NETWORK = range(5)


def wants(table: TraceTable) -> NDArray[np.int8]:
    """int8[n]: what a row takes: NOTHING (METADATA), the lane of the HOST, of COMPUTE or MEMORY, or the NETWORK."""
    found = np.full(len(table), NOTHING, np.int8)
    is_compute = table.type == NodeType.COMP_NODE
    found[is_compute & ~table.is_cpu_op] = COMPUTE
    found[is_compute & table.is_cpu_op] = HOST
    found[(table.type == NodeType.MEM_LOAD_NODE) | (table.type == NodeType.MEM_STORE_NODE)] = MEMORY
    found[is_communication(table)] = NETWORK
    found[(table.type == NodeType.COMM_COLL_NODE) & (table.comm_type < 0)] = HOST  # the call of one
    return found


def in_line(table: TraceTable, order: Sequence[int], chosen: Mask) -> Mask:
    """Which of the chosen rows are before or after each other chosen row; those not chosen are in line.

    Where a trace is too large to compare all with all, they are in line if all stand in one chain, or none is.

    Args:
        table: the trace.
        order: its rows, parents before children.
        chosen: bool[n].
    """
    many = int(np.count_nonzero(chosen))
    before = _reach(table.dep_ptr.tolist(), table.dep.tolist(), order, chosen, many)
    child_ptr, child = children(table)
    after = _reach(child_ptr.tolist(), child.tolist(), order[::-1], chosen, many)
    return ~chosen | (before + after == many + 1)


def _reach(ptr: list[int], to: list[int], order: Sequence[int], chosen: Mask, many: int) -> NDArray[np.int64]:
    """int64[n]: how many chosen rows each row reaches, itself too; where there are too many, on its longest way."""
    counted = np.zeros(len(chosen), np.int64)
    is_chosen = chosen.tolist()
    if many * len(is_chosen) > _MOST_BITS:
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
