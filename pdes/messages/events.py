"""What will happen to messages at message level: (ps, order, item) triples of all NPUs, taken out first time first.

At one moment events go by kind, in the order below, then by key. NPUs' own clocks and messages come before STEPs, so
all messages that want a link at a moment are known when the first takes it.

Time only goes forward, so events of later moments lie in the lists of a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan,
"Faster algorithms for the shortest path problem", 1990), whose digits have six bits: in the list of the highest digit
in which their time differs from now, and of that digit's value. When now has gone on, the first list holds the next
moment; what it has for later goes into lists of lower digits, a few times an event at most. Where many NPUs do the same
at the same moment, an event comes and goes by a few list operations, however many there are.

The events of the moment at hand are one sorted list. STEPs that join them before the first STEP has its turn wait in a
list of their own, which is sorted and merged then. All else that joins them goes through a small heap, as it is rare:
what takes no time.
"""

import numpy as np

from pdes.core.inputs import Int64, Record, Rows
from pdes.core.jit import inline, leading_zeros, outline, trailing_zeros
from pdes.core.state import Messages

KIND_SHIFT = 60
KEY_SHIFT = 40
OWN, LEFT, LAUNCH, TAKE, ARRIVE, STEP = range(6)
"""Key and item: of OWN an NPU << KEY_SHIFT | lane (LANES: the begin of the run), and the NPU; of LAUNCH, the first step
of a collective, the instance's key and itself; of the others a message's sender << KEY_SHIFT | how-manieth of the
sender, and the message. LEFT: its last byte has left; in place of the message -1 - instance, whose other sends have
left before. ARRIVE: it is in. TAKE: its receiver acts on it. STEP: it goes on from where it is."""

NONE = -1
DIGIT_BITS = 6
LISTS = 1 << DIGIT_BITS


def begin_with(messages: Messages, ctl: Record, orders: Int64, items: Int64) -> None:
    """Have events at time 0, in ascending order of `orders`, be the first that are taken."""
    count = len(orders)
    rows: Rows = messages.event[:count]
    rows.time_ps = 0
    rows.order = orders
    rows.which = items
    rows.next_event = np.append(np.arange(1, count), 0)
    if count:
        rows.next_event[-1] = NONE
        messages.queue.due = 0
    messages.queue.fresh = count
    ctl.events = count


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


@outline
def rush_in(queue, event, rush, e):
    """Put an event of this moment into the heap."""
    i = queue.rushing
    queue.rushing = i + 1
    order = event[e].order
    while i > 0:
        parent = (i - 1) >> 1
        if event[rush[parent]].order < order:
            break
        rush[i] = rush[parent]
        i = parent
    rush[i] = e


@outline
def rush_out(queue, event, rush):
    """Take the first event out of the heap."""
    first = rush[0]
    size = queue.rushing - 1
    queue.rushing = size
    last = rush[size]
    order = event[last].order
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and event[rush[child + 1]].order < event[rush[child]].order:
            child += 1
        if order < event[rush[child]].order:
            break
        rush[i] = rush[child]
        i = child
    rush[i] = last
    return first


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
        event[e].next_event = NONE
        last = queue.waiting_last
        queue.waiting_last = e
        if last < 0:
            queue.waiting = e
        else:
            event[last].next_event = e
    else:
        rush_in(queue, event, messages.rush, e)


@outline
def merged(event, a, b):
    """Two sorted lists as one: its first event."""
    first = np.int64(NONE)
    last = np.int64(NONE)
    while a >= 0 or b >= 0:
        if b < 0 or (a >= 0 and event[a].order <= event[b].order):
            e = a
            a = event[a].next_event
        else:
            e = b
            b = event[b].next_event
        if last < 0:
            first = e
        else:
            event[last].next_event = e
        last = e
        if a < 0 or b < 0:
            event[last].next_event = max(a, b)
            break
    return first


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
    while True:
        rest = first
        first = np.int64(NONE)
        last = np.int64(NONE)
        runs = 0
        while rest >= 0:
            a = rest
            b = cut_run(event, a)
            rest = np.int64(NONE)
            if b >= 0:
                rest = cut_run(event, b)
            a = merged(event, a, b)
            if last < 0:
                first = a
            else:
                event[last].next_event = a
            while rest >= 0 and event[a].next_event >= 0:
                a = event[a].next_event
            last = a
            runs += 1
        if runs <= 1:
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
    due = np.int64(NONE)
    last = np.int64(NONE)
    falls = False
    e = first
    while e >= 0:
        following = event[e].next_event
        if event[e].time_ps > now:
            put_in_list(queue, event, e)
        else:
            if last < 0:
                due = e
            else:
                event[last].next_event = e
                falls = falls or event[last].order > event[e].order
            last = e
        e = following
    event[last].next_event = NONE
    if falls:
        due = sorted_list(event, due)
    queue.due = due


@inline
def take_event(ctl, messages):
    """Take the first event out; its time, order and item."""
    queue, event = messages.queue, messages.event
    ctl.events -= 1
    if queue.due < 0 and queue.waiting < 0 and queue.rushing == 0:
        next_moment(messages)
    e = queue.due
    hurries = queue.rushing > 0 and (e < 0 or event[messages.rush[0]].order < event[e].order)
    if hurries:
        e = messages.rush[0]
    if queue.waiting >= 0 and (e < 0 or event[e].order >> KIND_SHIFT == STEP):
        waiting = sorted_list(event, queue.waiting)
        queue.waiting = NONE
        queue.waiting_last = NONE
        e = merged(event, queue.due, waiting)
        queue.due = e
        hurries = queue.rushing > 0 and event[messages.rush[0]].order < event[e].order
    if hurries:
        e = rush_out(queue, event, messages.rush)
    else:
        queue.due = event[e].next_event
    order = event[e].order
    queue.kind = max(queue.kind, order >> KIND_SHIFT)
    event[e].next_event = queue.free
    queue.free = e
    return event[e].time_ps, order, event[e].which
