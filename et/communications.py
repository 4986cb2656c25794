"""Lanes of nodes, and the nodes of NPUs that form one communication: a collective, or the two ends of a message."""

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nadi.et.order import topological_order
from nadi.et.schema import NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int8

Key = tuple[Hashable, ...]
LANES = ("host", "compute", "memory", "collectives", "sends", "receives")  # of an NPU in a timeline
HOST_LANE, COMPUTE_LANE, MEMORY_LANE, COLLECTIVE_LANE, SEND_LANE, RECEIVE_LANE = range(len(LANES))
COMMUNICATION_LANES = (COLLECTIVE_LANE, SEND_LANE, RECEIVE_LANE)
NO_LANE = -1


def communications(table: TraceTable, npu: int) -> Iterator[tuple[int, Key]]:
    """Yield row and key of each node that takes part in a communication, in order of execution.

    Nodes of several NPUs with the same key are partners: the n-th collective of a group, or the n-th message with a tag
    from one NPU to another. The order on an NPU is a topological order, smallest row first, as in runs.

    Args:
        table: The trace of one NPU.
        npu: The NPU that runs the trace; -1 = the NPU in the trace's sends and receives.
    """
    seen: dict[Key, int] = {}
    for row in topological_order(table).tolist():
        key = _key(table, npu, row)
        if key is not None:
            # Partners match by order: the third send with a tag is received by the third receive with it
            number = seen[key] = seen.get(key, -1) + 1
            yield row, (*key, number)


def communication_text(key: Key) -> str:
    """Describe a communication in words, for messages to the user.

    Args:
        key: The key of the communication, from `communications`.
    """
    if key[0] == "collective":
        group = f'group "{key[1]}"' if key[1] else "all NPUs"
        return f"collective {key[-1]} of {group}"
    return f"message {key[-1]} from NPU {key[1]} to NPU {key[2]} with tag {key[3]}"


def lanes_of(table: TraceTable) -> Int8:
    """Return int8[n], the row of LANES for each node, NO_LANE = -1 for METADATA.

    Args:
        table: The trace of one NPU.
    """
    # A table by type, so that one look-up serves all rows
    lane_of_type = np.full(max(NodeType) + 1, NO_LANE, np.int8)
    lane_of_type[NodeType.COMP_NODE] = COMPUTE_LANE
    lane_of_type[[NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE]] = MEMORY_LANE
    lane_of_type[NodeType.COMM_COLL_NODE] = COLLECTIVE_LANE
    lane_of_type[NodeType.COMM_SEND_NODE] = SEND_LANE
    lane_of_type[NodeType.COMM_RECV_NODE] = RECEIVE_LANE
    lanes = lane_of_type[table.type]
    lanes[(lanes == COMPUTE_LANE) & table.is_cpu_op] = HOST_LANE
    lanes[(lanes == COLLECTIVE_LANE) & (table.comm_type < 0)] = HOST_LANE  # a call on the host
    return lanes


def _key(table: TraceTable, npu: int, row: int) -> Key | None:
    """Return the kind, ends and tag of a row's communication without its number; None for other nodes."""
    node_type = table.type[row]
    if node_type == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
        name = table.group_names[table.group[row]]
        return "collective", name, table.metadata_groups.get(name), int(table.involved_dim[row])
    # A message without a tag has tag 0
    tag = max(int(table.comm_tag[row]), 0)
    if node_type == NodeType.COMM_SEND_NODE:
        return "message", npu if npu >= 0 else int(table.comm_src[row]), int(table.comm_dst[row]), tag
    if node_type == NodeType.COMM_RECV_NODE:
        return "message", int(table.comm_src[row]), npu if npu >= 0 else int(table.comm_dst[row]), tag
    return None


# Traces of NPUs, and which nodes of different NPUs form one communication.


@dataclasses.dataclass(frozen=True, eq=False)
class Rank:
    """An NPU and its trace, which others may share."""

    npu: int  # number of the NPU
    table: TraceTable  # trace of the NPU
    shift: int = 0  # number added to the numbers of peers, as in a trace set
    # name of the NPU's own group for each name that means another group on each NPU, such as a family
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)


class CommunicationMember(NamedTuple):
    """A node that takes part in a communication: place of its rank, and row of the rank's table."""

    rank: int  # place of the rank in the sequence of ranks
    row: int  # row of the node in the rank's table


def communications_of(ranks: Sequence[Rank]) -> dict[Key, list[CommunicationMember]]:
    """Return the members of the collectives and messages of some ranks, by key.

    Keys are in the order of the first rank that has each.

    Args:
        ranks: The traces of some NPUs; a member's rank is an index into them.
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


def _of_rank(example_key: Key, rank: Rank, node_type: int) -> Key:
    """Return the key of an example's communication converted for a rank that shares the example's trace."""
    if example_key[0] == "collective":
        return example_key[0], rank.groups.get(str(example_key[1]), example_key[1]), *example_key[2:]
    kind, src, dst, tag, number = example_key
    assert isinstance(src, int)  # noqa: S101 - for mypy: keys of messages are numbers
    assert isinstance(dst, int)  # noqa: S101
    is_send = node_type == NodeType.COMM_SEND_NODE
    src, dst = (rank.npu, dst + rank.shift) if is_send else (src + rank.shift, rank.npu)
    return kind, src, dst, tag, number


def some_of(ranks: Sequence[Rank], max_nodes: int) -> list[Rank]:
    """Return all ranks if they have at most `max_nodes` nodes together, otherwise fewer ranks.

    If ranks share traces, it chooses the first rank of each trace, because those of a pipeline communicate; otherwise
    ranks at equal distances. At least one is returned.

    Args:
        ranks: The traces of some NPUs.
        max_nodes: The maximum number of nodes of the result; one rank may have more.
    """
    if sum(len(rank.table) for rank in ranks) <= max_nodes:
        return list(ranks)
    # Backwards, so that the first rank with a table is the one that stays in the dict
    distinct = list({id(rank.table): rank for rank in reversed(ranks)}.values())[::-1]
    # As many as fit if all were as large as the largest
    largest = max(len(rank.table) for rank in ranks)
    return [distinct[i] for i in evenly(len(distinct), max(1, max_nodes // max(largest, 1)))]


def evenly(count: int, maximum: int) -> list[int]:
    """Return numbers below `count` at equal distances, the first and the last included.

    Args:
        count: The number of items to choose from.
        maximum: The maximum number of chosen items.
    """
    if count <= maximum:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(maximum - 1, 1)) for i in range(maximum)})
