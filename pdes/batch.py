"""What arrives at a node in a window: gathered from its incoming links, sorted by time, ties in a fair order.

Each link's packets are in order already, so the batch is small runs side by side.
"""

from pdes.hashing import mix3
from pdes.jit import inline, prefetch, trailing_zeros
from pdes.state import (
    BLOCK_RECORDS,
    BLOCK_SHIFT,
    CONST_RESERVE_BLOCKS,
    CONST_SEED,
    COUNT_EVENTS,
    COUNT_HOPS,
    CTL_BATCH,
    CTL_BATCH_FREED,
    CTL_FREE_BLOCKS,
    CTL_NEED,
    CTL_RESUME_AT,
    INF,
    NEED_BLOCKS,
    RECORD_WORDS,
)

BUCKETS = 256
SMALL_BATCH = 24
WORD = 0xFFFFFFFF


@inline
def blocks_short(net):
    """Whether the pool of blocks may not do for a node's batch."""
    if net.ctl[CTL_FREE_BLOCKS] < net.const[CONST_RESERVE_BLOCKS]:
        net.ctl[CTL_NEED] = NEED_BLOCKS
        return True
    return False


@inline
def take_batch(net, inbox, node, begin, end):
    """Gather and order what arrives at the node before `end` (`ctl[CTL_BATCH]` packets)."""
    batch = gather(net, inbox, node, begin, end)
    net.ctl[CTL_BATCH] = batch
    net.ctl[CTL_RESUME_AT] = 0
    net.count[COUNT_HOPS] += batch
    net.count[COUNT_EVENTS] += batch
    if batch > 1 and inbox.in_ptr[node + 1] - inbox.in_ptr[node] > 1:
        sort_batch(inbox, batch, begin, end)
        order_ties(net, inbox, batch, begin)


@inline
def pending_links(net, word, first, last):
    """Which of the links first .. last hold packets, of the 32 that `word` of the bitmap tells of."""
    left = net.pending[word]
    if word == first >> 5:
        left &= WORD << (first & 31)
    if word == last >> 5:
        left &= WORD >> (31 - (last & 31))
    return left


@inline
def gather(net, inbox, node, begin, end):
    """Collect the packets that arrive at the node before `end` into the batch; returns their number.

    The records stay where they are until the batch is done (`give_back`).
    """
    record = net.record
    batch = 0
    freed = 0
    soonest = INF
    first = inbox.in_ptr[node]
    last = inbox.in_ptr[node + 1] - 1
    for word in range(first >> 5, (last >> 5) + 1):
        left = pending_links(net, word, first, last)
        while left != 0:
            prefetch(record, inbox.head[(word << 5) + trailing_zeros(left)] * RECORD_WORDS)
            left &= left - 1
    for word in range(first >> 5, (last >> 5) + 1):
        left = pending_links(net, word, first, last)
        while left != 0:
            link = (word << 5) + trailing_zeros(left)
            left &= left - 1
            pos = inbox.head[link]
            time = record[pos * RECORD_WORDS]
            if time < end:
                while time < end:
                    inbox.batch_key[batch] = ((time - begin) << 16) | batch
                    inbox.batch_pos[batch] = pos
                    inbox.batch_rx[batch] = link
                    batch += 1
                    pos += 1
                    if pos & (BLOCK_RECORDS - 1) == 0:
                        block = (pos >> BLOCK_SHIFT) - 1
                        pos = net.block_next[block] * BLOCK_RECORDS
                        inbox.batch_freed[freed] = block
                        freed += 1
                    time = record[pos * RECORD_WORDS]
                inbox.head[link] = pos
                if time == INF:
                    net.pending[word] &= ~(1 << (link & 31))
            soonest = min(soonest, time)
    net.next_time[node] = soonest
    net.ctl[CTL_BATCH_FREED] = freed
    return batch


@inline
def give_back(net, inbox):
    """Return the blocks that the batch has emptied."""
    free = net.ctl[CTL_FREE_BLOCKS]
    freed = net.ctl[CTL_BATCH_FREED]
    for i in range(freed):
        net.block_free[free + i] = inbox.batch_freed[i]
    net.ctl[CTL_FREE_BLOCKS] = free + freed


@inline
def sort_batch(inbox, batch, begin, end):
    """Sort the batch by time: into buckets first when it is large, then by insertion."""
    key = inbox.batch_key
    if batch > SMALL_BATCH:
        shift = 16
        while (end - begin) << 16 >> shift > BUCKETS:
            shift += 1
        bucket = inbox.bucket
        for b in range(BUCKETS + 1):
            bucket[b] = 0
        for i in range(batch):
            inbox.batch_tmp[i] = key[i]
            bucket[(key[i] >> shift) + 1] += 1
        for b in range(BUCKETS):
            bucket[b + 1] += bucket[b]
        for i in range(batch):
            b = inbox.batch_tmp[i] >> shift
            key[bucket[b]] = inbox.batch_tmp[i]
            bucket[b] += 1
    for i in range(1, batch):
        k = key[i]
        j = i - 1
        while j >= 0 and key[j] > k:
            key[j + 1] = key[j]
            j -= 1
        key[j + 1] = k


@inline
def before(net, inbox, a, b, time):
    """Whether key a comes before key b of the same time.

    By a hash of (seed, link, time): fair, and the same on any partition.
    """
    la = inbox.rx_gid[inbox.batch_rx[a & 0xFFFF]]
    lb = inbox.rx_gid[inbox.batch_rx[b & 0xFFFF]]
    ha = mix3(net.const[CONST_SEED], la, time)
    hb = mix3(net.const[CONST_SEED], lb, time)
    return ha < hb or (ha == hb and la < lb)


@inline
def order_ties(net, inbox, batch, begin):
    """Order packets that arrive at the same time over different links."""
    key = inbox.batch_key
    for i in range(1, batch):
        k = key[i]
        j = i - 1
        while j >= 0 and key[j] >> 16 == k >> 16 and before(net, inbox, k, key[j], begin + (k >> 16)):
            key[j + 1] = key[j]
            j -= 1
        key[j + 1] = k
