"""Adaptive routing: a destination's packets use all links in rotation, except links with longer queues.

A switch counts, for each of FLOWLETS destinations, data and control separately, the packets it has sent there. Every
`count` of them start at another link, by a hash, and use one link after another: so each link, and all that follows it,
gets the same share to within a packet, where random choices differ by the root of their number (per-destination round
robin, as in Cao et al., CoNEXT 2013). Rotations that always started at the same link would lock flows of equal packets
into a pattern: packets that collide further on would always collide. After a pause the switch counts from 0 again.

A link whose port has more work left than another's, by more than SLACK_PACKETS full packets, loses its turn to the
next. The work is the rest of the packet on the wire and all data that waits.
"""

import numpy as np

from nadi.pdes.core.algorithms import mix3
from nadi.pdes.core.jit import hook, inline
from nadi.pdes.core.packet import FLAG_ACK, FLAG_TRIMMED, destination, flags
from nadi.pdes.core.state import FLOWLETS, INF, world_at
from nadi.pdes.network.batch import count_choice
from nadi.pdes.network.link import full_packet_bytes, link_psb
from nadi.pdes.network.shared_switch import bring_up

TITLE = "each destination's packets over all links in rotation, except those with longer queues"
REORDERS = True
HAS_FLOWLETS = True
SENT_BITS = 40  # of a count of packets, above which is the number of the switch's pauses when it began
SLACK_PACKETS = 8  # tolerated difference between queues, in full packets


@inline
def work_left(net, link, now_ps):
    """Return the time in ps that the port of a link needs for everything it has to send.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
        now_ps: Current time in ps.
    """
    work = max(0, net.tx[link].busy_ps - now_ps)
    if net.hooks.shared_switches != 0:
        work += np.int64(net.gate[link].waiting_bytes * link_psb(net, link))
    return work


@hook
def pick(world_address, node, first_port, count, word1, _w2, now_ps):
    """Return the index, of the equal links of a switch, whose turn it is among the least busy.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        first_port: Index in `routes.link` of the first of the equal links.
        count: Number of equal links.
        word1: Word 1 of the packet (pdes/core/packet.py).
        _w2: Not used here.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, routes = world.net, world.routes
    is_control = np.int64(flags(word1) & (FLAG_ACK | FLAG_TRIMMED) != 0)
    at = 2 * (node * FLOWLETS + (destination(word1) & (FLOWLETS - 1))) + is_control
    count_choice(net, node, now_ps)
    pauses = net.counts[node].pauses
    # the count of packets begins anew when the switch has paused
    sent = np.int64(0)
    if routes.flowlet[at] >> SENT_BITS == pauses:
        sent = routes.flowlet[at] & ((1 << SENT_BITS) - 1)
    routes.flowlet[at] = pauses << SENT_BITS | (sent + 1)
    # the `count` packets of a rotation use each link once; a hash of the rotation's number says where it begins
    which = (
        sent + ((mix3(routes.node[node].salt + is_control, destination(word1), sent // count) * count) >> 32)
    ) % count
    base = routes.node[node].first_link
    if net.hooks.shared_switches != 0:
        bring_up(net, node, now_ps + 1)
    min_work = np.int64(INF)
    for i in range(count):
        min_work = min(min_work, work_left(net, base + routes.link[first_port + i], now_ps))
    # ports that differ by less than this count as equally busy
    slack = SLACK_PACKETS * full_packet_bytes(net)
    link = base + routes.link[first_port + which]
    # from the link whose turn it is, go on to the first that is not busier than that
    while work_left(net, link, now_ps) > min_work + np.int64(slack * link_psb(net, link)):
        which = (which + 1) % count
        link = base + routes.link[first_port + which]
    return which
