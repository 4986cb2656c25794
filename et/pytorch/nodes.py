"""Nodes of a Chakra trace while they are put together, and the table that they become."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nadi.et.blocks import Block, TraceColumns
from nadi.et.builders import attribute
from nadi.et.schema import NodeType
from nadi.et.table import TraceTable

_ABSENT = -1
_COLUMNS = ("is_cpu_op", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "group")


@dataclass(slots=True)
class Node:
    """A node of a future table; `after` has the numbers of its parents, which may come later in the list."""

    name: str  # name of the node
    type: NodeType  # type of the node in Chakra's schema
    start_ns: int  # start time; on the common clock once the ranks' clocks are known
    micros: int = 0  # duration in microseconds
    is_cpu_op: bool = False  # whether the host executes the node
    after: list[int] = field(default_factory=list)  # numbers of the parents
    comm_type: int = _ABSENT  # kind of a collective, a CollectiveCommType; -1 for other nodes
    comm_size: int = _ABSENT  # size of a collective or message in bytes, -1 = none
    comm_src: int = _ABSENT  # sender of a message, -1 = unknown
    comm_dst: int = _ABSENT  # receiver of a message, -1 = unknown
    comm_tag: int = _ABSENT  # tag of a message
    group: str = ""  # name of a collective's group; "" = all ranks
    in_split: tuple[int, ...] = ()  # elements sent to each member of an uneven all-to-all; () = even
    out_split: tuple[int, ...] = ()  # elements received from each member; () = even
    # name, kind and value of further attributes, as et.attribute takes them
    attributes: list[tuple[str, str, Any]] = field(default_factory=list)


def table(nodes: Sequence[Node], rank: int, path: str, version: str, begin_ns: int) -> TraceTable:
    """Return the nodes of a rank as a table, parents before children.

    Args:
        nodes: The nodes of the rank; dependencies that close cycles are removed from them.
        rank: The rank, which becomes the NPU of the trace.
        path: The file for the table's path and for errors.
        version: The version of the host trace's schema; "Kineto" if there is no host trace.
        begin_ns: The time that becomes 0.
    """
    order = _parents_first(nodes)
    row = {number: place for place, number in enumerate(order)}
    block = Block()
    for node in (nodes[number] for number in order):
        values = {column: getattr(node, column) for column in _COLUMNS}
        values |= {"duration_micros": max(node.micros, 0)}
        values |= {"in_split_size": node.in_split, "out_split_size": node.out_split}
        # JSON can hold half a surrogate pair, protobuf cannot
        name = node.name.encode("utf-8", "replace").decode()
        attributes = [attribute(*fields) for fields in node.attributes]
        block.add(name, node.type, values, {"after": [row[parent] for parent in node.after], "attrs": attributes})
    columns = TraceColumns(rank, path)
    columns.stamp(block)
    # Blocks have no start times
    starts = [max(nodes[number].start_ns - begin_ns, 0) // 1000 for number in order]
    return replace(columns.table(), version=version, start_time_micros=np.array(starts, np.int64))


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
