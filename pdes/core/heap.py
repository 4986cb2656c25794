"""A node's own events: a binary heap of (time, slot) pairs, at most one entry per slot.

Slots of an NPU: its ports by number, then one per lane, the retransmission timer, and the ports' pacing. Slots order
entries of equal time.
"""

from pdes.core.jit import inline


@inline
def heap_push(heap, base, i, time, slot):
    """Insert an entry at place i (= size) of the heap at pair `base`, or move it up from i, past later entries."""
    while i > 0:
        parent = (i - 1) >> 1
        p = 2 * (base + parent)
        if heap[p] < time or (heap[p] == time and heap[p + 1] < slot):
            break
        heap[2 * (base + i)] = heap[p]
        heap[2 * (base + i) + 1] = heap[p + 1]
        i = parent
    heap[2 * (base + i)] = time
    heap[2 * (base + i) + 1] = slot


@inline
def heap_pop(heap, base, size):
    """Remove the earliest entry, at pair `base`, from the heap of `size` entries."""
    last = size - 1
    time = heap[2 * (base + last)]
    slot = heap[2 * (base + last) + 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        c = 2 * (base + child)
        if child + 1 < last and (heap[c + 2] < heap[c] or (heap[c + 2] == heap[c] and heap[c + 3] < heap[c + 1])):
            child += 1
            c += 2
        if heap[c] > time or (heap[c] == time and heap[c + 1] > slot):
            break
        heap[2 * (base + i)] = heap[c]
        heap[2 * (base + i) + 1] = heap[c + 1]
        i = child
    heap[2 * (base + i)] = time
    heap[2 * (base + i) + 1] = slot


@inline
def heap_hasten(heap, base, size, time, slot):
    """Move the entry of `slot`, which is in the heap, to an earlier time."""
    i = size - 1
    while heap[2 * (base + i) + 1] != slot:
        i -= 1
    heap_push(heap, base, i, time, slot)


@inline
def heap_postpone(heap, base, size, time, slot):
    """Move the entry of `slot`, which is in the heap, to a later time: remove it as the earliest, insert it again."""
    i = size - 1
    while heap[2 * (base + i) + 1] != slot:
        i -= 1
    heap_push(heap, base, i, -1, slot)
    heap_pop(heap, base, size)
    heap_push(heap, base, size - 1, time, slot)
