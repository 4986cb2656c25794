"""Traces that run several times, one after another: a rank begins again when all its nodes are done."""

import dataclasses
from typing import Any

import numpy as np

from nadi.et import NodeType, TraceTable
from nadi.et.arrays import Int64, pointers
from nadi.et.names import ComposedNames, NameTable
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets.trace_set import TraceSet

_MAX_NODES = 1 << 31  # rows of a trace are int32
_ABSENT = -1
_ABSENT_COLUMNS = (
    *("num_ops", "tensor_size", "comm_type", "comm_size"),
    *("comm_src", "comm_dst", "comm_tag", "involved_dim"),
)
"""Columns whose value -1 means that a node lacks them; of the other ones it is 0."""


def repeated(traces: TraceSet, times: int) -> TraceSet:
    """Return traces that do the same so many times; WorkloadError if they are too long.

    Between two times, a node without work follows all nodes of the earlier one and precedes those of the later one.
    """
    return dataclasses.replace(traces, traces=[_repeated(table, times) for table in traces.traces])


def _repeated(table: TraceTable, times: int) -> TraceTable:
    """Return a trace that does the same so many times."""
    n = len(table)
    if times == 1 or n == 0:
        return table
    if (n + 1) * times >= _MAX_NODES:
        raise WorkloadError(f"{table.path}: {n:,} nodes, {times:,} times; expected fewer than 2^31 nodes")
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray) and field.name not in {"dep_ptr", "dep", "node_id"}:
            between = np.full(1, _ABSENT if field.name in _ABSENT_COLUMNS else 0).astype(value.dtype)
            columns[field.name] = np.tile(np.concatenate([value, between]), times)[:-1]
    columns["type"][n :: n + 1] = NodeType.METADATA_NODE
    dep_ptr, dep = _parents(table, times)
    ids = np.arange(len(columns["type"]), dtype=np.uint64)
    return dataclasses.replace(table, **columns, names=_names(table, times), node_id=ids, dep_ptr=dep_ptr, dep=dep)


def _parents(table: TraceTable, times: int) -> tuple[Int64, np.ndarray]:
    """Return dep_ptr and dep of the repeated trace."""
    n, counts = len(table), np.diff(table.dep_ptr)
    leaves = np.setdiff1d(np.arange(n), table.dep)
    later_counts = np.maximum(counts, 1)  # the roots have the node in between as their parent
    later = np.full(int(later_counts.sum()), _ABSENT, np.int64)
    later[np.repeat(counts > 0, later_counts)] = table.dep
    dep, dep_counts = [table.dep.astype(np.int64)], [counts]
    for time in range(1, times):
        base = time * (n + 1)
        dep += [leaves + base - n - 1, later + base]
        dep_counts += [np.array([len(leaves)]), later_counts]
    return pointers(np.concatenate(dep_counts)), np.concatenate(dep).astype(np.int32)


def _names(table: TraceTable, times: int) -> ComposedNames:
    """Return the names of the repeated trace, which hold each name once."""
    n = len(table)
    names = table.names
    if isinstance(names, NameTable):
        head, tail = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
        heads, tails = names, NameTable.of([b""])
    else:
        head, tail, heads, tails = names.head, names.tail, names.heads, names.tails
    more = NameTable.of([*(name.encode() for name in heads), b"next iteration"])
    empty = NameTable.of([*(name.encode() for name in tails), b""])
    columns = (np.append(head, len(heads)), np.append(tail, len(tails)))
    return ComposedNames(more, empty, *(np.tile(column, times)[:-1].astype(np.int32) for column in columns))
