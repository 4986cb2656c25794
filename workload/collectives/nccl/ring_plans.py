"""Lanes of NCCL's rings, one per channel.

All-reduce processes the buffer in loops: in each, the chunks of a loop travel round twice. The slices of a chunk are
separate consecutive steps. The lanes of kinds that go round wait for the mean of the hops, as in NCCL's own model. In
all-gather and reduce-scatter a member's part depends on its number, not on its place in the ring, so a lane sees the
buffer in the order of its ring. Broadcast and reduce are chains that begin or end at member 0.
"""

from collections import Counter
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from nadi.workload.collectives.nccl.channel_orders import ring
from nadi.workload.collectives.nccl.decision import UNDRIVEN_CONNECTIONS, NcclDecision
from nadi.workload.collectives.nccl.tuning import ring_steps
from nadi.workload.collectives.plans.extent import PlanExtent, of_chains
from nadi.workload.collectives.plans.plan import NONE, Lane, Plans, each_its_own, everyone_alike, lines
from nadi.workload.collectives.plans.rings_and_trees import add_chain_steps, add_ring_steps
from nadi.workload.shape import GroupShape

MAX_TABLE_STEPS = 2_000_000  # maximum number of steps of all members of a chain; a longer chain gets larger chunks

_CHAINS = frozenset({"broadcast", "reduce"})

# Connection of the first channel with a limited rate; other algorithms of the group use those before
_FIRST_DRIVEN = 32


def plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return the steps of each member: a lane per channel.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    rings = [ring(shape, channel) for channel in range(decision.channels)]
    if kind in _CHAINS:
        return _chains(kind, shape, _with_fewer_chunks(shape, decision), rings)
    wait_ps = _mean_wait_ps(shape, decision)

    def lane_of(channel: int, **attributes: Any) -> Lane:  # noqa: ANN401 - of plans.plan.Lane
        """Return the empty lane of a `channel` with further `attributes` of Lane."""
        return _lane(decision, channel, wait_ps, **attributes)

    return round_plans(kind, rings, lane_of, decision.pieces, decision.slices, decision.launch_ps)


def extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    if kind in _CHAINS:
        return of_chains(shape.members, decision.channels, _with_fewer_chunks(shape, decision).pieces)
    return PlanExtent(
        decision.channels * decision.pieces * decision.slices * ring_steps(kind, shape.members), decision.channels
    )


def closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:
    """Return launch plus the slowest channel in picoseconds: its slices' way round, or the busiest link if never idle.

    At a share of NVLink a channel is never ahead, so every hop is waited for. Otherwise a lane's hops overlap with
    sends of other lanes. Packets take longer while the channels run in step, as they do at first; the form omits that.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    n, is_chain = shape.members, kind in _CHAINS
    message_bytes = size_bytes / (decision.channels * decision.pieces * decision.slices * (1 if is_chain else n))
    hops_of_channels = []  # (sender, whether the receiver is in another host) of each hop
    for channel in range(decision.channels):
        order = ring(shape, channel)
        chain = _chain(kind, order) if is_chain else (*order, order[0])
        hops_of_channels.append([(sender, shape.host[sender] != shape.host[to]) for sender, to in pairwise(chain)])
    load = Counter(hop for hops in hops_of_channels for hop in hops)
    slowest = 0.0
    for senders in hops_of_channels:
        hops = []
        for sender, far in senders:
            wait_ps = decision.wait_ps(shape, far=far) if is_chain else _mean_wait_ps(shape, decision)
            link_ps = decision.link_ps(shape, message_bytes, between_hosts=far)
            driven_ps = link_ps * decision.shares
            path_ps = shape.outside_ps if far else shape.inside_ps
            hops.append(_Hop(wait_ps, wait_ps + path_ps + driven_ps, load[sender, far] * link_ps, driven_ps))
        steps = decision.pieces * decision.slices * ring_steps(kind, n)
        slowest = max(slowest, _chain_ps(hops, decision.pieces) if is_chain else _round_ps(hops, steps))
    return decision.launch_ps + slowest


class _Hop(NamedTuple):
    """One hop of a channel."""

    wait_ps: float  # time before each send
    alone_ps: float  # wait, path, and a message (a slice, or a whole chunk) at the channel's rate
    all_ps: float  # time of one message of every channel that leaves over the link
    message_ps: float  # time of a message at the channel's rate


def _round_ps(hops: list[_Hop], steps: int) -> float:
    """Return the ps of `steps` steps round a ring from the worst member, or of the busiest link without pause."""
    # A chunk that starts at the worst member passes all hops `turns` times, then the `rest` hops after it
    turns, rest = divmod(steps, len(hops))
    sums = list(accumulate((hop.alone_ps for hop in hops + hops), initial=0.0))
    worst = turns * sums[len(hops)] + max(sums[i + rest] - sums[i] for i in range(len(hops)))
    busiest = max(hops, key=lambda hop: hop.all_ps)
    return max(worst, steps * busiest.all_ps + busiest.alone_ps - busiest.message_ps)


def _chain_ps(hops: list[_Hop], chunks: int) -> float:
    """Return the ps of a chain of hops: all hops of the first chunk, then the slowest link or wait per chunk."""
    slowest = max(max(hop.all_ps, hop.message_ps, hop.wait_ps) for hop in hops)
    first_ps = max(0.0, *(hop.all_ps - hop.message_ps for hop in hops))
    return sum(hop.alone_ps for hop in hops) + first_ps + (chunks - 1) * slowest


def _mean_wait_ps(shape: GroupShape, decision: NcclDecision) -> int:
    """Return the mean wait in ps of the n-1 hops of a chunk round a ring; (hosts - 1) of them lead to another host."""
    # A lane is busy while it waits: with unequal waits all lanes of a ring would wait for the longest.
    inside, between = (decision.wait_ps(shape, far=far) for far in (False, True))
    crossing = len(set(shape.host)) - 1
    return round(((shape.members - 1 - crossing) * inside + crossing * between) / (shape.members - 1))


def _lane(decision: NcclDecision, channel: int, wait_ps: int, **attributes: Any) -> Lane:  # noqa: ANN401 - of plans.plan.Lane
    """Return the lane of a channel, whose steps each wait for wait_ps; further attributes are those of Lane."""
    connection = channel + _FIRST_DRIVEN if decision.shares > 1 else channel % UNDRIVEN_CONNECTIONS
    wire = decision.transport.wire
    return Lane(latency_ps=wait_ps, wire=wire, connection=connection, shares=decision.shares, **attributes)


def round_plans(
    kind: str,
    rings: list[tuple[int, ...]],
    lane_of: Callable[..., Lane],
    loops: int = 1,
    slices: int = 1,
    launch_ps: int = 0,
) -> Plans:
    """Return plans of a kind that runs along rings; each channel moves its share of every chunk.

    Args:
        kind: The kind of collective.
        rings: The order of the members in each channel.
        lane_of: A function of the channel and attributes that returns an empty lane.
        loops: The number of parts of a channel's share, which follow each other.
        slices: The number of messages of a chunk.
        launch_ps: The time in picoseconds before the first step.
    """
    # In an all-reduce each channel has its part of the buffer. In an all-gather or reduce-scatter the channels share
    # the members' parts, and each lane sees these parts in the order of its ring.
    n, orders = len(rings[0]), list(dict.fromkeys(rings))
    in_parts = kind != "all-reduce"
    chunks_of_member = loops * slices * (len(rings) if in_parts else 1)
    lanes = []
    for channel, order in enumerate(rings):
        row = orders.index(order)
        own: dict[str, int] = {"part": channel, "parts": len(rings), "chunks": n * chunks_of_member}
        lane = lane_of(channel, view=row, **({"arrangement": row} if in_parts else own))
        first_loop = channel * loops if in_parts else 0
        pieces = np.arange(first_loop * slices, (first_loop + loops) * slices).reshape(loops, 1, slices)
        lanes.append(add_ring_steps(lane, channel, kind, n, chunks_of_member, pieces))
    views = [lines([order]) for order in orders]
    arrangements = [np.array(order, np.int32) for order in orders] if in_parts else []
    return everyone_alike(n, n * chunks_of_member, lanes, views=views, arrangements=arrangements, launch_ps=launch_ps)


def _with_fewer_chunks(shape: GroupShape, decision: NcclDecision) -> NcclDecision:
    """Return the decision with as many chunks as MAX_TABLE_STEPS steps allow."""
    max_chunks = MAX_TABLE_STEPS // (shape.members * decision.channels)
    return decision._replace(pieces=max(1, min(decision.pieces, max_chunks)))


def _chains(kind: str, shape: GroupShape, decision: NcclDecision, rings: list[tuple[int, ...]]) -> Plans:
    """Return plans along each ring, cut at member 0: forwards for broadcast, backwards for reduce."""
    lanes: list[list[Lane]] = [[] for _ in range(shape.members)]
    for channel, order in enumerate(rings):
        ends = (NONE, *_chain(kind, order), NONE)
        chunks = range(channel * decision.pieces, (channel + 1) * decision.pieces)
        for before, member, after in zip(ends, ends[1:], ends[2:], strict=False):
            lane = _lane(decision, channel, decision.wait_of(shape, member, after) if after != NONE else 0)
            add_chain_steps(lane, channel, before, after, chunks, reduce=kind == "reduce")
            lanes[member].append(lane)
    return each_its_own(decision.channels * decision.pieces, lanes, launch_ps=decision.launch_ps)


def _chain(kind: str, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return a ring's order of members as a chain that begins (broadcast) or ends (reduce) at member 0."""
    root = order.index(0)
    chain = order[root:] + order[:root]
    return chain if kind == "broadcast" else chain[::-1]
