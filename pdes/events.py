"""What will happen to messages that go whole: one heap of (ps, order, item) triples for all NPUs.

At one moment events go by kind, in the order below, then by key. NPUs' own clocks and messages come before STEPs, so
all messages that want a link at a moment are known when the first takes it.
"""

from pdes.jit import inline
from pdes.state import CTL_EVENTS

EVENT_WORDS = 3
KIND_SHIFT = 60
KEY_SHIFT = 40
OWN, LEFT, LAUNCH, TAKE, ARRIVE, STEP = range(6)
"""Key and item: of OWN an NPU << KEY_SHIFT | lane (LANES: the begin of the run), and the NPU; of LAUNCH, the first step
of a collective, the instance's key and itself; of the others a message's sender << KEY_SHIFT | how-manieth of the
sender, and the message. LEFT: its last byte has left. ARRIVE: it is in. TAKE: its receiver acts on it. STEP: it goes
on from where it is."""


@inline
def precedes(heap, i, j):
    """Whether the entry at word i comes before that at word j."""
    return heap[i] < heap[j] or (heap[i] == heap[j] and heap[i + 1] < heap[j + 1])


@inline
def move(heap, source, target):
    """Copy an entry."""
    heap[target] = heap[source]
    heap[target + 1] = heap[source + 1]
    heap[target + 2] = heap[source + 2]


@inline
def add_event(ctl, heap, time, kind, key, item):
    """Add an event; the heap has room for one more than it ever holds."""
    i = ctl[CTL_EVENTS]
    ctl[CTL_EVENTS] = i + 1
    spare = heap.shape[0] - EVENT_WORDS
    heap[spare] = time
    heap[spare + 1] = (kind << KIND_SHIFT) | key
    heap[spare + 2] = item
    while i > 0:
        parent = (i - 1) >> 1
        if not precedes(heap, spare, parent * EVENT_WORDS):
            break
        move(heap, parent * EVENT_WORDS, i * EVENT_WORDS)
        i = parent
    move(heap, spare, i * EVENT_WORDS)


@inline
def take_event(ctl, heap):
    """Take the first event out; its time, order and item."""
    time, order, item = heap[0], heap[1], heap[2]
    size = ctl[CTL_EVENTS] - 1
    ctl[CTL_EVENTS] = size
    last = size * EVENT_WORDS
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and precedes(heap, (child + 1) * EVENT_WORDS, child * EVENT_WORDS):
            child += 1
        if not precedes(heap, child * EVENT_WORDS, last):
            break
        move(heap, child * EVENT_WORDS, i * EVENT_WORDS)
        i = child
    move(heap, last, i * EVENT_WORDS)
    return time, order, item
