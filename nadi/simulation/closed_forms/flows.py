"""How long each message of a run would have taken alone on an idle network, and how much longer it took."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import topologies
from nadi.simulation.closed_forms.lone_message import Way, alone_ps, driven, ways_of
from pdes import Settings
from pdes.wire import is_nvlink
from topologies import Graph
from workload import Program
from workload.node_kinds import SEND
from workload.program.assembling import receive_key

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MOST_PAIRS = 20_000
MOST_HOPS = 400_000
UNKNOWN = -1


def shares_of(program: Program, flows: Mapping[str, NDArray]) -> Float64:
    """float64[m]: at one of how many shares of its port's line rate each message between two NPUs is driven, else 1.

    Args:
        program: of the run.
        flows: columns src, dst, group, lane and seq of m messages.
    """
    shares = np.ones(len(flows["src"]))
    alone = np.flatnonzero(flows["group"] < 0) if len(program.channels.shares) else np.zeros(0, np.int64)
    traces = program.trace_of_npu[flows["src"][alone]]
    src, dst, tag, seq = (flows[name][alone].astype(np.int64) for name in ("src", "dst", "lane", "seq"))
    key = receive_key(dst - src, tag, seq)
    of_channel = np.append(program.channels.shares, 1.0)  # the last is that of -1
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
    """Time of each message alone on an idle network, along a shortest path; exact to the picosecond.

    Routes are found once for each pair of NPUs. Past MOST_PAIRS pairs or MOST_HOPS links, and where switches cut
    through, what is left is UNKNOWN.

    Args:
        graph: the fabric.
        settings: of the packets.
        flows: columns src, dst, group and bytes of m messages.
        shares: float64[m], those of `shares_of`; None = all at the line rate.

    Returns:
        int64[m] picoseconds.
    """
    ideal = np.full(len(flows["src"]), UNKNOWN, np.int64)
    if settings.cut_through or not len(ideal):
        return ideal
    key = flows["src"].astype(np.int64) * graph.npus + flows["dst"]
    known, share = np.unique(np.ones(1) if shares is None else shares, return_inverse=True)
    if settings.p2p_share < 1 or shares is not None:
        key += np.where(flows["group"] < 0, share.reshape(-1) + 1, 0) * graph.npus**2
    pairs, pair = np.unique(key, return_inverse=True)
    if len(pairs) > MOST_PAIRS:
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
    """float64[m]: completion time over `ideal`; NaN where that is not known."""
    ratio = np.full(len(ideal), np.nan)
    np.divide(flows["finish_ps"] - flows["start_ps"], ideal, out=ratio, where=ideal > 0)
    return ratio


def _ways(graph: Graph, pairs: Int64, settings: Settings, shares: Float64) -> list[Way]:
    """The way of each pair (src * npus + dst, + k * npus^2: with shares[k - 1]); one without links beyond MOST_HOPS."""
    routes: list[list[int]] = []
    hops = 0
    driven_at, pair = np.divmod(pairs, graph.npus**2)
    for src, dst in zip(*(part.tolist() for part in np.divmod(pair, graph.npus)), strict=True):
        routes.append(topologies.route(graph, src, dst) if hops < MOST_HOPS and src != dst else [])
        hops += len(routes[-1])
    found = iter(ways_of(graph, settings, [route for route in routes if route]))
    ways = [next(found) if route else () for route in routes]
    nvlink = is_nvlink(graph)
    for i in np.flatnonzero(driven_at).tolist():
        if ways[i]:
            own = float(shares[driven_at[i] - 1])
            ways[i] = driven(ways[i], settings, inside=bool(nvlink[routes[i][0]]), shares=own)
    return ways
