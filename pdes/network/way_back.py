"""The time at which the acknowledgement of a message's last packet will return to its sender, as its receiver knows it.

Behind the receiver's own port, where waiting acknowledgements count, the acknowledgement is assumed to meet no other
traffic, since the queues of switches are unknown here. So the receiver learns of it no later than the sender, and on an
idle path at the same time. The path is that of a world of the whole fabric without faults (`const.back`), the same in
every LP.
"""

from pdes.core.jit import inline
from pdes.core.link_words import end_of
from pdes.core.packet import FLAG_ACK, destination, header, source
from pdes.core.world import world_at
from pdes.network.link import class_row, link_psb, on_link_bytes, serialisation_ps
from pdes.network.routing import forwarding_ps, next_link, npu_route


@inline
def on_link_ps(net, link, ack):
    """Return the time of the acknowledgement with word 1 `ack` on an outgoing link."""
    return serialisation_ps(on_link_bytes(net, link, ack, net.const.ack_bytes), link_psb(net, link))


@inline
def back_at(w, node, w1, w2, now):
    """Return when the acknowledgement of a packet (its words) that is acknowledged now is back; node: the receiver."""
    peer = source(w1)
    ack = header(peer, destination(w1), w.net.const.ack_bytes, FLAG_ACK)
    port = npu_route(w.net, node, peer, w2)
    waiting = w.npus.port[port].control_packets
    left = max(now, w.net.tx[port].busy_ps) + waiting * on_link_ps(w.net, port, ack)
    back = world_at(w.net.const.back)
    net = back.net
    link = next_link(net, back.routes, destination(w1), peer, w2)
    begin = left - on_link_ps(net, link, ack)
    while True:
        link_class = class_row(net, link)
        size = on_link_bytes(net, link, ack, net.const.ack_bytes)
        sent = begin + link_class.delay_ps
        at = sent + serialisation_ps(size, link_class.ps_per_byte)
        far = end_of(net.tx[link].meta)
        if far == peer:
            return at
        seen = sent + serialisation_ps(min(size, link_class.seen_bytes), link_class.ps_per_byte)
        link = next_link(net, back.routes, far, peer, w2)
        begin = max(seen, at - on_link_ps(net, link, ack)) + forwarding_ps(net, back.routes, far)
