"""Queues at the ports of a switch that shares its buffer, and the choice of the next packet."""

import numpy as np

from pdes.core.fifo import SET_DOWN, append, carry, ends, head_of, tail_of, take_block
from pdes.core.jit import call_hook, inline
from pdes.core.state import CONTROL, TRIMMED

TRIMMED_A_TURN = 10  # trimmed packets that are sent per data packet (NDP: Handley et al., SIGCOMM 2017, section 3.1)
TIME_BITS = 40  # bits of the queueing time in word 0 of a packet that waits; the ingress link is above them
TIME_MASK = (1 << TIME_BITS) - 1


@inline
def may_go(net, link):
    """Return whether a packet waits at the port that no pause holds back."""
    gate = net.gate[link]
    return gate.mask & ~gate.paused != 0


@inline
def line_up(net, node, link, queue, now, way_in, w1, w2, w3):
    """Append a packet to a queue of the port. way_in: own outgoing link whose reverse carried it here."""
    gate = net.gate[link]
    if gate.mask == 0:
        pool = net.pool[node]
        gate.place = net.out_ptr[node] + pool.ports
        net.backlog[gate.place] = link
        pool.ports += 1
    queues = gate.queues
    head = head_of(queues[queue])
    tail = tail_of(queues[queue])
    if gate.mask & (1 << queue) == 0:
        head = tail = take_block(net)
        gate.mask |= 1 << queue
    queues[queue] = ends(head, append(net, tail, (way_in << TIME_BITS) | (now & TIME_MASK), w1, w2, w3))
    carry(net, SET_DOWN, tail)


@inline
def fall_out(net, node, link):
    """Remove the port from the list of ports with packets that wait."""
    net.pool[node].ports -= 1
    place = net.gate[link].place
    moved = np.int64(net.backlog[net.out_ptr[node] + net.pool[node].ports])
    net.backlog[place] = moved
    net.gate[moved].place = place


@inline
def control_waits(mask):
    """Return the control queues in a bit set of queues: 1 control packets, 2 pause frames."""
    return (mask >> CONTROL) & 3


@inline
def next_queue(net, link, ready):
    """Return the queue of a port that sends next among those in the bit set `ready`.

    Pause frames come first, then control packets, then trimmed packets and data, whose class the discipline chooses.
    """
    gate = net.gate[link]
    first = control_waits(ready)
    if first != 0:
        return CONTROL + (first >> 1)
    data = ready & 3
    if ready >> TRIMMED != 0 and (data == 0 or gate.trimmed_turn < TRIMMED_A_TURN):
        if data != 0:
            gate.trimmed_turn += 1
        return np.int64(TRIMMED)
    if net.const.trim != 0:
        gate.trimmed_turn = 0
    if net.hooks.discipline != 0:
        return call_hook(net.hooks.discipline, net.const.address, link, data)
    return np.int64(ready & 1 == 0)  # strict priority of class 0
