"""Methods of assigning clusters to parts: modules of this folder and of installed packages, and files of users.

A module has a docstring whose first line describes it, and
`assign(graph, clusters, parts) -> int32[clusters.number]`: the part of each cluster, for 2 <= parts <= clusters.number.
`partition.owners` fills empty parts, and numbers the parts.

Clusters are nodes that stay together with any method, so that a cut is cheap and has a long lookahead. Servers stay
with their switch. And the shortest links are never cut: the longer the shortest link of a cut, the less often the parts
must synchronise. So nodes are joined over all links below a threshold, the largest one that leaves enough clusters, and
none too heavy, to balance the parts.
"""

import heapq
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from nadi.inputs import plug_ins
from nadi.inputs.arrays import Int32, Int64
from nadi.partition.weights import PartitionError, TrafficWeights
from nadi.topologies import NVSWITCH, Graph

MAX_LOAD = 1.3  # maximum load of the heaviest part, relative to the mean, that a threshold may cause
_MAX_THRESHOLDS = 64  # thresholds that are tried


class Clusters(NamedTuple):
    """Clusters of a fabric, numbered by their first node, and the links between them."""

    number: int  # number of clusters, c
    of_node: Int32  # [nodes] cluster of each node
    weight: Int64  # [c] events of a cluster's nodes, plus one per node
    ptr: Int64  # [c+1] see `neighbour`
    neighbour: Int32  # neighbours of cluster i are neighbour[ptr[i]:ptr[i+1]], ascending
    packets: Int64  # packets over all links to and from that neighbour


def cluster(graph: Graph, parts: int, weights: TrafficWeights, link_reach_ps: Int64, *, keep_hosts: bool) -> Clusters:
    """Join nodes that should not be separated into clusters: fewer than `parts` only if keep_hosts permits no more.

    Args:
        graph: The fabric (`Graph`).
        parts: Minimum number of clusters.
        weights: Expected work of nodes and links.
        link_reach_ps: int64[links], time in ps after which sending at one end of each link can affect the other.
        keep_hosts: Whether a server's NPUs and NVSwitches stay together, and NPUs with a switch that is their only one.
    """
    joined = _hosts(graph) if keep_hosts else np.zeros((2, 0), np.int64)
    node_weight = np.maximum(weights.node, 0) + 1
    distinct = np.unique(link_reach_ps)
    thresholds = distinct[:: -(-len(distinct) // _MAX_THRESHOLDS) or 1]
    of_node = components(graph.nodes, *joined)
    # from the longest: the longer the shortest link that is cut, the longer the windows
    for threshold_ps in thresholds[:0:-1]:  # the smallest one joins nothing
        short = np.flatnonzero(link_reach_ps < threshold_ps)
        links = np.stack([graph.link_src[short], graph.link_dst[short]])
        longer = components(graph.nodes, *np.concatenate([joined, links], axis=1))
        # too few or too uneven clusters would leave workers idle
        if _can_balance(np.bincount(longer, node_weight), parts):
            of_node = longer
            break
    return _described(graph, of_node, node_weight, weights.link)


def components(nodes: int, ends_a: NDArray[np.integer], ends_b: NDArray[np.integer]) -> Int32:
    """Return int32[nodes]: connected components of edges ends_a[i] - ends_b[i], numbered by their first node."""
    root = np.arange(nodes)
    while True:
        low = np.minimum(root[ends_a], root[ends_b])
        if np.array_equal(root[ends_a], root[ends_b]):
            return np.unique(root, return_inverse=True)[1].reshape(-1).astype(np.int32)
        for end in (ends_a, ends_b):
            np.minimum.at(root, root[end], low)
        while not np.array_equal(root, root[root]):
            root = root[root]


def _hosts(graph: Graph) -> Int64:
    """Return int64[2, n]: pairs of nodes that belong to one server, or are an NPU and its only switch."""
    npu = np.arange(graph.npus)
    _, first, number = np.unique(graph.host, return_index=True, return_inverse=True)
    # each NPU with the first one of its host: a star, which connects the host's NPUs
    of_server = np.stack([npu, first[number.reshape(-1)]])
    ends = np.stack([graph.link_src, graph.link_dst]).astype(np.int64)
    up = ends[:, (ends[0] < graph.npus) & (ends[1] >= graph.npus)]
    inside = up[:, graph.node_kind[up[1]] == NVSWITCH]
    lowest, highest = np.full(graph.npus, graph.nodes), np.full(graph.npus, -1)
    from_npu = ends[:, ends[0] < graph.npus]
    np.minimum.at(lowest, *from_npu)
    np.maximum.at(highest, *from_npu)
    # lowest and highest neighbour are the same: the NPU has one only
    single = np.flatnonzero((lowest == highest) & (lowest >= graph.npus))
    return np.concatenate([of_server, inside, np.stack([single, lowest[single]])], axis=1)


def _can_balance(weights: NDArray[np.number], parts: int) -> bool:
    """Return whether the heaviest to the lightest part, in turn, gives parts of at most MAX_LOAD times the mean."""
    max_load = MAX_LOAD * weights.sum() / parts
    if len(weights) < parts or weights.max() > max_load:
        return False
    load = [0.0] * parts
    heaviest_first = np.sort(weights)[::-1].tolist()
    # longest processing time first (Graham, 1969): its heaviest part is at most 4/3 of that of the best division
    return all(
        heapq.heapreplace(load, load[0] + cluster_weight) + cluster_weight <= max_load
        for cluster_weight in heaviest_first
    )


def _described(graph: Graph, of_node: Int32, node_weight: Int64, link_packets: Int64) -> Clusters:
    """Return the Clusters of int32[nodes] numbers of clusters, with the weights of nodes and the packets of links."""
    count = int(of_node.max()) + 1
    weight = np.zeros(count, np.int64)
    np.add.at(weight, of_node, node_weight)
    a, b = of_node[graph.link_src].astype(np.int64), of_node[graph.link_dst].astype(np.int64)
    between = np.flatnonzero(a != b)
    # a pair of clusters as one number, a x count + b: sorting the keys gives neighbours by cluster
    key, number = np.unique(a[between] * count + b[between], return_inverse=True)
    packets = np.zeros(len(key), np.int64)  # links come in pairs, so that every key has its reverse
    np.add.at(packets, number.reshape(-1), link_packets[between] + link_packets[between ^ 1])
    src, neighbour = np.divmod(key, count)
    ptr = np.searchsorted(src, np.arange(count + 1)).astype(np.int64)
    return Clusters(count, of_node, weight, ptr, neighbour.astype(np.int32), packets)


# Methods: modules of this folder and of installed packages, and files of users.

DEFAULT_METHOD = "auto"
_KIND = "partition method"


class Method(Protocol):
    """Interface of a module of this folder."""

    __doc__: str | None

    @staticmethod
    def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
        """Return int32[clusters.number]: the part of each cluster.

        Args:
            graph: The fabric (`Graph`).
            clusters: Clusters of nodes to divide among the parts.
            parts: Number of parts.
        """


def methods() -> dict[str, Method]:
    """Return all methods by name, without those in files of the user's."""
    return {name: method(name) for name in plug_ins.names(_KIND)}


def method(name: str) -> Method:
    """Return the method of a name or file; PartitionError if it is none."""
    return cast("Method", plug_ins.module(_KIND, name, PartitionError))
