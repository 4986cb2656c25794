"""Utilisation of links over time, estimated from the times of messages.

A run records the bytes that each link sent, and the begin and end of each message. The estimate spreads the bytes of a
message evenly over its time, on a shortest path (the first of several equal ones).
"""

from typing import NamedTuple

import numpy as np

from nadi import topologies
from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.arrow import numpy_column
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.insight.runs import Run

MAX_PAIRS = 20_000  # number of NPU pairs whose paths are followed: the pairs with the largest traffic


class LinkLoad(NamedTuple):
    """Load of k links over time."""

    link: Int64  # int64[k], link numbers, in order of decreasing utilisation
    edges_ps: Float64  # float64[stretches + 1], limits of the intervals
    share: Float64  # float64[k, stretches], estimated share of the link's capacity; may exceed 1


def link_load(run: Run, max_links: int, num_intervals: int) -> LinkLoad:
    """Estimate the load of the busiest links in equal intervals of a run."""
    busy = numpy_column(run.links["tx_bytes"], np.float64)
    order = np.argsort(-numpy_column(run.links["utilisation"], np.float64), kind="stable")[:max_links]
    links = order[busy[order] > 0]
    edges = np.linspace(0, max(run.finish_time_ps, 1), num_intervals + 1)
    rate_bps = numpy_column(run.links["rate_bps"], np.float64)
    flows, uses = run.flows, _uses(run, links)
    start_ps, finish_ps, size = (numpy_column(flows[name], np.float64) for name in ("start_ps", "finish_ps", "bytes"))
    pair = numpy_column(flows["src"], np.int64) * run.graph.nodes + numpy_column(flows["dst"], np.int64)
    share = np.zeros((len(links), num_intervals))
    for row, link in enumerate(links.tolist()):
        own = np.flatnonzero(np.isin(pair, uses.get(link, np.zeros(0, np.int64))))
        end_ps = np.maximum(finish_ps[own], start_ps[own] + 1)
        rate = size[own] / (end_ps - start_ps[own])
        sent = np.diff(_sent(start_ps[own], rate, edges) - _sent(end_ps, rate, edges))
        share[row] = sent * BITS_PER_BYTE / (rate_bps[link] * np.diff(edges) / PS_PER_S)
    return LinkLoad(links, edges, share)


def _uses(run: Run, links: Int64) -> dict[int, Int64]:
    """Return for each link the pairs of NPUs (src * nodes + dst) whose messages cross it."""
    graph = run.graph
    key = numpy_column(run.flows["src"], np.int64) * graph.nodes + numpy_column(run.flows["dst"], np.int64)
    pairs, index = np.unique(key, return_inverse=True)
    by_bytes = np.argsort(-np.bincount(index.reshape(-1), numpy_column(run.flows["bytes"], np.float64)), kind="stable")
    wanted, found = set(links.tolist()), dict[int, list[int]]()
    for pair in pairs[by_bytes[:MAX_PAIRS]].tolist():
        src, dst = divmod(pair, graph.nodes)
        for link in topologies.route(graph, src, dst) if src != dst and max(src, dst) < graph.npus else ():
            if link in wanted:
                found.setdefault(link, []).append(pair)
    return {link: np.array(own, np.int64) for link, own in found.items()}


def _sent(begin_ps: Float64, bytes_per_ps: Float64, edges: Float64) -> Float64:
    """Return float64[edges]: bytes sent until each edge by senders that begin at begin_ps and never end."""
    order = np.argsort(begin_ps, kind="stable")
    count = np.searchsorted(begin_ps[order], edges)
    rates = np.concatenate([[0.0], np.cumsum(bytes_per_ps[order])])
    before = np.concatenate([[0.0], np.cumsum((bytes_per_ps * begin_ps)[order])])
    return edges * rates[count] - before[count]
