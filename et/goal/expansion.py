"""Expansion of collectives into messages for GOAL, which has no collectives: rings, trees and direct messages.

The messages of one member are a list of rounds; its sends in a round wait for its receives of the round before.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nadi.et.schema import CollectiveCommType

Kind = CollectiveCommType
Splits = tuple[Sequence[int], Sequence[int]]  # bytes to each member, and from each


class ExpansionRound(NamedTuple):
    """Simultaneous sends and receives of a member, as (member, bytes)."""

    sends: list[tuple[int, int]]  # (receiver, bytes) of each message that the member sends
    receives: list[tuple[int, int]]  # (sender, bytes) of each message that the member receives


def rounds(
    kind: Kind, member: int, group_size: int, size_bytes: int, split_bytes: Splits | None
) -> list[ExpansionRound]:
    """Return the messages that one member of a group sends and receives in a collective, as rounds.

    Args:
        kind: The kind of collective.
        member: The member's place in its group, from 0.
        group_size: The number of members.
        size_bytes: The attribute comm_size of the collective; for all-gather and gather, one member's contribution.
        split_bytes: The bytes to each member and from each member, for an uneven all-to-all; None = equal shares.
    """
    if group_size == 1:
        return []
    if kind == Kind.ALL_TO_ALL:
        # Without split sizes, each share is as equal as whole bytes allow
        out, into = split_bytes or (
            [_share(size_bytes, group_size, j) for j in range(group_size)],
            [_share(size_bytes, group_size, member)] * group_size,
        )
        # Each member begins with its neighbour, so that members do not all send to the same one
        peers = [(member + k) % group_size for k in range(1, group_size)]
        return [ExpansionRound([(p, out[p]) for p in peers], [(p, into[p]) for p in reversed(peers)])]
    found: list[ExpansionRound] = _OF_KIND[kind](member, group_size, size_bytes)
    return found


def _share(size: int, n: int, part: int) -> int:
    """Return the bytes of one of n parts."""
    return (part + 1) * size // n - part * size // n


def _ring_step(me: int, n: int, sent: int, received: int) -> ExpansionRound:
    return ExpansionRound([((me + 1) % n, sent)], [((me - 1) % n, received)])


def _reduce_scatter(me: int, n: int, size: int) -> list[ExpansionRound]:
    return [_ring_step(me, n, _share(size, n, (me - k) % n), _share(size, n, (me - k - 1) % n)) for k in range(n - 1)]


def _all_reduce(me: int, n: int, size: int) -> list[ExpansionRound]:
    # After n-1 steps of the reduce-scatter member `me` has the sum of share me + 1, so the way back begins with it
    back = [_ring_step(me, n, _share(size, n, (me + 1 - k) % n), _share(size, n, (me - k) % n)) for k in range(n - 1)]
    return _reduce_scatter(me, n, size) + back


def _all_gather(me: int, n: int, size: int) -> list[ExpansionRound]:
    # The size of an all-gather in Chakra traces is one member's contribution, which each step passes on
    return [_ring_step(me, n, size, size) for _ in range(n - 1)]


def _broadcast(member: int, group_size: int, size_bytes: int) -> list[ExpansionRound]:
    """Return a binomial tree from member 0: in round k each member that has the data sends it 2^k members up."""
    found, reach = [], 1
    # The first `reach` members have the data
    while reach < group_size:
        # Of 6 members: 0 sends to 1, then 0 and 1 to 2 and 3, then 0 and 1 to 4 and 5
        if member < reach and member + reach < group_size:
            found.append(ExpansionRound([(member + reach, size_bytes)], []))
        elif reach <= member < 2 * reach:
            found.append(ExpansionRound([], [(member - reach, size_bytes)]))
        reach *= 2
    return found


def _reduce(me: int, n: int, size: int) -> list[ExpansionRound]:
    """Return the broadcast in reverse."""
    return [ExpansionRound(round_.receives, round_.sends) for round_ in reversed(_broadcast(me, n, size))]


def _gather(me: int, n: int, size: int) -> list[ExpansionRound]:
    return [ExpansionRound([(0, size)], []) if me else ExpansionRound([], [(j, size) for j in range(1, n)])]


def _scatter(member: int, group_size: int, size_bytes: int) -> list[ExpansionRound]:
    """Return one round, where member 0 sends every other member its share of the bytes."""
    if member:
        return [ExpansionRound([], [(0, _share(size_bytes, group_size, member))])]
    return [ExpansionRound([(j, _share(size_bytes, group_size, j)) for j in range(1, group_size)], [])]


def _barrier(member: int, group_size: int, size_bytes: int) -> list[ExpansionRound]:  # noqa: ARG001 - a barrier has no size
    """Return a dissemination barrier, with one byte per round."""
    found, reach = [], 1
    while reach < group_size:
        found.append(ExpansionRound([((member + reach) % group_size, 1)], [((member - reach) % group_size, 1)]))
        reach *= 2
    return found


_OF_KIND: dict[Kind, Callable[[int, int, int], list[ExpansionRound]]] = {
    Kind.ALL_REDUCE: _all_reduce,
    Kind.REDUCE: _reduce,
    Kind.ALL_GATHER: _all_gather,
    Kind.GATHER: _gather,
    Kind.SCATTER: _scatter,
    Kind.BROADCAST: _broadcast,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.REDUCE_SCATTER_BLOCK: _reduce_scatter,
    Kind.BARRIER: _barrier,
}
