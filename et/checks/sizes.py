"""Check for collectives, messages and memory accesses of zero or unknown size."""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import UNEVEN, Check, CheckedTrace
from nadi.et.checking.finding import ERROR, WARNING, Finding, at_nodes
from nadi.et.reader import collective_name
from nadi.et.schema import CollectiveCommType, NodeType

LOOKS_FOR = "collectives, messages and memory accesses without bytes"


class TraceCheck(Check):
    """Reports nodes; a run refuses a collective without bytes, but sends a message without bytes."""

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Return the nodes without a size.

        Args:
            checked: The trace to check.
        """
        table, colls, messages = checked.table, checked.collectives, checked.messages
        need = colls.kind != CollectiveCommType.BARRIER
        missing = need & (table.comm_size[colls.row] < 0)
        zero = need & (table.comm_size[colls.row] == 0) & (colls.size != UNEVEN)
        is_memory = np.isin(table.type, (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE))
        for severity, what, rows in (
            (ERROR, "collectives have no comm_size", colls.row[missing]),
            (ERROR, "collectives have comm_size 0", colls.row[zero]),
            (ERROR, "messages have no comm_size", messages.row[messages.size < 0]),
            (WARNING, "messages have comm_size 0", messages.row[messages.size == 0]),
            (WARNING, "memory accesses have no tensor_size", np.flatnonzero(is_memory & (table.tensor_size <= 0))),
        ):
            yield from at_nodes(severity, what, table, rows, lambda row: f"{_kind(checked, row)}, expected its bytes")


def _kind(checked: CheckedTrace, row: int) -> str:
    """Return the kind of a node in words, such as "all-reduce" or "mem load"."""
    table = checked.table
    if table.type[row] == NodeType.COMM_COLL_NODE:
        return collective_name(int(table.comm_type[row]))
    return NodeType(table.type[row]).name.removesuffix("_NODE").lower().replace("_", " ")
