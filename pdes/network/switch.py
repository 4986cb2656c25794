"""An output-queued switch with FIFO ports: a packet's departure is known when it arrives.

The port's unfinished work is `busy - now`; a packet that would exceed the limit is dropped (drop-tail). The switch
stores and forwards, or cuts through: then the event is the arrival of the header, and the last byte must not leave
before it has arrived.
"""

import numpy as np

from nadi.pdes.core.algorithms import prefetch_following
from nadi.pdes.core.jit import inline, outline, prefetch
from nadi.pdes.core.packet import destination, end_of, inbox_link, put_out, wire_bytes
from nadi.pdes.core.state import CARE, INSIDE
from nadi.pdes.network import link as links
from nadi.pdes.network.batch import blocks_short, give_back, inbox_blocks, order_ties, order_ties_at_ports, take_batch
from nadi.pdes.network.routing import choose, link_by_rule, switch_cell_to

AHEAD = 8  # packets by which prefetching of the next record's place precedes use


@inline
def chooses(net, routes, node):
    """Return whether a switch chooses links by the load that it sees, so that its ports depend on each other.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
    """
    # bit 1 of `forward`: the switch has several equal links to some NPU; without, a rule has nothing to choose
    return net.hooks.detour != 0 or (net.hooks.balancing != 0 and routes.node[node].forward & 2 != 0)


@inline
def choose_links(net, inbox, routes, node):
    """Find the link of every packet in the batch of a switch and, where a rule chooses, its cell.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
    """
    rule = chooses(net, routes, node)
    for i in range(net.ctl.batch):
        packet = net.record[inbox.batch_pos[inbox.batch_key[i] & 0xFFFF]]
        cell = switch_cell_to(net, routes, node, destination(packet.w1), packet.w2)
        link = choose(routes, cell, node, packet.w2)
        if rule:
            inbox.batch_tmp[i] = cell
        inbox.batch_out[i] = link
        # the row is read only after the last choice, and arrives in the meantime
        prefetch(net.tx, link, 0)


@inline
def is_full(net, link, wait_ps, word1, limit_bytes):
    """Return whether a packet exceeds the limit of the queue in which it would wait for a link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
        wait_ps: Time in ps that the packet would wait.
        word1: Word 1 of the packet (pdes/core/packet.py).
        limit_bytes: Limit of the queue in bytes.
    """
    # in time, not bytes: the unfinished work of the port is known as `busy - now`, and bytes would need a division
    psb = links.link_psb(net, link)
    # the link on which all is lost takes no time and has no queue: what others of the LP sent must not matter
    return psb > 0 and wait_ps + links.serialisation_ps(wire_bytes(word1), psb) > limit_bytes * psb


@inline
def send_batch(net, inbox, routes, node, begin_ps, first_block, last_block):
    """Send the batch of switch `node`, of the cell from begin_ps, in order; return three counts that sort it."""
    # The counts: packets for inboxes of the LP (`batch_near`, with `batch_box` and word 0 in `batch_tmp`), packets for
    # other LPs (`batch_apart`, from its begin), and the last index before those that wait on their links
    # (`batch_apart`, from its end backwards). Whether a packet stays in the LP is hard to predict, so it is written to
    # both lists, without a branch, and the wrong entry is overwritten; without other LPs only the first list is used.
    # Prefetches the next switch's inbox, blocks `first_block` to `last_block`.
    batch = net.ctl.batch
    limit = net.const.queue_limit_bytes
    if limit > 0 and links.class_row(net, routes.node[node].first_link).special & INSIDE != 0:
        limit = np.int64(0)  # NVLink sends only what the other end has room for
    forward = routes.node[node].forward
    leaves, cut = begin_ps + (forward >> 2), forward & 1 == 1
    rule, alone = chooses(net, routes, node), net.const.lists == 0
    near_end, far_end, nodes = links.reach(net), links.far_reach(net), net.const.nodes
    near = far = np.int64(0)
    last_apart = batch - 1
    for i in range(batch):
        if i & 3 == 0 and first_block >= 0:
            first_block = prefetch_following(net, first_block, last_block)
        key = inbox.batch_key[i]
        at = leaves + (key >> 16)
        record = inbox.batch_pos[key & 0xFFFF]
        packet = net.record[record]
        word1 = packet.w1
        link = inbox.batch_out[i]
        if rule:
            link = link_by_rule(net, routes, inbox.batch_tmp[i], node, record, at)
        tx = net.tx[link]
        start = max(tx.busy_ps, at)  # a FIFO: the port's last departure gives the next
        if limit > 0 and is_full(net, link, start - at, word1, limit):
            links.drop(net, link, word1)
            continue
        if cut:
            # After the check of the queue: a packet that waits for its own last byte from a slower link fills no queue.
            size = wire_bytes(word1)
            psb = inbox.rx_psb[inbox_link(packet.ready_ps)]
            # the event is the arrival of the header; the last byte is in after the rest
            rest = links.serialisation_ps(size, psb) - links.serialisation_ps(min(size, net.const.cut_bytes), psb)
            start = max(start, at + rest - links.serialisation_ps(wire_bytes(word1), links.link_psb(net, link)))
        special, ready = links.occupy(net, link, at, start, word1)
        meta = tx.meta
        is_near = np.int64(end_of(meta) < nodes)
        if special & CARE != 0:
            links.hand_over_with_care(net, link, meta, at, ready, word1, packet.w2, packet.w3)
        elif ready < far_end + is_near * (near_end - far_end):
            box, word0 = links.inbox_for(net, meta, ready)
            prefetch(net.inbox, box, 0)
            inbox.batch_box[near] = box
            inbox.batch_tmp[near] = word0
            inbox.batch_near[near] = record
            if not alone:
                put_apart(inbox, far, record, link, ready)
            near += is_near
            far += 1 - is_near
        else:
            prefetch(net.wait_tail, link, 0)
            put_apart(inbox, last_apart, record, link, ready)
            last_apart -= 1
    return near, far, last_apart


@inline
def put_apart(inbox, place, record, link, arrival_ps):
    """Note a packet of the batch that enters no inbox of the LP now.

    Args:
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        place: Index in `batch_apart`, `batch_link` and `batch_ready`.
        record: Record of the packet.
        link: Outgoing link of the port.
        arrival_ps: Time in ps at which it arrives at the end of its link.
    """
    inbox.batch_apart[place] = record
    inbox.batch_link[place] = link
    inbox.batch_ready[place] = arrival_ps


@inline
def set_down_batch(net, inbox, near_count, far_count, last_apart):
    """Put the packets of the batch, sorted as by `send_batch`, into inboxes, outboxes and the lists of links.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        near_count: Number of packets in `batch_near`.
        far_count: Number of packets at the begin of `batch_apart`, which go to other LPs.
        last_apart: Index before those at the end of `batch_apart`, which wait on their links.
    """
    for i in range(near_count):
        later = i + AHEAD
        if later < near_count:
            tail = np.int64(net.inbox[inbox.batch_box[later] + 1])
            if tail >= 0:
                prefetch(net.record, tail, 0)
        packet = net.record[inbox.batch_near[i]]
        links.put_in(net, inbox.batch_box[i], inbox.batch_tmp[i], packet.w1, packet.w2, packet.w3)
    for i in range(far_count):
        packet = net.record[inbox.batch_apart[i]]
        link = inbox.batch_link[i]
        meta, ready = net.tx[link].meta, inbox.batch_ready[i]
        if net.wait_tail[link] < 0:
            put_out(net, link, meta, ready, packet.w1, packet.w2, packet.w3)
        else:  # behind those that wait, as `hand_over` says
            links.wait_turn(net, link, meta, ready, packet.w1, packet.w2, packet.w3)
    # backwards, as they were written from the end on: so packets of one link stay in order
    for i in range(net.ctl.batch - 1, last_apart, -1):
        later = i - AHEAD
        if later > last_apart:
            tail = np.int64(net.wait_tail[inbox.batch_link[later]])
            if tail >= 0:
                prefetch(net.record, tail, 0)
        packet = net.record[inbox.batch_apart[i]]
        link = inbox.batch_link[i]
        links.wait_turn(net, link, net.tx[link].meta, inbox.batch_ready[i], packet.w1, packet.w2, packet.w3)


@outline
def switches_window(net, inbox, routes, begin_ps, end_ps, first_node, end_node):
    """Let switches process arrivals in a cell. Return True if a pool is too small.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        routes: Routing state of the LP (`Routes`).
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
        first_node: Number of the first switch.
        end_node: Number behind the last switch.
    """
    # a node with nothing in its inbox does nothing: an output-queued switch has no events of its own
    for node in range(first_node, end_node):
        if net.inbox[links.inbox_of(node, net.ctl.side)] >= 0:
            if blocks_short(net):
                return True
            if node + 2 < net.const.nodes:
                prefetch(net.inbox, links.inbox_of(node + 2, net.ctl.side), 0)
                prefetch(routes.node, node + 1, 0)
            take_batch(net, inbox, node, begin_ps, end_ps)
            ahead, last_ahead = inbox_blocks(net, min(node + 1, net.const.nodes - 1))
            if ahead >= 0:
                prefetch(net.block_next, ahead, 0)
            # one thing after the other for all packets: what the next needs of memory has been asked for by then
            depends = chooses(net, routes, node)
            if depends:
                order_ties(net, inbox, node, begin_ps)
            choose_links(net, inbox, routes, node)
            if not depends:
                order_ties_at_ports(net, inbox, np.int64(routes.node[node].first_link), begin_ps)
            near, far, last_apart = send_batch(net, inbox, routes, node, begin_ps, ahead, last_ahead)
            set_down_batch(net, inbox, near, far, last_apart)
            give_back(net, inbox)
    return False
