"""How long each message would have taken alone on an idle network, and how much longer it took.

A message is a train of packets, all but the last of them full. Switches store and forward, so packet p leaves link k
when it has come over link k - 1 and packet p - 1 has left link k; with s the time of a full packet on each link and l
that of the last one, the train of P packets takes, beside delays and latencies, the longest way through that grid:

    max over j of  sum(s[:j + 1]) + (P - 2) max(s[:j + 1]) + sum(l[j:])        (P > 1; sum(l) for one packet)
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import topologies
from pdes.settings import Settings
from topologies import Graph

Int64 = NDArray[np.int64]

MOST_PAIRS = 20_000
MOST_HOPS = 400_000
UNKNOWN = -1
_BYTE_PS = 8e12


def ideal_ps(graph: Graph, settings: Settings, flows: Mapping[str, NDArray]) -> Int64:
    """Time of each message alone on an idle network, along a shortest path; exact to the picosecond.

    Routes are found once for each pair of NPUs. Past MOST_PAIRS pairs or MOST_HOPS links, and where switches cut
    through, what is left is UNKNOWN.

    Args:
        graph: the fabric.
        settings: of the packets.
        flows: columns src, dst and bytes of m messages.

    Returns:
        int64[m] picoseconds.
    """
    ideal = np.full(len(flows["src"]), UNKNOWN, np.int64)
    if settings.cut_through or not len(ideal):
        return ideal
    key = flows["src"].astype(np.int64) * graph.npus + flows["dst"]
    pairs, pair = np.unique(key, return_inverse=True)
    if len(pairs) > MOST_PAIRS:
        return ideal
    rates, delays_ps = _paths(graph, pairs)
    number = {path: i for i, path in enumerate(dict.fromkeys(rates))}
    of_pair = np.array([number[path] for path in rates], np.int64)
    of_flow, delay_ps = of_pair[pair.reshape(-1)], np.array(delays_ps, np.int64)[pair.reshape(-1)]
    order = np.argsort(of_flow, kind="stable")
    ends = np.searchsorted(of_flow[order], np.arange(len(number) + 1))
    for path, i in number.items():
        if path:
            here = order[ends[i] : ends[i + 1]]
            ideal[here] = delay_ps[here] + _train_ps(np.array(path, np.float64), flows["bytes"][here], settings)
    return ideal


def slowdown(ideal: Int64, flows: Mapping[str, NDArray]) -> NDArray[np.float64]:
    """float64[m]: completion time over `ideal`; NaN where that is not known."""
    ratio = np.full(len(ideal), np.nan)
    np.divide(flows["finish_ps"] - flows["start_ps"], ideal, out=ratio, where=ideal > 0)
    return ratio


def _paths(graph: Graph, pairs: Int64) -> tuple[list[tuple[int, ...]], list[int]]:
    """Rates of the links and the sum of delays and latencies of each pair (src * npus + dst); () beyond MOST_HOPS."""
    rates: list[tuple[int, ...]] = []
    delays_ps: list[int] = []
    hops = 0
    rate, delay, latency = graph.link_rate_bps, graph.link_delay_ps, graph.node_latency_ps
    for src, dst in zip(*(part.tolist() for part in np.divmod(pairs, graph.npus)), strict=True):
        links = topologies.route(graph, src, dst) if hops < MOST_HOPS and src != dst else []
        hops += len(links)
        rates.append(tuple(rate[links].tolist()))
        delays_ps.append(int(delay[links].sum() + latency[graph.link_src[links[1:]]].sum()))
    return rates, delays_ps


def _train_ps(rates_bps: NDArray[np.float64], size_bytes: Int64, settings: Settings) -> Int64:
    """int64[m]: messages along a path of links with these rates, without delays."""
    psb = _BYTE_PS / rates_bps
    packets = np.maximum(1, -(-size_bytes // settings.mtu_bytes))
    last_bytes = size_bytes - (packets - 1) * settings.mtu_bytes + settings.header_bytes
    full_ps = ((settings.mtu_bytes + settings.header_bytes) * psb + 0.5).astype(np.int64)
    last_ps = (last_bytes[:, None] * psb + 0.5).astype(np.int64)
    whole = np.cumsum(full_ps) + (packets[:, None] - 2) * np.maximum.accumulate(full_ps)
    rest = np.cumsum(last_ps[:, ::-1], axis=1)[:, ::-1]
    return np.where(packets > 1, (whole + rest).max(axis=1), rest[:, 0])
