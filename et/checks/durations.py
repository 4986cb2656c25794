"""Computations that take no time, and durations that nobody has lived through."""

from collections.abc import Iterable

import numpy as np

from et.checking.check import Check
from et.checking.finding import ERROR, NOTE, WARNING, Finding, at_nodes
from et.checking.looked import CheckedTrace
from et.schema import NodeType

NAME = "durations"
LOOKS_FOR = "computations without duration, floating-point operations or bytes, and impossible durations"

_LONGEST_MICROS = 10**12
"""What a run takes, 11.6 days (LONGEST_PS of topologies/bounds.py): it refuses a longer duration."""


class Look(Check):
    """Of the host they are common: a trace of PyTorch has hundreds that its clock does not resolve."""

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:
        """Each node apart."""
        table = looked.table
        says_nothing = (table.duration_micros == 0) & (table.num_ops <= 0) & (table.tensor_size <= 0)
        idle = (table.type == NodeType.COMP_NODE) & says_nothing & (table.operators == 0)
        for severity, what, rows in (
            (WARNING, "computations of the accelerator take no time", np.flatnonzero(idle & ~table.is_cpu_op)),
            (NOTE, "operations of the host take no time", np.flatnonzero(idle & table.is_cpu_op)),
        ):
            yield from at_nodes(
                severity,
                what,
                table.path,
                table.node_id,
                rows,
                lambda row: f"{table.names[row]}: no duration, num_ops, tensor_size or operators",
            )
        yield from at_nodes(
            ERROR,
            "nodes take longer than 11 days",
            table.path,
            table.node_id,
            np.flatnonzero(table.duration_micros > _LONGEST_MICROS),
            lambda row: f"duration_micros is {table.duration_micros[row]}, expected {_LONGEST_MICROS} at most",
        )
