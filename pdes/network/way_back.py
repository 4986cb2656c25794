"""When the acknowledgement of a message's last packet will be back at its sender, as its receiver can know.

From the receiver's own port on, where acknowledgements that wait count, it is taken to meet nobody: what is in its way
at switches is not known here. So the receiver is told no later than the sender is, and on an idle way when it is. The
way is that of a world of the whole fabric without faults (`const.back`), the same in every LP.
"""

from pdes.core.jit import inline
from pdes.core.link_words import class_of, end_of
from pdes.core.packet import FLAG_ACK, destination, header, source
from pdes.core.state import FRAMED
from pdes.core.world import world_at
from pdes.network.framing import framed_bytes
from pdes.network.link import link_psb, serialisation_ps
from pdes.network.path import forwarding_ps, next_link
from pdes.network.routing import npu_route


@inline
def bytes_on(net, c, w1, size):
    """Bytes of a packet on a link of the class at word c."""
    if net.link_class[c].special & FRAMED != 0:
        size = framed_bytes(net, w1, size)
    return size


@inline
def left_at(w, node, w1, w2, now):
    """When the acknowledgement of a packet that has just been acknowledged (its words) leaves the receiver's port."""
    net = w.net
    link = npu_route(net, node, source(w1), w2)
    tx = net.tx[link]
    ack = header(source(w1), destination(w1), net.const.ack_bytes, FLAG_ACK)
    size = bytes_on(net, class_of(tx.meta), ack, net.const.ack_bytes)
    waiting = w.npus.port[link].control_packets
    return max(now, tx.busy_ps) + waiting * serialisation_ps(size, link_psb(net, link))


@inline
def back_at(w, node, w1, w2, now):
    """When it is back at the sender; node: the receiver."""
    me, peer = destination(w1), source(w1)
    back = world_at(w.net.const.back)
    net = back.net
    ack = header(peer, me, net.const.ack_bytes, FLAG_ACK)
    link = next_link(net, back.routes, me, peer, w2)
    c = class_of(net.tx[link].meta)
    size = bytes_on(net, c, ack, net.const.ack_bytes)
    begin = left_at(w, node, w1, w2, now) - serialisation_ps(size, link_psb(net, link))
    while True:
        psb = link_psb(net, link)
        delay = net.link_class[c].delay_ps
        seen = begin + serialisation_ps(min(size, net.link_class[c].seen_bytes), psb) + delay
        at = begin + serialisation_ps(size, psb) + delay
        far = end_of(net.tx[link].meta)
        if far == peer:
            return at
        link = next_link(net, back.routes, far, peer, w2)
        c = class_of(net.tx[link].meta)
        size = bytes_on(net, c, ack, net.const.ack_bytes)
        begin = max(seen, at - serialisation_ps(size, link_psb(net, link))) + forwarding_ps(net, back.routes, far)
