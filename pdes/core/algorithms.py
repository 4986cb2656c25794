"""Algorithms of kernels: hashes and hash maps, chains of packet records, heaps of events and of numbers with keys."""

import numpy as np

from nadi.pdes.core.jit import call_hook, inline, kernel, prefetch
from nadi.pdes.core.packet import bits
from nadi.pdes.core.state import BLOCK_RECORDS, BLOCK_SHIFT, INF

# Deterministic randomness: hashes of keys, identical on any number of ranks; and hash maps.
#
# Maps have open addressing and linear probing: int64 keys and values, power-of-two size, at most half full. Rows that
# have a word `key` may form the map themselves, which costs one cache line per access in place of three. All products
# stay below 2^63 (multipliers below 2^31, operands masked to 32 bits), so that compiled code and plain
# Python agree. The additive constants only make the inputs of `mix` differ; any odd words would do.

MASK32 = 0xFFFFFFFF


@inline
def mix(x):
    """Return a 32-bit avalanche hash of the low 32 bits of x (two multiply-xorshift rounds)."""
    x = x & MASK32
    x = x ^ (x >> 16)
    # 0x7FEB352D is of lowbias32, 0x5BD1E995 of MurmurHash2: both are below 2^31, as products must stay below 2^63
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x5BD1E995) & MASK32
    return x ^ (x >> 16)


@inline
def mix2(a, b):
    """Return a 32-bit hash of two integers of up to 63 bits each.

    Args:
        a: Integer of up to 63 bits.
        b: Integer of up to 63 bits.
    """
    # both halves of each number go in, with constants and factors that make the order of the arguments matter
    h = mix(a) ^ mix((a >> 32) + 0x165667B1)
    return mix(h * 5 + mix(b) + mix((b >> 32) + 0x27D4EB2F) * 3)


@inline
def mix3(a, b, c):
    """Return a 32-bit hash of three integers of up to 63 bits each.

    Args:
        a: Integer of up to 63 bits.
        b: Integer of up to 63 bits.
        c: Integer of up to 63 bits.
    """
    return mix2(mix2(a, b) * 7 + 0x3C6EF372, c)


FREE = -1  # key of a free place


@inline
def home(table, key):
    """Return the place of the hash table where the search for `key` begins: even, as two rows share a cache line."""
    return mix2(key, 0x51ED27) & (table.shape[0] - 2)


@inline
def find(keys, key):
    """Return the place of `key` in the array `keys` of a map, or the free place where it belongs."""
    mask = keys.shape[0] - 1
    at = np.int64(home(keys, key))
    # at most half of the places are taken, so a free one ends the search
    while keys[at] != FREE and keys[at] != key:
        at = (at + 1) & mask
    return at


@inline
def find_row(rows, key):
    """Return the place of the row whose word `key` is `key`, or the free place where it belongs.

    Args:
        rows: Rows with a word `key`, a power of two long; FREE marks a free row.
        key: Key of the row that is sought.
    """
    mask = rows.shape[0] - 1
    at = np.int64(home(rows, key))
    while rows[at].key != FREE and rows[at].key != key:
        at = (at + 1) & mask
    return at


@inline
def remove(keys, values, key):
    """Remove `key` from the map of parallel arrays, and close the gap (Knuth, volume 3, algorithm R).

    Args:
        keys: int64[power of two], keys of the map, FREE at free places.
        values: int64, values of the map at the places of their keys.
        key: Key to remove.
    """
    mask = keys.shape[0] - 1
    gap = find(keys, key)
    if keys[gap] != FREE:
        at = gap
        while True:
            at = (at + 1) & mask
            if keys[at] == FREE:
                break
            # the entry at `at` may move into the gap unless its home lies behind the gap, counted cyclically: a search
            # for it would begin behind the place where it then was
            if ((at - home(keys, keys[at])) & mask) >= ((at - gap) & mask):
                keys[gap] = keys[at]
                values[gap] = values[at]
                gap = at
        keys[gap] = FREE


@kernel
def rehash(keys, values, new_keys, new_values):
    """Copy all pairs of a map into a larger, empty one (new_keys, new_values).

    Args:
        keys: int64[power of two], keys of the map, FREE at free places.
        values: int64, values of the map at the places of their keys.
        new_keys: Keys of the larger map, all FREE.
        new_values: Values of the larger map.
    """
    for i in range(keys.shape[0]):
        if keys[i] != FREE:
            at = find(new_keys, keys[i])
            new_keys[at] = keys[i]
            new_values[at] = values[i]


# Queues of kernels: chains of packet records, and binary heaps of events and of numbers with keys.

# Queues of packet records in blocks of eight, all from one pool.
#
# A queue is a chain of blocks. Its tail is the next free record, whose time is INF, which marks the end for the reader
# (`push`). No mark is needed where the reader knows the tail (`append`): in inboxes, which are read completely, and in
# queues whose head and tail are packed into one word (`ends`). Blocks return to the pool as they empty and are reused
# last in, first out, so the memory in use is that of the packets in flight. An empty queue holds no block: its head
# and tail are NONE.

NONE = -1
head_of = bits(0, 32)  # first record of a queue by its word
tail_of = bits(32)  # place behind its last


@inline
def prefetch_block(net, block):
    """Prefetch the records of block number `block`.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        block: Number of the block.
    """
    for record in range(0, BLOCK_RECORDS, 2):  # two to a cache line
        prefetch(net.record, block * BLOCK_RECORDS + record, 0)


@inline
def prefetch_following(net, block, last_block):
    """Prefetch a block of a queue; return the queue's next block, NONE behind its last.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        block: Number of the block.
        last_block: Number of the queue's last block.
    """
    prefetch_block(net, block)
    following = np.int64(NONE)
    if block != last_block:
        following = np.int64(net.block_next[block])
        prefetch(net.block_next, following, 0)
    return following


@inline
def take_block(net):
    """Take a block from the pool, which must have one, and return its first record's number.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    free = net.ctl.free_blocks - 1
    net.ctl.free_blocks = free
    return np.int64(net.block_free[free]) << BLOCK_SHIFT


@inline
def free_block(net, block):
    """Return block number `block` to the pool of free blocks.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        block: Number of the block.
    """
    net.block_free[net.ctl.free_blocks] = block
    net.ctl.free_blocks += 1


SET_DOWN, TAKE_UP, PUT_OUT, CARRY_IN = range(4)  # operations of the hook `telemetry` on the packet in hand


@inline
def carry(net, operation, place):
    """Move telemetry, if packets carry it, between the packet in hand and `place` (pdes/network/telemetry.py).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        operation: Operation of the telemetry hook (pdes/network/telemetry.py).
        place: Record to which the telemetry goes, or from which it comes.
    """
    if net.hooks.telemetry != 0:
        call_hook(net.hooks.telemetry, net.const.address, operation, place)


@inline
def append(net, tail, ready_ps, word1, word2, word3):
    """Write a packet at the end of a queue; return the queue's next free record. The pool must have a block.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        tail: Number of the queue's free record, which is behind its last.
        ready_ps: Word 0 of the packet: when its receiver may act on it, in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        word3: Word 3 of the packet, the tag of its message.
    """
    # the pool has a block (`blocks_short` looks before each node), so a queue can always grow by one
    packet = net.record[tail]
    packet.ready_ps = ready_ps
    packet.w1 = word1
    packet.w2 = word2
    packet.w3 = word3
    tail += 1
    # the block is full
    if tail & (BLOCK_RECORDS - 1) == 0:
        following = take_block(net)
        net.block_next[(tail >> BLOCK_SHIFT) - 1] = following >> BLOCK_SHIFT
        tail = following
    return tail


@inline
def push(net, tail, ready_ps, word1, word2, word3):
    """Append a packet to a queue whose end the time INF marks; return the queue's next free record.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        tail: Number of the queue's free record, which is behind its last.
        ready_ps: Word 0 of the packet: when its receiver may act on it, in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        word3: Word 3 of the packet, the tag of its message.
    """
    tail = append(net, tail, ready_ps, word1, word2, word3)
    net.record[tail].ready_ps = INF
    return tail


@inline
def ends(head, tail):
    """Return the word that packs a queue's first record and the place behind its last.

    Args:
        head: Number of the queue's first record.
        tail: Place behind its last record.
    """
    return head | tail << 32


@inline
def step(net, record):
    """Return the record behind another in its queue, and free the block of the first if that is now empty.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        record: Number of a record.
    """
    record += 1
    if record & (BLOCK_RECORDS - 1) == 0:
        block = (record >> BLOCK_SHIFT) - 1
        # block numbers are linked; within a block, records are consecutive
        record = np.int64(net.block_next[block]) << BLOCK_SHIFT
        free_block(net, block)
    return record


@inline
def without_first(net, queue):
    """Remove the first record from a queue, given as its word (`ends`); return the new word, NONE if it is empty.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        queue: Word of the queue (`ends`).
    """
    head = step(net, head_of(queue))
    tail = tail_of(queue)
    # the tail is the next free record: a queue that is empty still holds the block of it, which goes back
    if head == tail:
        free_block(net, head >> BLOCK_SHIFT)
        return np.int64(NONE)
    return ends(head, tail)


@inline
def after(net, record):
    """Free `record`, the first of a queue; return the record behind it, NONE if the queue is then empty.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        record: Number of the queue's first record.
    """
    record = step(net, record)
    if net.record[record].ready_ps == INF:
        free_block(net, record >> BLOCK_SHIFT)
        record = np.int64(NONE)
    return record


# A node's own events: a binary heap of (time, slot) pairs, at most one entry per slot.
#
# Slots of an NPU: its ports by number, then one per lane, the retransmission timer, the ports' pacing, the agenda,
# actions on messages, and the begin of its job (pdes/npu/agenda.py). Slots order entries of equal time.


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


# A binary heap of (key, number) rows with each number at most once; equal keys are ordered by number.
#
# `places[number]` is the place of a number in the heap + 1, 0 if it is absent.


@inline
def is_before(key, number, entry):
    """Return whether a number with a key comes before an entry of a heap."""
    return key < entry.key or (key == entry.key and number < entry.number)


@inline
def put_entry(heap, places, place, key, number):
    """Write an entry at a place of the heap.

    Args:
        heap: Rows of `KeyedEntry`: keys with their numbers, the smallest first.
        places: Place of each number in the heap plus 1; 0 = it is not in the heap.
        place: Place in the heap.
        key: Key of the number, a rate or a time in ps.
        number: The number: a link or a flow.
    """
    heap[place].key = key
    heap[place].number = number
    places[number] = place + 1


@inline
def keyed_sift(heap, places, size, place, key, number):
    """Put a number where it belongs in the heap.

    Args:
        heap: Rows of `KeyedEntry`: keys with their numbers, the smallest first.
        places: Place of each number in the heap plus 1; 0 = it is not in the heap.
        size: Number of entries of the heap.
        place: Place of an entry that is void, where the search begins.
        key: Key of the number, a rate or a time in ps.
        number: The number: a link or a flow.
    """
    # one of both loops does nothing: an entry moves up, or down, or stays
    while place > 0:
        parent = (place - 1) >> 1
        if not is_before(key, number, heap[parent]):
            break
        put_entry(heap, places, place, heap[parent].key, heap[parent].number)
        place = parent
    # one that cannot move to the front may belong further behind
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and is_before(heap[child + 1].key, heap[child + 1].number, heap[child]):
            child += 1
        if is_before(key, number, heap[child]):
            break
        put_entry(heap, places, place, heap[child].key, heap[child].number)
        place = child
    put_entry(heap, places, place, key, number)


@inline
def keyed_remove(heap, places, size, number):
    """Remove a number from the heap.

    Args:
        heap: Rows of `KeyedEntry`: keys with their numbers, the smallest first.
        places: Place of each number in the heap plus 1; 0 = it is not in the heap.
        size: Number of entries of the heap.
        number: The number: a link or a flow.
    """
    place = places[number] - 1
    places[number] = 0
    last = heap[size - 1]
    # the last entry fills the gap, unless it is the one that goes
    if last.number != number:
        keyed_sift(heap, places, size - 1, place, last.key, last.number)
