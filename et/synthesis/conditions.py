"""What a stream is asked to be, as numbers that a model is told.

Asked for are, beside the layout and the length, what is in the passes of each kind (et.synthesis.schedule) and what the
classes mean. So how much each role computes and sends between two messages is as is wanted; a model says in which order
and what waits for what.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from et.synthesis.classes import Table, valued
from et.synthesis.layout import SetLayout
from et.synthesis.parts import Parts, parts_bits
from et.synthesis.schedule import Pass, messages_of, passes_of
from et.synthesis.streams import RECEIVE, Operation, Stream, is_time

CONDITIONS = 10
BITS_EACH = 16
"""What it costs to say one number, when models are compared with one that is not told them."""
MICROS = "micros"
_SLOTS_TOLD = ("own, inner 0", "own, outer 0", "own, whole 0", "own, inner 1")


class Wanted(NamedTuple):
    """What a stream is to be.

    Attributes:
        layout: roles, ranks and groups.
        events: how many, about.
        messages: how many there are, by sender and receiver.
        passes: what is in the passes of each kind, in their order.
        table: what the classes mean.
        totals: microseconds of each role's nodes, by "micros" and the role; bytes of all events of a kind, by the kind
            and, of collectives, the slot of their groups.
    """

    layout: SetLayout
    events: int
    messages: Mapping[tuple[int, int], int]
    passes: Mapping[Pass, Sequence[Parts]]
    table: Table
    totals: Mapping[tuple[str, int | str], float]

    @property
    def sends(self) -> int:
        """Messages of all roles."""
        return sum(self.messages.values())

    @property
    def value_bits(self) -> int:
        """What it costs to say what the classes mean, and the totals: nobody makes sizes and times without."""
        return BITS_EACH * (sum(map(len, self.table.values())) + len(self.totals))

    @property
    def told_bits(self) -> float:
        """What it costs to say all else that a model is told."""
        return BITS_EACH * (CONDITIONS + len(self.messages)) + parts_bits(list(chain(*self.passes.values())))

    @property
    def period(self) -> float:
        """Events between two messages of a role, about."""
        return self.events / (2 * self.sends + 1)

    def conditions(self) -> list[float]:
        """CONDITIONS numbers about as large as 1; sizes and times are not among them."""
        layout = self.layout
        own = {each.slot: each for each in layout.families if len(each.roles) == 1}
        sizes = [math.log2(own[slot].size) / 3 if slot in own else -0.5 for slot in _SLOTS_TOLD]
        of_all = [math.log2(self.events) / 10, math.log2(self.sends + 1) / 5, math.log2(self.period) / 5]
        of_all += [len(layout.families) / 20]
        return [*of_all, layout.roles / 4, math.log2(layout.width) / 3, *sizes]


def wanted_of(stream: Stream) -> Wanted:
    """What a stream is."""
    totals: dict[tuple[str, int | str], float] = defaultdict(float)
    for event in stream.events:
        totals[total_of(event.role, event.operation)] += event.value if event.operation.kind != RECEIVE else 0
    classes = valued(stream)
    passes = passes_of(stream, classes)
    return Wanted(stream.layout, len(stream.events), messages_of(stream), passes, classes.table, dict(totals))


def total_of(role: int, operation: Operation) -> tuple[str, int | str]:
    """Which of the totals an event counts to."""
    return (MICROS, role) if is_time(operation) else (operation.kind, operation.slot)
