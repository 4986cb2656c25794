"""Trees of aggregators in switches that reduce the data of a group's members, and the lanes that use them.

"all" is one tree over all members; "hosts" is a tree per host over its members, with the NVSwitch as the aggregator;
"hosts and rails" adds, for each place in a host, a tree over the members in that place of all hosts. With the prefix
IF_ANY, hosts or fabrics that do not fit have no tree instead of raising an error.

The root of a tree is a switch that minimises the distance to the farthest member's switch; among several such switches
the group's first member decides, so that parallel groups use different ones. A switch with a single child forwards
without an aggregator.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi.inputs.arrays import Int64
from nadi.topologies import NVSWITCH, Graph
from nadi.topologies.endpoints import AGGREGATOR_DELAY_PS
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane
from nadi.workload.errors import WorkloadError

ROOT = -1
IF_ANY = "if any: "


class AggregatorTree(NamedTuple):
    """A tree over n members and r aggregators, numbered n .. n+r-1; hashable, equal for groups in equal locations."""

    parent: tuple[int, ...]  # aggregator above each member and aggregator; ROOT (-1) for one of them
    rate_bps: tuple[int, ...]  # rate of the slowest link on the path to the parent; 0 for the root
    both_ways_bps: tuple[int, ...]  # the same rate less the acknowledgements of equal traffic in the other direction
    latency_ps: tuple[int, ...]  # latency of an empty message on that path, in either direction; 0 for the root
    links: tuple[int, ...]  # number of links of the path
    nvlink: tuple[bool, ...]  # whether the path ends in an NVSwitch

    def children(self) -> dict[int, list[int]]:
        """Return the children of each aggregator in ascending order."""
        children: dict[int, list[int]] = {}
        for child, parent in enumerate(self.parent):
            if parent != ROOT:
                children.setdefault(parent, []).append(child)
        return children

    def places(self) -> list[int]:
        """Return each node's index among its parent's children: the receiving lane of the parent; 0 for the root."""
        places = [0] * len(self.parent)
        for children in self.children().values():
            for place, child in enumerate(children):
                places[child] = place
        return places

    def up(self, child: int) -> list[int]:
        """Return the path from a member to the root: the member, and its aggregators up to the last one below the root.

        Args:
            child: The number of the member in the tree.
        """
        path = []
        while self.parent[child] != ROOT:
            path.append(child)
            child = self.parent[child]
        return path


class AggregatorBranch(NamedTuple):
    """A tree over some members of a group; hashable."""

    members: tuple[int, ...]  # number in the group of each member of the tree
    tree: AggregatorTree  # tree over these members
    first: int  # number in the group of the tree's first aggregator

    def number(self, node: int) -> int:
        """Return the number in the group of a member or aggregator of the tree.

        Args:
            node: The number of the member or aggregator in the tree.
        """
        return self.members[node] if node < len(self.members) else self.first + node - len(self.members)


def trees_of(graph: Graph, members: ArrayLike, name: str) -> tuple[tuple[AggregatorBranch, ...], tuple[int, ...]]:
    """Return the trees of a group, and the switch of each aggregator; a switch may hold aggregators of several trees.

    Without the prefix IF_ANY raises WorkloadError: as `tree_of`; for hosts: a host with one member, or hosts of unequal
    sizes; for rails: only one host.

    Args:
        graph: The fabric as a graph of nodes and links.
        members: The NPU of each member, int[n] with n >= 2.
        name: The name of the trees, "all", "hosts" or "hosts and rails", with or without the prefix IF_ANY.
    """
    if name.startswith(IF_ANY):
        try:
            return trees_of(graph, members, name.removeprefix(IF_ANY))
        except WorkloadError:
            return (), ()
    npu = np.asarray(members, np.int64)
    branches: list[AggregatorBranch] = []
    switches: list[int] = []
    for own in _parties(graph, npu, name):
        tree, holds = tree_of(graph, npu[own])
        branches.append(AggregatorBranch(tuple(own), tree, len(npu) + len(switches)))
        switches += holds
    return tuple(branches), tuple(switches)


def _parties(graph: Graph, npu: Int64, name: str) -> list[list[int]]:
    """Return the members of each tree of a name, by their numbers in the group; npu: int64[n], members' NPUs."""
    if name == "all":
        return [list(range(len(npu)))]
    of_host: dict[int, list[int]] = {}
    for member, host in enumerate(graph.host[npu].tolist()):
        of_host.setdefault(host, []).append(member)
    hosts = list(of_host.values())
    sizes = {len(host) for host in hosts}
    if len(sizes) > 1 or sizes == {1}:
        shown = f"hosts of {min(sizes)} to {max(sizes)} members"
        raise WorkloadError(f"{graph.name}: in-network reduction by hosts: {shown}, expected two or more, equally many")
    if name == "hosts":
        return hosts
    if len(hosts) == 1:
        raise WorkloadError(f"{graph.name}: in-network reduction over rails: one host, expected two or more")
    return [*hosts, *([host[place] for host in hosts] for place in range(sizes.pop()))]


def tree_of(graph: Graph, members: ArrayLike) -> tuple[AggregatorTree, tuple[int, ...]]:
    """Return the tree of a group and the switch of each aggregator; WorkloadError if no switch reaches all members.

    Args:
        graph: The fabric as a graph of nodes and links.
        members: The NPU of each member, int[n] with n >= 2.
    """
    npu = np.asarray(members, np.int64)
    if graph.routing.npus_forward:
        raise WorkloadError(
            f"{graph.name}: in-network reduction on a fabric without switches between all; expected one of switches"
        )
    root, home = graph.routing.common_switch(npu)
    if root < 0:
        raise WorkloadError(f"{graph.name}: in-network reduction: no switch reaches all {len(npu)} members")
    above = _paths(graph, root, home)
    above |= dict(zip(npu.tolist(), home.tolist(), strict=True))
    path = _joined(above, npu)
    return _numbered(graph, npu, path)


def _paths(graph: Graph, root: int, homes: Int64) -> dict[int, int]:
    """Return the switch above each switch on shortest paths from root to homes, merged where possible."""
    above: dict[int, int] = {}
    for goal in np.unique(homes).tolist():
        node = root
        while node != goal:
            nodes = graph.link_dst[graph.routing.links_to_switch(node, goal)].tolist()
            # Reuse a branch that exists, so that paths to several homes part as late as possible
            below = next((n for n in nodes if above.get(n) == node), nodes[root % len(nodes)])
            above.setdefault(below, node)
            node = below
    return above


def _joined(above: dict[int, int], npu: Int64) -> dict[int, list[int]]:
    """Return the path from each member (npu) and each aggregator's switch up to the next aggregator, with both ends."""
    # above: the switch above each member's NPU and each switch.
    below: dict[int, set[int]] = {}
    for member in npu.tolist():
        node = member
        while node in above:
            below.setdefault(above[node], set()).add(node)
            node = above[node]
    # A switch with one child has nothing to add: it passes data on like any packet
    holds = {switch for switch, nodes in below.items() if len(nodes) > 1}
    paths: dict[int, list[int]] = {}
    for start in [*npu.tolist(), *holds]:
        path = [start]
        # The first node may be an aggregator itself: its own path leads to the next one above
        while path[-1] in above and (len(path) == 1 or path[-1] not in holds):
            path.append(above[path[-1]])
        if len(path) > 1 and path[-1] in holds:
            paths[start] = path
    return paths


def _numbered(graph: Graph, npu: Int64, paths: dict[int, list[int]]) -> tuple[AggregatorTree, tuple[int, ...]]:
    """Return the tree of members (npu) with paths; aggregators are numbered in the order of the members' paths."""
    number = {node: i for i, node in enumerate(npu.tolist())}
    for member in npu.tolist():
        node = member
        while node in paths:
            node = paths[node][-1]
            number.setdefault(node, len(number))
    edges = [_edge(graph, number, paths[node]) if node in paths else (ROOT, 0, 0, 0, 0, False) for node in number]
    return AggregatorTree(*map(tuple, zip(*edges, strict=True))), tuple(list(number)[len(npu) :])


def _edge(graph: Graph, number_of: dict[int, int], path: list[int]) -> tuple[int, int, int, int, int, bool]:
    """Return the fields of an AggregatorTree for a node; path: nodes from it to the next aggregator's switch."""
    links = []
    for src, dst in pairwise(path):
        out = graph.out_links(src)
        links.append(int(out[np.flatnonzero(graph.link_dst[out] == dst)[0]]))
    rate_bps = int(graph.link_rate_bps[links].min())
    from_switch = path[0] >= graph.npus  # a path from an aggregator passes its switch's port, too
    latency_ps = int(graph.link_delay_ps[links].sum() + graph.node_latency_ps[path if from_switch else path[1:]].sum())
    latency_ps += (2 if from_switch else 1) * AGGREGATOR_DELAY_PS
    is_nvswitch = bool(graph.node_kind[path[-1]] == NVSWITCH)
    return number_of[path[-1]], rate_bps, rate_bps, latency_ps, len(links), is_nvswitch


# Lanes that send chunks up a tree of aggregators, which sum them, and return the root's result.
#
# A member has two lanes: one sends data up, one receives results. An aggregator has a lane per child, which adds the
# children's data in order, one that sends sums up, and one that passes results down to the children.


class ChunkFlow(NamedTuple):
    """The members that take part in a chunk, by their numbers in the tree."""

    sources: frozenset[int]  # members that send the chunk up
    targets: frozenset[int]  # members that receive the result


def members_below(tree: AggregatorTree, members: int) -> list[frozenset[int]]:
    """Return the members below each node of a tree; a member is below itself.

    Args:
        tree: The tree of members and aggregators.
        members: The number of members of the tree.
    """
    below: list[set[int]] = [{node} if node < members else set() for node in range(len(tree.parent))]
    for member in range(members):
        for node in tree.up(member):
            below[tree.parent[node]].add(member)
    return [frozenset(members_of_node) for members_of_node in below]


def flows_of_all(tree: AggregatorBranch, chunks: Iterable[int]) -> dict[int, ChunkFlow]:
    """Return the flows of chunks that all members of a tree send up and receive.

    Args:
        tree: The tree of the members.
        chunks: The numbers of the chunks.
    """
    everyone = frozenset(range(len(tree.members)))
    return {chunk: ChunkFlow(everyone, everyone) for chunk in chunks}


def extent(tree: AggregatorTree, count: int) -> PlanExtent:
    """Return the number of steps and lanes of a tree's nodes if chunks go up and down the whole tree.

    Args:
        tree: The tree of members and aggregators.
        count: The number of chunks.
    """
    links = len(tree.parent) - 1
    widest = max(Counter(tree.parent).values()) + 2
    return PlanExtent(4 * links * count, links + 2 * len(tree.parent), len(tree.parent), widest)


def tree_lanes(
    branch: AggregatorBranch, flows: Mapping[int, ChunkFlow], result_lane: int, ready: Sequence[tuple[int, int]] = ()
) -> list[list[Lane]]:
    """Return the lanes of each member and aggregator of a tree: members have one that sends, one that takes results.

    Args:
        branch: The tree over some members of the group.
        flows: The members that take part in each chunk, by its number, in sending order.
        result_lane: The number of the members' lane for results.
        ready: The (lane, step) of a member that must be done before it sends each chunk; () = it waits for nothing.
    """
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
    # An aggregator has a lane per child and one that sends up; the lane that takes results comes after these
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
        # Below the root the chunk goes down when the total has come from above. At the root it turns round: `last` is
        # then still its last addition.
        if parent != ROOT and not below[node].isdisjoint(flow.targets):
            down.step(receive_from=parent, receive=chunk)
            last = AT_ONCE
        for child in children:
            if not below[child].isdisjoint(flow.targets):
                down.step(send_to=branch.number(child), to_lane=result_lanes[child], send=chunk, after=last)
                last = AT_ONCE
    return [*sums, up, down]
