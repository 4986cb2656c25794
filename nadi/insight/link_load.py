"""Loads of links: their utilisation over time, and the links that limited the rates of flows.

Utilisation is estimated: a run records the bytes that each link sent, and the begin and end of each message. The
estimate spreads the bytes of a message evenly over its time, on a shortest path (the first of several equal ones).
Links that limited flows are in the solutions of the flow model (limits.parquet).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from nadi import topologies
from nadi.inputs.arrays import Float64, Int64, numpy_column
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.insight.runs import Run

MAX_PAIRS = 20_000  # number of NPU pairs whose paths are followed: the pairs with the largest traffic


class LinkLoad(NamedTuple):
    """Load of k links over time."""

    link: Int64  # int64[k], link numbers, in order of decreasing utilisation
    edges_ps: Float64  # float64[stretches + 1], limits of the intervals
    share: Float64  # float64[k, stretches], estimated share of the link's capacity; may exceed 1


def link_load(run: Run, max_links: int, num_intervals: int) -> LinkLoad:
    """Estimate the load of the busiest links in equal intervals of a run.

    Args:
        run: The run, read from its folder (`Run`).
        max_links: Maximum number of links.
        num_intervals: Number of equal intervals.
    """
    busy = numpy_column(run.links["tx_bytes"], np.float64)
    order = np.argsort(-numpy_column(run.links["utilisation"], np.float64), kind="stable")[:max_links]
    # links without traffic would be empty rows
    links = order[busy[order] > 0]
    edges = np.linspace(0, max(run.finish_time_ps, 1), num_intervals + 1)
    rate_bps = numpy_column(run.links["rate_bps"], np.float64)
    flows, uses = run.flows, _uses(run, links)
    start_ps, finish_ps, size = (numpy_column(flows[name], np.float64) for name in ("start_ps", "finish_ps", "bytes"))
    pair = numpy_column(flows["src"], np.int64) * run.graph.nodes + numpy_column(flows["dst"], np.int64)
    share = np.zeros((len(links), num_intervals))
    for row, link in enumerate(links.tolist()):
        own = np.flatnonzero(np.isin(pair, uses.get(link, np.zeros(0, np.int64))))
        # a message of no duration would have an infinite rate
        end_ps = np.maximum(finish_ps[own], start_ps[own] + 1)
        rate = size[own] / (end_ps - start_ps[own])
        # bytes before each edge: those that began, less those that have ended
        sent = np.diff(_sent(start_ps[own], rate, edges) - _sent(end_ps, rate, edges))
        share[row] = sent * BITS_PER_BYTE / (rate_bps[link] * np.diff(edges) / PS_PER_S)
    return LinkLoad(links, edges, share)


def _uses(run: Run, links: Int64) -> dict[int, Int64]:
    """Return for each link the pairs of NPUs (src * nodes + dst) whose messages cross it."""
    graph = run.graph
    key = numpy_column(run.flows["src"], np.int64) * graph.nodes + numpy_column(run.flows["dst"], np.int64)
    pairs, index = np.unique(key, return_inverse=True)
    # finding paths takes time, so the pairs with most bytes come first
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
    # the sum of rate * (edge - begin) over senders that have begun, from two prefix sums
    return edges * rates[count] - before[count]


class LimitingLink(NamedTuple):
    """A link that limited flows for most of their time."""

    link: int  # number of the link
    flows: int  # number of connections, or kinds of coupled collectives, that it limited
    mean_ps: float  # mean of the times for which it did, less those for which it did not, in picoseconds
    groups: str  # names of the groups whose collectives these were, those with the longest times first


def limiting_links(limits: Mapping[str, Int64], name_of_group: Callable[[int], str]) -> list[LimitingLink]:
    """Return the links of `limits` (columns of limits.parquet), those with the longest total times first.

    Args:
        limits: Columns of limits.parquet by name.
        name_of_group: Function that returns the name of a group by its number.
    """
    links, place = np.unique(limits["link"], return_inverse=True)
    # one row per flow and link: sum up by link
    totals_ps = np.bincount(place, limits["limited_ps"], len(links))
    found = []
    for number in np.argsort(-totals_ps, kind="stable").tolist():
        own = np.flatnonzero(place == number)
        groups, group = np.unique(limits["group"][own], return_inverse=True)
        order = np.argsort(-np.bincount(group, limits["limited_ps"][own]), kind="stable")
        names = dict.fromkeys("messages" if each < 0 else name_of_group(each) for each in groups[order].tolist())
        found.append(LimitingLink(int(links[number]), len(own), totals_ps[number] / len(own), ", ".join(names)))
    return found


def limiting_link(run: Run, group: int, src: int, dst: int) -> int | None:
    """Return the link that limited collectives of a group, or messages between NPUs, for longest.

    None: no link limited them, or the run has another model of the network.

    Args:
        run: The run, read from its folder (`Run`).
        group: Number of the group, -1 for messages between NPUs.
        src: Number of the NPU that sends; only for messages.
        dst: Number of the NPU that receives; only for messages.
    """
    if run.limits is None:
        return None
    limits = {name: numpy_column(run.limits[name]) for name in run.limits.column_names}
    own = limits["group"] == group
    # messages have no group, so their ends select them
    if group < 0:
        own &= (limits["src"] == src) & (limits["dst"] == dst)
    limited_ps = np.bincount(limits["link"][own], limits["limited_ps"][own])
    return int(limited_ps.argmax()) if len(limited_ps) else None
