"""Events of message-level models come out as a heap of triples would give them."""

import heapq
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nadi.pdes.core import state as s
from nadi.pdes.core.jit import Directory
from nadi.pdes.core.memory import row_of, rows_of
from nadi.pdes.core.rows.messages import Event, EventQueue
from nadi.pdes.core.rows.run import Scalars
from nadi.pdes.messages.events import KIND_SHIFT, LEFT, STEP, begin_with
from tests.budgets import bounded
from tests.pdes import kernels

ROOM = 400
LATER = st.sampled_from([0, 0, 1, 62, 63, 64, 65, 4095, 4096, 2**30, 2**30 + 1, 2**47])
ADDED = st.tuples(LATER, st.sampled_from([LEFT, LEFT + 3, STEP, STEP]), st.integers(0, 9))


class Queue:
    """Events under test, beside a heap of (ps, order, item)."""

    def __init__(self, first):
        self.messages = s.MessageModels(
            event=rows_of(Event, ROOM),
            queue=row_of(EventQueue),
            same_time=np.zeros(2 * ROOM, np.int64),
            receive_ptr=np.zeros(1, np.int64),
            reduces=np.zeros(1, np.int8),
            memory_psb=np.zeros(1),
        )
        self.ctl = row_of(Scalars)
        self.directory = Directory(self.messages)
        begin_with(self.messages, self.ctl, np.arange(first), np.arange(first))
        self.model = [(0, i, i) for i in range(first)]
        self.added = {i: (0, i) for i in range(first)}
        self.items = itertools.count(first)
        self.now = 0

    def add(self, time, kind, key):
        item = next(self.items)
        self.added[item] = time, kind << KIND_SHIFT | key
        heapq.heappush(self.model, (*self.added[item], item))
        kernels.event_add(self.ctl, self.directory.address, time, kind, key, item)

    def take(self):
        found = kernels.event_take(self.ctl, self.directory.address)
        expected = heapq.heappop(self.model)
        assert found[:2] == self.added.pop(found[2]) == expected[:2]
        assert self.ctl.events == len(self.model)
        self.now = expected[0]


@bounded(150)
@given(st.integers(0, 5), st.lists(st.one_of(st.integers(1, 6), st.lists(ADDED, max_size=9)), max_size=40))
def test_events_are_taken_as_from_a_heap(first, operations):
    queue = Queue(first)
    for what in operations:
        if isinstance(what, int):
            for _ in range(min(what, len(queue.model))):
                queue.take()
        else:
            for later, kind, key in what:
                queue.add(queue.now + later, kind, key)
    while queue.model:
        queue.take()


def test_many_at_one_moment_in_any_order():
    queue = Queue(1)
    rng = np.random.default_rng(3)
    for key in rng.permutation(150).tolist():
        queue.add(77, STEP, key)
    queue.take()
    queue.take()
    for key in rng.permutation(np.arange(150, 250)).tolist():
        queue.add(77, STEP, key)
        queue.add(78, LEFT, key)
    while queue.model:
        queue.take()
