"""Speed of this machine at the core of event-driven simulation: pop and push on a heap of pending events.

A 4-ary heap of (time, key, slot), ordered by time and then by key, is held at a constant number of entries: each round
pops the smallest entry and pushes it back later (the hold model of Vaucher and Duval, CACM 1975). `nadi bench` reports
packet-hops per second as a multiple of this rate, so that figures of different machines are comparable.
"""

import time

import numpy as np

from nadi.pdes.kernels import inline, kernel, mix, mix2

PENDING = 10_000  # number of entries of the heap
ROUNDS = 2_000_000  # number of pop and push pairs per measurement
SPREAD_PS = 1 << 21  # range in ps of the random time by which an entry is pushed back


@inline
def _push(times, keys, slots, num_entries, time, key, slot):
    """Add an entry to a heap by time of so many entries, one per place of three arrays."""
    i = num_entries
    while i > 0:
        parent = (i - 1) >> 2
        t = times[parent]
        if t < time or (t == time and keys[parent] <= key):
            break
        times[i] = t
        keys[i] = keys[parent]
        slots[i] = slots[parent]
        i = parent
    times[i] = time
    keys[i] = key
    slots[i] = slot


@inline
def _pop(times, keys, slots, num_entries):
    """Remove the smallest entry (place 0) of a heap by time in three arrays: the last entry sinks from the top."""
    last = num_entries - 1
    when = times[last]
    key = keys[last]
    slot = slots[last]
    i = 0
    while True:
        child = 4 * i + 1
        if child >= last:
            break
        smallest = child
        smallest_ps = times[child]
        for other in range(child + 1, min(child + 4, last)):
            t = times[other]
            if t < smallest_ps or (t == smallest_ps and keys[other] < keys[smallest]):
                smallest = other
                smallest_ps = t
        # equal times are ordered by key, as in the engine's heaps, so that the comparison costs the same
        if smallest_ps > when or (smallest_ps == when and keys[smallest] >= key):
            break
        times[i] = smallest_ps
        keys[i] = keys[smallest]
        slots[i] = slots[smallest]
        i = smallest
    times[i] = when
    keys[i] = key
    slots[i] = slot


@kernel
def fill(times, keys, slots):
    """Fill the heap with entries at hashed times (ps)."""
    for slot in range(times.shape[0]):
        _push(times, keys, slots, slot, mix2(slot, 1) & (SPREAD_PS - 1), mix2(slot, 2), slot)


@kernel
def hold(times, keys, slots, rounds):
    """Pop the smallest entry of a heap (three arrays) and push it back later, `rounds` times; return their sum."""
    size = times.shape[0]
    total = 0
    for turn in range(rounds):
        when = times[0]
        slot = slots[0]
        # a result that depends on every round: without it the compiler could leave the loop out
        total = (total + when) & ((1 << 62) - 1)
        _pop(times, keys, slots, size)
        h = mix(slot * 0x9E3779 + turn)
        _push(times, keys, slots, size - 1, when + 1 + (h & (SPREAD_PS - 1)), h, slot)
    return total


def pairs_per_second(pending: int = PENDING, rounds: int = ROUNDS, runs: int = 3) -> float:
    """Return pop and push pairs per second, the median of several runs without compilation."""
    times, keys, slots = (np.zeros(pending, np.int64) for _ in range(3))
    fill(times, keys, slots)
    hold(times, keys, slots, 1)
    rates = []
    for _ in range(runs):
        start_s = time.perf_counter()
        hold(times, keys, slots, rounds)
        rates.append(rounds / (time.perf_counter() - start_s))
    return float(np.median(rates))
