"""Brute-force models of networks and of their shortest paths, with networkx, for small graphs."""

import itertools

import networkx as nx

from nadi import topologies

SMALL = [
    "ring:npus=2",
    "ring:npus=7",
    "ring:npus=8",
    "fully-connected:npus=5",
    "torus:sizes=5",
    "torus:sizes=4x3",
    "torus:sizes=2x3x4",
    "stack:dims=Ring(4)_FullyConnected(2)_Switch(3),rates=200GB/s_100GB/s_50GB/s,delays=50ns_500ns_2us",
    "stack:dims=Switch(3)_Switch(4)_Ring(2)",
    "switch:npus=5",
    "switch:npus=1",
    "leaf-spine:npus=10,hosts_per_leaf=4,spines=3,uplinks=2",
    "leaf-spine:leaves=3,hosts_per_leaf=4,oversubscription=2",
    "fat-tree:k=4",
    "fat-tree:npus=11,hosts_per_leaf=2,leaves_per_pod=2,oversubscription=1",
    "fat-tree:npus=6",
    "fat-tree:k=4,spine_delay=2us,core_delay=3us,switch_latency=300ns",
    "rail-optimised:npus=16,gpus_per_host=4",
    "rail-optimised:npus=12,gpus_per_host=2,hosts_per_rail_leaf=4,spines=2,uplinks=2",
    "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=2,spines=3",
    "rail-fat-tree:npus=20,gpus_per_host=4,rails=2,hosts_per_unit=2,units_per_pod=2,spines=2,cores=3,uplinks=2",
    "rail-fat-tree:npus=16,gpus_per_host=2,ports=2,hosts_per_unit=2,spines=2",
    "rail-fat-tree:npus=16,gpus_per_host=2,hosts_per_unit=2,rail_spines=true,spines=2,cores=2,core_planes=1",
    "rail-fat-tree:npus=12,gpus_per_host=2,hosts_per_unit=2,rail_spines=true,spines=2,forwarding=true",
    "dragonfly:p=2,a=2,h=1",
    "slim-fly:q=3",
    "dragonfly-plus:p=2,leaves=2",
    "dragonfly-plus:p=1,leaves=3,spines=2,h=3,groups=4",
    "hyperx:sizes=3x2x2,p=2,width=1x2x1",
    "rail-only:npus=16,gpus_per_host=4",
    "rail-only:npus=16,gpus_per_host=2,hosts_per_rail_leaf=2,spines=2",
    "zcube:npus=12,npus_per_switch=3",
    "zcube:npus=16,npus_per_switch=4,gpus_per_host=4,uplinks=2",
    "twisted-torus:sizes=2x4",
    "twisted-torus:sizes=2x2x4",
    "multi-plane:npus=10,planes=4,nics_per_leaf=4,spines=2",
    "multi-plane:npus=16,planes=2,nics_per_leaf=2,gpus_per_host=4,rails=true",
]


LONG = 1000  # length of a link between groups, more than all others of a path


def as_networkx(graph):
    """The graph with its links as keys of parallel edges."""
    network = nx.MultiDiGraph()
    network.add_nodes_from((node, {"kind": kind}) for node, kind in enumerate(graph.node_kind.tolist()))
    for link, (a, b) in enumerate(zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True)):
        between = min(graph.group[[a, b]]) >= 0 and graph.group[a] != graph.group[b]
        network.add_edge(a, b, key=link, rate=int(graph.link_rate_bps[link]), length=LONG if between else 1)
    return network


def distances_without_transit(graph, network, dst):
    """Length from every node to NPU dst when no NPU forwards: {node: length}, unreachable nodes left out."""
    other_npus = set(range(graph.npus)) - {dst}
    switches = network.subgraph(set(network) - other_npus)
    distance = nx.single_source_dijkstra_path_length(switches.reverse(), dst, weight="length")
    for npu in other_npus:
        reachable = [distance[n] for n in network.successors(npu) if n in distance]
        if reachable:
            distance[npu] = 1 + min(reachable)
    return distance


def nearer_links(network, distance, node, npus):
    """All links that lead nearer by their length, to no NPU but the destination; an NVSwitch between two alone."""
    near = {
        v
        for _, v, length in network.out_edges(node, data="length")
        if distance.get(v) == distance[node] - length and (v not in npus or distance[v] == 0)
    }
    if node in npus and distance[node] == 2:
        inside = {v for v in network.successors(node) if v in near and network.nodes[v]["kind"] == topologies.NVSWITCH}
        near = inside or near
    return sorted(key for _, v, key in network.out_edges(node, keys=True) if v in near)


class Hierarchy:
    """A stack of (kind, size) by its definition. Nodes are tuples of digits; a switch has None in its dimension."""

    def __init__(self, dimensions):
        self.dimensions = dimensions
        self.npus = list(itertools.product(*(range(n) for _, n in reversed(dimensions))))
        self.npus = [digits[::-1] for digits in self.npus]
        self.lines = [self._lines(d) for d in range(len(dimensions))]

    def _lines(self, d):
        """The network of dimension d alone."""
        kind, size = self.dimensions[d]
        network = nx.Graph()
        for npu in self.npus:
            if kind == "Ring":
                network.add_edge(npu, self.moved(npu, d, (npu[d] + 1) % size))
            elif kind == "FullyConnected":
                network.add_edges_from((npu, self.moved(npu, d, i)) for i in range(size) if i != npu[d])
            else:
                network.add_edge(npu, self.moved(npu, d, None))
        return network

    @staticmethod
    def moved(digits, d, value):
        return (*digits[:d], value, *digits[d + 1 :])

    def first_difference(self, here, there):
        return next(d for d in range(len(self.dimensions)) if here[d] != there[d])

    def next_nodes(self, here, there):
        """Nodes on shortest paths within the first dimension in which the digits differ."""
        d = self.first_difference(here, there)
        goal = self.moved(here, d, there[d])
        distance = nx.single_source_shortest_path_length(self.lines[d], goal)
        return {n for n in self.lines[d][here] if distance[n] == distance[here] - 1}

    def distance(self, here, there):
        """Sum of the distances in each dimension."""
        total = 0
        for d, line in enumerate(self.lines):
            goal = self.moved(here, d, there[d])
            total += nx.shortest_path_length(line, here, goal)
            here = goal
        return total
