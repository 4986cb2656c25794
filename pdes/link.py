"""A port sends a packet: it is busy for the packet's bits, then the packet is on the wire."""

import numpy as np

from pdes.fifo import push
from pdes.jit import inline
from pdes.packet import wire_bytes
from pdes.state import (
    TX_BUSY,
    TX_BYTES,
    TX_DELAY,
    TX_MAX_WAIT,
    TX_META,
    TX_PACKETS,
    TX_PSB,
    TX_TAIL,
    TX_WORDS,
)

NODE_MASK = (1 << 22) - 1
LINK_MASK = (1 << 24) - 1


@inline
def serialisation_ps(size_bytes, ps_per_byte):
    """Time on the wire, rounded once per packet from bits and rate."""
    return np.int64(size_bytes * ps_per_byte + 0.5)


@inline
def link_send(net, link, asked, start, w1, w2, w3):
    """Send over outgoing link `link` from `start` (not before it is idle); asked: when the packet came to the port.

    A receiving node that cuts through gets the packet once its header is in, unless it is its destination.
    """
    size = wire_bytes(w1)
    q = link * TX_WORDS
    psb = net.txf[q + TX_PSB]
    busy = start + serialisation_ps(size, psb)
    net.tx[q + TX_BUSY] = busy
    meta = net.tx[q + TX_META]
    seen = meta >> 46
    ready = busy
    if size > seen:
        ready = start + serialisation_ps(seen, psb)
    ready += net.tx[q + TX_DELAY]
    net.tx[q + TX_BYTES] += size
    net.tx[q + TX_PACKETS] += 1
    if start - asked > net.tx[q + TX_MAX_WAIT]:
        net.tx[q + TX_MAX_WAIT] = start - asked
    net.tx[q + TX_TAIL] = push(net, net.tx[q + TX_TAIL], ready, w1, w2, w3)
    far = (meta >> 22) & LINK_MASK
    net.pending[far >> 5] |= 1 << (far & 31)
    node = meta & NODE_MASK
    if ready < net.next_time[node]:
        net.next_time[node] = ready
