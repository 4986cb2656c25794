"""Check for computations that take no time, and for impossibly long durations."""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import Check, CheckedTrace
from nadi.et.checking.finding import ERROR, NOTE, WARNING, Finding, at_nodes
from nadi.et.schema import NodeType

LOOKS_FOR = "computations without duration, floating-point operations or bytes, and impossible durations"

_LONGEST_MICROS = 10**12  # longest duration that a run accepts, 11.6 days (LONGEST_PS of inputs/limits.py)

_MISSING = "no duration, num_ops, tensor_size or operators"


class TraceCheck(Check):
    """Reports nodes; on the host, many take no time, because the clock of PyTorch's profiler does not resolve them."""

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Return the nodes with a missing or impossible duration.

        Args:
            checked: The trace to check.
        """
        table = checked.table
        has_no_work = (table.duration_micros == 0) & (table.num_ops <= 0) & (table.tensor_size <= 0)
        idle = (table.type == NodeType.COMP_NODE) & has_no_work & (table.operators == 0)
        for severity, what, rows in (
            (WARNING, "computations of the accelerator take no time", np.flatnonzero(idle & ~table.is_cpu_op)),
            (NOTE, "operations of the host take no time", np.flatnonzero(idle & table.is_cpu_op)),
        ):
            yield from at_nodes(severity, what, table, rows, lambda row: f"{table.names[row]}: {_MISSING}")
        yield from at_nodes(
            ERROR,
            "nodes take longer than 11 days",
            table,
            np.flatnonzero(table.duration_micros > _LONGEST_MICROS),
            lambda row: f"duration_micros is {table.duration_micros[row]}, expected {_LONGEST_MICROS} at most",
        )
