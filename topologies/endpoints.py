"""Additional endpoints of switches in an existing network, numbered after its NPUs: aggregators, memories of hosts.

Aggregators are nodes inside switches that reduce the packets of their children and send results on, packet by packet.
An aggregator terminates transport connections, like the aggregation nodes of SHARP (Graham et al., "Scalable
Hierarchical Aggregation Protocol", COM-HPC 2016, section III: logical nodes of the tree, run by the switches). To the
rest of the network it is one more endpoint of its switch, over a link twice as fast as all of the switch's ports
together. A memory of a host is an endpoint that its NPUs share.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nadi.inputs.arrays import Int32, Int64
from nadi.inputs.limits import LINK_RATE_BPS, MAX_CABLES
from nadi.topologies.graph import AGGREGATOR, NPU, RISING_PLACE, Graph, TopologyError
from nadi.topologies.table_routing import build_table_routing, refuse_parts

AGGREGATOR_DELAY_PS = 100_000  # delay between a switch's ports and its aggregator, each way: 100 ns, an assumption
NO_NUMBER = -1  # number of an endpoint in the network's file, which lacks it
_SPEED_UP = 2  # rate of an aggregator's link over that of all ports together, which it must not slow down


def with_aggregators(graph: Graph, switches: Sequence[int]) -> Graph:
    """Return the network, routed by tables, with an aggregator in each of the given switches, nodes that occur once.

    The aggregators are endpoints npus, npus + 1, ... in the order of `switches`; other nodes move up by their number.
    Links keep their numbers, those of the aggregators come after them.

    Args:
        graph: The network without aggregators.
        switches: The numbers of the switches that reduce, each once.
    """
    more = len(switches)
    at = np.asarray(switches, np.int64)
    rate_bps = _SPEED_UP * np.bincount(graph.link_src, weights=graph.link_rate_bps, minlength=graph.nodes)[at].astype(
        np.int64
    )
    extended = _with_endpoints(
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
    """Return values of the nodes, [nodes], extended by copies of the switches' values for their aggregators.

    Args:
        graph: The network without aggregators.
        values: An array with a value for each node of the network without aggregators.
        switches: The numbers of the switches that reduce, in the order of their aggregators.
    """
    return _inserted(values, graph.npus, values[np.asarray(switches, np.int64)])


def added_to_switches(values: NDArray, graph: Graph, switches: Sequence[int]) -> NDArray:
    """Return values of the nodes of `with_aggregators(graph, switches)` as [nodes]: switches' plus aggregators'."""
    n, more = graph.npus, len(switches)
    totals = np.delete(values, np.s_[n : n + more])
    np.add.at(totals, np.asarray(switches, np.int64), values[n : n + more])
    return totals


def with_host_memories(graph: Graph) -> Graph:
    """Return the network with a memory in each host, endpoints npus, npus + 1, ... in the order of `graph.host`.

    Other nodes move up by their number; links keep their numbers, those of the memories come after them. A memory is
    attached to all switches that join the NPUs of its host and no others, by links with the rate of all these NPUs
    together and with their delay, so that only the memory's own rate and the NPUs' ports limit it. No other path uses
    it. `dims` stays that of the NPUs. Raises TopologyError: NPUs have no hosts, or no switch of its own joins the NPUs
    of a host.
    """
    hosts, first_npu = np.unique(graph.host, return_index=True)
    if len(hosts) == graph.npus or graph.routing.npus_forward:
        raise TopologyError(f"{graph.name}: its NPUs are in no hosts with switches of their own")
    memory, switch, rate_bps, delay_ps = _memory_links(graph, hosts)
    cables = np.stack([memory, switch], axis=1)
    return _with_endpoints(graph, NPU, cables, rate_bps, delay_ps, host=hosts, pod=graph.pod[first_npu])


def _memory_links(graph: Graph, hosts: Int32) -> tuple[Int64, Int64, Int64, Int64]:
    """Return int64[m] each: index of the host's memory, switch, rate in bit/s and delay in ps of memories' cables."""
    down = np.flatnonzero((graph.link_dst < graph.npus) & (graph.link_src >= graph.npus))
    place = np.searchsorted(hosts, graph.host)
    # place: int64[npus], index of the host of each NPU
    of_link = place[graph.link_dst[down]]
    pair, link_of = np.unique(np.stack([of_link, graph.link_src[down]]).astype(np.int64), axis=1, return_inverse=True)
    link_of = link_of.reshape(-1)
    # each NPU once for each pair of host and switch, whatever the number of parallel links: counting gives the NPUs
    # that the switch joins
    joined = np.unique(np.stack([link_of, graph.link_dst[down]]), axis=1)[0]
    hosts_of_switch = np.bincount(pair[1], minlength=graph.nodes)
    is_own = np.bincount(joined) == np.bincount(place)[pair[0]]
    is_own &= hosts_of_switch[pair[1]] == 1
    lacking = np.setdiff1d(np.arange(len(hosts)), pair[0][is_own])
    if len(lacking):
        npu = int(np.argmax(place == lacking[0]))
        raise TopologyError(f"{graph.name}: no switch joins all NPUs of the host of npu {npu} and no others")
    rate = np.bincount(link_of, weights=graph.link_rate_bps[down])
    delay = np.zeros(pair.shape[1], np.int64)
    np.maximum.at(delay, link_of, graph.link_delay_ps[down])
    rate_bps = np.minimum(rate, LINK_RATE_BPS.maximum).astype(np.int64)
    return pair[0][is_own], pair[1][is_own], rate_bps[is_own], delay[is_own]


def _with_endpoints(
    graph: Graph, kind: int, cables: Int64, rate_bps: ArrayLike, delay_ps: ArrayLike, *, host: ArrayLike, pod: ArrayLike
) -> Graph:
    """Return the network, routed by tables, with endpoints npus, npus + 1, ...; `dims` stays that of the NPUs."""
    # Other nodes move up by the number of endpoints. Links keep their numbers, those of the endpoints come after them.
    # kind: node_kind of the endpoints; cables: int64[m, 2], endpoint index and switch, by its number in `graph`;
    # rate_bps, delay_ps: [m], each way; host, pod: [endpoints], server and pod of each.
    n, more = graph.npus, len(np.asarray(host))
    # column 0 is an endpoint, n behind its index; column 1 a switch, which the endpoints move up
    own = cables + np.array([n, more])
    group = _inserted(graph.group, n, np.full(more, -1))
    link_src = np.concatenate([_moved(graph.link_src, n, more), own.reshape(-1)]).astype(np.int32)
    link_dst = np.concatenate([_moved(graph.link_dst, n, more), own[:, ::-1].reshape(-1)]).astype(np.int32)
    order = None if graph.link_order is None else np.pad(graph.link_order, (0, len(link_src) - graph.links))
    known = graph.known_rate_bps
    return replace(
        graph,
        npus=n + more,
        nodes=graph.nodes + more,
        links=len(link_src),
        node_kind=_inserted(graph.node_kind, n, np.full(more, kind)),
        node_latency_ps=_inserted(graph.node_latency_ps, n, np.zeros(more)),
        link_src=link_src,
        link_dst=link_dst,
        link_rate_bps=np.concatenate([graph.link_rate_bps, np.repeat(rate_bps, 2)]),
        known_rate_bps=None if known is None else np.concatenate([known, np.repeat(rate_bps, 2)]),
        link_delay_ps=np.concatenate([graph.link_delay_ps, np.repeat(delay_ps, 2)]),
        host=np.concatenate([graph.host, host]).astype(np.int32),
        pod=_inserted(graph.pod, n, pod),
        group=group,
        numbers=graph.numbers and (*graph.numbers[:n], *[NO_NUMBER] * more, *graph.numbers[n:]),
        link_order=order,
        routing=build_table_routing(n + more, graph.nodes + more, link_src, link_dst, group, order),
    )


def with_cables(graph: Graph, cables: Int64) -> Graph:
    """Return the network, routed by tables, with further cables between switches; TopologyError if it is in parts.

    Args:
        graph: The network.
        cables: int64[4, cables], both ends, rate in bit/s and delay in picoseconds of each further cable.
    """
    a, b, rate_bps, delay_ps = cables
    link_src = np.concatenate([graph.link_src, np.stack([a, b], axis=1).reshape(-1)]).astype(np.int32)
    link_dst = np.concatenate([graph.link_dst, np.stack([b, a], axis=1).reshape(-1)]).astype(np.int32)
    if len(link_src) > 2 * MAX_CABLES:
        raise TopologyError.at(graph.name, f"{len(link_src) // 2} cables", f"at most {MAX_CABLES}")
    # paths take a circuit after all ordered links of as short paths; behind it they begin in the next lane
    order = graph.link_order
    if order is not None:
        order = np.pad(order, (0, len(link_src) - graph.links), constant_values=RISING_PLACE)
    known = graph.known_rate_bps
    extended = replace(
        graph,
        link_order=order,
        links=len(link_src),
        link_src=link_src,
        link_dst=link_dst,
        link_rate_bps=np.concatenate([graph.link_rate_bps, np.repeat(rate_bps, 2)]),
        known_rate_bps=None if known is None else np.concatenate([known, np.repeat(rate_bps, 2)]),
        link_delay_ps=np.concatenate([graph.link_delay_ps, np.repeat(delay_ps, 2)]),
        routing=build_table_routing(graph.npus, graph.nodes, link_src, link_dst, graph.group, order),
    )
    refuse_parts(graph.name, graph.npus, extended.routing)
    return extended


def _inserted(values: NDArray, at: int, more: ArrayLike) -> NDArray:
    """Return values of the nodes with those of the endpoints inserted before entry `at`."""
    return np.concatenate([values[:at], np.asarray(more, values.dtype), values[at:]])


def _moved(nodes: Int32, npus: int, more: int) -> Int32:
    return np.where(nodes < npus, nodes, nodes + more)
