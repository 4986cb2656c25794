"""Lanes that send chunks up a tree of aggregators, which sum them, and return the root's result.

A member has two lanes: one sends data up, one receives results. An aggregator has a lane per child, which adds the
children's data in order, one that sends sums up, and one that passes results down to the children.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import AT_ONCE, Lane
from workload.collectives.trees.aggregators import ROOT, AggregatorBranch, AggregatorTree


class ChunkFlow(NamedTuple):
    """The members that take part in a chunk, by their numbers in the tree."""

    sources: frozenset[int]  # members that send the chunk up
    targets: frozenset[int]  # members that receive the result


def members_below(tree: AggregatorTree, n: int) -> list[frozenset[int]]:
    """Return the members below each node of a tree of n members; a member is below itself."""
    below: list[set[int]] = [{node} if node < n else set() for node in range(len(tree.parent))]
    for member in range(n):
        for node in tree.up(member):
            below[tree.parent[node]].add(member)
    return [frozenset(members) for members in below]


def extent(tree: AggregatorTree, count: int) -> PlanExtent:
    """Return the number of steps and lanes of a tree's nodes if `count` chunks go up and down the whole tree."""
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
    """Return the lane that sends a member's data up and the lane that receives results.

    Args:
        branch: Tree and its numbers in the group.
        places: Index of each node among its parent's children.
        flows: Flow of each chunk, in sending order.
        member: Number of the member in the tree.
        ready: Lane and step that must be done before each chunk is sent; () = none.
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
    """Return the lanes of each aggregator of a tree; result_lane: lane of a member that receives results."""
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
    """Return the lanes of one aggregator, which is child number `place` of its parent.

    The lists `below` and `result_lanes` have the members below each node, and its lane that receives results.
    """
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
