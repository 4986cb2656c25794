"""The trace of each NPU, and which nodes of different NPUs are one communication."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from et.reshape.partners import Key, communications
from et.schema import NodeType
from et.table import TraceTable

HOST, COMPUTE, MEMORY, COLLECTIVE, SEND, RECEIVE = LANES = (
    "host",
    "compute",
    "memory",
    "collectives",
    "sends",
    "receives",
)
"""What a timeline shows for an NPU."""
NO_LANE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Rank:
    """An NPU and its trace, which others may share.

    Attributes:
        npu: its number.
        table: the trace.
        shift: what is added to the numbers of peers, as in a trace set.
        groups: the name of its own group for names that mean another one for each NPU, as families of a trace set do.
    """

    npu: int
    table: TraceTable
    shift: int = 0
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)


class CommunicationMember(NamedTuple):
    """A node that takes part in a communication: which of the ranks, and the row of its table."""

    rank: int
    row: int


def communications_of(ranks: Sequence[Rank]) -> dict[Key, list[CommunicationMember]]:
    """The collectives and messages of some ranks, by key, in the order of the first rank that has each.

    Raises:
        TraceError: dependencies have a cycle.
    """
    of_table: dict[int, list[tuple[int, Key]]] = {}
    found: dict[Key, list[CommunicationMember]] = {}
    for number, rank in enumerate(ranks):
        own = of_table.get(id(rank.table))
        if own is None:
            own = of_table[id(rank.table)] = list(communications(rank.table, -1))
        for row, key in own:
            found.setdefault(_of_rank(key, rank, int(rank.table.type[row])), []).append(
                CommunicationMember(number, row)
            )
    return found


def _of_rank(key: Key, rank: Rank, node_type: int) -> Key:
    """The key of an example's communication as that of a rank."""
    if key[0] == "collective":
        return key[0], rank.groups.get(str(key[1]), key[1]), *key[2:]
    kind, src, dst, tag, number = key
    assert isinstance(src, int)  # noqa: S101 - for mypy: keys of messages are numbers
    assert isinstance(dst, int)  # noqa: S101
    is_send = node_type == NodeType.COMM_SEND_NODE
    src, dst = (rank.npu, dst + rank.shift) if is_send else (src + rank.shift, rank.npu)
    return kind, src, dst, tag, number


def some_of(ranks: Sequence[Rank], most_nodes: int) -> list[Rank]:
    """All of them if they have so many nodes together at most; else as many as have.

    Where ranks share traces, the first one of each trace, as those of a pipeline talk to each other; else ranks evenly
    apart. One at least.
    """
    if sum(len(rank.table) for rank in ranks) <= most_nodes:
        return list(ranks)
    distinct = list({id(rank.table): rank for rank in reversed(ranks)}.values())[::-1]
    largest = max(len(rank.table) for rank in ranks)
    return [distinct[i] for i in evenly(len(distinct), max(1, most_nodes // max(largest, 1)))]


def evenly(many: int, most: int) -> list[int]:
    """At most so many numbers below `many`, evenly apart, the first and the last with them if there are two."""
    if many <= most:
        return list(range(many))
    return sorted({round(i * (many - 1) / max(most - 1, 1)) for i in range(most)})


def lanes_of(table: TraceTable) -> NDArray[np.int8]:
    """int8[n]: the row of LANES that each node belongs to, NO_LANE = -1 for METADATA."""
    found = np.full(len(table), NO_LANE, np.int8)
    is_compute = table.type == NodeType.COMP_NODE
    is_collective = table.type == NodeType.COMM_COLL_NODE
    found[is_compute & ~table.is_cpu_op] = LANES.index(COMPUTE)
    found[(is_compute & table.is_cpu_op) | (is_collective & (table.comm_type < 0))] = LANES.index(HOST)
    found[(table.type == NodeType.MEM_LOAD_NODE) | (table.type == NodeType.MEM_STORE_NODE)] = LANES.index(MEMORY)
    found[is_collective & (table.comm_type >= 0)] = LANES.index(COLLECTIVE)
    found[table.type == NodeType.COMM_SEND_NODE] = LANES.index(SEND)
    found[table.type == NodeType.COMM_RECV_NODE] = LANES.index(RECEIVE)
    return found
