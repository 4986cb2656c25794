"""Lanes of NCCL's rings, trees and PAT."""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from nadi.workload.collectives.algorithms import pat
from nadi.workload.collectives.nccl.channel_orders import ring, tree
from nadi.workload.collectives.nccl.decision import (
    COARSE,
    UNLIMITED_CONNECTIONS,
    UNLIMITED_CONNECTIONS_OF_ONE_HOST,
    NcclDecision,
    NcclLanes,
)
from nadi.workload.collectives.nccl.tuning import ring_steps
from nadi.workload.collectives.plans import rings_and_trees
from nadi.workload.collectives.plans.extent import PlanExtent, of_chains
from nadi.workload.collectives.plans.plan import NONE, Lane, Plans, each_its_own, everyone_alike, lines
from nadi.workload.shape import GroupShape

# Lanes of NCCL's rings, one per channel.
#
# All-reduce processes the buffer in loops: in each, the chunks of a loop travel round twice. The slices of a chunk are
# separate consecutive steps. The lanes of kinds that go round wait for the mean of the hops, as in NCCL's own model. In
# all-gather and reduce-scatter a member's part depends on its number, not on its place in the ring, so a lane sees the
# buffer in the order of its ring. Broadcast and reduce are chains that begin or end at member 0.

# Maximum number of chunks over all members and channels of a chain or tree; what has more gets larger chunks
MAX_TABLE_STEPS = 2_000_000

_CHAINS = frozenset({"broadcast", "reduce"})

# Connection of the first channel with a limited rate in one host; other algorithms of the group use those before
_FIRST_RATE_LIMITED = 32
# Connections of such channels over hosts, between those of NVLS (switch_plans) and of messages (point_to_point)
_FIRST_OVER_HOSTS, _LIMITED_OVER_HOSTS = 41, 9


def ring_plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
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
        return _lane(shape, decision, channel, wait_ps, **attributes)

    return round_plans(kind, rings, lane_of, decision.pieces, decision.slices, decision.launch_ps)


def ring_extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `ring_plan`.

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


def ring_closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:
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
    # the data of a channel that is limited over a NIC moves at a share of the line rate, whatever headers are added
    moved = shape._replace(outside_bps=shape.lines_bps[1])
    mean_wait_ps = _mean_wait_ps(shape, decision)

    def hop_of(far: bool, load: int) -> _Hop:
        """Return a hop to another host (`far`) or in a host, over a link that `load` channels use."""
        wait_ps = decision.wait_ps(shape, far=far) if is_chain else mean_wait_ps
        link_ps = decision.link_ps(shape, message_bytes, between_hosts=far)
        limited_ps = decision.link_ps(moved, message_bytes, between_hosts=far) * decision.shares
        path_ps = shape.outside_ps if far else shape.inside_ps
        return _Hop(wait_ps, wait_ps + path_ps + limited_ps, load * link_ps, limited_ps)

    channels = _hops_of_channels(kind if is_chain else "", shape, decision.channels)
    hops = {pair: hop_of(*pair) for pair in frozenset().union(*channels)}
    steps = decision.pieces * decision.slices * ring_steps(kind, n)
    slowest = 0.0
    for pairs in channels:
        own = [hops[pair] for pair in pairs]
        slowest = max(slowest, _chain_ps(own, decision.pieces) if is_chain else _round_ps(own, steps))
    return decision.launch_ps + slowest


@lru_cache(maxsize=64)  # a calibration and a search of plans ask for the same groups thousands of times
def _hops_of_channels(kind: str, shape: GroupShape, channels: int) -> frozenset[tuple[tuple[bool, int], ...]]:
    """Return the different sequences of hops that channels of a ring, or of a chain of a kind, have.

    A hop is whether the receiver is in another host, and how many channels leave the sender over the same link.
    """
    hops_of_channels = []
    for channel in range(channels):
        order = ring(shape, channel)
        chain = _chain(kind, order) if kind else (*order, order[0])
        hops_of_channels.append([(sender, shape.host[sender] != shape.host[to]) for sender, to in pairwise(chain)])
    load = Counter(hop for hops in hops_of_channels for hop in hops)
    return frozenset(tuple((far, load[sender, far]) for sender, far in hops) for hops in hops_of_channels)


class _Hop(NamedTuple):
    """One hop of a channel."""

    wait_ps: float  # time before each send
    alone_ps: float  # wait, path, and a message (a slice, or a whole chunk) at the channel's rate
    all_ps: float  # time of one message of every channel that leaves over the link
    message_ps: float  # time of a message at the channel's rate

    def busy_ps(self) -> float:
        """Return the time until the channel's next message can follow."""
        return max(self.all_ps, self.message_ps)


def _round_ps(hops: list[_Hop], steps: int) -> float:
    """Return the ps of `steps` steps round a ring from the worst member, or of the busiest hop without pause."""
    # A chunk that starts at the worst member passes all hops `turns` times, then the `rest` hops after it
    turns, rest = divmod(steps, len(hops))
    sums = list(accumulate((hop.alone_ps for hop in hops + hops), initial=0.0))
    worst = turns * sums[len(hops)] + max(sums[i + rest] - sums[i] for i in range(len(hops)))
    # A link without pause, or a channel that sends one message after another at its own rate
    busiest = max(hops, key=_Hop.busy_ps)
    return max(worst, steps * busiest.busy_ps() + busiest.alone_ps - busiest.message_ps)


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


def _lane(shape: GroupShape, decision: NcclDecision, channel: int, wait_ps: int, **attributes: Any) -> Lane:  # noqa: ANN401 - of plans.plan.Lane
    """Return the lane of a channel, whose steps each wait for wait_ps; further attributes are those of Lane."""
    hosts, connection = max(shape.host) + 1, channel % UNLIMITED_CONNECTIONS
    if decision.shares > 1 and hosts == 1:
        connection = channel + _FIRST_RATE_LIMITED
    elif decision.shares > 1:
        # The channels of one round use different NICs, and NVLinks have room for several on one connection
        connection = channel * hosts // shape.members % _LIMITED_OVER_HOSTS + _FIRST_OVER_HOSTS
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
        lanes.append(rings_and_trees.add_ring_steps(lane, channel, kind, n, chunks_of_member, pieces))
    views = [lines([order]) for order in orders]
    arrangements = [np.array(order, np.int32) for order in orders] if in_parts else []
    return everyone_alike(n, n * chunks_of_member, lanes, views=views, arrangements=arrangements, launch_ps=launch_ps)


def _with_fewer_chunks(shape: GroupShape, decision: NcclDecision) -> NcclDecision:
    """Return the decision with as many chunks as MAX_TABLE_STEPS allows."""
    max_chunks = MAX_TABLE_STEPS // (shape.members * decision.channels)
    return decision._replace(pieces=max(1, min(decision.pieces, max_chunks)))


def _with_fewer_tree_chunks(shape: GroupShape, decision: NcclDecision) -> NcclDecision:
    """Return the decision with as many chunks as MAX_TABLE_STEPS allows, and with longer waits for larger ones."""
    fewer = _with_fewer_chunks(shape, decision)
    larger = decision.pieces / fewer.pieces  # ratio of a chunk to NCCL's
    inside_ps, between_ps = (round(step_ps * larger) for step_ps in (decision.inside_ps, decision.between_ps))
    return fewer._replace(inside_ps=inside_ps, between_ps=between_ps)


def is_coarse(shape: GroupShape, size_bytes: int, decision: NcclDecision) -> bool:  # noqa: ARG001 - as in switch_plans
    """Return whether the steps of a tree take longer by more than COARSE because its chunks are too large.

    A chunk goes up and down the whole tree, one hop after the other, so that a buffer of c chunks takes 1 + hops / c
    times as long as its data.

    Args:
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    fewer = _with_fewer_chunks(shape, decision)
    if fewer.pieces == decision.pieces:
        return False
    hops = 2 * tree(shape, 0, decision.channels).depth
    return hops / fewer.pieces - hops / decision.pieces > COARSE


def _chains(kind: str, shape: GroupShape, decision: NcclDecision, rings: list[tuple[int, ...]]) -> Plans:
    """Return plans along each ring, cut at member 0: forwards for broadcast, backwards for reduce."""
    lanes: list[list[Lane]] = [[] for _ in range(shape.members)]
    for channel, order in enumerate(rings):
        ends = (NONE, *_chain(kind, order), NONE)
        chunks = range(channel * decision.pieces, (channel + 1) * decision.pieces)
        for before, member, after in zip(ends, ends[1:], ends[2:], strict=False):
            lane = _lane(shape, decision, channel, decision.wait_of(shape, member, after) if after != NONE else 0)
            rings_and_trees.add_chain_steps(lane, channel, before, after, chunks, reduce=kind == "reduce")
            lanes[member].append(lane)
    return each_its_own(decision.channels * decision.pieces, lanes, launch_ps=decision.launch_ps)


def _chain(kind: str, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return a ring's order of members as a chain that begins (broadcast) or ends (reduce) at member 0."""
    root = order.index(0)
    chain = order[root:] + order[:root]
    return chain if kind == "broadcast" else chain[::-1]


# Lanes of NCCL's tree all-reduce: for each channel, sums go up chunk by chunk, and the root's result comes down.
#
# Both directions run in parallel, as in NCCL 2.8 and later, where each has its own warps. For each channel a member has
# a lane per child that adds the child's data (the last of them, or the only lane of a leaf, sends the sum on), one that
# receives from the parent, and one per child that sends down.


def tree_plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return the lanes of each member, channel by channel: up, from the parent, down.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    decision = _with_fewer_tree_chunks(shape, decision)
    lanes: list[list[Lane]] = [[] for _ in range(shape.members)]
    connections = UNLIMITED_CONNECTIONS_OF_ONE_HOST if len(set(shape.host)) == 1 else UNLIMITED_CONNECTIONS
    for channel in range(decision.channels):
        channel_tree = tree(shape, channel, decision.channels)
        numbers = [_numbers(channel_tree, member, len(own)) for member, own in enumerate(lanes)]
        chunks = range(channel * decision.pieces, (channel + 1) * decision.pieces)
        for member in range(shape.members):

            def lane_of(to: int, member: int = member, channel: int = channel) -> Lane:
                """Return an empty lane that sends to member `to`, with NCCL's wait before each step."""
                if to == NONE:
                    return Lane()
                # Channels beyond the last connection share connections
                wait_ps, connection = decision.wait_of(shape, member, to), channel % connections
                return Lane(latency_ps=wait_ps, wire=decision.transport.wire, connection=connection)

            lanes[member] += rings_and_trees.tree_lanes(kind, channel_tree, numbers, member, chunks, lane_of).values()
    return each_its_own(decision.channels * decision.pieces, lanes, launch_ps=decision.launch_ps)


def tree_extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `tree_plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    decision = _with_fewer_tree_chunks(shape, decision)
    n = shape.members
    steps = lanes = widest = 0
    # Trees of one half differ in which member heads a host, not in the numbers of children, leaves and lanes
    half = (decision.channels + 1) // 2
    for channel, channels in ((0, half), (half, decision.channels - half)):
        if channels:
            channel_tree = tree(shape, channel, decision.channels)
            own = [_numbers(channel_tree, m, 0).to_children + len(channel_tree.children[m]) for m in range(n)]
            widest += channels * max(own)
            lanes += channels * sum(own)
            # A lane that adds and also sends sums up has one step more than chunks; leaves and the root have none
            inner = sum(map(bool, channel_tree.children)) - 1
            steps += channels * (decision.pieces * sum(own) + inner)
    return PlanExtent(steps, lanes, n, widest)


def tree_closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:  # noqa: ARG001 - one interface for all algorithms
    """Return an estimate in picoseconds: launch, one chunk up and down the deepest branch, and the chunks behind it.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    # The latter follow at the rate of the busiest link, or at the protocol's time per step.
    chunk_bytes = size_bytes / (decision.channels * decision.pieces)
    trees = [tree(shape, channel, decision.channels) for channel in range(decision.channels)]
    load: Counter[tuple[int, bool]] = Counter()
    for channel_tree in trees:
        for member, parent in enumerate(channel_tree.parent):
            if parent >= 0:
                far = shape.host[member] != shape.host[parent]
                # Each link carries data up and down, so it loads both ends in both directions once
                load[member, far] += 1
                load[parent, far] += 1
    link = {far: decision.link_ps(shape, chunk_bytes, between_hosts=far) for far in (False, True)}
    busiest, chunk_ps = max((count * link[far], link[far]) for (_, far), count in load.items())
    max_wait_ps = max(decision.wait_ps(shape, far=far) for _, far in load)
    up_ps = max(_deepest_ps(shape, decision, channel_tree, link) for channel_tree in trees)
    return (
        decision.launch_ps + 2 * up_ps + max(decision.pieces * busiest - chunk_ps, (decision.pieces - 1) * max_wait_ps)
    )


def _deepest_ps(
    shape: GroupShape, decision: NcclDecision, channel_tree: rings_and_trees.MemberTree, link_ps: dict[bool, float]
) -> float:
    """Return the time in ps from the farthest leaf to the root.

    Args:
        shape: The positions of the group's members on the fabric.
        decision: NCCL's decisions for this kind and size.
        channel_tree: The tree of a channel.
        link_ps: The time of a chunk on a link, by whether it leaves the host.
    """
    deepest_ps = 0.0
    for leaf in range(shape.members):
        total_ps = 0.0
        for member, parent in pairwise(channel_tree.up(leaf)):
            far = shape.host[member] != shape.host[parent]
            total_ps += decision.hop_ps(shape, far=far)
            total_ps += link_ps[far]
        deepest_ps = max(deepest_ps, total_ps)
    return deepest_ps


def _numbers(channel_tree: rings_and_trees.MemberTree, member: int, first: int) -> rings_and_trees.TreeLaneNumbers:
    """Return the numbers of a member's lanes in a channel's tree; first: number of the first of them."""
    adds, has_parent = len(channel_tree.children[member]), channel_tree.parent[member] != NONE
    # The last lane that adds sends sums to the parent; a leaf has a lane for that, too
    down = first + max(1, adds)
    return rings_and_trees.TreeLaneNumbers(first, down - 1, down, down + has_parent)


# PAT as NCCL chooses it: the lanes of algorithm `pat` with NCCL's latencies, for one NPU per host.


def pat_plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return each member's steps: a lane per distance, whose steps wait for NCCL's time of a step.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size.
    """
    plans = pat.plan(kind, shape.members)
    wait_ps = decision.wait_ps(shape, far=True)
    attributes = [plans.attributes_of(i) for i in range(len(plans.plans))]
    with_latency = tuple(tuple(lane._replace(latency_ps=wait_ps) for lane in own) for own in attributes)
    return plans._replace(attributes=with_latency, launch_ps=decision.launch_ps)


def pat_extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `pat_plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size.
    """
    return pat.extent(kind, shape.members)


def pat_closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:  # noqa: ARG001 - one interface for all algorithms
    """Return launch, a hop per distance, and the sending time of a NIC, in picoseconds.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size.
    """
    # With one NPU per host every hop crosses the network, and each member sends n-1 of n parts
    rounds = (shape.members - 1).bit_length()
    sent_bytes = size_bytes * (shape.members - 1) / shape.members
    return (
        decision.launch_ps
        + rounds * decision.hop_ps(shape, far=True)
        + decision.link_ps(shape, sent_bytes, between_hosts=True)
    )


RINGS = NcclLanes(ring_plan, ring_extent, ring_closed_form)
TREES = NcclLanes(tree_plan, tree_extent, tree_closed_form)
PAT = NcclLanes(pat_plan, pat_extent, pat_closed_form)
