"""Rows of the message-level models."""

from pdes.core.rows.row import Row, WordKind, word

MERGING, SORTING, WAITING, FIRST_EVENT = range(4)
"""Rows of `event` that are none, each before the first of a list: of one that is merged, of one that is sorted, and of
the STEPs that wait. So whoever puts an event behind the last of a list need not ask whether it is empty."""


class Event(Row, written_by="build.growth messages.events"):
    """What will happen to a message of a message-level model (pdes/messages/events.py)."""

    time_ps = word(WordKind.TIME, "when")
    order = word(WordKind.PACKED, "kind << KIND_SHIFT | key")
    which = word(WordKind.MESSAGE, "or what else the kind says")
    next_event = word(WordKind.PLACE, "of its list, -1 none")


class WholeMessage(Row, words=8, written_by="messages.fidelity.* messages.whole"):
    """A row of `msg` in a message-level model (pdes/messages/whole.py)."""

    payload_bytes = word(WordKind.BYTES, "of the message")
    tag = word(WordKind.PACKED, "packet word 3")
    connection = word(WordKind.QUEUE_PAIR, "by which it goes")
    ordinal = word(WordKind.COUNT, "how many its sender had posted before")
    node = word(WordKind.NODE, "where it is")
    ref = word(WordKind.PACKED, "as of Message")


class EventQueue(Row, words=1440, written_by="messages.events"):
    """What lists the events of a message-level model are in (pdes/messages/events.py)."""

    now_ps = word(WordKind.TIME, "the moment at hand")
    kind = word(WordKind.CODE, "the latest of this moment so far")
    due = word(WordKind.PLACE, "events of this moment, sorted", begins=-1)
    waiting_last = word(WordKind.PLACE, "last of the STEPs that joined them, WAITING none", begins=WAITING)
    rushing = word(WordKind.COUNT, "how many are in the heap `rush`")
    free = word(WordKind.PLACE, "rows given back", begins=-1)
    fresh = word(WordKind.COUNT, "rows that were ever used", begins=FIRST_EVENT)
    full = word(WordKind.FLAGS, "which lists of a digit are not empty", many=11)
    lists = word(WordKind.PLACE, "first and last event of each list", many=1408, begins=-1)
