"""Short form of lists of NPUs, and traces that run several times.

The short form is for lists that are nested arithmetic progressions.

A list consists of entries, each a number or a *progression* `{"first": f, "repeat": [[count, step], ...]}`: `count`
numbers with differences `step` that begin with f, nested so that the last pair of `repeat` changes fastest. [8 9 24 25]
is f = 8, [[2, 16], [2, 1]].
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nadi.et import ComposedNames, NameTable, NodeType, TraceTable
from nadi.inputs.arrays import Int64, pointers
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets.trace_set import TraceSet

_SHORTEST = 3  # Minimum number of numbers of a progression


def shortened(numbers: Sequence[int]) -> list[object]:
    """Return a list of numbers as JSON: numbers and {"first", "repeat"} for arithmetic progressions.

    Args:
        numbers: The numbers to shorten, such as those of NPUs.
    """
    values = np.asarray(numbers, np.int64)
    steps = _steps(values)
    if steps is not None and len(values) >= _SHORTEST:
        return [_entry(int(values[0]), steps)]
    entries: list[object] = []
    at = 0
    while at < len(values):
        length = _run(values[at:])
        if length >= _SHORTEST:
            entries.append(_entry(int(values[at]), [[length, int(values[at + 1] - values[at])]]))
        else:
            length = 1
            entries.append(int(values[at]))
        at += length
    return entries


def numbers_of(entries: object, limit: int) -> Int64:
    """Return the numbers of a list in its short form. Raises ValueError: another form, or numbers above the limit.

    Args:
        entries: The list as parsed from JSON: numbers and progressions.
        limit: The maximum number of numbers, and a bound that each must be below in absolute value.
    """
    if not isinstance(entries, list):
        raise ValueError(f"found {_short(entries)}, expected a list of numbers and progressions")  # noqa: TRY004
    parts = [np.zeros(0, np.int64)]
    for entry in entries:
        parts.append(_numbers(entry, limit))
        if sum(map(len, parts)) > limit:
            raise ValueError(f"more than {limit} numbers, expected at most so many")
    return np.concatenate(parts)


def _entry(first: int, steps: list[list[int]]) -> dict[str, object]:
    return {"first": first, "repeat": steps}


def _run(values: Int64) -> int:
    """Return the length of the arithmetic progression at the beginning of the values."""
    if len(values) < 2:
        return len(values)
    breaks = np.flatnonzero(np.diff(values) != values[1] - values[0])
    return int(breaks[0]) + 1 if len(breaks) else len(values)


def _steps(values: Int64) -> list[list[int]] | None:
    """Return [count, step] of nested progressions with these values, the last changing fastest; None without any."""
    if len(values) <= 1:
        return [] if len(values) else None
    length = _run(values)
    # [8, 9, 24, 25]: the first run is [8, 9], rows are [[8, 9], [24, 25]], and 8, 24 is a progression
    if len(values) % length:
        return None
    rows = values.reshape(-1, length)
    # Every run must have the steps of the first one; their first values then form the outer progressions
    if np.any(rows - rows[:, :1] != rows[0] - rows[0, 0]):
        return None
    outer = _steps(rows[:, 0])
    return None if outer is None else [*outer, [length, int(values[1] - values[0])]]


def _numbers(entry: object, limit: int) -> Int64:
    """Return the numbers, all below a limit, of one entry of a shortened list: a number or a "first" with "repeat"."""
    if _is_number(entry, limit):
        return np.array([entry], np.int64)
    if type(entry) is int:
        raise ValueError(f"found {entry}, expected a number below {limit}")
    if not isinstance(entry, dict) or set(entry) != {"first", "repeat"}:
        raise ValueError(f'found {_short(entry)}, expected a number or {{"first": 0, "repeat": [[2, 1]]}}')
    first, repeat = entry["first"], entry["repeat"]
    if not _is_number(first, limit) or not isinstance(repeat, list) or not all(_is_pair(p, limit) for p in repeat):
        raise ValueError(f"found {_short(entry)}, expected numbers below {limit} and pairs [count, step]")
    if math.prod(count for count, _ in repeat) > limit:
        raise ValueError(f"found {_short(entry)}, expected at most {limit} numbers")
    values = np.array([first], np.int64)
    for count, step in repeat:
        values = (values[:, None] + np.arange(count) * step).reshape(-1)
    return values


def _is_pair(pair: object, most: int) -> bool:
    """Return whether a JSON value is [count, step] of a progression of numbers below a limit."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    count, step = pair
    return type(count) is int and 1 <= count <= most and _is_number(step, most)


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and -most < value < most


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


# Traces that run several times, one after another: a rank begins again when all its nodes are done.


_MAX_NODES = 1 << 31  # rows of a trace are int32
_ABSENT = -1
_ABSENT_COLUMNS = (
    *("num_ops", "tensor_size", "comm_type", "comm_size"),
    *("comm_src", "comm_dst", "comm_tag", "involved_dim"),
)
"""Columns whose value -1 means that a node lacks them; of the other ones it is 0."""


def repeated(traces: TraceSet, times: int) -> TraceSet:
    """Return traces that do the same work several times in a row. Raises WorkloadError: they are too long.

    Between two times, a node without work follows all nodes of the earlier one and precedes those of the later one.

    Args:
        traces: The traces to repeat.
        times: The number of times.
    """
    return dataclasses.replace(traces, traces=[_repeated(table, times) for table in traces.traces])


def _repeated(table: TraceTable, times: int) -> TraceTable:
    """Return a trace that repeats a trace a number of times."""
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
            # n rows and the node in between, `times` times, without the one behind the last
            columns[field.name] = np.tile(np.concatenate([value, between]), times)[:-1]
    columns["type"][n :: n + 1] = NodeType.METADATA_NODE
    dep_ptr, dep = _parents(table, times)
    ids = np.arange(len(columns["type"]), dtype=np.uint64)
    return dataclasses.replace(table, **columns, names=_names(table, times), node_id=ids, dep_ptr=dep_ptr, dep=dep)


def _parents(table: TraceTable, times: int) -> tuple[Int64, np.ndarray]:
    """Return dep_ptr and dep of the repeated trace."""
    n, counts = len(table), np.diff(table.dep_ptr)
    # Nodes that no node waits for: the node in between waits for them
    leaves = np.setdiff1d(np.arange(n), table.dep)
    later_counts = np.maximum(counts, 1)  # the roots have the node in between as their parent
    later = np.full(int(later_counts.sum()), _ABSENT, np.int64)
    later[np.repeat(counts > 0, later_counts)] = table.dep
    dep, dep_counts = [table.dep.astype(np.int64)], [counts]
    for time in range(1, times):
        base = time * (n + 1)
        # Rows of time k begin at k (n + 1), and the node before them, base - 1, has the leaves of the time before as
        # parents. _ABSENT (-1) + base is that node, which thus becomes the parent of the roots.
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
