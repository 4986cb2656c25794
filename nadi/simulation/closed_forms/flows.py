"""Ideal time of each message of a run, alone on an idle network, and its slowdown against that time."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import topologies
from nadi.simulation.closed_forms.lone_message import Way, alone_ps, ways_of, with_shares
from pdes import Settings
from pdes.wire import is_nvlink
from topologies import Graph
from workload import Program
from workload.node_kinds import SEND
from workload.program.assembling import receive_key

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MAX_PAIRS = 20_000  # maximum number of distinct pairs of NPUs whose routes `ideal_ps` computes
MAX_HOPS = 400_000  # maximum number of links on these routes
UNKNOWN = -1  # ideal time of a message that `ideal_ps` does not compute


def shares_of(program: Program, flows: Mapping[str, NDArray]) -> Float64:
    """Return float64[m], the shares of each message between two NPUs: its NPU drives it at line rate / shares; else 1.

    `flows`: Columns src, dst, group, lane and seq of m messages.
    """
    shares = np.ones(len(flows["src"]))
    alone = np.flatnonzero(flows["group"] < 0) if len(program.channels.shares) else np.zeros(0, np.int64)
    traces = program.trace_of_npu[flows["src"][alone]]
    src, dst, tag, seq = (flows[name][alone].astype(np.int64) for name in ("src", "dst", "lane", "seq"))
    key = receive_key(dst - src, tag, seq)
    of_channel = np.append(program.channels.shares, 1.0)  # the last entry is for channel -1
    for trace in np.unique(traces).tolist():
        first, end = int(program.trace_ptr[trace]), int(program.trace_ptr[trace + 1])
        rows = first + np.flatnonzero(program.node_kind[first:end] == SEND)
        columns = (program.node_peer, program.node_tag, program.node_seq)
        known = receive_key(*(column[rows].astype(np.int64) for column in columns))
        sends = np.flatnonzero((traces == trace) & np.isin(key, known))  # answers to requests are no sends
        order = np.argsort(known)
        at = rows[order[np.searchsorted(known[order], key[sends])]]
        shares[alone[sends]] = of_channel[program.node_channel[at]]
    return shares


def ideal_ps(graph: Graph, settings: Settings, flows: Mapping[str, NDArray], shares: Float64 | None = None) -> Int64:
    """Return the time of each message alone on an idle network along a shortest path, exact to the picosecond.

    The function computes one route per pair of NPUs. With cut-through switches or more than MAX_PAIRS pairs all times
    are UNKNOWN; after MAX_HOPS links, those of the remaining pairs are.

    `flows`: Columns src, dst, group and bytes of m messages.
    `shares`: float64[m], the result of `shares_of`; None = all messages at line rate.

    Returns:
        int64[m], time in picoseconds.
    """
    ideal = np.full(len(flows["src"]), UNKNOWN, np.int64)
    if settings.cut_through or not len(ideal):
        return ideal
    key = flows["src"].astype(np.int64) * graph.npus + flows["dst"]
    known, share = np.unique(np.ones(1) if shares is None else shares, return_inverse=True)
    if settings.p2p_share < 1 or shares is not None:
        key += np.where(flows["group"] < 0, share.reshape(-1) + 1, 0) * graph.npus**2
    pairs, pair = np.unique(key, return_inverse=True)
    if len(pairs) > MAX_PAIRS:
        return ideal
    ways = _ways(graph, pairs, settings, known)
    number = {way: i for i, way in enumerate(dict.fromkeys(ways))}
    of_flow = np.array([number[way] for way in ways], np.int64)[pair.reshape(-1)]
    order = np.argsort(of_flow, kind="stable")
    ends = np.searchsorted(of_flow[order], np.arange(len(number) + 1))
    for way, i in number.items():
        if way:
            here = order[ends[i] : ends[i + 1]]
            ideal[here] = alone_ps(way, flows["bytes"][here], settings)
    return ideal


def slowdown(ideal: Int64, flows: Mapping[str, NDArray]) -> NDArray[np.float64]:
    """Return float64[m], completion time divided by `ideal`; NaN if the ideal time is unknown."""
    ratio = np.full(len(ideal), np.nan)
    np.divide(flows["finish_ps"] - flows["start_ps"], ideal, out=ratio, where=ideal > 0)
    return ratio


def _ways(graph: Graph, pairs: Int64, settings: Settings, shares: Float64) -> list[Way]:
    """Return the path of each pair; an empty path after MAX_HOPS links.

    A pair is src * npus + dst, plus k * npus^2 for messages with shares[k - 1].
    """
    routes: list[list[int]] = []
    hops = 0
    driven_at, pair = np.divmod(pairs, graph.npus**2)
    for src, dst in zip(*(part.tolist() for part in np.divmod(pair, graph.npus)), strict=True):
        routes.append(topologies.route(graph, src, dst) if hops < MAX_HOPS and src != dst else [])
        hops += len(routes[-1])
    known = iter(ways_of(graph, settings, [route for route in routes if route]))
    ways = [next(known) if route else () for route in routes]
    nvlink = is_nvlink(graph)
    for i in np.flatnonzero(driven_at).tolist():
        if ways[i]:
            own = float(shares[driven_at[i] - 1])
            ways[i] = with_shares(ways[i], settings, inside=bool(nvlink[routes[i][0]]), shares=own)
    return ways
