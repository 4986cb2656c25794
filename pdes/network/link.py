"""Sending over a link: the port is busy for the packet's bits, then the packet is on the wire."""

import numpy as np

from nadi.pdes.core import algorithms, packet, state
from nadi.pdes.core.jit import inline, outline, prefetch, trailing_zeros
from nadi.pdes.network.circuits import held_until_ps, next_lit_ps
from nadi.pdes.network.framing import framed_bytes
from nadi.pdes.network.lane_credits import refund
from nadi.pdes.network.telemetry import sample_queue, sample_sent


@inline
def serialisation_ps(size_bytes, ps_per_byte):
    """Return the time of the bits of `size_bytes` at `ps_per_byte` on the wire, rounded once per packet."""
    return np.int64(size_bytes * ps_per_byte + 0.5)


@inline
def full_packet_bytes(net):
    """Return the bytes of a full data packet of the run of `net` on a link without flits."""
    return net.const.mtu_bytes + net.const.header_bytes


@inline
def class_row(net, link):
    """Return the class (row of `net.link_class`) of an outgoing link, number `link`."""
    return net.link_class[packet.class_of(net.tx[link].meta)]


@inline
def link_psb(net, link):
    """Return the picoseconds per byte of the outgoing link of `net` with number `link`."""
    return class_row(net, link).ps_per_byte


@inline
def nominal_psb(net, link):
    """Return the ps per byte of outgoing link number `link` of `net` for packets and flows together."""
    # where flows share links with packets, `link_psb` is that for packets
    return net.link_class[packet.class_of(net.tx[link].meta) + net.const.nominal_classes].ps_per_byte


@inline
def on_link_bytes(net, link, word1, size_bytes):
    """Return the bytes on `link` of `net` of a packet, with its word1, of `size_bytes` on a link without flits."""
    return framed_bytes(net, word1, size_bytes) if class_row(net, link).special & state.FRAMED != 0 else size_bytes


@inline
def share_psb(net, link, word1, shares):
    """Return a link's ps per byte at a share of its rate, framed like packets of this word 1.

    net: the LP's links; link: outgoing link (row of `tx`); word1: words of the packet (pdes/core/packet.py); shares:
    SHARE_UNITS divided by the share, 0 = the whole rate.
    """
    psb = nominal_psb(net, link)
    if shares > packet.SHARE_UNITS:
        full = full_packet_bytes(net)
        psb *= shares / packet.SHARE_UNITS * on_link_bytes(net, link, word1, full) / full
    return psb


@inline
def inbox_of(node, side):
    """Return the place in `net.inbox` of one of the node's inboxes; bits 1 and up of it hold the side."""
    return 2 * (node * state.SIDES + side)


@inline
def inbox_for(net, link_word, arrival_ps):
    """Return the place in `net.inbox` for a packet that arrives over a link, and the packet's word 0.

    net: the LP's links; link_word: word `meta` of the link; arrival_ps: arrival at its other end in ps.
    """
    # The inbox is that of the receiving node for the cell of the arrival: the current one or one of the next SIDES - 1.
    # Time and link of a packet in an inbox share a word.
    cell = net.ctl.cell_ps
    later = arrival_ps - net.ctl.now_ps
    # three comparisons in place of a division, which takes longer than all of them
    ahead = np.int64(later >= cell) + np.int64(later >= 2 * cell) + np.int64(later >= 3 * cell)
    side = (net.ctl.side + ahead) & (state.SIDES - 1)
    # the time within the cell and the link share word 0, since an inbox's cell is known to its reader
    return inbox_of(packet.end_of(link_word), side), (later - ahead * cell) << packet.LINK_BITS | packet.number_of(
        link_word
    )


@inline
def put_in(net, inbox_place, word0, word1, word2, word3):
    """Put a packet into an inbox; return its record.

    net: the LP's links; inbox_place: place of the inbox in `net.inbox`; word0: arrival and incoming link
    (pdes/core/packet.py); word1, word2, word3: words of the packet (pdes/core/packet.py).
    """
    # a flag per side tells `earliest` that some node has packets there, without a search over all nodes
    net.ctl.pending[inbox_place >> 1 & state.SIDES - 1] = 1
    tail = np.int64(net.inbox[inbox_place + 1])
    if tail < 0:
        tail = algorithms.take_block(net)
        net.inbox[inbox_place] = tail
    net.inbox[inbox_place + 1] = algorithms.append(net, tail, word0, word1, word2, word3)
    return tail


@inline
def deliver(net, link_word, arrival_ps, word1, word2, word3):
    """Put a packet into the receiving node's inbox for the cell of its arrival; return its record.

    net: the LP's links; link_word: word `meta` of the link; arrival_ps: arrival at its other end in ps; word1, word2,
    word3: words of the packet (pdes/core/packet.py).
    """
    box, word0 = inbox_for(net, link_word, arrival_ps)
    return put_in(net, box, word0, word1, word2, word3)


@inline
def reach(net):
    """Return the time before which the inboxes of `net` accept arrivals."""
    return net.ctl.now_ps + state.SIDES * net.ctl.cell_ps


@inline
def far_reach(net):
    """Return the time before which the outboxes of `net` accept arrivals."""
    return net.ctl.begin_ps + (1 + packet.FAR_WINDOWS) * net.const.lookahead_ps


@inline
def wait(net, link, arrival_ps, word1, word2, word3):
    """Append a packet to those that wait on a link for a later cell; return its record.

    net: the LP's links; link: outgoing link (row of `tx`); arrival_ps: arrival at its other end in ps; word1, word2,
    word3: words of the packet (pdes/core/packet.py).
    """
    tail = np.int64(net.wait_tail[link])
    if tail < 0:
        tail = algorithms.take_block(net)
        net.wait_head[link] = tail
        # `release` visits the links with a bit, 32 per word, in place of all links of the LP
        net.waiting[link >> 5] |= 1 << (link & 31)
    # appended in order of arrival: a link delivers in the order in which it sends
    net.wait_tail[link] = algorithms.push(net, tail, arrival_ps, word1, word2, word3)
    return tail


@inline
def wait_turn(net, link, link_word, arrival_ps, word1, word2, word3):
    """Append a packet to those that wait on an outgoing link, update the LP's earliest arrival, return the record.

    net: the LP's links; link: outgoing link (row of `tx`); link_word: word `meta` of the link; arrival_ps: arrival at
    its other end in ps; word1, word2, word3: words of the packet (pdes/core/packet.py).
    """
    if packet.end_of(link_word) >= net.const.nodes:
        net.ctl.far_soonest_ps = min(net.ctl.far_soonest_ps, arrival_ps)
    else:
        net.ctl.soonest_ps = min(net.ctl.soonest_ps, arrival_ps)
    return wait(net, link, arrival_ps, word1, word2, word3)


@inline
def prefetch_inbox(net, link):
    """Prefetch the place of the next packet over `link` in the inbox of `net` at its end."""
    box = inbox_of(packet.end_of(net.tx[link].meta), (net.ctl.side + 1) & (state.SIDES - 1))
    tail = np.int64(net.inbox[box + 1])
    if tail >= 0:
        prefetch(net.record, tail, 0)


@inline
def count_sent(net, link, size_bytes, wait_ps):
    """Count a packet on a link, and its wait for the port.

    net: the LP's links; link: outgoing link (row of `tx`); size_bytes: bytes of the packet on the link; wait_ps: wait
    in ps.
    """
    tx = net.tx[link]
    sent_bytes = tx.sent_bytes + size_bytes
    packets = tx.sent_packets + 1
    # rare: most packets do not wait longer than any before, so the words are unpacked seldom
    if wait_ps > 0 and wait_ps > packet.longest_wait_ps(sent_bytes, packets):
        sent_bytes, packets = packet.with_longest_wait(sent_bytes, packets, wait_ps)
    tx.sent_bytes = sent_bytes
    tx.sent_packets = packets


@inline
def count_for_job(net, link, src, dst, size_bytes):
    """Count bytes from an NPU to another on a link for their job, if there are several.

    net: the LP's links; link: outgoing link (row of `tx`); src: number of the NPU that sends; dst: number of the NPU
    that receives; size_bytes: bytes on the link.
    """
    if net.const.jobs > 0:
        job = packet.job_of(net.jobs.who[src])
        if job == net.const.jobs - 1:  # none: an aggregator, which serves several jobs
            job = packet.job_of(net.jobs.who[dst])
        net.jobs.link_bytes[link * net.const.jobs + job] += size_bytes


@inline
def drop(net, link, word1):
    """Count in `net` a packet (its word1) that is lost at an outgoing link, number `link`."""
    net.tx_dropped[link] += 1
    net.count.dropped_packets += 1
    net.count.dropped_bytes += packet.wire_bytes(word1)


@inline
def hand_over(net, link, link_word, arrival_ps, word1, word2, word3):
    """Put a packet into an inbox, an outbox or the link's list; return SET_DOWN or PUT_OUT, and the place.

    net: the LP's links; link: outgoing link (row of `tx`); link_word: word `meta` of the link; arrival_ps: arrival at
    its other end in ps; word1, word2, word3: words of the packet (pdes/core/packet.py).
    """
    # Packets of a link enter an outbox in order of arrival: while others wait on the link, a packet waits behind them,
    # because the LP at the other end may let them wait on the link again, in a list that must be in order.
    # nodes of the LP have numbers below `nodes`; from there on, the number names a list of the outbox
    is_far = packet.end_of(link_word) >= net.const.nodes
    if arrival_ps < reach(net) and not is_far:
        return algorithms.SET_DOWN, deliver(net, link_word, arrival_ps, word1, word2, word3)
    if (
        is_far and arrival_ps < far_reach(net) and net.wait_tail[link] < 0
    ):  # else the LP at the other end gets it too early
        return algorithms.PUT_OUT, packet.put_out(net, link, link_word, arrival_ps, word1, word2, word3)
    return algorithms.SET_DOWN, wait_turn(net, link, link_word, arrival_ps, word1, word2, word3)


@inline
def sample_packet(net, link, queued_ps, word1):
    """Count the packet that has just occupied a link in the samples of that link, and the queue at its port.

    net: the LP's links; link: outgoing link (row of `tx`); queued_ps: time in ps at which the packet came to the output
    queue of a switch, 0 elsewhere; word1: words of the packet (pdes/core/packet.py).
    """
    psb = link_psb(net, link)
    # the bytes as they travel: with flits more than the packet has
    size_bytes = on_link_bytes(net, link, word1, packet.wire_bytes(word1))
    busy_ps = net.tx[link].busy_ps
    start_ps = busy_ps - max(1, serialisation_ps(size_bytes, psb))
    sample_sent(net, link, start_ps, busy_ps, size_bytes)
    if net.hooks.shared_switches != 0 and class_row(net, link).special & state.INSIDE == 0:
        sample_queue(net, link, start_ps, net.gate[link].waiting_bytes)
    elif 0 < queued_ps < start_ps and psb > 0:  # bytes before it at its port, as far as they were not sent
        sample_queue(net, link, queued_ps, np.int64((start_ps - queued_ps) / psb))


@inline
def is_dark(net, link, start_ps, duration_ps):
    """Return whether a link is a circuit that carries nothing for some of the time from start_ps on.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link (row of `tx`).
        start_ps: Time in ps.
        duration_ps: Length in ps of the time.
    """
    return (
        class_row(net, link).special & state.CIRCUIT != 0 and next_lit_ps(net, link, start_ps, duration_ps) != start_ps
    )


@outline
def hand_over_with_care(net, link, link_word, queued_ps, arrival_ps, word1, word2, word3):
    """Hand over, as `hand_over`, a packet that may be lost on its way, carries telemetry, or counts in samples.

    net: the LP's links; link: outgoing link (row of `tx`); link_word: word `meta` of the link; queued_ps: time in ps at
    which it came to the output queue of a switch, 0 elsewhere; arrival_ps: arrival at its other end in ps; word1,
    word2, word3: words of the packet (pdes/core/packet.py).
    """
    if net.const.sample_ps > 0:
        sample_packet(net, link, queued_ps, word1)
    error = net.link_class[packet.class_of(link_word)].error
    is_lost = error > 0 and packet.destination(word1) != packet.PAUSE_FRAME
    if is_lost:
        # counted by `occupy` already, so the first packet of a link has number 1
        packets = packet.packets_sent(net.tx[link].sent_packets)
        # 0x10E keeps these draws apart from others of the seed; the count gives each packet its own
        is_lost = algorithms.mix3(net.const.seed + 0x10E, packet.number_of(link_word), packets) < error
    if class_row(net, link).special & state.CIRCUIT != 0 and packet.destination(word1) != packet.PAUSE_FRAME:
        size_bytes = on_link_bytes(net, link, word1, packet.wire_bytes(word1))
        duration_ps = max(1, serialisation_ps(size_bytes, link_psb(net, link)))
        is_lost |= is_dark(net, link, net.tx[link].busy_ps - duration_ps, duration_ps)
    if is_lost:
        # it has occupied the port, like a packet that a receiver discards for a bad checksum
        net.count.lost_packets += 1
        drop(net, link, word1)
        if net.const.queues != 0:
            refund(net, link, word1)
    else:
        what, at = hand_over(net, link, link_word, arrival_ps, word1, word2, word3)
        algorithms.carry(net, what, at)


@inline
def occupy(net, link, queued_ps, start_ps, word1):
    """Occupy an outgoing link, when it is idle; return its special flags and the arrival in ps.

    net: the LP's links; link: outgoing link (row of `tx`); queued_ps: time in ps at which the packet came to the port;
    start_ps: time in ps at which its first bit leaves; word1: words of the packet (pdes/core/packet.py).
    """
    # The packet came to the port at queued_ps. A receiving node that cuts through gets the packet once its header is
    # in, unless it is the destination.
    tx = net.tx[link]
    size_bytes = packet.wire_bytes(word1)
    link_word = tx.meta
    link_class = net.link_class[packet.class_of(link_word)]
    special = link_class.special
    psb = link_class.ps_per_byte
    # one question for all that is rare
    if special & (state.FRAMED | state.CIRCUIT | state.COUNTED) != 0:
        if special & state.FRAMED != 0:
            size_bytes = framed_bytes(net, word1, size_bytes)
        if special & state.COUNTED != 0 and packet.destination(word1) != packet.PAUSE_FRAME:
            count_for_job(net, link, packet.source(word1), packet.destination(word1), size_bytes)
        if special & state.CIRCUIT != 0:
            start_ps = held_until_ps(net, link, start_ps, max(1, serialisation_ps(size_bytes, psb)))
    busy = start_ps + max(
        1, serialisation_ps(size_bytes, psb)
    )  # a node then receives no more packets than its batch holds
    tx.busy_ps = busy
    seen = link_class.seen_bytes
    # Example: 4178 bytes at 100 Gb/s, a switch that waits for 64 bytes: it may act 5 ns after the first bit has left,
    # plus the propagation time, and not after 334 ns
    arrival_ps = start_ps + serialisation_ps(seen, psb) if size_bytes > seen else busy
    count_sent(net, link, size_bytes, start_ps - queued_ps)
    return special, arrival_ps + link_class.delay_ps


@inline
def link_send(net, link, queued_ps, start_ps, word1, word2, word3):
    """Send a packet over an outgoing link, as `occupy`.

    net: the LP's links; link: outgoing link (row of `tx`); queued_ps: time in ps at which the packet came to the port;
    start_ps: time in ps at which its first bit leaves; word1, word2, word3: words of the packet (pdes/core/packet.py).
    """
    # A packet that arrives within the next few cells enters the node's inboxes; a later one waits on the link
    # (`release`). For a node of another LP, a packet that arrives in the next windows enters the outbox.
    special, arrival_ps = occupy(net, link, queued_ps, start_ps, word1)
    link_word = net.tx[link].meta
    if special & state.CARE != 0:
        hand_over_with_care(net, link, link_word, 0, arrival_ps, word1, word2, word3)
    else:
        hand_over(net, link, link_word, arrival_ps, word1, word2, word3)


@inline
def prefetch_waiting(net, word):
    """Prefetch the first packets that wait on the 32 links of word number `word` of `net.waiting`."""
    left = net.waiting[word]
    while left != 0:
        link = (word << 5) + trailing_zeros(left)
        left &= left - 1
        algorithms.prefetch_block(net, np.int64(net.wait_head[link]) >> state.BLOCK_SHIFT)
        prefetch(net.tx, link, 0)


@inline
def release_due(net):
    """Return whether a packet that waits on a link of `net` arrives in the current cell, so must be released."""
    # in every third cell of the grid, packets that arrive up to the next such cell are released too, so that LPs spend
    # time on it in the same windows
    ahead = 1 + (state.SIDES - 2) * np.int64(net.ctl.now_ps // net.ctl.cell_ps % (state.SIDES - 1) == 0)
    return net.ctl.soonest_ps < net.ctl.now_ps + ahead * net.ctl.cell_ps


@inline
def far_release_due(net):
    """Return whether a packet for another LP must enter an outbox of `net` in this window to arrive in time."""
    ahead = 2 + (packet.FAR_WINDOWS - 1) * np.int64(
        net.ctl.begin_ps // net.const.lookahead_ps % packet.FAR_WINDOWS == 0
    )
    return net.ctl.far_soonest_ps < net.ctl.begin_ps + ahead * net.const.lookahead_ps


@outline
def release(net):
    """Move packets of `net` from links to inboxes and outboxes that accept their times: cells or windows ahead."""
    # returns True if the pool of blocks is too small to finish
    soonest = state.INF
    far_soonest = state.INF
    for word in range(net.waiting.shape[0]):
        if word + 1 < net.waiting.shape[0]:
            prefetch_waiting(net, word + 1)
        left = net.waiting[word]
        while left != 0:
            link = (word << 5) + trailing_zeros(left)
            left &= left - 1
            if net.ctl.free_blocks < net.const.reserve_blocks:
                net.ctl.need = state.NEED_BLOCKS
                return True
            head = np.int64(net.wait_head[link])
            link_word = net.tx[link].meta
            is_far = packet.end_of(link_word) >= net.const.nodes
            # packets of one link are in order of arrival, so each link is read up to the first that is not accepted yet
            end = far_reach(net) if is_far else reach(net)
            algorithms.prefetch_block(net, np.int64(net.block_next[head >> state.BLOCK_SHIFT]))
            while head >= 0:
                waiting = net.record[head]
                if head & (state.BLOCK_RECORDS - 1) == 0:
                    algorithms.prefetch_block(net, np.int64(net.block_next[head >> state.BLOCK_SHIFT]))
                arrival_ps = waiting.ready_ps
                if arrival_ps >= end:
                    if is_far:
                        far_soonest = min(far_soonest, arrival_ps)
                    else:
                        soonest = min(soonest, arrival_ps)
                    break
                algorithms.carry(net, algorithms.TAKE_UP, head)
                word1, word2, word3 = waiting.w1, waiting.w2, waiting.w3
                if is_far:
                    algorithms.carry(
                        net, algorithms.PUT_OUT, packet.put_out(net, link, link_word, arrival_ps, word1, word2, word3)
                    )
                else:
                    algorithms.carry(net, algorithms.SET_DOWN, deliver(net, link_word, arrival_ps, word1, word2, word3))
                head = algorithms.after(net, head)
            net.wait_head[link] = head
            if head < 0:
                net.wait_tail[link] = algorithms.NONE
                net.waiting[word] &= ~(1 << (link & 31))
    net.ctl.soonest_ps = soonest
    net.ctl.far_soonest_ps = far_soonest
    return False
