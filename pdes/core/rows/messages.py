"""Rows of the message-level models."""

from pdes.core.rows.row import Kind, Row, word


class Event(Row):
    """What will happen to a message that goes whole (pdes/messages/events.py)."""

    time_ps = word(Kind.TIME, "when")
    order = word(Kind.PACKED, "kind << KIND_SHIFT | key")
    which = word(Kind.MESSAGE, "or what else the kind says")
    next_event = word(Kind.PLACE, "of its list, -1 none")


class WholeMessage(Row, words=8):
    """A row of `msg` of a message that goes whole (pdes/messages/whole.py)."""

    payload_bytes = word(Kind.BYTES, "of the message")
    tag = word(Kind.PACKED, "packet word 3")
    connection = word(Kind.QUEUE_PAIR, "by which it goes")
    ordinal = word(Kind.COUNT, "how many its sender had posted before")
    node = word(Kind.NODE, "where it is")
    ref = word(Kind.PACKED, "as of Message")
