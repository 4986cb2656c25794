"""The way from node to node towards an NPU, for what looks ahead along it."""

import numpy as np

from pdes.core.jit import inline
from pdes.network.routing import choose, npu_route, switch_cell_to


@inline
def next_link(net, routes, node, dst, w2):
    """Outgoing link of a node towards an NPU."""
    if node < net.const.npus:
        return npu_route(net, node, dst, w2)
    return choose(routes, switch_cell_to(net, routes, node, dst, w2), node, w2)


@inline
def forwarding_ps(net, routes, node):
    """From arrival to departure at a node on the way."""
    if node < net.const.npus:
        return np.int64(0)
    return routes.node[node].forward >> 1
