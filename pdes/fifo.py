"""Queues of packet records in blocks: what waits for a port and what is on a wire.

A queue is a chain of blocks of eight records from one pool. Its tail is the next free record, whose time is INF: that
is how the reader sees the end, so reader and writer share no counter. Blocks are given back as they empty, last
one out first, so the memory in use is that of the packets in flight and not of a ring per link.
"""

from pdes.jit import inline
from pdes.state import BLOCK_RECORDS, BLOCK_SHIFT, CTL_FREE_BLOCKS, INF, RECORD_WORDS


@inline
def push(net, tail, time, w1, w2, w3):
    """Write a record at `tail` and return the new tail. The pool must have a block."""
    record = net.record
    p = tail * RECORD_WORDS
    record[p] = time
    record[p + 1] = w1
    record[p + 2] = w2
    record[p + 3] = w3
    tail += 1
    if tail & (BLOCK_RECORDS - 1) == 0:
        free = net.ctl[CTL_FREE_BLOCKS] - 1
        net.ctl[CTL_FREE_BLOCKS] = free
        block = net.block_free[free]
        net.block_next[(tail >> BLOCK_SHIFT) - 1] = block
        tail = block * BLOCK_RECORDS
    record[tail * RECORD_WORDS] = INF
    return tail


@inline
def after(net, head):
    """The record behind `head`; gives the block back when it was its last."""
    head += 1
    if head & (BLOCK_RECORDS - 1) == 0:
        block = (head >> BLOCK_SHIFT) - 1
        head = net.block_next[block] * BLOCK_RECORDS
        net.block_free[net.ctl[CTL_FREE_BLOCKS]] = block
        net.ctl[CTL_FREE_BLOCKS] += 1
    return head
