"""What arrives at a node in a window: gathered from its inbox, sorted by time, ties in a fair order."""

from pdes.fifo import NONE
from pdes.hashing import mix3
from pdes.jit import inline, prefetch
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
    CTL_SIDE,
    INF,
    NEED_BLOCKS,
    RECORD_WORDS,
)

BUCKETS = 256
SMALL_BATCH = 24


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
    batch = gather(net, inbox, node, begin)
    net.ctl[CTL_BATCH] = batch
    net.ctl[CTL_RESUME_AT] = 0
    net.count[COUNT_HOPS] += batch
    net.count[COUNT_EVENTS] += batch
    if batch > 1:
        sort_batch(inbox, batch, begin, end)
        order_ties(net, inbox, batch, begin)


@inline
def gather(net, inbox, node, begin):
    """Collect the packets of the node's inbox, which arrive in this window, into the batch; returns their number.

    The records stay where they are until the batch is done (`give_back`).
    """
    record = net.record
    batch = 0
    freed = 0
    box = 2 * node + net.ctl[CTL_SIDE]
    pos = net.inbox_head[box]
    if net.inbox_tail[box] >= 0:
        net.inbox_tail[box] = NONE
        time = record[pos * RECORD_WORDS]
        while time < INF:
            inbox.batch_key[batch] = ((time - begin) << 16) | batch
            inbox.batch_pos[batch] = pos
            batch += 1
            pos += 1
            if pos & (BLOCK_RECORDS - 1) == 0:
                block = (pos >> BLOCK_SHIFT) - 1
                pos = net.block_next[block] << BLOCK_SHIFT
                prefetch(record, pos * RECORD_WORDS)
                inbox.batch_freed[freed] = block
                freed += 1
            time = record[pos * RECORD_WORDS]
        inbox.batch_freed[freed] = pos >> BLOCK_SHIFT
        freed += 1
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
    la = net.record_link[inbox.batch_pos[a & 0xFFFF]]
    lb = net.record_link[inbox.batch_pos[b & 0xFFFF]]
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
