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

from nadi.pdes.core import Int64, Record, Rows
from nadi.pdes.core.algorithms import heap_pop, heap_push
from nadi.pdes.core.jit import inline, leading_zeros, outline, trailing_zeros
from nadi.pdes.core.rows.messages import FIRST_EVENT, MERGING, SORTING, WAITING
from nadi.pdes.core.state import INF, MessageModels

KIND_SHIFT = 60
KEY_SHIFT = 40
FINISH, OWN, LEFT, LAUNCH, TAKE, ARRIVE, STEP, SOLVE = range(8)
"""Kinds of events, with key and item. OWN: NPU << KEY_SHIFT | lane (LANES: the begin of the run), and the NPU. LAUNCH,
the first step of a collective: the instance's key and the instance. FINISH and SOLVE have neither: flows that are due
end, and others get new rates when everything else at this time has happened (rates.py). The others: sender
<< KEY_SHIFT | number of the message within its sender, and the message. LEFT: its last byte has left; the item may be
-1 - instance, whose other sends have left before. ARRIVE: it is in. TAKE: its receiver acts on it. STEP: it moves on
from its node; its key has the sender's number plus 1.
"""
FIRST_DONE = 1 << 33  # first number of an OWN event that means the end of a trace row: its collective is a coupled flow
FIRST_POST = 1 << 32  # first number, likewise in place of the lane, that means a trace row that posts its message

NONE = -1
DIGIT_BITS = 6
LISTS = 1 << DIGIT_BITS


def begin_with(messages: MessageModels, ctl: Record, orders: Int64, items: Int64) -> None:
    """Make events at time 0 the first ones.

    Args:
        messages: State of the message-level models of the LP (`MessageModels`).
        ctl: Scalars of the LP (a row `Scalars`).
        orders: int64[n], ascending orders of the events (Event.order).
        items: int64[n], their items (Event.which), as their kinds define.
    """
    end = FIRST_EVENT + len(orders)
    rows: Rows = messages.event[FIRST_EVENT:end]
    rows.time_ps = 0
    rows.order = orders
    rows.which = items
    # one ascending list, already sorted: event i is followed by i + 1
    rows.next_event = np.arange(FIRST_EVENT + 1, end + 1)
    if len(orders):
        rows.next_event[-1] = NONE
        messages.queue.due = FIRST_EVENT
    messages.queue.fresh = end
    ctl.events = len(orders)


@inline
def put_in_list(queue, events, event):
    """Put an event, which is later than now, into its list of the radix heap.

    Args:
        queue: Lists of the radix heap (a row `EventQueue`).
        events: Rows of `Event`.
        event: Number of the event.
    """
    time_ps = events[event].time_ps
    # the highest digit in which the time differs from now; lower ones matter once now has reached it
    # Example: now = 64, time = 130: 64 ^ 130 = 194 = 0b11000010, whose highest bit is 7, so the digit is 7 // 6 = 1 and
    # its value 130 >> 6 = 2. An event at 70 differs in digit 0 alone: list 6 of that digit.
    digit = (63 - leading_zeros(time_ps ^ queue.now_ps)) // DIGIT_BITS
    value = (time_ps >> (DIGIT_BITS * digit)) & (LISTS - 1)
    which = 2 * (digit * LISTS + value)
    last = queue.lists[which + 1]
    # at the end: events that are added in order stay in order, and sorting them takes one pass
    events[event].next_event = NONE
    queue.lists[which + 1] = event
    if last < 0:
        queue.lists[which] = event
        queue.full[digit] |= np.int64(1) << value
    else:
        events[last].next_event = event


@inline
def wait_for_turn(queue, events, event):
    """Append a STEP or SOLVE of the current time to the events that wait for their turn.

    Args:
        queue: Lists of the radix heap (a row `EventQueue`).
        events: Rows of `Event`.
        event: Number of the event.
    """
    events[event].next_event = NONE
    events[queue.waiting_last].next_event = event
    queue.waiting_last = event


@outline
def push_same_time(queue, events, same_time_heap, event):
    """Put an event of the current time into the heap of such events.

    Args:
        queue: Lists of the radix heap (a row `EventQueue`).
        events: Rows of `Event`.
        same_time_heap: The heap of (order, event) pairs (`MessageModels.same_time`).
        event: Number of the event.
    """
    heap_push(same_time_heap, 0, queue.same_time_size, events[event].order, event)
    queue.same_time_size += 1


@inline
def add_event(ctl, messages, time_ps, kind, key, which):
    """Add an event; the arrays have room for one more.

    Args:
        ctl: Scalars of the LP (a row `Scalars`).
        messages: State of the message-level models of the LP (`MessageModels`).
        time_ps: Time of the event in ps.
        kind: Kind of the event: FINISH and so on.
        key: Key that orders events of one time and kind.
        which: Item of the event: a message, or another subject that the kind defines.
    """
    queue, events = messages.queue, messages.event
    ctl.events += 1
    # rows that were used before come first: they are in the cache, and the table grows only as far as it must
    event = queue.free
    if event >= 0:
        queue.free = events[event].next_event
    else:
        event = queue.fresh
        queue.fresh = event + 1
    events[event].time_ps = time_ps
    events[event].order = (kind << KIND_SHIFT) | key
    events[event].which = which
    if time_ps > queue.now_ps:
        put_in_list(queue, events, event)
    # it waits until all earlier kinds of this time have happened
    elif kind >= STEP and queue.kind < STEP:
        wait_for_turn(queue, events, event)
    else:
        push_same_time(queue, events, messages.same_time, event)


@outline
def merged(events, first_a, first_b):
    """Merge two sorted lists of events, and return the first event of the merged list.

    Args:
        events: Rows of `Event`.
        first_a: Number of the first event of one list, negative = empty.
        first_b: Number of the first event of the other list, negative = empty.
    """
    last = np.int64(MERGING)
    while first_a >= 0 and first_b >= 0:
        # <=: of equal orders, which come from the earlier run, the first stays first
        if events[first_a].order <= events[first_b].order:
            event = first_a
            first_a = events[first_a].next_event
        else:
            event = first_b
            first_b = events[first_b].next_event
        events[last].next_event = event
        last = event
    # one list is used up (-1), and the other one follows as it is
    events[last].next_event = max(first_a, first_b)
    return events[MERGING].next_event


@inline
def cut_run(events, event):
    """End a list at the event from which its order decreases; return the first event of the rest.

    Args:
        events: Rows of `Event`.
        event: Number of the first event of the list.
    """
    rest = events[event].next_event
    while rest >= 0 and events[event].order <= events[rest].order:
        event = rest
        rest = events[event].next_event
    events[event].next_event = NONE
    return rest


@outline
def sorted_list(events, first_event):
    """Sort a list of events by order and return its first: merge ascending runs in pairs until one is left.

    Args:
        events: Rows of `Event`.
        first_event: Number of the first event of the list.
    """
    runs = 2
    # natural merge sort: events that come in order need one pass
    while runs > 1:
        rest = first_event
        last = np.int64(SORTING)
        events[last].next_event = NONE
        runs = 0
        while rest >= 0:
            a = rest
            b = cut_run(events, a)
            rest = np.int64(NONE)
            if b >= 0:
                rest = cut_run(events, b)
            events[last].next_event = merged(events, a, b)
            # `last` goes to the end of the list merged so far, behind which the next pair of runs is put
            while rest >= 0 and events[last].next_event >= 0:
                last = events[last].next_event
            runs += 1
        first_event = events[SORTING].next_event
    return first_event


@outline
def next_moment(messages):
    """Advance to the time of the earliest event, and sort the events of that time.

    Args:
        messages: State of the message-level models of the LP (`MessageModels`).
    """
    queue, events = messages.queue, messages.event
    # radix heap: the first list of the lowest digit that has any holds the earliest events
    digit = 0
    while queue.full[digit] == 0:
        digit += 1
    value = trailing_zeros(queue.full[digit])
    queue.full[digit] &= ~(np.int64(1) << value)
    which = 2 * (digit * LISTS + value)
    first = queue.lists[which]
    # the whole list is taken: what is later than the new time goes to lists of lower digits below
    queue.lists[which] = NONE
    queue.lists[which + 1] = NONE
    now_ps = events[first].time_ps
    # only a list of digit 0 has events of one time; in another one, find the earliest
    if digit > 0:
        event = events[first].next_event
        while event >= 0:
            now_ps = min(now_ps, events[event].time_ps)
            event = events[event].next_event
    queue.now_ps = now_ps
    queue.kind = 0
    last = np.int64(SORTING)
    event = first
    while event >= 0:
        following = events[event].next_event
        # later events move to lists of lower digits, as these are relative to the new time
        if events[event].time_ps > now_ps:
            put_in_list(queue, events, event)
        elif events[event].order >> KIND_SHIFT >= STEP:
            wait_for_turn(queue, events, event)
        else:
            events[last].next_event = event
            last = event
        event = following
    events[last].next_event = NONE
    queue.due = sorted_list(events, events[SORTING].next_event)


@inline
def next_event_ps(ctl, messages):
    """Return the time of the earliest event in ps, INF without one.

    Args:
        ctl: Scalars of the LP (a row `Scalars`).
        messages: State of the message-level models of the LP (`MessageModels`).
    """
    queue, events = messages.queue, messages.event
    if ctl.events == 0:
        return np.int64(INF)
    # something is left at the current time, which comes before all lists
    if queue.due >= 0 or queue.same_time_size > 0 or queue.waiting_last != WAITING:
        return queue.now_ps
    digit = 0
    while queue.full[digit] == 0:
        digit += 1
    event = queue.lists[2 * (digit * LISTS + trailing_zeros(queue.full[digit]))]
    time_ps = events[event].time_ps
    # a list is in no order, but all of its times are before those of lists behind it
    while event >= 0:
        time_ps = min(time_ps, events[event].time_ps)
        event = events[event].next_event
    return time_ps


@inline
def take_event(ctl, messages):
    """Take the first event out of the queue and return its time in ps, order and item.

    Args:
        ctl: Scalars of the LP (a row `Scalars`).
        messages: State of the message-level models of the LP (`MessageModels`).
    """
    queue, events = messages.queue, messages.event
    ctl.events -= 1
    # events of kinds from STEP on wait until all others of their time have happened
    if queue.due < 0 and queue.same_time_size == 0:
        # nothing waits at this time either: time goes on
        if queue.waiting_last == WAITING:
            next_moment(messages)
        if queue.due < 0:
            queue.due = sorted_list(events, events[WAITING].next_event)
            queue.waiting_last = WAITING
    event = queue.due
    if queue.same_time_size > 0 and (event < 0 or messages.same_time[0] < events[event].order):
        event = messages.same_time[1]
        heap_pop(messages.same_time, 0, queue.same_time_size)
        queue.same_time_size -= 1
    else:
        queue.due = events[event].next_event
    order = events[event].order
    # kinds of a time never decrease: a STEP added after the first STEP was taken can no longer wait, but rushes
    queue.kind = max(queue.kind, order >> KIND_SHIFT)
    events[event].next_event = queue.free
    queue.free = event
    return events[event].time_ps, order, events[event].which
