"""What NPUs find in memory is asked for before their turn, of those to which something happens in a cell.

What is known by number is asked for first, then what that names, and so on: each step finds what the one before has
asked for.
"""

import numpy as np

from pdes.core.hashmap import home
from pdes.core.jit import inline, prefetch, prefetch_line
from pdes.core.packet import FLAG_ACK, FLAG_LAST, LANE_MASK, PSN_MASK, flags
from pdes.core.state import BLOCK_SHIFT
from pdes.network.link import inbox_of
from pdes.nic.transport import receiver_key
from pdes.npu.agenda import lane_place

MOST_NAMED = 4
"""Packets of an inbox whose queue pairs are asked for early."""
FAR, NEAR, NEXT = 6, 4, 2
"""How many turns ahead the three steps are."""


@inline
def list_busy(net, npus, end):
    """List the NPUs to which something happens before `end`; how many they are."""
    count = 0
    side = net.ctl.side
    for node in range(net.const.npus):
        npus.busy[count] = node
        count += np.int64(net.next_time[node] < end or net.inbox[inbox_of(node, side)] >= 0)
    return count


@inline
def prefetch_pair(net, qps, q):
    """Ask for what acknowledgements and sending need of a queue pair, and for what its congestion control keeps."""
    prefetch(qps.qp, q)
    if net.hooks.congestion_control != 0:
        prefetch(qps.cc, q)


@inline
def prefetch_named(net, npus, qps, insts, node):
    """Ask for what the first packets of a node's inbox name: queue pairs, and lanes whose messages they complete."""
    box = inbox_of(node, net.ctl.side)
    head = np.int64(net.inbox[box])
    if head < 0:
        return
    npu = npus.npu[node]
    last = npu.last_receiver
    inst = npu.last_instance
    end = np.int64(net.inbox[box + 1])
    if end >> BLOCK_SHIFT != head >> BLOCK_SHIFT:
        end = ((head >> BLOCK_SHIFT) + 1) << BLOCK_SHIFT
    for record in range(head, min(end, head + MOST_NAMED)):
        packet = net.record[record]
        w1, w2 = packet.w1, packet.w2
        if flags(w1) & FLAG_ACK != 0:
            prefetch_pair(net, qps, w2 >> 24 & PSN_MASK)
        else:
            key = receiver_key(w1, w2)
            if last < 0 or qps.rxqp[last].key != key:
                prefetch(qps.rxqp, home(qps.rxqp, key))
            if flags(w1) & FLAG_LAST != 0 and inst >= 0:
                prefetch(insts.inst, inst)
                prefetch(insts.lane, lane_place(net, inst, packet.w3 & LANE_MASK))


@inline
def prefetch_turn(net, npus, qps, link):
    """Ask for the queue pair whose turn it is at a port."""
    last = npus.port[link].ring
    if last >= 0:
        q = qps.qp[last].ring_next
        prefetch_pair(net, qps, q)
        prefetch_line(qps.qp, q, 1)


@inline
def prefetch_port(net, npus, qps, link):
    """Ask for the last of the queue pairs that take turns at a port, and for the acknowledgement that waits."""
    port = npus.port[link]
    if port.ring >= 0:
        prefetch(qps.qp, port.ring)
    if port.control_packets > 0:
        prefetch(net.record, port.control_head)


@inline
def prefetch_npus(net, npus, qps, insts, turn, most):
    """Ask for the rows of the NPUs whose turns come after `turn`, of which the last is `most`."""
    side = net.ctl.side
    far = npus.busy[min(turn + FAR, most)]
    prefetch(npus.npu, far)
    prefetch_line(npus.npu, far, 1)
    prefetch(npus.port, net.out_ptr[far])
    prefetch(npus.port, net.out_ptr[far + 1] - 1)
    head = np.int64(net.inbox[inbox_of(far, side)])
    if head >= 0:
        prefetch(net.record, head)
        prefetch(net.record, head + 2)
    near = npus.busy[min(turn + NEAR, most)]
    npu = npus.npu[near]
    prefetch(npus.heap, 2 * npu.heap)
    rx = npu.last_receiver
    if rx >= 0:
        prefetch(qps.rxqp, rx)
    prefetch_port(net, npus, qps, net.out_ptr[near])
    prefetch_port(net, npus, qps, net.out_ptr[near + 1] - 1)
    following = npus.busy[min(turn + NEXT, most)]
    prefetch_named(net, npus, qps, insts, following)
    prefetch_turn(net, npus, qps, net.out_ptr[following])
    prefetch_turn(net, npus, qps, net.out_ptr[following + 1] - 1)
