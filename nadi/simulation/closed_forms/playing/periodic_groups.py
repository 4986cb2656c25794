"""Replacement of a periodic group by a smaller group that takes the same time.

In a relative schedule every member does what its predecessor does. Suppose that the paths repeat after p members, that
no two pairs of members share a port, and that all chunks have one size. Then members that are p places apart do the
same at the same time, and their times do not depend on the size of the group: a ring of a few such periods takes as
long as the whole group. Rings on links, on a switch, or on hosts with equal positions are such groups. Whole, they may
be too large to play.
"""

from collections.abc import Sequence

import numpy as np

from nadi.simulation.closed_forms.playing.idle_paths import IdleFabric, Pair, Path
from workload import Schedules
from workload.collectives.plans.plan import NONE, Step
from workload.collectives.schedules.sends import lanes_of, offsets, steps_of


def smaller_group(s: Schedules, index: int, size_bytes: int, fabric: IdleFabric) -> tuple[Schedules, IdleFabric] | None:
    """Return schedules and fabric with fewer members that take the same time; None if none are known."""
    n, distances = int(s.members[index]), _distances(s, index, size_bytes)
    there = {(m, distance): (m, (m + distance) % n) for m in range(n) for distance in distances}
    used = list(there.values())
    both_ways = distances
    if not fabric.is_message_level:
        used += [(b, a) for a, b in used]
        both_ways = [*distances, *(-distance for distance in distances)]
    first = [fabric.paths[pair].first for pair in used]
    last = [fabric.paths[pair].last for pair in used if fabric.paths[pair].last != NONE]
    share_ports = len(set(first)) < len(first) or len(set(last)) < len(last)
    if not distances or share_ports:
        return None
    period = _period(fabric, n, distances)
    fewer = period  # a multiple of the period for which all distances lead to distinct other members
    while len({distance % fewer for distance in both_ways} - {0}) < len(set(both_ways)):
        fewer += period
    if fewer >= n:
        return None
    stands_for: dict[Pair, Pair] = {}
    for m in range(fewer):
        stands_for |= {(m, (m + distance) % fewer): there[m % period, distance] for distance in distances}
    for (a, b), (like_a, like_b) in list(stands_for.items()):
        stands_for.setdefault((b, a), (like_b, like_a))
    return _with_members(s, index, n, fewer), _with_own_ports(fabric, stands_for)


def _distances(s: Schedules, index: int, size_bytes: int) -> list[int]:
    """Return the distances, -n/2 to n/2, from each member to its receivers; empty unless all members do the same."""
    n, lanes = int(s.members[index]), lanes_of(s, index)
    pieces = s.lane_parts[lanes].astype(np.int64) * s.lane_chunks[lanes]
    if not s.relative[index] or (s.lane_view[lanes] >= 0).any() or (size_bytes % pieces).any():
        return []
    return [_signed(offset, n) for _, offset in offsets(s, index)]


def _signed(offset: int, n: int) -> int:
    """Return the distance, -n/2 to n/2, of an offset from 0 to n - 1."""
    return offset if 2 * offset <= n else offset - n


def _period(fabric: IdleFabric, n: int, distances: Sequence[int]) -> int:
    """Return the smallest distance at which members have equal paths, there and back."""
    number: dict[object, int] = {}
    kinds = np.zeros((n, len(distances)), np.int64)
    for m in range(n):
        for column, distance in enumerate(distances):
            other = (m + distance) % n
            hops = fabric.paths[m, other].hops, fabric.paths[other, m].hops
            kinds[m, column] = number.setdefault(hops, len(number))
    return next(p for p in range(1, n + 1) if n % p == 0 and np.array_equal(kinds, np.roll(kinds, p, axis=0)))


def _with_members(s: Schedules, index: int, n: int, fewer: int) -> Schedules:
    """Return the schedules, in which this one has `fewer` members instead of n."""
    members, steps = s.members.copy(), s.steps.copy()
    members[index] = fewer
    own = steps_of(s, index)
    peers = steps[own, Step._fields.index("send_peer")]
    peers[:] = [NONE if peer < 0 else _signed(peer, n) % fewer for peer in peers.tolist()]
    return s._replace(members=members, steps=steps)


def _with_own_ports(fabric: IdleFabric, stands_for: dict[Pair, Pair]) -> IdleFabric:
    """Return the fabric of fewer members: each pair has its own ports and the path of the pair that it represents."""
    paths, links = {}, {}
    for number, (pair, like) in enumerate(stands_for.items()):
        path = fabric.paths[like]
        last = NONE if path.last == NONE else 2 * number + 1
        paths[pair] = Path(2 * number, last, path.hops, NONE if path.order == NONE else number)
        via, last = (pair[0], pair[0]) if fabric.is_message_level else (2 * number, 2 * number + 1)
        links[pair] = via, fabric.links[like][1], last
    return fabric._replace(paths=paths, links=links)
