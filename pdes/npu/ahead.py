"""Prefetching of the memory that NPUs with events in a cell will need in their turn.

Memory that the NPU's number determines is prefetched first, then memory which that names, and so on: each stage reads
what the stage before has prefetched.
"""

import numpy as np

from nadi.pdes.core import packet
from nadi.pdes.core.algorithms import find_row, home
from nadi.pdes.core.jit import inline, outline, prefetch
from nadi.pdes.core.state import BLOCK_SHIFT, SELECTIVE_PACKETS
from nadi.pdes.network.link import inbox_of
from nadi.pdes.nic.paths import LINE_OF_COUNTS, path_of_entropy
from nadi.pdes.npu.agenda import lane_place

MAX_NAMED = 4  # packets of an inbox whose queue pairs and lanes are prefetched; few inboxes get more in a cell
FAR, NEAR, NEXT, SOON = 6, 4, 2, 1  # number of turns by which each stage precedes the NPU's turn


@inline
def first_block(net, node):
    """Return the begin and end of the first records of a node's inbox: at most MAX_NAMED, within one block.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the NPU in the LP.
    """
    box = inbox_of(node, net.ctl.side)
    head = np.int64(net.inbox[box])
    tail = np.int64(net.inbox[box + 1])
    if head < 0:
        return head, head
    # following a block would wait for memory, which prefetching must not
    if tail >> BLOCK_SHIFT != head >> BLOCK_SHIFT:
        tail = ((head >> BLOCK_SHIFT) + 1) << BLOCK_SHIFT
    return head, min(tail, head + MAX_NAMED)


@inline
def lane_of(net, npus, insts, node, tag):
    """Return the place of a message's lane, if its collective is that of the NPU's last message, or -1.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
    """
    inst = npus.npu[node].last_instance
    lane = packet.tag_lane(tag)
    if inst < 0 or lane >= net.const.lane_stride:
        return np.int64(-1)
    # a search in the map would cost more than the prefetch saves
    if insts.inst[inst].key != packet.instance_key(node, packet.tag_group(tag), packet.tag_seq(tag)):
        return np.int64(-1)
    return lane_place(net, inst, lane)


@inline
def prefetch_pair(net, qps, pair):
    """Prefetch the words of a queue pair for acknowledgements and sending, and its congestion-control state.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    # line 0 has what an acknowledgement needs; line 1, for sending, follows with the port's turn (`prefetch_turn`)
    prefetch(qps.qp, pair, 0)
    if net.const.window_fixed == 0:
        prefetch(qps.cc, pair, 0)


@inline
def prefetch_named(net, npus, qps, insts, node):
    """Prefetch what the first packets of a node's inbox name: queue pairs, and lanes of completed messages.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
    """
    head, end = first_block(net, node)
    last = npus.npu[node].last_receiver
    for record in range(head, end):
        arrival = net.record[record]
        word1, word2 = arrival.w1, arrival.w2
        if packet.flags(word1) & packet.FLAG_ACK != 0:
            prefetch_pair(net, qps, packet.sender_pair(word2))
        else:
            key = packet.receiver_key(word1, word2)
            # the row of the last receiver is in the cache
            if last < 0 or qps.rxqp[last].key != key:
                prefetch(qps.rxqp, home(qps.rxqp, key), 0)
            if packet.flags(word1) & packet.FLAG_LAST != 0:
                lane = lane_of(net, npus, insts, node, arrival.w3)
                if lane >= 0:
                    prefetch(insts.lane, lane, 0)


BITS_OF_LINE = 256  # packets in a line of bits, of which each word has 32


@inline
def prefetch_arrival(net, qps, record):
    """Prefetch what a packet that an NPU will handle soon names, where queue pairs take several paths.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        record: Record of the packet.
    """
    # such queue pairs have ten cache lines for a packet, and packets in a row are of different ones
    word1, word2 = net.record[record].w1, net.record[record].w2
    if packet.flags(word1) & packet.FLAG_ACK != 0:
        pair = packet.sender_pair(word2)
        prefetch_pair(net, qps, pair)
        prefetch(qps.cc, pair, 1)
        prefetch(qps.cc, pair, 2)
        prefetch(qps.paths, pair, 0)
        prefetch(qps.paths, pair, 1)
        prefetch(qps.sel_tx, pair, 0)
        prefetch(qps.sel_tx, pair, 1)
        prefetch(qps.sel_tx, pair, LINE_OF_COUNTS)
        expected, ahead = packet.sack_numbers(word2, 0)
        prefetch(qps.sent_at, pair * SELECTIVE_PACKETS + (expected + ahead & (SELECTIVE_PACKETS - 1)), 0)
    else:
        prefetch(qps.rxqp, home(qps.rxqp, packet.receiver_key(word1, word2)), 0)


@inline
def prefetch_named_by(net, qps, record):
    """Prefetch what the queue pair of a packet names, after `prefetch_arrival`: bits of its number, or of its path.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        record: Record of the packet.
    """
    word1, word2 = net.record[record].w1, net.record[record].w2
    if packet.flags(word1) & packet.FLAG_ACK != 0:
        pair = packet.sender_pair(word2)
        path = path_of_entropy(net, qps.paths[pair], packet.entropy(word2))
        prefetch(qps.penalty, pair * net.const.paths + path, 0)
    else:
        receiver = find_row(qps.rxqp, packet.receiver_key(word1, word2))
        prefetch(qps.sel_rx, receiver, (word2 & (SELECTIVE_PACKETS - 1)) // BITS_OF_LINE)
        prefetch(qps.sel_rx, receiver, LINE_OF_COUNTS)


@outline
def prefetch_batch(net, npus, inbox, qps, node):
    """Prefetch what the packets of an NPU's batch name, and its ports, where queue pairs take several paths.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        inbox: Batch of the NPU (`Inbox`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
    """
    if net.hooks.nic_send != 0:
        for port in range(net.out_ptr[node], net.out_ptr[node + 1], 2):  # two to a cache line
            prefetch(net.tx, port, 0)
            prefetch(npus.nic, port, 0)
    for i in range(net.ctl.batch):
        prefetch_arrival(net, qps, inbox.batch_pos[inbox.batch_key[i] & 0xFFFF])
    for i in range(net.ctl.batch):
        prefetch_named_by(net, qps, inbox.batch_pos[inbox.batch_key[i] & 0xFFFF])


@inline
def prefetch_step(net, plans, insts, place):
    """Prefetch the next step of a lane, and the lane's row of the plan.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        plans: Groups and schedules of collectives (`PlanTables`).
        insts: Active collectives of the LP (`Insts`).
        place: Row of the lane in `insts.lane`.
    """
    state = insts.lane[place]
    prefetch(plans.step, state.first + (state.pc >> 1), 0)
    inst = place // net.const.lane_stride
    # place - place of lane 0 is the lane's number within its plan, whose rows begin at first_lane
    lane = insts.inst[inst].first_lane + place - lane_place(net, inst, 0)
    prefetch(plans.lane_row, lane, 0)
    prefetch(plans.lane_row, lane, 1)


@inline
def prefetch_steps(net, npus, insts, plans, node):
    """Prefetch the steps of lanes of an NPU that will continue.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        plans: Groups and schedules of collectives (`PlanTables`).
        node: Number of the NPU in the LP.
    """
    place = npus.npu[node].agenda_head
    if place >= 0:
        prefetch_step(net, plans, insts, place)
    head, end = first_block(net, node)
    for record in range(head, end):
        arrival = net.record[record]
        if packet.flags(arrival.w1) & (packet.FLAG_ACK | packet.FLAG_LAST) == packet.FLAG_LAST:
            lane = lane_of(net, npus, insts, node, arrival.w3)
            if lane >= 0:
                prefetch_step(net, plans, insts, lane)


@inline
def prefetch_turn(net, npus, qps, link):
    """Prefetch the queue pair whose turn it is at the port of a link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        link: Outgoing link of the NPU.
    """
    last = npus.port[link].ring
    if last >= 0:
        pair = qps.qp[last].ring_next
        prefetch_pair(net, qps, pair)
        prefetch(qps.qp, pair, 1)


@inline
def prefetch_port(net, npus, qps, link):
    """Prefetch the last of the queue pairs that take turns at a port, and the first acknowledgement there.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        link: Outgoing link of the NPU.
    """
    port = npus.port[link]
    if port.ring >= 0:
        prefetch(qps.qp, port.ring, 0)
    if port.control_packets > 0:
        prefetch(net.record, port.control_head, 0)


@inline
def prefetch_npu(net, npus, node):
    """Prefetch an NPU's own rows, and the first packets of its inbox.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
    """
    prefetch(npus.npu, node, 0)
    prefetch(npus.npu, node, 1)
    # the first and the last port, which are the same with one; ports between them are not prefetched
    prefetch(npus.port, net.out_ptr[node], 0)
    prefetch(npus.port, net.out_ptr[node + 1] - 1, 0)
    head = np.int64(net.inbox[inbox_of(node, net.ctl.side)])
    if head >= 0:
        prefetch(net.record, head, 0)
        prefetch(net.record, head + 2, 0)  # two to a cache line


@inline
def prefetch_lists(net, npus, qps, insts, node):
    """Prefetch the rows that an NPU's own rows name.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
    """
    npu = npus.npu[node]
    # the first and the last entry, which a pop exchanges
    prefetch(npus.heap, 2 * npu.heap, 0)
    prefetch(npus.heap, 2 * (npu.heap + npu.heap_size) - 1, 0)
    if npu.last_receiver >= 0:
        prefetch(qps.rxqp, npu.last_receiver, 0)
    if npu.last_instance >= 0:
        prefetch(insts.inst, npu.last_instance, 0)
        prefetch(insts.inst, npu.last_instance, 1)
    if npu.agenda_head >= 0:
        prefetch(insts.lane, npu.agenda_head, 0)
    first, last = net.out_ptr[node], net.out_ptr[node + 1] - 1
    prefetch_port(net, npus, qps, first)
    if last != first:
        prefetch_port(net, npus, qps, last)


@inline
def prefetch_npus(net, npus, qps, insts, plans, turn, last_turn):
    """Prefetch for the NPUs that act next in the cell.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        insts: Active collectives of the LP (`Insts`).
        plans: Groups and schedules of collectives (`PlanTables`).
        turn: Index in `npus.busy` of the NPU that acts now.
        last_turn: Index of the last NPU of the cell.
    """
    # each stage needs what the stage before has fetched, some turns ago
    # min: the last turns prefetch the last NPU again, which is cheaper than a test in each stage
    prefetch_npu(net, npus, np.int64(npus.busy[min(turn + FAR, last_turn)]))
    prefetch_lists(net, npus, qps, insts, np.int64(npus.busy[min(turn + NEAR, last_turn)]))
    following = np.int64(npus.busy[min(turn + NEXT, last_turn)])
    prefetch_named(net, npus, qps, insts, following)
    first, last = net.out_ptr[following], net.out_ptr[following + 1] - 1
    prefetch_turn(net, npus, qps, first)
    if last != first:
        prefetch_turn(net, npus, qps, last)
    prefetch_steps(net, npus, insts, plans, np.int64(npus.busy[min(turn + SOON, last_turn)]))
