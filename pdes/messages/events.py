"""Events of messages at message level: (ps, order, item) triples of all NPUs, taken in time order.

Simultaneous events are ordered by kind, as below, then by key. NPUs' own events and messages precede STEPs, so all
messages that request a link at a time are known when the first takes it.

Time never decreases, so later events are kept in the lists of a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, "Faster
algorithms for the shortest path problem", 1990) with six-bit digits: an event is in the list of the highest digit in
which its time differs from now, and of that digit's value. When now advances, the first list holds the next time; its
later events move to lists of lower digits, a few times per event at most. Where many NPUs do the same at the same time,
an event costs a few list operations, however many there are.

The events of the current time form one sorted list. STEPs and SOLVEs, also those added at this time, wait in a list of
their own, which is sorted when the first is due. All other events added at the current time (actions that take no time)
are rare and enter a small heap.
"""

import numpy as np

from pdes.core.heap import heap_pop, heap_push
from pdes.core.inputs import Int64, Record, Rows
from pdes.core.jit import inline, leading_zeros, outline, trailing_zeros
from pdes.core.rows.messages import FIRST_EVENT, MERGING, SORTING, WAITING
from pdes.core.state import MessageModels

KIND_SHIFT = 60
KEY_SHIFT = 40
FINISH, OWN, LEFT, LAUNCH, TAKE, ARRIVE, STEP, SOLVE = range(8)
"""Kinds of events, with key and item. OWN: NPU << KEY_SHIFT | lane (LANES: the begin of the run), and the NPU. LAUNCH,
the first step of a collective: the instance's key and the instance. FINISH and SOLVE have neither: flows that are due
end, and others get new rates when everything else at this time has happened (pdes/messages/flows). The others: sender
<< KEY_SHIFT | number of the message within its sender, and the message. LEFT: its last byte has left; the item may be
-1 - instance, whose other sends have left before. ARRIVE: it is in. TAKE: its receiver acts on it. STEP: it moves on
from its node.
"""
FIRST_POST = 1 << 32  # first number in place of the lane of an OWN event that means a trace row that posts its message

NONE = -1
DIGIT_BITS = 6
LISTS = 1 << DIGIT_BITS


def begin_with(messages: MessageModels, ctl: Record, orders: Int64, items: Int64) -> None:
    """Make events at time 0, in ascending order of `orders`, the first events."""
    end = FIRST_EVENT + len(orders)
    rows: Rows = messages.event[FIRST_EVENT:end]
    rows.time_ps = 0
    rows.order = orders
    rows.which = items
    rows.next_event = np.arange(FIRST_EVENT + 1, end + 1)
    if len(orders):
        rows.next_event[-1] = NONE
        messages.queue.due = FIRST_EVENT
    messages.queue.fresh = end
    ctl.events = len(orders)


@inline
def put_in_list(queue, event, e):
    """Put a later event into its list."""
    time = event[e].time_ps
    digit = (63 - leading_zeros(time ^ queue.now_ps)) // DIGIT_BITS
    value = (time >> (DIGIT_BITS * digit)) & (LISTS - 1)
    which = 2 * (digit * LISTS + value)
    last = queue.lists[which + 1]
    event[e].next_event = NONE
    queue.lists[which + 1] = e
    if last < 0:
        queue.lists[which] = e
        queue.full[digit] |= np.int64(1) << value
    else:
        event[last].next_event = e


@inline
def wait_for_turn(queue, event, e):
    """Append a STEP or SOLVE of the current time to those that wait."""
    event[e].next_event = NONE
    event[queue.waiting_last].next_event = e
    queue.waiting_last = e


@outline
def rush_in(queue, event, rush, e):
    """Put an event of the current time into the heap."""
    heap_push(rush, 0, queue.rushing, event[e].order, e)
    queue.rushing += 1


@inline
def add_event(ctl, messages, time, kind, key, item):
    """Add an event; the arrays always have room for one more."""
    queue, event = messages.queue, messages.event
    ctl.events += 1
    e = queue.free
    if e >= 0:
        queue.free = event[e].next_event
    else:
        e = queue.fresh
        queue.fresh = e + 1
    event[e].time_ps = time
    event[e].order = (kind << KIND_SHIFT) | key
    event[e].which = item
    if time > queue.now_ps:
        put_in_list(queue, event, e)
    elif kind >= STEP and queue.kind < STEP:
        wait_for_turn(queue, event, e)
    else:
        rush_in(queue, event, messages.rush, e)


@outline
def merged(event, a, b):
    """Merge two sorted lists and return the first event."""
    last = np.int64(MERGING)
    while a >= 0 and b >= 0:
        if event[a].order <= event[b].order:
            e = a
            a = event[a].next_event
        else:
            e = b
            b = event[b].next_event
        event[last].next_event = e
        last = e
    event[last].next_event = max(a, b)
    return event[MERGING].next_event


@inline
def cut_run(event, e):
    """End the list at `e` where its order first decreases, and return the rest."""
    rest = event[e].next_event
    while rest >= 0 and event[e].order <= event[rest].order:
        e = rest
        rest = event[e].next_event
    event[e].next_event = NONE
    return rest


@outline
def sorted_list(event, first):
    """Sort a list by order and return its first event: merge ascending runs in pairs until one is left."""
    runs = 2
    while runs > 1:
        rest = first
        last = np.int64(SORTING)
        event[last].next_event = NONE
        runs = 0
        while rest >= 0:
            a = rest
            b = cut_run(event, a)
            rest = np.int64(NONE)
            if b >= 0:
                rest = cut_run(event, b)
            event[last].next_event = merged(event, a, b)
            while rest >= 0 and event[last].next_event >= 0:
                last = event[last].next_event
            runs += 1
        first = event[SORTING].next_event
    return first


@outline
def next_moment(messages):
    """Advance to the time of the earliest event."""
    queue, event = messages.queue, messages.event
    digit = 0
    while queue.full[digit] == 0:
        digit += 1
    value = trailing_zeros(queue.full[digit])
    queue.full[digit] &= ~(np.int64(1) << value)
    which = 2 * (digit * LISTS + value)
    first = queue.lists[which]
    queue.lists[which] = NONE
    queue.lists[which + 1] = NONE
    now = event[first].time_ps
    if digit > 0:
        e = event[first].next_event
        while e >= 0:
            now = min(now, event[e].time_ps)
            e = event[e].next_event
    queue.now_ps = now
    queue.kind = 0
    last = np.int64(SORTING)
    e = first
    while e >= 0:
        following = event[e].next_event
        if event[e].time_ps > now:
            put_in_list(queue, event, e)
        elif event[e].order >> KIND_SHIFT >= STEP:
            wait_for_turn(queue, event, e)
        else:
            event[last].next_event = e
            last = e
        e = following
    event[last].next_event = NONE
    queue.due = sorted_list(event, event[SORTING].next_event)


@inline
def take_event(ctl, messages):
    """Take the first event and return its time, order and item."""
    queue, event = messages.queue, messages.event
    ctl.events -= 1
    if queue.due < 0 and queue.rushing == 0:
        if queue.waiting_last == WAITING:
            next_moment(messages)
        if queue.due < 0:
            queue.due = sorted_list(event, event[WAITING].next_event)
            queue.waiting_last = WAITING
    e = queue.due
    if queue.rushing > 0 and (e < 0 or messages.rush[0] < event[e].order):
        e = messages.rush[1]
        heap_pop(messages.rush, 0, queue.rushing)
        queue.rushing -= 1
    else:
        queue.due = event[e].next_event
    order = event[e].order
    queue.kind = max(queue.kind, order >> KIND_SHIFT)
    event[e].next_event = queue.free
    queue.free = e
    return event[e].time_ps, order, event[e].which
