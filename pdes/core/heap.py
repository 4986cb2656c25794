"""A node's own events: a binary heap of (time, slot) pairs, at most one entry per slot.

Slots of an NPU: its ports by number, then one per lane, the retransmission timer, the ports' pacing, the agenda,
actions on messages, and the begin of its job (pdes/npu/agenda.py). Slots order entries of equal time.
"""

from nadi.pdes.core.jit import inline


@inline
def heap_push(heap, base, place, time_ps, slot):
    """Insert an entry, or move the one at `place` towards the front.

    Args:
        heap: int64, pairs (ps, slot); several heaps share the array.
        base: Pair at which the heap begins.
        place: Place of the entry in the heap; the size of the heap for a new entry.
        time_ps: Time of the entry in ps.
        slot: Number of the entry's port, lane, timer or event; it orders entries of equal times.
    """
    # sift up: parents move down until one is not later
    while place > 0:
        parent = (place - 1) >> 1
        p = 2 * (base + parent)
        # ties by slot, so that the order is unique
        if heap[p] < time_ps or (heap[p] == time_ps and heap[p + 1] < slot):
            break
        heap[2 * (base + place)] = heap[p]
        heap[2 * (base + place) + 1] = heap[p + 1]
        place = parent
    heap[2 * (base + place)] = time_ps
    heap[2 * (base + place) + 1] = slot


@inline
def heap_pop(heap, base, size):
    """Remove the earliest of the `size` entries of the heap that begins at pair `base` of the array `heap`."""
    last = size - 1
    time = heap[2 * (base + last)]
    slot = heap[2 * (base + last) + 1]
    # the last entry takes the first place, and sinks from there
    i = 0
    # sift down: the earlier child moves up until both are later than the entry
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
def heap_decrease_key(heap, base, size, time_ps, slot):
    """Move the entry of `slot` to an earlier time, in the heap of `size` entries that begins at pair `base`.

    Args:
        heap: int64, pairs (ps, slot); several heaps share the array.
        base: Pair at which the heap begins.
        size: Number of entries of the heap.
        time_ps: Time of the entry in ps.
        slot: Number of the entry's port, lane, timer or event; it orders entries of equal times.
    """
    # a linear search: an NPU has few events at a time
    i = size - 1
    while heap[2 * (base + i) + 1] != slot:
        i -= 1
    heap_push(heap, base, i, time_ps, slot)


@inline
def heap_increase_key(heap, base, size, time_ps, slot):
    """Move the entry of `slot` to a later time, in the heap of `size` entries at pair `base`: remove, insert again.

    Args:
        heap: int64, pairs (ps, slot); several heaps share the array.
        base: Pair at which the heap begins.
        size: Number of entries of the heap.
        time_ps: Time of the entry in ps.
        slot: Number of the entry's port, lane, timer or event; it orders entries of equal times.
    """
    i = size - 1
    while heap[2 * (base + i) + 1] != slot:
        i -= 1
    # time -1 is before all others, so the entry comes to the top, from where it is removed
    heap_push(heap, base, i, -1, slot)
    heap_pop(heap, base, size)
    heap_push(heap, base, size - 1, time_ps, slot)
