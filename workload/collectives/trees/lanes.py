"""Lanes that take chunks up a tree of aggregators, summed at each, and bring what the root has down again.

A member has two lanes: what it sends up, and what it gets. An aggregator has a lane for each child, which adds up in
the order of the children, one that sends sums up, and one that takes results from above and sends them to children.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import AT_ONCE, Lane
from workload.collectives.trees.aggregators import ROOT, AggregatorBranch, AggregatorTree


class ChunkFlow(NamedTuple):
    """Who takes part in a chunk; members by their numbers in the tree.

    Attributes:
        sources: members that send it up.
        targets: members that get the result.
    """

    sources: frozenset[int]
    targets: frozenset[int]


def members_below(tree: AggregatorTree, n: int) -> list[frozenset[int]]:
    """Members below each node of a tree of n members, itself if it is one."""
    found: list[set[int]] = [{node} if node < n else set() for node in range(len(tree.parent))]
    for member in range(n):
        for node in tree.up(member):
            found[tree.parent[node]].add(member)
    return [frozenset(members) for members in found]


def extent(tree: AggregatorTree, count: int) -> PlanExtent:
    """Steps and lanes of the members and aggregators of a tree, if so many chunks go up and down all of it."""
    links = len(tree.parent) - 1
    widest = max(Counter(tree.parent).values()) + 2
    return PlanExtent(4 * links * count, links + 2 * len(tree.parent), len(tree.parent), widest)


def member_lanes(
    branch: AggregatorBranch,
    places: list[int],
    flows: Mapping[int, ChunkFlow],
    member: int,
    ready: Sequence[tuple[int, int]] = (),
) -> list[Lane]:
    """What a member sends up, and what it gets.

    Args:
        branch: the tree.
        places: of its nodes among their parents' children.
        flows: of chunks, in the order in which they are sent.
        member: its number in the tree.
        ready: lane and step that must be done before each chunk is sent; () = none.
    """
    parent = branch.number(branch.tree.parent[member])
    up, down = Lane(), Lane()
    for turn, (chunk, flow) in enumerate(flows.items()):
        if member in flow.sources:
            up.step(send_to=parent, to_lane=places[member], send=chunk, after=ready[turn] if ready else AT_ONCE)
        if member in flow.targets:
            down.step(receive_from=parent, receive=chunk)
    return [up, down]


def aggregator_lanes(
    branch: AggregatorBranch, places: list[int], flows: Mapping[int, ChunkFlow], result_lane: int
) -> list[list[Lane]]:
    """Lanes of each aggregator of a tree; result_lane: of members, which takes results."""
    tree, n = branch.tree, len(branch.members)
    below, children = members_below(tree, n), tree.children()
    result_lanes = [result_lane if node < n else len(children[node]) + 1 for node in range(len(tree.parent))]
    return [
        _lanes(branch, children[node], node, places[node], flows, below, result_lanes)
        for node in range(n, len(tree.parent))
    ]


def _lanes(
    branch: AggregatorBranch,
    children: list[int],
    node: int,
    place: int,
    flows: Mapping[int, ChunkFlow],
    below: list[frozenset[int]],
    result_lanes: list[int],
) -> list[Lane]:
    """Of one aggregator; place: among its parent's children, below and result_lanes: of each node."""
    sums, up, down = [Lane() for _ in children], Lane(), Lane()
    above = branch.tree.parent[node]
    parent = branch.number(above) if above != ROOT else ROOT
    for chunk, flow in flows.items():
        last = AT_ONCE
        for lane, child in enumerate(children):
            if not below[child].isdisjoint(flow.sources):
                sums[lane].step(receive_from=branch.number(child), receive=chunk, reduce=last != AT_ONCE, after=last)
                last = (lane, len(sums[lane].steps) - 1)
        if parent != ROOT and last != AT_ONCE:
            up.step(send_to=parent, to_lane=place, send=chunk, after=last)
        if parent != ROOT and not below[node].isdisjoint(flow.targets):
            down.step(receive_from=parent, receive=chunk)
            last = AT_ONCE
        for child in children:
            if not below[child].isdisjoint(flow.targets):
                down.step(send_to=branch.number(child), to_lane=result_lanes[child], send=chunk, after=last)
                last = AT_ONCE
    return [*sums, up, down]
