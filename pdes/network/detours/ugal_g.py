"""UGAL with global queues: a detour where the queues on its whole path are shorter than those on the shortest path.

The first switch compares the sums of the queues at all switches of both paths (Besta and Hoefler, "Slim Fly", SC 2014,
section IV), which no switch of a real network knows: Kim et al. (ISCA 2008, section 4.2) have it as an ideal beside
which they measure what local queues lose. The first switch knows its own ports at the packet's time, and those of
others as they were at the begin of the cell, at most the shortest link's delay ago, since nodes act in any order within
a cell. A switch of another part of the fabric could not be read, so such a run has one part.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.jit import hook, inline
from nadi.pdes.network import routing
from nadi.pdes.network.balancing.adaptive import work_left
from nadi.pdes.network.detours import state as detour
from nadi.pdes.network.link import full_packet_bytes, link_psb, serialisation_ps

TITLE = "a detour where the queues of the whole shortest path are longer, as if the first switch knew them all"
READS_QUEUES = True


@hook
def publish(world_address):
    """Note the work of all ports of switches at the begin of a cell, before any node acts in it.

    Args:
        world_address: Address of the directory of the LP's `World`.
    """
    world = state.world_at(world_address)
    net, routes = world.net, world.routes
    for node in range(net.const.npus, net.const.nodes):
        # what has arrived at a switch with output queues comes to its port after the latency
        at_ps = net.ctl.now_ps + routing.forwarding_ps(net, routes, node)
        for link in range(net.out_ptr[node], net.out_ptr[node + 1]):
            net.published_ps[link] = work_left(net, link, at_ps)


@inline
def published_packets(net, link):
    """Return the full packets that waited at a port of a switch at the begin of the cell.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
    """
    # what is on the wire does not count: a lone sender's packets, one behind the other at each switch, are no queues
    packet_ps = max(1, serialisation_ps(full_packet_bytes(net), link_psb(net, link)))
    return net.published_ps[link] // packet_ps


@inline
def queues_on_path(net, routes, first_node, word1, word2, now_ps):
    """Return the full packets at all ports of switches on a packet's path from its first switch, but the last port.

    Where several links are equal, the path takes that which the packet's entropy chooses.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        first_node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet, with its state.
        now_ps: Current time in ps.
    """
    total, node = np.int64(0), np.int64(first_node)
    # the pit, where faults have left no path, leads to a node that is no switch
    while node >= net.const.npus and not detour.is_home_of(net, routes, node, packet.destination(word1)):
        word2 = detour.turned(net, routes, node, word1, word2)
        link = routing.choose(routes, detour.cell_of(net, routes, node, word1, word2), node, word2)
        if node == first_node:
            total += detour.queued_packets(net, node, link, now_ps)
        else:
            total += published_packets(net, link)
        node = np.int64(packet.end_of(net.tx[link].meta))
    return total


@hook
def route(world_address, node, record, now_ps):
    """Return the cell (port set) of a switch for a packet, and keep the packet's state.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        record: Record of the packet.
        now_ps: Current time in ps.
    """
    net, routes, word1, word2 = detour.opened(world_address, record)
    column = detour.first_column(net, routes, node, word1, word2, now_ps)
    if column >= 0 and column != routes.node[node].column:
        other = packet.on_detour(word2, column)
        minimal = queues_on_path(net, routes, node, word1, word2, now_ps)
        if minimal > 0 and minimal > queues_on_path(net, routes, node, word1, other, now_ps):
            word2 = other
    return detour.go_on(net, routes, node, record, word1, word2, now_ps)
