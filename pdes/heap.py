"""A node's own events: a binary heap of (time, slot), at most one entry a slot.

Slots of an NPU: its ports by number, then one for each lane, then the retransmission timer. Equal times go by slot.
"""

from pdes.jit import inline


@inline
def heap_push(times, slots, base, size, time, slot):
    """Add an entry to the heap of `size` entries at `base`."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        t = times[base + parent]
        if t < time or (t == time and slots[base + parent] < slot):
            break
        times[base + i] = t
        slots[base + i] = slots[base + parent]
        i = parent
    times[base + i] = time
    slots[base + i] = slot


@inline
def heap_pop(times, slots, base, size):
    """Take the least entry, at `base`, out of the heap of `size` entries."""
    last = size - 1
    time = times[base + last]
    slot = slots[base + last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        t = times[base + child]
        if child + 1 < last:
            t2 = times[base + child + 1]
            if t2 < t or (t2 == t and slots[base + child + 1] < slots[base + child]):
                child += 1
                t = t2
        if t > time or (t == time and slots[base + child] > slot):
            break
        times[base + i] = t
        slots[base + i] = slots[base + child]
        i = child
    times[base + i] = time
    slots[base + i] = slot
