"""Aggregators: nodes inside switches that reduce the packets of their children and send results on, packet by packet.

An aggregator terminates transport connections, like the aggregation nodes of SHARP (Graham et al., "Scalable
Hierarchical Aggregation Protocol", COM-HPC 2016, section III: logical nodes of the tree, run by the switches). To the
rest of the network it is one more endpoint of its switch, over a link twice as fast as all of the switch's ports
together.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from topologies.endpoints import inserted, with_endpoints
from topologies.graph import AGGREGATOR, Graph

AGGREGATOR_DELAY_PS = 100_000  # delay between a switch's ports and its aggregator, each way: 100 ns, an assumption

_SPEED_UP = 2  # rate of an aggregator's link over that of all ports together, which it must not slow down


def with_aggregators(graph: Graph, switches: Sequence[int]) -> Graph:
    """Return the network with an aggregator in each of the given switches.

    The aggregators are endpoints npus, npus + 1, ... in the order of `switches`; other nodes move up by their number.
    Links keep their numbers, those of the aggregators come after them.

    Args:
        graph: Network with table routing.
        switches: Nodes of the graph, each once.
    """
    more = len(switches)
    at = np.asarray(switches, np.int64)
    rate_bps = _SPEED_UP * np.bincount(graph.link_src, weights=graph.link_rate_bps, minlength=graph.nodes)[at].astype(
        np.int64
    )
    extended = with_endpoints(
        graph,
        AGGREGATOR,
        np.stack([np.arange(more), at], axis=1),
        rate_bps,
        np.full(more, AGGREGATOR_DELAY_PS),
        host=graph.host.max() + 1 + np.arange(more),
        pod=graph.pod[at],
    )
    return replace(extended, dims=(extended.npus,))


def with_aggregators_of(values: NDArray, graph: Graph, switches: Sequence[int]) -> NDArray:
    """Return values of the nodes, [nodes], extended by copies of the switches' values for their aggregators."""
    return inserted(values, graph.npus, values[np.asarray(switches, np.int64)])


def folded(values: NDArray, graph: Graph, switches: Sequence[int]) -> NDArray:
    """Return values of the nodes of `with_aggregators(graph, switches)` as [nodes]; aggregators' add to switches'."""
    n, more = graph.npus, len(switches)
    totals = np.delete(values, np.s_[n : n + more])
    np.add.at(totals, np.asarray(switches, np.int64), values[n : n + more])
    return totals
