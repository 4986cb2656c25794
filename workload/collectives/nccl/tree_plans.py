"""Lanes of NCCL's tree all-reduce: for each channel, sums go up chunk by chunk, and the root's result comes down.

Both directions run in parallel, as in NCCL 2.8 and later, where each has its own warps. For each channel a member has a
lane per child that adds the child's data (the last of them, or the only lane of a leaf, sends the sum on), one that
receives from the parent, and one per child that sends down.
"""

from collections import Counter
from itertools import pairwise

from nadi.workload.collectives.nccl.channel_orders import tree
from nadi.workload.collectives.nccl.decision import UNDRIVEN_CONNECTIONS, UNDRIVEN_CONNECTIONS_OF_ONE_HOST, NcclDecision
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import NONE, Lane, Plans, each_its_own
from nadi.workload.collectives.plans.rings_and_trees import MemberTree, TreeLaneNumbers, tree_lanes
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

            lanes[member] += tree_lanes(kind, channel_tree, numbers, member, chunks, lane_of).values()
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
            own = [_numbers(channel_tree, m, 0).to_children + len(channel_tree.children[m]) for m in range(n)]
            widest += channels * max(own)
            lanes += channels * sum(own)
            # A lane that adds and also sends sums up has one step more than chunks; leaves and the root have none
            inner = sum(map(bool, channel_tree.children)) - 1
            steps += channels * (decision.pieces * sum(own) + inner)
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
    shape: GroupShape, decision: NcclDecision, channel_tree: MemberTree, link_ps: dict[bool, float]
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


def _numbers(channel_tree: MemberTree, member: int, first: int) -> TreeLaneNumbers:
    """Return the numbers of a member's lanes in a channel's tree; first: number of the first of them."""
    adds, has_parent = len(channel_tree.children[member]), channel_tree.parent[member] != NONE
    # The last lane that adds sends sums to the parent; a leaf has a lane for that, too
    down = first + max(1, adds)
    return TreeLaneNumbers(first, down - 1, down, down + has_parent)
