"""Expansion of collectives into messages for GOAL, which has no collectives: rings, trees and direct messages.

The messages of one member are a list of rounds; its sends in a round wait for its receives of the round before.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from et.schema import CollectiveCommType

Kind = CollectiveCommType
Splits = tuple[Sequence[int], Sequence[int]]  # bytes to each member, and from each


class ExpansionRound(NamedTuple):
    """Simultaneous sends and receives of a member, as (member, bytes)."""

    sends: list[tuple[int, int]]
    receives: list[tuple[int, int]]


def rounds(kind: Kind, me: int, n: int, size: int, splits: Splits | None) -> list[ExpansionRound]:
    """Return the rounds of member `me` of n.

    `size` is comm_size in bytes; for all-gather and gather, one member's contribution. `splits` is for uneven
    all-to-alls.
    """
    if n == 1:
        return []
    if kind == Kind.ALL_TO_ALL:
        out, into = splits or ([_share(size, n, j) for j in range(n)], [_share(size, n, me)] * n)
        peers = [(me + k) % n for k in range(1, n)]
        return [ExpansionRound([(p, out[p]) for p in peers], [(p, into[p]) for p in reversed(peers)])]
    found: list[ExpansionRound] = _OF_KIND[kind](me, n, size)
    return found


def _share(size: int, n: int, part: int) -> int:
    """Return the bytes of one of n parts."""
    return (part + 1) * size // n - part * size // n


def _ring_step(me: int, n: int, sent: int, received: int) -> ExpansionRound:
    return ExpansionRound([((me + 1) % n, sent)], [((me - 1) % n, received)])


def _reduce_scatter(me: int, n: int, size: int) -> list[ExpansionRound]:
    return [_ring_step(me, n, _share(size, n, (me - k) % n), _share(size, n, (me - k - 1) % n)) for k in range(n - 1)]


def _all_reduce(me: int, n: int, size: int) -> list[ExpansionRound]:
    back = [_ring_step(me, n, _share(size, n, (me + 1 - k) % n), _share(size, n, (me - k) % n)) for k in range(n - 1)]
    return _reduce_scatter(me, n, size) + back


def _all_gather(me: int, n: int, size: int) -> list[ExpansionRound]:
    return [_ring_step(me, n, size, size) for _ in range(n - 1)]


def _broadcast(me: int, n: int, size: int) -> list[ExpansionRound]:
    """Return a binomial tree from member 0: in round k each member that has the data sends it 2^k members up."""
    found, reach = [], 1
    while reach < n:
        if me < reach and me + reach < n:
            found.append(ExpansionRound([(me + reach, size)], []))
        elif reach <= me < 2 * reach:
            found.append(ExpansionRound([], [(me - reach, size)]))
        reach *= 2
    return found


def _reduce(me: int, n: int, size: int) -> list[ExpansionRound]:
    """Return the broadcast in reverse."""
    return [ExpansionRound(round_.receives, round_.sends) for round_ in reversed(_broadcast(me, n, size))]


def _gather(me: int, n: int, size: int) -> list[ExpansionRound]:
    return [ExpansionRound([(0, size)], []) if me else ExpansionRound([], [(j, size) for j in range(1, n)])]


def _scatter(me: int, n: int, size: int) -> list[ExpansionRound]:
    if me:
        return [ExpansionRound([], [(0, _share(size, n, me))])]
    return [ExpansionRound([(j, _share(size, n, j)) for j in range(1, n)], [])]


def _barrier(me: int, n: int, size: int) -> list[ExpansionRound]:  # noqa: ARG001 - a barrier has no size
    """Return a dissemination barrier, with one byte per round."""
    found, reach = [], 1
    while reach < n:
        found.append(ExpansionRound([((me + reach) % n, 1)], [((me - reach) % n, 1)]))
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
