"""The links by which packets of queue pairs leave nodes, where these are the same for all of them."""

from nadi.pdes.core.jit import kernel
from nadi.pdes.core.state import world_at
from nadi.pdes.network.routing import SET_SHIFT, choose, npu_route, switch_cell_to

SEVERAL = -1  # load balancing chooses the link for each packet


@kernel
def links_towards(world_address, node, dst, word2, link):
    """Write the LP's outgoing links by which nodes send packets towards NPUs, or SEVERAL.

    world_address: address of the directory of the LP's `World`; node: int64[n], numbers of nodes in the LP; dst:
    int64[n], numbers of NPUs in the fabric; word2: int64[n], words 2 of the packets; link: int64[n], output.
    """
    world = world_at(world_address)
    net, routes = world.net, world.routes
    for i in range(node.shape[0]):
        if node[i] < net.const.npus:
            link[i] = npu_route(net, node[i], dst[i], word2[i])
            continue
        cell = switch_cell_to(net, routes, node[i], dst[i], word2[i])
        is_fixed = net.hooks.balancing == 0 or cell >> SET_SHIFT <= 1
        link[i] = choose(routes, cell, node[i], word2[i]) if is_fixed else SEVERAL
