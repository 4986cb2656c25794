"""Traces of NPUs, and which nodes of different NPUs form one communication."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nadi.et.reshape.partners import Key, communications
from nadi.et.schema import NodeType
from nadi.et.table import TraceTable


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
