"""What will happen to messages at message level: (ps, order, item) triples of all NPUs, taken out first time first.

At one moment events go by kind, in the order below, then by key. NPUs' own clocks and messages come before STEPs, so
all messages that want a link at a moment are known when the first takes it.

Time only goes forward, so events of later moments lie in the lists of a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan,
"Faster algorithms for the shortest path problem", 1990), whose digits have six bits: in the list of the highest digit
in which their time differs from now, and of that digit's value. When now has gone on, the first list holds the next
moment; what it has for later goes into lists of lower digits, a few times an event at most. Where many NPUs do the same
at the same moment, an event comes and goes by a few list operations, however many there are.

The events of the moment at hand are one sorted list. STEPs, also those that join them, wait in a list of their own,
which is sorted when the first has its turn. All else that joins them goes through a small heap, as it is rare: what
takes no time.
"""

import numpy as np

from pdes.core.heap import heap_pop, heap_push
from pdes.core.inputs import Int64, Record, Rows
from pdes.core.jit import inline, leading_zeros, outline, trailing_zeros
from pdes.core.rows.messages import FIRST_EVENT, MERGING, SORTING, WAITING
from pdes.core.state import MessageModels

KIND_SHIFT = 60
KEY_SHIFT = 40
OWN, LEFT, LAUNCH, TAKE, ARRIVE, STEP = range(6)
"""Key and item: of OWN an NPU << KEY_SHIFT | lane (LANES: the begin of the run), and the NPU; of LAUNCH, the first step
of a collective, the instance's key and itself; of the others a message's sender << KEY_SHIFT | how-manieth of the
sender, and the message. LEFT: its last byte has left; in place of the message -1 - instance, whose other sends have
left before. ARRIVE: it is in. TAKE: its receiver acts on it. STEP: it goes on from where it is."""
FIRST_POST = 1 << 32
"""In place of the lane of an OWN event: from here on rows of the trace that post their messages."""

NONE = -1
DIGIT_BITS = 6
LISTS = 1 << DIGIT_BITS


def begin_with(messages: MessageModels, ctl: Record, orders: Int64, items: Int64) -> None:
    """Have events at time 0, in ascending order of `orders`, be the first that are taken."""
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
    """Put an event of a later moment into the list where it belongs."""
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
    """Put a STEP of this moment behind those that wait for the first one's turn."""
    event[e].next_event = NONE
    event[queue.waiting_last].next_event = e
    queue.waiting_last = e


@outline
def rush_in(queue, event, rush, e):
    """Put an event of this moment into the heap."""
    heap_push(rush, 0, queue.rushing, event[e].order, e)
    queue.rushing += 1


@inline
def add_event(ctl, messages, time, kind, key, item):
    """Add an event; there is room for one more than there ever are."""
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
    elif kind == STEP and queue.kind < STEP:
        wait_for_turn(queue, event, e)
    else:
        rush_in(queue, event, messages.rush, e)


@outline
def merged(event, a, b):
    """Two sorted lists as one: its first event."""
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
    """End the list at `e` where its order first falls: the rest."""
    rest = event[e].next_event
    while rest >= 0 and event[e].order <= event[rest].order:
        e = rest
        rest = event[e].next_event
    event[e].next_event = NONE
    return rest


@outline
def sorted_list(event, first):
    """A list by order: its first event. Runs that ascend are merged two by two, until one is left."""
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
    """Go on to the earliest event."""
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
        elif event[e].order >> KIND_SHIFT == STEP:
            wait_for_turn(queue, event, e)
        else:
            event[last].next_event = e
            last = e
        e = following
    event[last].next_event = NONE
    queue.due = sorted_list(event, event[SORTING].next_event)


@inline
def take_event(ctl, messages):
    """Take the first event out; its time, order and item."""
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
