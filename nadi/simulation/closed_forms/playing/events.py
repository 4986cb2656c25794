"""Events of the idle network: their kinds and order, and the heap that holds them."""

import numpy as np

from pdes.kernels import copy_row, inline, mix3, outline

# Kinds of events (`what` & KINDS_MASK); they concern the lane, port or queue pair `what` >> KIND_BITS. At one moment,
# events of members come first, in this order and then in order of creation; events of packets (FORWARDS and later)
# follow in the order of a hash. SENDS concerns a step and ACTS a lane; at one moment both go in order of creation.
LEAVES, WAKES, MAY_SEND, POSTS, SENDS, ACTS, FORWARDS, FORWARDS_ACK, COMES, IS_ACKNOWLEDGED = range(10)
KIND_BITS, KINDS_MASK, ORDER_SHIFT = 4, 15, 56
# At message level, messages that arrive come before those that need a link; both go by sender, then order of creation.
WAITS_BIT, SENDER_SHIFT, MADE_MASK = 55, 30, (1 << 30) - 1


@outline
def push(g, time_ps, order, what, kind, to):
    """Push an event; `order` sorts events of the same moment."""
    i = g.ctl.events
    g.ctl.events = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        before_ps = g.time_ps[parent]
        if before_ps < time_ps or (before_ps == time_ps and g.event[parent].order < order):
            break
        move(g, i, parent)
        i = parent
    g.time_ps[i] = time_ps
    happening = g.event[i]
    happening.order = order
    happening.what = what
    happening.kind = kind
    happening.to = to


@inline
def push_own(g, time_ps, what, which):
    """Push an event of a member."""
    made = g.ctl.made
    g.ctl.made = made + 1
    push(g, time_ps, min(what, SENDS) << ORDER_SHIFT | made, which << KIND_BITS | what, 0, 0)


@inline
def push_packet(g, time_ps, link, comes_ps, what, pair, kind, to):
    """Push an event of a packet.

    `link` is the link that brings it to a node at `comes_ps`; at message level it is the sender.
    """
    order = np.int64(FORWARDS << ORDER_SHIFT)
    if g.ctl.seed >= 0:
        order |= mix3(g.ctl.seed, link, np.int64(comes_ps))
    else:
        order |= (np.int64(what <= FORWARDS_ACK) << WAITS_BIT) | link << SENDER_SHIFT | g.ctl.made & MADE_MASK
        g.ctl.made += 1
    push(g, time_ps, order, pair << KIND_BITS | what, kind, to)


@inline
def move(g, i, other):
    """Copy entry `other` of the heap to place i."""
    g.time_ps[i] = g.time_ps[other]
    copy_row(g.event, i, g.event, other)


@inline
def is_before(g, a, b):
    """Return whether entry a of the heap comes before entry b."""
    at = g.time_ps[a]
    bt = g.time_ps[b]
    return at < bt or (at == bt and g.event[a].order < g.event[b].order)


@outline
def pop(g):
    """Remove the first entry, which the caller has read."""
    last = g.ctl.events - 1
    g.ctl.events = last
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        if child + 1 < last and is_before(g, child + 1, child):
            child += 1
        if not is_before(g, child, last):
            break
        move(g, i, child)
        i = child
    move(g, i, last)
