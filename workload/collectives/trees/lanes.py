"""Lanes that send chunks up a tree of aggregators, which sum them, and return the root's result.

A member has two lanes: one sends data up, one receives results. An aggregator has a lane per child, which adds the
children's data in order, one that sends sums up, and one that passes results down to the children.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane
from nadi.workload.collectives.trees.aggregators import ROOT, AggregatorBranch, AggregatorTree


class ChunkFlow(NamedTuple):
    """The members that take part in a chunk, by their numbers in the tree."""

    sources: frozenset[int]  # members that send the chunk up
    targets: frozenset[int]  # members that receive the result


def members_below(tree: AggregatorTree, members: int) -> list[frozenset[int]]:
    """Return the members below each node of a tree of `members` members; a member is below itself."""
    below: list[set[int]] = [{node} if node < members else set() for node in range(len(tree.parent))]
    for member in range(members):
        for node in tree.up(member):
            below[tree.parent[node]].add(member)
    return [frozenset(members_of_node) for members_of_node in below]


def flows_of_all(tree: AggregatorBranch, chunks: Iterable[int]) -> dict[int, ChunkFlow]:
    """Return the flows of chunks that all members of a tree send up and receive."""
    everyone = frozenset(range(len(tree.members)))
    return {chunk: ChunkFlow(everyone, everyone) for chunk in chunks}


def extent(tree: AggregatorTree, count: int) -> PlanExtent:
    """Return the number of steps and lanes of a tree's nodes if `count` chunks go up and down the whole tree."""
    links = len(tree.parent) - 1
    widest = max(Counter(tree.parent).values()) + 2
    return PlanExtent(4 * links * count, links + 2 * len(tree.parent), len(tree.parent), widest)


def tree_lanes(
    branch: AggregatorBranch, flows: Mapping[int, ChunkFlow], result_lane: int, ready: Sequence[tuple[int, int]] = ()
) -> list[list[Lane]]:
    """Return the lanes of each member and aggregator of a tree: members have one that sends, one that takes results."""
    # flows: flow of each chunk, in sending order; result_lane: number of the members' lane for results; ready: lane and
    # step of a member that must be done before it sends each chunk, () = none.
    tree, n = branch.tree, len(branch.members)
    below, children, places = members_below(tree, n), tree.children(), tree.places()
    lanes_of_nodes = []
    for node in range(n):
        parent, up, down = branch.number(tree.parent[node]), Lane(), Lane()
        for turn, (chunk, flow) in enumerate(flows.items()):
            if node in flow.sources:
                up.step(send_to=parent, to_lane=places[node], send=chunk, after=ready[turn] if ready else AT_ONCE)
            if node in flow.targets:
                down.step(receive_from=parent, receive=chunk)
        lanes_of_nodes.append([up, down])
    result_lanes = [result_lane if node < n else len(children[node]) + 1 for node in range(len(tree.parent))]
    aggregators = range(n, len(tree.parent))
    return lanes_of_nodes + [
        _aggregator(branch, children[node], node, places[node], flows, below, result_lanes) for node in aggregators
    ]


def _aggregator(
    branch: AggregatorBranch,
    children: list[int],
    node: int,
    child_number: int,
    flows: Mapping[int, ChunkFlow],
    below: list[frozenset[int]],
    result_lanes: list[int],
) -> list[Lane]:
    """Return the lanes of one aggregator (node), which is child number child_number of its parent."""
    # children: nodes below it; flows: of chunks; below, result_lanes: by node, the members below it and its lane for
    # results.
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
            up.step(send_to=parent, to_lane=child_number, send=chunk, after=last)
        if parent != ROOT and not below[node].isdisjoint(flow.targets):
            down.step(receive_from=parent, receive=chunk)
            last = AT_ONCE
        for child in children:
            if not below[child].isdisjoint(flow.targets):
                down.step(send_to=branch.number(child), to_lane=result_lanes[child], send=chunk, after=last)
                last = AT_ONCE
    return [*sums, up, down]
