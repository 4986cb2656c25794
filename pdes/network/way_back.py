"""When the acknowledgement of a message's last packet will be back at its sender, as its receiver can know.

From the receiver's own port on, where acknowledgements that wait count, it is taken to meet nobody: what is in its way
at switches is not known here. So the receiver is told no later than the sender is, and on an idle way when it is. The
way is that of a world of the whole fabric without faults (CONST_BACK), the same in every LP.
"""

from pdes.core.jit import inline
from pdes.core.packet import FLAG_ACK, destination, header, source
from pdes.core.state import (
    CLASS_DELAY,
    CLASS_SEEN,
    CLASS_SPECIAL,
    CLASS_WORDS,
    CONST_ACK,
    CONST_BACK,
    FRAMED,
    PORT_CTRL_COUNT,
    PORT_WORDS,
    TX_BUSY,
    TX_META,
    TX_WORDS,
)
from pdes.core.world import world_at
from pdes.network.framing import framed_bytes
from pdes.network.link import NODE_MASK, link_psb, serialisation_ps
from pdes.network.path import forwarding_ps, next_link
from pdes.network.routing import npu_route


@inline
def bytes_on(net, c, w1, size):
    """Bytes of a packet on a link of the class at word c."""
    if net.link_class[c + CLASS_SPECIAL] & FRAMED != 0:
        size = framed_bytes(net, w1, size)
    return size


@inline
def left_at(w, node, w1, w2, now):
    """When the acknowledgement of a packet that has just been acknowledged (its words) leaves the receiver's port."""
    net = w.net
    link = npu_route(net, node, source(w1), w2)
    ack = header(source(w1), destination(w1), net.const[CONST_ACK], FLAG_ACK)
    size = bytes_on(net, (net.tx[link * TX_WORDS + TX_META] >> 46) * CLASS_WORDS, ack, net.const[CONST_ACK])
    waiting = w.npus.port[link * PORT_WORDS + PORT_CTRL_COUNT]
    return max(now, net.tx[link * TX_WORDS + TX_BUSY]) + waiting * serialisation_ps(size, link_psb(net, link))


@inline
def back_at(w, node, w1, w2, now):
    """When it is back at the sender; node: the receiver."""
    me, peer = destination(w1), source(w1)
    back = world_at(w.net.const[CONST_BACK])
    net = back.net
    ack = header(peer, me, net.const[CONST_ACK], FLAG_ACK)
    link = next_link(net, back.routes, me, peer, w2)
    c = (net.tx[link * TX_WORDS + TX_META] >> 46) * CLASS_WORDS
    size = bytes_on(net, c, ack, net.const[CONST_ACK])
    begin = left_at(w, node, w1, w2, now) - serialisation_ps(size, link_psb(net, link))
    while True:
        psb = link_psb(net, link)
        delay = net.link_class[c + CLASS_DELAY]
        seen = begin + serialisation_ps(min(size, net.link_class[c + CLASS_SEEN]), psb) + delay
        at = begin + serialisation_ps(size, psb) + delay
        far = net.tx[link * TX_WORDS + TX_META] & NODE_MASK
        if far == peer:
            return at
        link = next_link(net, back.routes, far, peer, w2)
        c = (net.tx[link * TX_WORDS + TX_META] >> 46) * CLASS_WORDS
        size = bytes_on(net, c, ack, net.const[CONST_ACK])
        begin = max(seen, at - serialisation_ps(size, link_psb(net, link))) + forwarding_ps(net, back.routes, far)
