"""Fabrics with links that are slow for a whole run, for closed forms."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pdes import Faults
from topologies import Graph


def with_slow_links(graph: Graph, faults: Faults) -> Graph:
    """Return the fabric with the rates and delays that link faults leave; the fabric itself if no links have faults.

    If a switch may send over several equal links, packet hashes choose one of them, and a collective waits for the
    slowest of its messages. Closed forms use one path between two NPUs, so all links of such a set become as slow as
    the slowest of them, in both directions.

    `faults`: Fault schedule of a run; its link faults hold for the whole run and change rates or delays only.
    """
    if not faults.links:
        return graph
    rate_bps, delay_ps = graph.link_rate_bps.copy(), graph.link_delay_ps.copy()
    for fault in faults.links:
        links = list(fault.links)
        if fault.rate_bps:
            rate_bps[links] = fault.rate_bps
        delay_ps[links] += fault.added_latency_ps
    is_slow = np.zeros(graph.links, np.bool_)
    is_slow[[link for fault in faults.links for link in fault.links]] = True
    for equal in _equal_links(graph, is_slow):
        for side in (equal, equal ^ 1):
            rate_bps[side] = rate_bps[side].min()
            delay_ps[side] = delay_ps[side].max()
    return replace(graph, link_rate_bps=rate_bps, link_delay_ps=delay_ps)


def _equal_links(graph: Graph, is_slow: NDArray[np.bool_]) -> list[NDArray[np.int32]]:
    """Return the sets of equal-cost links that contain a slow link and at least one other link."""
    first, links = graph.routing.set_ptr[:-1], graph.routing.set_link
    of_set = np.repeat(np.arange(len(first)), np.diff(graph.routing.set_ptr))
    chosen = np.unique(of_set[is_slow[links]])
    sets = (links[graph.routing.set_ptr[number] : graph.routing.set_ptr[number + 1]] for number in chosen.tolist())
    return [equal for equal in sets if len(equal) > 1]
