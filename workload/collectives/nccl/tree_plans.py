"""Lanes of NCCL's tree all-reduce: for each channel, sums go up chunk by chunk, and the root's result comes down.

Both directions run in parallel, as in NCCL 2.8 and later, where each has its own warps. For each channel a member has a
lane per child that adds the child's data (the last of them, or the only lane of a leaf, sends the sum on), one that
receives from the parent, and one per child that sends down.
"""

from collections import Counter
from itertools import pairwise

from nadi.workload.collectives.nccl.channel_orders import ChannelTree, tree
from nadi.workload.collectives.nccl.decision import UNDRIVEN_CONNECTIONS, UNDRIVEN_CONNECTIONS_OF_ONE_HOST, NcclDecision
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own
from nadi.workload.shape import GroupShape


def plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return the lanes of each member, channel by channel: up, from the parent, down.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    lanes: list[list[Lane]] = [[] for _ in range(shape.members)]
    connections = UNDRIVEN_CONNECTIONS_OF_ONE_HOST if len(set(shape.host)) == 1 else UNDRIVEN_CONNECTIONS
    for channel in range(decision.channels):
        channel_tree = tree(shape, channel, decision.channels)
        first = [len(own) for own in lanes]
        chunks = range(channel * decision.pieces, (channel + 1) * decision.pieces)
        for member in range(shape.members):
            connection = channel % connections  # channels beyond the last share connections
            lanes[member] += _member(shape, decision, channel_tree, member, first, chunks, connection)
    return each_its_own(decision.channels * decision.pieces, lanes, launch_ps=decision.launch_ps)


def extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `plan`: the trees of half of the channels differ only in their heads.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    n = shape.members
    steps = lanes = widest = 0
    # Trees of one half differ in which member heads a host, not in the numbers of children, leaves and lanes
    half = (decision.channels + 1) // 2
    for channel, channels in ((0, half), (half, decision.channels - half)):
        if channels:
            channel_tree = tree(shape, channel, decision.channels)
            leaves = sum(not children for children in channel_tree.children)
            widest += channels * max(_count(channel_tree, member) for member in range(n))
            # Each of the n-1 links has a lane that adds, one that receives from the parent and one that sends down; a
            # leaf has no child to add and needs a lane to send up
            of_tree = 3 * (n - 1) + leaves
            lanes += channels * of_tree
            # A lane that also sends sums up has one step more than chunks
            steps += channels * (decision.pieces * of_tree + n - leaves - 1)
    return PlanExtent(steps, lanes, n, widest)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:  # noqa: ARG001 - one interface for all algorithms
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
    shape: GroupShape, decision: NcclDecision, channel_tree: ChannelTree, link_ps: dict[bool, float]
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


def _count(channel_tree: ChannelTree, member: int) -> int:
    """Return the number of lanes of a member in a channel's tree."""
    children = len(channel_tree.children[member])
    return max(1, children) + (channel_tree.parent[member] >= 0) + children


def _member(
    shape: GroupShape,
    decision: NcclDecision,
    channel_tree: ChannelTree,
    member: int,
    first: list[int],
    chunks: range,
    connection: int,
) -> list[Lane]:
    """Return a member's lanes in a channel's tree."""
    # first: number of this channel's first lane, by member; chunks: numbers of its chunks; connection: of its sends.
    parent, children = channel_tree.parent[member], channel_tree.children[member]

    def sending_lane(to: int) -> Lane:
        """Return an empty lane that sends to member `to`, with NCCL's wait before each step; -1 = it sends nothing."""
        wait_ps = decision.wait_of(shape, member, to) if to >= 0 else 0
        return Lane(latency_ps=wait_ps, wire=decision.transport.wire, connection=connection)

    lanes: list[Lane] = []
    for child in children or (-1,):
        is_last = child == (children[-1] if children else -1)
        to = parent if is_last else -1
        before = first[member] + len(lanes) - 1 if lanes else -1
        to_lane = first[to] + channel_tree.children[to].index(member) if to >= 0 else 0
        lanes.append(sending_lane(to))
        _add_up(lanes[-1], child, to, to_lane, before, chunks)
    # The lane that completes chunks at this member: at the root the last addition, elsewhere the receipt from above
    complete = first[member] + len(lanes) - 1
    if parent >= 0:
        complete += 1
        lanes.append(Lane())
        for chunk in chunks:
            lanes[-1].step(receive_from=parent, receive=chunk)
    for child in children:
        lanes.append(sending_lane(child))
        # The child's receiving lane comes after its adding lanes, of which a leaf has one (see `_count`)
        to_lane = first[child] + max(1, len(channel_tree.children[child]))
        for step, chunk in enumerate(chunks):
            lanes[-1].step(send_to=child, to_lane=to_lane, send=chunk, after=(complete, step))
    return lanes


def _add_up(lane: Lane, child: int, parent: int, to_lane: int, before: int, chunks: range) -> None:
    """Add to a lane a child's data after lane `before` has added its own; send the previous chunk's sum up."""
    # child, parent: members, -1 = none; to_lane: lane of the parent; chunks: numbers of the channel's chunks.
    if child < 0:
        for chunk in chunks:
            lane.step(send_to=parent, to_lane=to_lane, send=chunk)
        return
    for step, chunk in enumerate(chunks):
        lane.step(
            # The sum of a chunk leaves while the next one arrives: one step does both
            send_to=parent if step else -1,
            to_lane=to_lane,
            send=chunk - 1,
            receive_from=child,
            receive=chunk,
            reduce=True,
            after=(before, step) if before >= 0 else AT_ONCE,
        )
    if parent >= 0:
        lane.step(send_to=parent, to_lane=to_lane, send=chunks[-1])
