"""Additional endpoints of switches in an existing network, numbered after its NPUs: aggregators, memories of hosts."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topologies.graph import Graph
from topologies.table_routing import build_table_routing

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


def with_endpoints(
    graph: Graph, kind: int, cables: Int64, rate_bps: ArrayLike, delay_ps: ArrayLike, *, host: ArrayLike, pod: ArrayLike
) -> Graph:
    """Return the network with endpoints npus, npus + 1, ...; `dims` stays that of the NPUs.

    Other nodes move up by the number of endpoints. Links keep their numbers, those of the endpoints come after them.

    Args:
        graph: Network with table routing.
        kind: Kind of the endpoints (`node_kind`).
        cables: int64[m, 2], endpoint index and switch, by its number in `graph`.
        rate_bps: [m], rate of a cable in bits per second, each way.
        delay_ps: [m], delay of a cable in picoseconds, each way.
        host: [endpoints], server of each endpoint.
        pod: [endpoints], pod of each endpoint.
    """
    n, more = graph.npus, len(np.asarray(host))
    own = cables + np.array([n, more])
    link_src = np.concatenate([_moved(graph.link_src, n, more), own.reshape(-1)]).astype(np.int32)
    link_dst = np.concatenate([_moved(graph.link_dst, n, more), own[:, ::-1].reshape(-1)]).astype(np.int32)
    return replace(
        graph,
        npus=n + more,
        nodes=graph.nodes + more,
        links=len(link_src),
        node_kind=inserted(graph.node_kind, n, np.full(more, kind)),
        node_latency_ps=inserted(graph.node_latency_ps, n, np.zeros(more)),
        link_src=link_src,
        link_dst=link_dst,
        link_rate_bps=np.concatenate([graph.link_rate_bps, np.repeat(rate_bps, 2)]),
        link_delay_ps=np.concatenate([graph.link_delay_ps, np.repeat(delay_ps, 2)]),
        host=np.concatenate([graph.host, host]).astype(np.int32),
        pod=inserted(graph.pod, n, pod),
        routing=build_table_routing(n + more, graph.nodes + more, link_src, link_dst),
    )


def inserted(values: NDArray, at: int, more: ArrayLike) -> NDArray:
    """Return values of the nodes with those of the endpoints inserted before entry `at`."""
    return np.concatenate([values[:at], np.asarray(more, values.dtype), values[at:]])


def _moved(nodes: Int32, npus: int, more: int) -> Int32:
    return np.where(nodes < npus, nodes, nodes + more)
