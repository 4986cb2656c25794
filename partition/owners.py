"""Which part owns which node."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partition.clusters import Clusters, cluster
from partition.errors import PartitionError
from partition.methods import DEFAULT_METHOD
from partition.methods import method as find_method
from partition.reach import SMALLEST_BYTES, reach_ps
from partition.weights import TrafficWeights, uniform
from topologies.graph import Graph

Int32 = NDArray[np.int32]

NO_CUT_PS = 2**62
"""Lookahead where no link is cut: of a single part."""


class Partition(NamedTuple):
    """A fabric divided among parts.

    Attributes:
        owner: int32[nodes], the part of each node, 0 .. parts-1; part p has, as far as can be, the NPUs around
            (p + 1/2) / parts of all.
        parts: number of parts; none is empty.
        method: how it was found.
        lookahead_ps: least reach of a link that is cut; NO_CUT_PS if none is.
    """

    owner: Int32
    parts: int
    method: str
    lookahead_ps: int


def partition(
    graph: Graph,
    parts: int,
    *,
    method: str = DEFAULT_METHOD,
    weights: TrafficWeights | None = None,
    smallest_bytes: int = SMALLEST_BYTES,
    keep_hosts: bool = True,
) -> Partition:
    """Divide a fabric; the same input gives the same answer.

    Args:
        graph: the fabric.
        parts: how many, one or more.
        method: name of one of partition.methods.
        weights: work of nodes and links; None = `uniform`.
        smallest_bytes: smallest packet on the wire; with a link's delay it gives the link's reach.
        keep_hosts: never cut a server's inner links, nor an NPU from its only switch.

    Raises:
        PartitionError: unknown method, fewer than one part, more parts than clusters, or the method's own.
    """
    found = find_method(method)
    if parts < 1:
        raise PartitionError(f"{parts} parts; expected 1 or more")
    if parts == 1:
        return Partition(np.zeros(graph.nodes, np.int32), 1, method, NO_CUT_PS)
    link_reach_ps = reach_ps(graph, smallest_bytes)
    clusters = cluster(graph, parts, weights or uniform(graph), link_reach_ps, keep_hosts=keep_hosts)
    if parts > clusters.number:
        what = "switches with their NPUs, or servers, that stay together" if keep_hosts else "nodes"
        raise PartitionError(
            f"{graph.name}: {parts} parts; expected at most {clusters.number}, as it has no more {what}"
        )
    part = _without_empty(found.assign(graph, clusters, parts), clusters, parts)
    owner = _by_npu(graph, part[clusters.of_node], parts)
    cut = owner[graph.link_src] != owner[graph.link_dst]
    return Partition(owner, parts, method, int(link_reach_ps[cut].min(initial=NO_CUT_PS)))


def _without_empty(part: Int32, clusters: Clusters, parts: int) -> Int32:
    """Every empty part gets the heaviest cluster of the heaviest part that has several."""
    part = part.copy()
    for empty in np.flatnonzero(np.bincount(part, minlength=parts) == 0).tolist():
        several = np.bincount(part, minlength=parts) > 1
        load = np.where(several, np.bincount(part, clusters.weight, minlength=parts), -1)
        inside = np.flatnonzero(part == np.argmax(load))
        part[inside[np.argmax(clusters.weight[inside])]] = empty
    return part


def _by_npu(graph: Graph, part: Int32, parts: int) -> Int32:
    """Number the parts by their mean NPU; those without NPUs come last, by their first node."""
    npus = np.bincount(part[: graph.npus], minlength=parts)
    mean = np.bincount(part[: graph.npus], np.arange(graph.npus), minlength=parts) / np.maximum(npus, 1)
    first = np.full(parts, graph.nodes)
    np.minimum.at(first, part, np.arange(graph.nodes))
    order = np.lexsort((first, np.where(npus > 0, mean, np.inf)))
    number = np.empty(parts, np.int32)
    number[order] = np.arange(parts)
    return number[part]
