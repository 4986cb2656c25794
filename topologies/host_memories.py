"""Memory that the NPUs of a host share: one more endpoint of the switches that join them."""

import numpy as np
from numpy.typing import NDArray

from topologies.bounds import LINK_RATE_BPS
from topologies.endpoints import with_endpoints
from topologies.errors import TopologyError
from topologies.graph import NPU, Graph, TableRouting

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


def with_host_memories(graph: Graph) -> Graph:
    """Return the network with a memory in each host, endpoints npus, npus + 1, ... in the order of `graph.host`.

    Other nodes move up by their number; links keep their numbers, those of the memories come after them. A memory is
    attached to all switches that join the NPUs of its host and no others, by links with the rate of all these NPUs
    together and with their delay, so that only the memory's own rate and the NPUs' ports limit it. No other path uses
    it. `dims` stays that of the NPUs. Raises TopologyError: NPUs have no hosts, or no switch of its own joins the NPUs
    of a host.
    """
    hosts, first_npu = np.unique(graph.host, return_index=True)
    if len(hosts) == graph.npus or not isinstance(graph.routing, TableRouting):
        raise TopologyError(f"{graph.name}: its NPUs are in no hosts with switches of their own")
    memory, switch, rate_bps, delay_ps = _links(graph, hosts)
    cables = np.stack([memory, switch], axis=1)
    return with_endpoints(graph, NPU, cables, rate_bps, delay_ps, host=hosts, pod=graph.pod[first_npu])


def _links(graph: Graph, hosts: Int32) -> tuple[Int64, Int64, Int64, Int64]:
    """Return memory, switch, rate and delay of each link of a memory."""
    down = np.flatnonzero((graph.link_dst < graph.npus) & (graph.link_src >= graph.npus))
    place = np.searchsorted(hosts, graph.host)
    of_link = place[graph.link_dst[down]]
    pair, link_of = np.unique(np.stack([of_link, graph.link_src[down]]).astype(np.int64), axis=1, return_inverse=True)
    link_of = link_of.reshape(-1)
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
