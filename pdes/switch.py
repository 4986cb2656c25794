"""An output-queued switch with FIFO ports: a packet's departure is known when it arrives.

The port's unfinished work is `busy - now`; a packet that would take it over the limit is dropped (drop-tail). Store and
forward, or cut-through: then the event is the arrival of the header, and the last byte must not leave before it has
come in.
"""

from pdes.batch import blocks_short, give_back, inbox_blocks, take_batch
from pdes.fifo import prefetch_following
from pdes.jit import inline, outline, prefetch
from pdes.link import LINK_MASK, drop, inbox_of, link_psb, link_send, prefetch_box, prefetch_inbox, serialisation_ps
from pdes.packet import destination, wire_bytes
from pdes.routing import balanced, choose, switch_cell_to
from pdes.state import (
    CONST_BALANCE,
    CONST_CUT_BYTES,
    CONST_NODES_LOCAL,
    CONST_NPUS_LOCAL,
    CONST_QUEUE_LIMIT,
    CTL_BATCH,
    CTL_SIDE,
    NODE_FORWARD,
    NODE_WORDS,
    RECORD_WORDS,
    TX_BUSY,
    TX_WORDS,
)

AHEAD = 4
"""How many packets ahead the place of the next record is asked for."""


@inline
def last_byte_ps(net, inbox, key, w1):
    """Cut-through: from the event (the header is in) to the packet's last byte."""
    size = wire_bytes(w1)
    psb = inbox.rx_psb[net.record[inbox.batch_pos[key & 0xFFFF] * RECORD_WORDS] & LINK_MASK]
    head = min(size, net.const[CONST_CUT_BYTES])
    return serialisation_ps(size, psb) - serialisation_ps(head, psb)


@inline
def switch_forward(net, inbox, routes, node, begin):
    """Send the packets of the batch on, in the order of their arrival."""
    batch = net.ctl[CTL_BATCH]
    limit = net.const[CONST_QUEUE_LIMIT]
    forward = routes.node[node * NODE_WORDS + NODE_FORWARD]
    latency = forward >> 1
    cut = forward & 1 == 1
    rule = net.const[CONST_BALANCE] != 0
    record = net.record
    ahead, last = inbox_blocks(net, min(node + 1, net.const[CONST_NODES_LOCAL] - 1))
    for i in range(batch):
        p = inbox.batch_pos[inbox.batch_key[i] & 0xFFFF] * RECORD_WORDS
        cell = switch_cell_to(net, routes, node, destination(record[p + 1]), record[p + 2])
        link = choose(routes, cell, node, record[p + 2])
        inbox.batch_tmp[i] = cell
        inbox.batch_out[i] = link
        prefetch(net.tx, link * TX_WORDS)
    for i in range(batch):
        if i & 3 == 0 and ahead >= 0:
            ahead = prefetch_following(net, ahead, last)
        if i + 2 * AHEAD < batch:
            prefetch_box(net, inbox.batch_out[i + 2 * AHEAD])
        if i + AHEAD < batch:
            prefetch_inbox(net, inbox.batch_out[i + AHEAD])
        key = inbox.batch_key[i]
        at = begin + (key >> 16)
        p = inbox.batch_pos[key & 0xFFFF] * RECORD_WORDS
        w1 = record[p + 1]
        w2 = record[p + 2]
        at += latency
        if rule:
            link = balanced(net, routes, inbox.batch_tmp[i], node, w1, w2, at)
        else:
            link = inbox.batch_out[i]
        q = link * TX_WORDS
        start = max(net.tx[q + TX_BUSY], at)
        if cut:
            rest = last_byte_ps(net, inbox, key, w1)
            start = max(start, at + rest - serialisation_ps(wire_bytes(w1), link_psb(net, link)))
        if limit > 0:
            psb = link_psb(net, link)
            if start - at + serialisation_ps(wire_bytes(w1), psb) > limit * psb:
                drop(net, link, w1)
                continue
        link_send(net, link, at, start, w1, w2, record[p + 3])


@outline
def switches_window(net, inbox, routes, begin, end):
    """Let every switch act on what arrives before `end`. True if interrupted because a pool is short."""
    for node in range(net.const[CONST_NPUS_LOCAL], net.const[CONST_NODES_LOCAL]):
        if net.inbox[inbox_of(node, net.ctl[CTL_SIDE])] >= 0:
            if blocks_short(net):
                return True
            if node + 2 < net.const[CONST_NODES_LOCAL]:
                prefetch(net.inbox, inbox_of(node + 2, net.ctl[CTL_SIDE]))
                prefetch(routes.node, (node + 1) * NODE_WORDS)
            take_batch(net, inbox, node, begin, end)
            switch_forward(net, inbox, routes, node, begin)
            give_back(net, inbox)
    return False
