"""How long each message would have taken alone on an idle network, and how much longer it took.

A message is a train of packets, all but the last of them full. Switches store and forward, so packet p leaves link k
when it has come over link k - 1 and packet p - 1 has left link k; with s the time of a full packet on each link and l
that of the last one, the train of P packets takes, beside delays and latencies, the longest way through that grid:

    max over j of  sum(s[:j + 1]) + (P - 2) max(s[:j + 1]) + sum(l[j:])        (P > 1; sum(l) for one packet)

A message that goes whole takes what its model says.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import topologies
from pdes.build.settings import Settings
from pdes.network.framing import is_framed, wire_bytes
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
    paths = _paths(graph, pairs, settings)
    number = {path: i for i, path in enumerate(dict.fromkeys(paths))}
    of_flow = np.array([number[path] for path in paths], np.int64)[pair.reshape(-1)]
    order = np.argsort(of_flow, kind="stable")
    ends = np.searchsorted(of_flow[order], np.arange(len(number) + 1))
    for path, i in number.items():
        if path.rates_bps:
            here = order[ends[i] : ends[i + 1]]
            ideal[here] = _alone_ps(path, flows["bytes"][here], settings)
    return ideal


def slowdown(ideal: Int64, flows: Mapping[str, NDArray]) -> NDArray[np.float64]:
    """float64[m]: completion time over `ideal`; NaN where that is not known."""
    ratio = np.full(len(ideal), np.nan)
    np.divide(flows["finish_ps"] - flows["start_ps"], ideal, out=ratio, where=ideal > 0)
    return ratio


class _Path(NamedTuple):
    """Rates, framing and delays of the links of a path, and latencies of its switches."""

    rates_bps: tuple[int, ...]
    framed: tuple[bool, ...]
    delays_ps: tuple[int, ...]
    forwarding_ps: tuple[int, ...]


def _paths(graph: Graph, pairs: Int64, settings: Settings) -> list[_Path]:
    """The path of each pair (src * npus + dst); one without links beyond MOST_HOPS."""
    paths: list[_Path] = []
    hops = 0
    framed = is_framed(graph, settings)
    rate, delay, latency = graph.link_rate_bps, graph.link_delay_ps, graph.node_latency_ps
    for src, dst in zip(*(part.tolist() for part in np.divmod(pairs, graph.npus)), strict=True):
        links = topologies.route(graph, src, dst) if hops < MOST_HOPS and src != dst else []
        hops += len(links)
        inner = latency[graph.link_src[links[1:]]]
        columns = (tuple(column.tolist()) for column in (rate[links], framed[links], delay[links], inner))
        paths.append(_Path(*columns))
    return paths


def _alone_ps(path: _Path, size_bytes: Int64, settings: Settings) -> Int64:
    """int64[m]: messages along a path, by the run's model."""
    model = settings.fidelity
    rates_bps = np.array(path.rates_bps, np.float64)
    if not model.alone_ps:
        latencies_ps = sum(path.delays_ps) + sum(path.forwarding_ps) + model.send_latency_ps
        return latencies_ps + _train_ps(path, size_bytes, settings)
    latencies = np.array(path.delays_ps, np.int64), np.array(path.forwarding_ps, np.int64)
    whole_ps: Int64 = model.alone_ps(_BYTE_PS / rates_bps, *latencies, size_bytes, model.resolution_ps)
    return whole_ps + model.endpoint_delay_ps


def _train_ps(path: _Path, size_bytes: Int64, settings: Settings) -> Int64:
    """int64[m]: messages along the links of a path, without delays."""
    psb = _BYTE_PS / np.array(path.rates_bps, np.float64)
    framed = np.array(path.framed)
    packets = np.maximum(1, -(-size_bytes // settings.mtu_bytes))
    last_bytes = (size_bytes - (packets - 1) * settings.mtu_bytes)[:, None]
    full_ps = (wire_bytes(settings.mtu_bytes, framed, settings) * psb + 0.5).astype(np.int64)
    last_ps = (wire_bytes(last_bytes, framed, settings) * psb + 0.5).astype(np.int64)
    whole = np.cumsum(full_ps) + (packets[:, None] - 2) * np.maximum.accumulate(full_ps)
    rest = np.cumsum(last_ps[:, ::-1], axis=1)[:, ::-1]
    return np.where(packets > 1, (whole + rest).max(axis=1), rest[:, 0])
