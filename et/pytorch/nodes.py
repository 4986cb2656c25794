"""Nodes of a Chakra trace while they are put together, and the table that they become."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from et.arrays import Int32
from et.attributes import COLUMNS
from et.builders import attribute
from et.dependencies import compress
from et.names import NameTable
from et.schema import NodeType
from et.table import TraceTable

_ABSENT = -1


@dataclass(slots=True)
class Node:
    """A node; `after` are numbers of its parents, which may come later in the list."""

    name: str
    type: NodeType
    start_ns: int  # start time; on the common clock once the ranks' clocks are known
    micros: int = 0  # duration in microseconds
    is_cpu_op: bool = False
    after: list[int] = field(default_factory=list)
    comm_type: int = _ABSENT
    comm_size: int = _ABSENT
    comm_src: int = _ABSENT
    comm_dst: int = _ABSENT
    comm_tag: int = _ABSENT
    group: str = ""
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    # name, kind and value of further attributes, as et.attribute takes them
    attributes: list[tuple[str, str, Any]] = field(default_factory=list)


def table(nodes: Sequence[Node], path: str, version: str, begin_ns: int) -> TraceTable:
    """Return an NPU's nodes from `begin_ns` on, parents first, as a table with this `path` and schema `version`."""
    order = _parents_first(nodes)
    place = {number: row for row, number in enumerate(order)}
    rows = [nodes[number] for number in order]
    parents = [(row, place[parent]) for row, node in enumerate(rows) for parent in set(node.after)]
    pairs = np.array(parents, np.int64).reshape(-1, 2)
    dep_ptr, dep = compress(len(rows), pairs[:, 0], pairs[:, 1])
    groups, group_names = _distinct([node.group for node in rows], "")
    splits = [node.in_split for node in rows] + [node.out_split for node in rows]
    split_rows, split_sizes = _distinct(splits, ())
    attributes = [[attribute(*fields) for fields in node.attributes] for node in rows]
    others = [tuple(message.SerializeToString(deterministic=True) for message in own) for own in attributes]
    other, other_attributes = _distinct(others, ())
    columns: dict[str, Any] = {
        name: np.array([getattr(node, name, absent) for node in rows], dtype)
        for name, (dtype, absent) in COLUMNS.items()
    }
    columns["duration_micros"] = np.array([max(node.micros, 0) for node in rows], np.int64)
    return TraceTable(
        path=path,
        version=version,
        node_id=np.arange(len(rows), dtype=np.uint64),
        names=NameTable.of(node.name.encode("utf-8", "replace") for node in rows),
        start_time_micros=np.array([max(node.start_ns - begin_ns, 0) // 1000 for node in rows], np.int64),
        group=groups,
        group_names=group_names,
        involved_dim=np.full(len(rows), _ABSENT, np.int32),
        in_split_size=split_rows[: len(rows)],
        out_split_size=split_rows[len(rows) :],
        split_sizes=split_sizes,
        operators=np.zeros(len(rows), np.int32),
        operator_lists=("",),
        dep_ptr=dep_ptr,
        dep=dep,
        other=other,
        other_attributes=other_attributes,
        **columns,
    )


def _parents_first(nodes: Sequence[Node]) -> list[int]:
    """Return the numbers of the nodes, parents before children, otherwise in their order.

    A dependency that would close a cycle, which only wrong clocks cause, is removed from `after`.
    """
    order: list[int] = []
    state = [0] * len(nodes)  # 1 = its parents are being placed, 2 = placed
    for first in range(len(nodes)):
        unfinished = [first]
        while unfinished:
            number = unfinished[-1]
            if state[number] == 0:
                state[number] = 1
                nodes[number].after = [parent for parent in nodes[number].after if state[parent] != 1]
                unfinished.extend(parent for parent in sorted(nodes[number].after, reverse=True) if state[parent] == 0)
            else:
                unfinished.pop()
                if state[number] == 1:
                    state[number] = 2
                    order.append(number)
    return order


def _distinct(values: Iterable[Any], absent: object) -> tuple[Int32, tuple[Any, ...]]:
    """Return for each value its index among the distinct ones, and these; the first means absent."""
    number: dict[Any, int] = {absent: 0}
    rows = [number.setdefault(value, len(number)) for value in values]
    return np.array(rows, np.int32), tuple(number)
