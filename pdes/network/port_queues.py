"""Queues at the ports of a switch that shares its buffer: the choice of the next packet, and pauses.

Priority flow control (IEEE 802.1Qbb): the other end of a link pauses a class of this end's port, or resumes it. A pause
lasts until its resume: real ports refresh pauses before they expire.
"""

import numpy as np

from nadi.pdes.core import algorithms, packet, state
from nadi.pdes.core.jit import call_hook, inline, trailing_zeros
from nadi.pdes.network import lane_credits

TIME_BITS = 40  # bits of the queueing time in word 0 of a packet that waits; the ingress link is above them
TIME_MASK = (1 << TIME_BITS) - 1
DATA_QUEUES = (1 << state.CONTROL) - 1  # bit set of the queues of data
MARKS, MARKS_BY_CLASS, TO_NPU = 1, 2, 4
"""Traits of a port. MARKS: it marks packets by the thresholds of its link; MARKS_BY_CLASS: by those of their data
class; TO_NPU: it leads to an NPU.
"""


@inline
def may_go(net, link):
    """Return whether a packet that no pause holds back waits at the port of a link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
    """
    gate = net.gate[link]
    return gate.mask & ~gate.paused != 0


@inline
def join_ports(net, node, link):
    """Add the port of a link to a switch's list of ports with packets that wait, unless it is there.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the switch in the LP.
        link: Outgoing link of the port.
    """
    gate = net.gate[link]
    if gate.mask == 0:
        pool = net.pool[node]
        gate.place = net.out_ptr[node] + pool.ports
        net.backlog[gate.place] = link
        pool.ports += 1


@inline
def set_next_time(net, node):
    """Set the next event of a switch: when a port that may send falls idle.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the switch in the LP.
    """
    soonest = np.int64(state.INF)
    base = net.out_ptr[node]
    for i in range(base, base + net.pool[node].ports):
        link = np.int64(net.backlog[i])
        if may_go(net, link):
            soonest = min(soonest, net.tx[link].busy_ps)
    net.next_time[node] = soonest


@inline
def enqueue_packet(net, node, link, queue, now_ps, ingress, word1, word2, word3):
    """Append a packet to a queue of a port.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the switch in the LP.
        link: Outgoing link of the port.
        queue: Number of the queue: a data class, CONTROL, FRAMES or TRIMMED.
        now_ps: Current time in ps.
        ingress: Own outgoing link whose reverse carried the packet here.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        word3: Word 3 of the packet, the tag of its message.
    """
    gate = net.gate[link]
    join_ports(net, node, link)
    queues = gate.queues
    head = algorithms.head_of(queues[queue])
    tail = algorithms.tail_of(queues[queue])
    # an empty queue has no block: of thousands of ports, each with five queues, few hold packets at a time
    if gate.mask & (1 << queue) == 0:
        head = tail = algorithms.take_block(net)
        gate.mask |= 1 << queue
    # the ingress port is kept, as leaving the buffer frees its share (`release_buffer`)
    kept = (ingress << TIME_BITS) | (now_ps & TIME_MASK)
    queues[queue] = algorithms.ends(head, algorithms.append(net, tail, kept, word1, word2, word3))
    algorithms.carry(net, algorithms.SET_DOWN, tail)


@inline
def remove_port(net, node, link):
    """Remove the port of a link from a switch's list of ports with packets that wait.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the switch in the LP.
        link: Outgoing link of the port.
    """
    net.pool[node].ports -= 1
    place = net.gate[link].place
    # the last port of the list takes the free place, so the list has no order and removal takes constant time
    moved = np.int64(net.backlog[net.out_ptr[node] + net.pool[node].ports])
    net.backlog[place] = moved
    net.gate[moved].place = place


@inline
def control_waits(mask):
    """Return the control queues in a bit set of queues: 1 control packets, 2 pause frames.

    Args:
        mask: Bit set of queues.
    """
    return (mask >> state.CONTROL) & 3


@inline
def next_queue(net, node, link, ready_queues):
    """Return the queue of a port that sends next.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the switch in the LP.
        link: Outgoing link of the port.
        ready_queues: Bit set of the queues that can send.
    """
    # Pause frames come first, then control packets, then trimmed packets and data, whose class the discipline chooses.
    gate = net.gate[link]
    first = control_waits(ready_queues)
    if first != 0:
        return state.CONTROL + (first >> 1)
    data = ready_queues & DATA_QUEUES
    # trimmed headers first, so that the receiver asks for data early, but at most so many per data packet: with nothing
    # but headers, no data would get through
    if ready_queues >> state.TRIMMED != 0 and (data == 0 or gate.trimmed_turn < net.pool[node].trimmed_a_turn):
        if data != 0:
            gate.trimmed_turn += 1
        return np.int64(state.TRIMMED)
    if net.const.trim != 0:
        gate.trimmed_turn = 0
    if net.hooks.discipline != 0:
        return call_hook(net.hooks.discipline, net.const.address, link, data)
    return np.int64(trailing_zeros(data))  # strict priority of the class with the lowest number


@inline
def paused_link(net, record):
    """Return the own outgoing link that a pause frame concerns.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        record: Record of the pause frame.
    """
    return net.facing[packet.inbox_link(net.record[record].ready_ps)]


@inline
def on_pause(net, record, word2, now_ps):
    """Apply a pause frame, or a frame that returns credits, and return the link that it concerns.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        record: Record of the pause frame.
        word2: Word 2 of the frame (`pause_word`, `lane_credits.frame_of`).
        now_ps: Current time in ps.
    """
    link = paused_link(net, record)
    if net.const.queues != 0:
        lane_credits.on_frame(net, np.int64(link), word2, now_ps)
    else:
        set_pause(net, link, word2, now_ps)
    return link


@inline
def set_pause(net, link, word2, now_ps):
    """Pause a data class of a link, or let it send again, and log it while there is room.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
        word2: Word 2 of the pause frame (`pause_word`).
        now_ps: Current time in ps.
    """
    at = 2 * net.ctl.pauses
    net.ctl.pauses += 1
    if at + 1 < net.pause_log.shape[0]:
        net.pause_log[at] = now_ps
        net.pause_log[at + 1] = packet.logged_pause(packet.number_of(net.tx[link].meta), word2)
    gate = net.gate[link]
    data_class = packet.paused_class(word2)
    bit = 1 << data_class
    was_paused = gate.paused & bit != 0  # a pause that is asked for again goes on, and lasts from its first frame
    if packet.asks_to_pause(word2) == packet.PAUSE:
        gate.paused |= bit
        if not was_paused:
            gate.since_ps[data_class] = now_ps
    elif was_paused:
        gate.paused &= ~bit
        # time of the pause that ends; results add the pauses that last at the end of the run
        gate.paused_ps += now_ps - gate.since_ps[data_class]
