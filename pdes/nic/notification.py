"""Congestion notification packets (RoCEv2 CNP): a receiver tells a sender that its packets were marked."""

from pdes.core.jit import hook
from pdes.core.packet import FLAG_ACK, FLAG_CNP
from pdes.core.world import world_at
from pdes.nic.transport import send_ack


@hook
def notify(address, node, now, w1, w2, row):
    """Send a notification for a marked packet, unless one was sent just before. row: of `rxqp`, in words."""
    w = world_at(address)
    rxqp = w.qps.rxqp[row]
    last = rxqp.nak_sent >> 1
    if last == 0 or now - last >= w.net.const.cnp_interval_ps:
        rxqp.nak_sent = (rxqp.nak_sent & 1) | (now << 1)
        w.net.count.congestion_notifications += 1
        w.net.count.ack_packets -= 1
        send_ack(w.net, w.npus, w.qps, node, row, now, w1, w2, 0, 0, FLAG_ACK | FLAG_CNP)
    return 0
