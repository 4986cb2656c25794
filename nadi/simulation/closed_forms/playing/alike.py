"""A smaller group in whose place a schedule takes as long: what all members of a group do alike is played by a few.

In a relative schedule every member does what the one before it does. Where so many places further on the paths look the
same, no port is used by more than one pair of members, and all members' chunks are equally long, members so many places
apart do the same at the same time, and none can tell how many there are: a ring that closes after a few such periods
takes as long as the whole group. Rings on links, on a switch, or on hosts that stand alike are such groups. Whole they
may be too large to be played.
"""

from collections.abc import Sequence

import numpy as np

from nadi.simulation.closed_forms.playing.idle_paths import IdleFabric, Pair, Path
from workload import Schedules
from workload.collectives.plans.plan import NONE, Step
from workload.collectives.schedules.sends import lanes_of, offsets, steps_of


def smaller(s: Schedules, index: int, size_bytes: int, fabric: IdleFabric) -> tuple[Schedules, IdleFabric] | None:
    """A group that takes as long with fewer members; None = there is none, or nothing tells.

    Args:
        s: as packed.
        index: of the schedule.
        size_bytes: the whole buffer.
        fabric: of all members.

    Returns:
        Schedules in which that one has fewer members, and the fabric of these.
    """
    n, far = int(s.members[index]), _distances(s, index, size_bytes)
    there = {(m, one): (m, (m + one) % n) for m in range(n) for one in far}
    used = list(there.values())
    if not fabric.is_whole:
        used += [(b, a) for a, b in used]
    if not far or _share_ports(fabric, used):
        return None
    period = _period(fabric, n, far)
    fewer = _fewest(period, far if fabric.is_whole else [*far, *(-one for one in far)])
    if fewer >= n:
        return None
    stands_for: dict[Pair, Pair] = {}
    for m in range(fewer):
        stands_for |= {(m, (m + one) % fewer): there[m % period, one] for one in far}
    for (a, b), (like_a, like_b) in list(stands_for.items()):
        stands_for.setdefault((b, a), (like_b, like_a))
    return _with_members(s, index, n, fewer), _with_own_ports(fabric, stands_for)


def _distances(s: Schedules, index: int, size_bytes: int) -> list[int]:
    """How far on, -n/2 to n/2, the peers are to which everyone sends; none if members do not all do the same."""
    n, lanes = int(s.members[index]), lanes_of(s, index)
    pieces = s.lane_parts[lanes].astype(np.int64) * s.lane_chunks[lanes]
    if not s.relative[index] or (s.lane_view[lanes] >= 0).any() or (size_bytes % pieces).any():
        return []
    return [_signed(offset, n) for _, offset in offsets(s, index)]


def _signed(offset: int, n: int) -> int:
    return offset if 2 * offset <= n else offset - n


def _share_ports(fabric: IdleFabric, used: Sequence[Pair]) -> bool:
    """Whether two of these pairs use a port."""
    paths = [fabric.paths[pair] for pair in used]
    last = [path.last for path in paths if path.last != NONE]
    return len({path.first for path in paths}) < len(paths) or len(set(last)) < len(last)


def _period(fabric: IdleFabric, n: int, far: Sequence[int]) -> int:
    """Members so many places apart have paths that look the same, there and back."""
    number: dict[object, int] = {}
    looks = np.array(
        [
            [number.setdefault(tuple(fabric.paths[pair].hops for pair in _both(m, one, n)), len(number)) for one in far]
            for m in range(n)
        ]
    )
    return next(p for p in range(1, n + 1) if n % p == 0 and np.array_equal(looks, np.roll(looks, p, axis=0)))


def _both(m: int, one: int, n: int) -> tuple[Pair, Pair]:
    return (m, (m + one) % n), ((m + one) % n, m)


def _fewest(period: int, far: Sequence[int]) -> int:
    """The least multiple of the period in which all these distances lead to others, and each to another."""
    fewer = period
    while len({one % fewer for one in far} - {0}) < len(set(far)):
        fewer += period
    return fewer


def _with_members(s: Schedules, index: int, n: int, fewer: int) -> Schedules:
    members, steps = s.members.copy(), s.steps.copy()
    members[index] = fewer
    own = steps_of(s, index)
    peers = steps[own, Step._fields.index("send_peer")]
    peers[:] = [NONE if peer < 0 else _signed(peer, n) % fewer for peer in peers.tolist()]
    return s._replace(members=members, steps=steps)


def _with_own_ports(fabric: IdleFabric, stands_for: dict[Pair, Pair]) -> IdleFabric:
    """Of fewer members: each pair has ports of its own and the path of the pair that it stands for."""
    paths, links = {}, {}
    for number, (pair, like) in enumerate(stands_for.items()):
        path = fabric.paths[like]
        last = NONE if path.last == NONE else 2 * number + 1
        paths[pair] = Path(2 * number, last, path.hops, NONE if path.order == NONE else number)
        via, last = (pair[0], pair[0]) if fabric.is_whole else (2 * number, 2 * number + 1)
        links[pair] = via, fabric.links[like][1], last
    return fabric._replace(paths=paths, links=links)
