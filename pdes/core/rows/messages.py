"""Rows of the message-level models."""

from nadi.pdes.core.rows.row import Row, word

MERGING, SORTING, WAITING, FIRST_EVENT = range(4)
"""Rows of `event` that hold no event but precede the first of a list: one being merged, one being sorted, and the
STEPs and SOLVEs that wait. With them, appending to a list needs no test whether it is empty.
"""


class Event(Row):
    """A future event of a message in a message-level model (pdes/messages/events.py)."""

    # 32 bytes, two to a cache line; events stay where they are: sorting a list changes nothing but next_event
    time_ps = word("time", "time of the event")
    order = word("packed", "kind << KIND_SHIFT | key")
    which = word("message", "message, or another subject that the kind defines")
    next_event = word("place", "next event of its list, -1 none")


class WholeMessage(Row, words=8):
    """A row of `msg` in a message-level model (pdes/messages/whole.py)."""

    # Life of a whole message: posted (`post_message`), it waits at `node` for a STEP; each STEP moves it over one link,
    # or to its end at once, as the fidelity defines; LEFT tells its sender that the last byte is gone, ARRIVE and TAKE
    # its receiver, which frees the row. Events name the message; only a flow has a list of those that it has not sent
    # (`following`).
    payload_bytes = word("bytes", "payload of the message")
    tag = word("packed", "packet word 3")
    connection = word("queue_pair", "connection that carries it")
    ordinal = word("count", "number of messages that its sender had posted before")
    node = word("node", "its current node")
    ref = word("packed", "as of Message")
    following = word("message", "flows: the connection's next message")


class EventQueue(Row, words=1440):
    """The lists that hold the events of a message-level model (pdes/messages/events.py)."""

    now_ps = word("time", "current time")
    kind = word("code", "latest kind of event at the current time so far")
    due = word("place", "sorted events of the current time", begins=-1)
    waiting_last = word(
        "place", "last of the STEPs and SOLVEs that joined them, WAITING if there is none", begins=WAITING
    )
    same_time_size = word("count", "number of entries of the heap `same_time`")
    free = word("place", "list of free rows", begins=-1)
    fresh = word("count", "number of rows that were ever used", begins=FIRST_EVENT)
    # 11 digits of 6 bits are 66 bits, more than the 63 of a time; 11 x 64 lists x 2 ends = 1408 words
    full = word("flags", "non-empty lists of a digit", many=11)
    lists = word("place", "first and last event of each list", many=1408, begins=-1)
