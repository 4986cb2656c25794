"""Lanes of NCCL's rings, one per channel.

All-reduce processes the buffer in loops: in each, the chunks of a loop travel round twice. The slices of a chunk are
separate consecutive steps. The lanes of kinds that go round wait for the mean of the hops, as in NCCL's own model. In
all-gather and reduce-scatter a member's part depends on its number, not on its place in the ring, so a lane sees the
buffer in the order of its ring. Broadcast and reduce are chains that begin or end at member 0.
"""

from collections import Counter
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np

from workload.collectives.algorithms.ring import add_chain_steps
from workload.collectives.nccl.decision import UNDRIVEN_CONNECTIONS, NcclDecision
from workload.collectives.nccl.hops import hop_of, lane_ps, link_ps
from workload.collectives.nccl.rings import ring
from workload.collectives.nccl.tuning import ring_steps
from workload.collectives.plans.extent import PlanExtent, of_chains
from workload.collectives.plans.plan import NONE, Lane, Plans, each_its_own, everyone_alike, lines
from workload.shape import Shape

MAX_TABLE_STEPS = 2_000_000  # maximum number of steps of all members of a chain; a longer chain gets larger chunks

_CHAINS = frozenset({"broadcast", "reduce"})

# Connection of the first channel with a limited rate; other algorithms of the group use those before
_FIRST_DRIVEN = 32

Rings = tuple[tuple[int, ...], ...]


def plan(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return a lane per channel."""
    rings = _rings(shape, way)
    if kind == "all-reduce":
        return _all_reduce(shape, way, rings)
    if kind in _CHAINS:
        return _chains(kind, shape, _with_fewer_chunks(shape, way), rings)
    return _parts(kind, shape, way, rings)


def extent(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `plan`."""
    if kind in _CHAINS:
        return of_chains(shape.members, way.channels, _with_fewer_chunks(shape, way).pieces)
    return PlanExtent(way.channels * way.pieces * way.slices * ring_steps(kind, shape.members), way.channels)


def closed_form(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> float:
    """Return launch plus the slowest channel in picoseconds: its slices' way round, or the busiest link if never idle.

    At a share of NVLink a channel is never ahead, so every hop is waited for. Otherwise a lane's hops overlap with
    sends of other lanes. Packets take longer while the channels run in step, as they do at first; the form omits that.
    """
    n = shape.members
    channels = [_pairs(kind, order) for order in _rings(shape, way)]
    message_bytes = size_bytes / (way.channels * way.pieces * way.slices * (1 if kind in _CHAINS else n))
    load = Counter((sender, shape.host[sender] != shape.host[to]) for pairs in channels for sender, to in pairs)
    slowest = 0.0
    for pairs in channels:
        hops = []
        for sender, to in pairs:
            far = shape.host[sender] != shape.host[to]
            wait_ps = lane_ps(shape, way, between_hosts=far) if kind in _CHAINS else _mean_wait_ps(shape, way)
            link = link_ps(shape, message_bytes, way, between_hosts=far)
            driven_ps = link * way.shares
            path_ps = shape.outside_ps if far else shape.inside_ps
            hops.append(_Hop(wait_ps, wait_ps + path_ps + driven_ps, load[sender, far] * link, driven_ps))
        steps = way.pieces * way.slices * ring_steps(kind, n)
        slowest = max(slowest, _chain_ps(hops, way.pieces) if kind in _CHAINS else _round_ps(hops, steps))
    return way.launch_ps + slowest


class _Hop(NamedTuple):
    """One hop of a channel."""

    wait_ps: float  # time before each send
    alone_ps: float  # wait, path, and a message (a slice, or a whole chunk) at the channel's rate
    all_ps: float  # time of one message of every channel that leaves over the link
    message_ps: float  # time of a message at the channel's rate


def _pairs(kind: str, order: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (sender, receiver) of each hop of a channel."""
    if kind not in _CHAINS:
        return list(zip(order, order[1:] + order[:1], strict=True))
    return list(pairwise(_chain(kind, order)))


def _round_ps(hops: list[_Hop], steps: int) -> float:
    """Return the time of `steps` steps round a ring from the worst member, or of the busiest link without pause."""
    turns, rest = divmod(steps, len(hops))
    sums = list(accumulate((hop.alone_ps for hop in hops + hops), initial=0.0))
    worst = turns * sums[len(hops)] + max(sums[i + rest] - sums[i] for i in range(len(hops)))
    busiest = max(hops, key=lambda hop: hop.all_ps)
    return max(worst, steps * busiest.all_ps + busiest.alone_ps - busiest.message_ps)


def _chain_ps(hops: list[_Hop], chunks: int) -> float:
    """Return the time of a chain: all hops of the first chunk, then the slowest link or longest wait per chunk."""
    slowest = max(max(hop.all_ps, hop.message_ps, hop.wait_ps) for hop in hops)
    first_ps = max(0.0, *(hop.all_ps - hop.message_ps for hop in hops))
    return sum(hop.alone_ps for hop in hops) + first_ps + (chunks - 1) * slowest


def _rings(shape: Shape, way: NcclDecision) -> Rings:
    return tuple(ring(shape, channel) for channel in range(way.channels))


def _mean_wait_ps(shape: Shape, way: NcclDecision) -> int:
    """Return the mean wait of the n-1 hops of a chunk round a ring; (hosts - 1) of them lead to another host.

    A lane is busy while it waits: with unequal waits all lanes of a ring would wait for the longest.
    """
    inside, between = (lane_ps(shape, way, between_hosts=far) for far in (False, True))
    crossing = len(set(shape.host)) - 1
    return round(((shape.members - 1 - crossing) * inside + crossing * between) / (shape.members - 1))


def _all_reduce(shape: Shape, way: NcclDecision, rings: Rings) -> Plans:
    """Return the rings' all-reduce for a group of this shape on the fabric; rings: order of the members, by channel."""
    n, pieces = shape.members, way.pieces * way.slices
    orders = list(dict.fromkeys(rings))
    wait_ps = _mean_wait_ps(shape, way)
    lanes = []
    for channel, order in enumerate(rings):
        lane = _lane(way, channel, wait_ps, view=orders.index(order), parts=way.channels, chunks=n * pieces)
        for loop in range(way.pieces):
            for k in range(2 * (n - 1)):
                sends, receives = (-1 - k) % n * pieces, (-2 - k) % n * pieces
                for piece in range(loop * way.slices, (loop + 1) * way.slices):
                    _round(lane, channel, n, [sends + piece, receives + piece], reduce=k < n - 1)
        lanes.append(lane)
    return everyone_alike(n, n * pieces, lanes, views=[lines([order]) for order in orders], launch_ps=way.launch_ps)


def _lane(
    way: NcclDecision,
    channel: int,
    wait_ps: int,
    *,
    view: int = NONE,
    parts: int = 1,
    chunks: int | None = None,
    arrangement: int = NONE,
) -> Lane:
    """Return the lane of a channel, which works on its part of `parts` equal parts."""
    return Lane(
        view=view,
        part=channel if parts > 1 else 0,
        parts=parts,
        chunks=chunks,
        latency_ps=wait_ps,
        wire=way.transport.wire,
        arrangement=arrangement,
        connection=channel + _FIRST_DRIVEN if way.shares > 1 else channel % UNDRIVEN_CONNECTIONS,
        shares=way.shares,
    )


def _round(lane: Lane, number: int, n: int, chunks: list[int], *, reduce: bool) -> None:
    """Add a step of a relative ring: the first chunk is sent, the second received."""
    lane.step(send_to=1, to_lane=number, send=chunks[0], receive_from=n - 1, receive=chunks[1], reduce=reduce)


def _parts(kind: str, shape: Shape, way: NcclDecision, rings: Rings) -> Plans:
    """Return plans of an all-gather or reduce-scatter: each lane sees the members' parts in the order of its ring."""
    n, shift = shape.members, kind == "reduce-scatter"
    per_member = way.channels * way.pieces * way.slices
    wait_ps = _mean_wait_ps(shape, way)
    orders = list(dict.fromkeys(rings))
    lanes = []
    for channel, order in enumerate(rings):
        row = orders.index(order)
        lane = _lane(way, channel, wait_ps, view=row, arrangement=row)
        first = channel * way.pieces
        for chunk in range(first, first + way.pieces):
            pieces = range(chunk * way.slices, (chunk + 1) * way.slices)
            for k, piece in product(range(shift, n - 1 + shift), pieces):
                _round(lane, channel, n, [-k % n * per_member + piece, (-1 - k) % n * per_member + piece], reduce=shift)
        lanes.append(lane)
    views = [lines([order]) for order in orders]
    arrangements = [np.array(order, np.int32) for order in orders]
    return everyone_alike(n, n * per_member, lanes, views=views, arrangements=arrangements, launch_ps=way.launch_ps)


def _with_fewer_chunks(shape: Shape, way: NcclDecision) -> NcclDecision:
    """Return the decision with as many chunks as MAX_TABLE_STEPS steps allow."""
    max_chunks = MAX_TABLE_STEPS // (shape.members * way.channels)
    return way._replace(pieces=max(1, min(way.pieces, max_chunks)))


def _chains(kind: str, shape: Shape, way: NcclDecision, rings: Rings) -> Plans:
    """Return plans along each ring, cut at member 0: forwards for broadcast, backwards for reduce."""
    lanes: list[list[Lane]] = [[] for _ in range(shape.members)]
    for channel, order in enumerate(rings):
        ends = (NONE, *_chain(kind, order), NONE)
        for (before, member), (_, after) in zip(pairwise(ends[:-1]), pairwise(ends[1:]), strict=True):
            wait_ps = hop_of(shape, way, member, after) if after != NONE else 0
            lane = _lane(way, channel, wait_ps)
            first = channel * way.pieces
            add_chain_steps(lane, channel, before, after, range(first, first + way.pieces), reduce=kind == "reduce")
            lanes[member].append(lane)
    return each_its_own(way.channels * way.pieces, lanes, launch_ps=way.launch_ps)


def _chain(kind: str, order: tuple[int, ...]) -> tuple[int, ...]:
    at = order.index(0)
    chain = order[at:] + order[:at]
    return chain if kind == "broadcast" else chain[::-1]
