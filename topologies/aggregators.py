"""Aggregators: nodes inside switches that reduce what their children send and send results on, packet by packet.

An aggregator ends transport connections, as the aggregation nodes of SHARP do (Graham et al., "Scalable Hierarchical
Aggregation Protocol", COM-HPC 2016, section III: logical nodes of the tree, run by the switches). To the rest of the
network it is one more endpoint of its switch, over a link twice as fast as all of the switch's ports together.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topologies.graph import AGGREGATOR, Graph
from topologies.table_routing import build_table_routing

AGGREGATOR_DELAY_PS = 100_000
"""Between a switch's ports and its aggregator, each way."""

_SPEED_UP = 2
"""Of an aggregator's link over the ports together, which it must not slow down."""

Int32 = NDArray[np.int32]


def with_aggregators(graph: Graph, switches: Sequence[int]) -> Graph:
    """The network with an aggregator in each of some switches.

    The aggregators are endpoints npus, npus + 1, ... in the order of `switches`; other nodes move up by as many. Links
    keep their numbers, those of the aggregators come after them.

    Args:
        graph: a network that is routed by tables.
        switches: nodes of the graph, each once.
    """
    n, more = graph.npus, len(switches)
    at = np.asarray(switches, np.int64)
    own = np.stack([np.arange(n, n + more), at + more], axis=1)
    rate_bps = _SPEED_UP * np.bincount(graph.link_src, weights=graph.link_rate_bps, minlength=graph.nodes)[at].astype(
        np.int64
    )
    link_src = np.concatenate([_moved(graph.link_src, n, more), own.reshape(-1)]).astype(np.int32)
    link_dst = np.concatenate([_moved(graph.link_dst, n, more), own[:, ::-1].reshape(-1)]).astype(np.int32)
    return replace(
        graph,
        npus=n + more,
        nodes=graph.nodes + more,
        links=len(link_src),
        node_kind=_inserted(graph.node_kind, n, np.full(more, AGGREGATOR)),
        node_latency_ps=_inserted(graph.node_latency_ps, n, np.zeros(more)),
        link_src=link_src,
        link_dst=link_dst,
        link_rate_bps=np.concatenate([graph.link_rate_bps, np.repeat(rate_bps, 2)]),
        link_delay_ps=np.concatenate([graph.link_delay_ps, np.full(2 * more, AGGREGATOR_DELAY_PS)]),
        dims=(n + more,),
        host=np.concatenate([graph.host, graph.host.max() + 1 + np.arange(more)]).astype(np.int32),
        pod=_inserted(graph.pod, n, graph.pod[at]),
        routing=build_table_routing(n + more, graph.nodes + more, link_src, link_dst),
    )


def with_aggregators_of(values: NDArray, graph: Graph, switches: Sequence[int]) -> NDArray:
    """Values of the nodes, [nodes], with those of the switches for their aggregators."""
    return _inserted(values, graph.npus, values[np.asarray(switches, np.int64)])


def folded(values: NDArray, graph: Graph, switches: Sequence[int]) -> NDArray:
    """Values of the nodes of `with_aggregators(graph, switches)` as [nodes]: aggregators' are added to switches'."""
    n, more = graph.npus, len(switches)
    found = np.delete(values, np.s_[n : n + more])
    np.add.at(found, np.asarray(switches, np.int64), values[n : n + more])
    return found


def _moved(nodes: Int32, npus: int, more: int) -> Int32:
    return np.where(nodes < npus, nodes, nodes + more)


def _inserted(values: NDArray, at: int, more: ArrayLike) -> NDArray:
    return np.concatenate([values[:at], np.asarray(more, values.dtype), values[at:]])
