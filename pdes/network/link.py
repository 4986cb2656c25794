"""Sending over a link: the port is busy for the packet's bits, then the packet is on the wire."""

import numpy as np

from pdes.core.fifo import NONE, PUT_OUT, SET_DOWN, TAKE_UP, after, append, carry, prefetch_block, push, take_block
from pdes.core.hashing import mix3
from pdes.core.jit import inline, outline, prefetch, trailing_zeros
from pdes.core.packet import (
    LINK_BITS,
    PAUSE_FRAME,
    SHARE_UNITS,
    class_of,
    destination,
    end_of,
    longest_wait_ps,
    number_of,
    packets_sent,
    wire_bytes,
    with_longest_wait,
)
from pdes.core.state import BLOCK_RECORDS, BLOCK_SHIFT, CARE, FRAMED, INF, NEED_BLOCKS, SIDES
from pdes.network.boundary import FAR_WINDOWS, put_out
from pdes.network.framing import framed_bytes


@inline
def serialisation_ps(size_bytes, ps_per_byte):
    """Return the time of a packet's bits on the wire, rounded once per packet."""
    return np.int64(size_bytes * ps_per_byte + 0.5)


@inline
def full_packet_bytes(net):
    """Return the bytes of a full data packet on a link without flits."""
    return net.const.mtu_bytes + net.const.header_bytes


@inline
def class_row(net, link):
    """Return the class of an outgoing link."""
    return net.link_class[class_of(net.tx[link].meta)]


@inline
def link_psb(net, link):
    """Return the picoseconds per byte of an outgoing link."""
    return class_row(net, link).ps_per_byte


@inline
def on_link_bytes(net, link, w1, size):
    """Return the bytes on an outgoing link of a packet that has `size` bytes on a link without flits."""
    return framed_bytes(net, w1, size) if class_row(net, link).special & FRAMED != 0 else size


@inline
def share_psb(net, link, w1, shares):
    """Return the ps per byte at SHARE_UNITS / shares of a link's rate (0 = all of it), framed like packets of w1."""
    psb = link_psb(net, link)
    if shares > SHARE_UNITS:
        full = full_packet_bytes(net)
        psb *= shares / SHARE_UNITS * on_link_bytes(net, link, w1, full) / full
    return psb


@inline
def inbox_of(node, side):
    """Return the place in `net.inbox` of one of the node's inboxes; bits 1 and up of it hold the side."""
    return 2 * (node * SIDES + side)


@inline
def inbox_for(net, meta, ready):
    """Return the place in `net.inbox` of the receiving node's inbox for the cell of `ready`, and a packet's word 0."""
    # The cell is the current one or one of the next SIDES - 1. Time and link of a packet in an inbox share a word.
    cell = net.const.cell_ps
    later = ready - net.ctl.now_ps
    ahead = np.int64(later >= cell) + np.int64(later >= 2 * cell) + np.int64(later >= 3 * cell)
    side = (net.ctl.side + ahead) & (SIDES - 1)
    return inbox_of(end_of(meta), side), (later - ahead * cell) << LINK_BITS | number_of(meta)


@inline
def put_in(net, box, w0, w1, w2, w3):
    """Put a packet into an inbox and return its record."""
    net.ctl.pending[box >> 1 & SIDES - 1] = 1
    tail = np.int64(net.inbox[box + 1])
    if tail < 0:
        tail = take_block(net)
        net.inbox[box] = tail
    net.inbox[box + 1] = append(net, tail, w0, w1, w2, w3)
    return tail


@inline
def deliver(net, meta, ready, w1, w2, w3):
    """Put a packet into the inbox of the receiving node for the cell of its arrival, and return its record."""
    box, w0 = inbox_for(net, meta, ready)
    return put_in(net, box, w0, w1, w2, w3)


@inline
def reach(net):
    """Return the time before which inboxes accept arrivals."""
    return net.ctl.now_ps + SIDES * net.const.cell_ps


@inline
def far_reach(net):
    """Return the time before which outboxes accept arrivals."""
    return net.ctl.begin_ps + (1 + FAR_WINDOWS) * net.const.lookahead_ps


@inline
def wait(net, link, ready, w1, w2, w3):
    """Append a packet to those that wait on a link, and return its record."""
    tail = np.int64(net.wait_tail[link])
    if tail < 0:
        tail = take_block(net)
        net.wait_head[link] = tail
        net.waiting[link >> 5] |= 1 << (link & 31)
    net.wait_tail[link] = push(net, tail, ready, w1, w2, w3)
    return tail


@inline
def wait_turn(net, link, meta, ready, w1, w2, w3):
    """Append a packet to those that wait on an outgoing link, update the LP's earliest arrival, return the record."""
    if end_of(meta) >= net.const.nodes:
        net.ctl.far_soonest_ps = min(net.ctl.far_soonest_ps, ready)
    else:
        net.ctl.soonest_ps = min(net.ctl.soonest_ps, ready)
    return wait(net, link, ready, w1, w2, w3)


@inline
def prefetch_inbox(net, link):
    """Prefetch the place of the next packet over the link in the inbox at its end."""
    box = inbox_of(end_of(net.tx[link].meta), (net.ctl.side + 1) & (SIDES - 1))
    tail = np.int64(net.inbox[box + 1])
    if tail >= 0:
        prefetch(net.record, tail)


@inline
def count_sent(net, q, size, wait_ps):
    """Count a packet at `tx` row q, and its wait for the port."""
    tx = net.tx[q]
    sent_bytes = tx.sent_bytes + size
    packets = tx.sent_packets + 1
    if wait_ps > longest_wait_ps(sent_bytes, packets):
        sent_bytes, packets = with_longest_wait(sent_bytes, packets, wait_ps)
    tx.sent_bytes = sent_bytes
    tx.sent_packets = packets


@inline
def drop(net, link, w1):
    """Count a packet that is lost at outgoing link `link`."""
    net.tx_dropped[link] += 1
    net.count.dropped_packets += 1
    net.count.dropped_bytes += wire_bytes(w1)


@inline
def hand_over(net, link, meta, ready, w1, w2, w3):
    """Put a packet that arrives at `ready` into an inbox, an outbox or the link's list. Return which, and the place."""
    # packets of a link enter an outbox in order of arrival: while others wait on the link, a packet waits behind them,
    # because the LP at the other end may let them wait on the link again, in a list that must be in order
    is_far = end_of(meta) >= net.const.nodes
    if ready < reach(net) and not is_far:
        return SET_DOWN, deliver(net, meta, ready, w1, w2, w3)
    if is_far and ready < far_reach(net) and net.wait_tail[link] < 0:  # else the LP at the other end gets it too early
        return PUT_OUT, put_out(net, link, meta, ready, w1, w2, w3)
    return SET_DOWN, wait_turn(net, link, meta, ready, w1, w2, w3)


@outline
def hand_over_with_care(net, link, meta, ready, w1, w2, w3):
    """Hand over a packet that may be lost on its way, or that carries telemetry."""
    error = net.link_class[class_of(meta)].error
    is_lost = error > 0 and destination(w1) != PAUSE_FRAME
    if is_lost:
        packets = packets_sent(net.tx[link].sent_packets)
        is_lost = mix3(net.const.seed + 0x10E, number_of(meta), packets) < error
    if is_lost:
        net.count.lost_packets += 1
        drop(net, link, w1)
    else:
        what, at = hand_over(net, link, meta, ready, w1, w2, w3)
        carry(net, what, at)


@inline
def occupy(net, link, asked, start, w1):
    """Occupy outgoing link `link` from `start`, when it is idle; asked: when the packet came to the port."""
    # Returns the link's special flags and the time of arrival. A receiving node that cuts through gets the packet once
    # its header is in, unless it is the destination.
    tx = net.tx[link]
    size = wire_bytes(w1)
    meta = tx.meta
    link_class = net.link_class[class_of(meta)]
    special = link_class.special
    if special & FRAMED != 0:
        size = framed_bytes(net, w1, size)
    psb = link_class.ps_per_byte
    busy = start + max(1, serialisation_ps(size, psb))  # a node then receives no more packets than its batch holds
    tx.busy_ps = busy
    seen = link_class.seen_bytes
    ready = start + serialisation_ps(seen, psb) if size > seen else busy
    count_sent(net, link, size, start - asked)
    return special, ready + link_class.delay_ps


@inline
def link_send(net, link, asked, start, w1, w2, w3):
    """Send a packet over outgoing link `link`, as `occupy`."""
    # A packet that arrives within the next few cells enters the node's inboxes; a later one waits on the link
    # (`release`). For a node of another LP, a packet that arrives in the next windows enters the outbox.
    special, ready = occupy(net, link, asked, start, w1)
    meta = net.tx[link].meta
    if special & CARE != 0:
        hand_over_with_care(net, link, meta, ready, w1, w2, w3)
    else:
        hand_over(net, link, meta, ready, w1, w2, w3)


@inline
def prefetch_waiting(net, word):
    """Prefetch the first packets that wait on 32 links."""
    left = net.waiting[word]
    while left != 0:
        link = (word << 5) + trailing_zeros(left)
        left &= left - 1
        prefetch_block(net, np.int64(net.wait_head[link]) >> BLOCK_SHIFT)
        prefetch(net.tx, link)


@inline
def release_due(net):
    """Return whether a packet that waits on a link arrives in the current cell, and so must be released."""
    # in every third cell of the grid, packets that arrive up to the next such cell are released too, so that LPs spend
    # time on it in the same windows
    ahead = 1 + (SIDES - 2) * np.int64(net.ctl.now_ps // net.const.cell_ps % (SIDES - 1) == 0)
    return net.ctl.soonest_ps < net.ctl.now_ps + ahead * net.const.cell_ps


@inline
def far_release_due(net):
    """Return whether a packet for another LP must enter an outbox of this window to arrive in time."""
    ahead = 2 + (FAR_WINDOWS - 1) * np.int64(net.ctl.begin_ps // net.const.lookahead_ps % FAR_WINDOWS == 0)
    return net.ctl.far_soonest_ps < net.ctl.begin_ps + ahead * net.const.lookahead_ps


@outline
def release(net):
    """Move packets from links to inboxes and outboxes that accept their arrival times: some cells or windows ahead."""
    # returns True if the pool of blocks is too small to finish
    soonest = INF
    far_soonest = INF
    for word in range(net.waiting.shape[0]):
        if word + 1 < net.waiting.shape[0]:
            prefetch_waiting(net, word + 1)
        left = net.waiting[word]
        while left != 0:
            link = (word << 5) + trailing_zeros(left)
            left &= left - 1
            if net.ctl.free_blocks < net.const.reserve_blocks:
                net.ctl.need = NEED_BLOCKS
                return True
            head = np.int64(net.wait_head[link])
            meta = net.tx[link].meta
            is_far = end_of(meta) >= net.const.nodes
            end = far_reach(net) if is_far else reach(net)
            prefetch_block(net, np.int64(net.block_next[head >> BLOCK_SHIFT]))
            while head >= 0:
                packet = net.record[head]
                if head & (BLOCK_RECORDS - 1) == 0:
                    prefetch_block(net, np.int64(net.block_next[head >> BLOCK_SHIFT]))
                ready = packet.ready_ps
                if ready >= end:
                    if is_far:
                        far_soonest = min(far_soonest, ready)
                    else:
                        soonest = min(soonest, ready)
                    break
                carry(net, TAKE_UP, head)
                w1, w2, w3 = packet.w1, packet.w2, packet.w3
                if is_far:
                    carry(net, PUT_OUT, put_out(net, link, meta, ready, w1, w2, w3))
                else:
                    carry(net, SET_DOWN, deliver(net, meta, ready, w1, w2, w3))
                head = after(net, head)
            net.wait_head[link] = head
            if head < 0:
                net.wait_tail[link] = NONE
                net.waiting[word] &= ~(1 << (link & 31))
    net.ctl.soonest_ps = soonest
    net.ctl.far_soonest_ps = far_soonest
    return False
