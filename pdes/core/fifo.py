"""Queues of packet records in blocks of eight, all from one pool.

A queue is a chain of blocks. Its tail is the next free record, whose time is INF: that is how the reader sees the end
(`push`). Where the reader knows the tail, nothing marks the end (`append`): of inboxes, which are read as a whole, and
of queues whose ends stand side by side in a word (`ends`).
Blocks are given back as they empty, last one out first, so the memory in use is that of the packets in flight.
An empty queue holds no block: its head and tail are NONE.
"""

import numpy as np

from pdes.core.jit import call_hook, inline, prefetch
from pdes.core.packet import bits
from pdes.core.state import BLOCK_RECORDS, BLOCK_SHIFT, INF

NONE = -1
head_of = bits(0, 32)  # first record of a queue by its word
tail_of = bits(32)  # place behind its last


@inline
def prefetch_block(net, block):
    """Ask for the records of a block."""
    for record in range(0, BLOCK_RECORDS, 2):  # two to a cache line
        prefetch(net.record, block * BLOCK_RECORDS + record)


@inline
def prefetch_following(net, block, last):
    """Ask for a block of a queue that ends in block `last`, and for the number of the one behind the next.

    Returns the block behind it, NONE at the end.
    """
    prefetch_block(net, block)
    following = np.int64(NONE)
    if block != last:
        following = np.int64(net.block_next[block])
        prefetch(net.block_next, following)
    return following


@inline
def take_block(net):
    """First record of a block from the pool, which must have one."""
    free = net.ctl.free_blocks - 1
    net.ctl.free_blocks = free
    return np.int64(net.block_free[free]) << BLOCK_SHIFT


@inline
def free_block(net, block):
    """Give a block back."""
    net.block_free[net.ctl.free_blocks] = block
    net.ctl.free_blocks += 1


SET_DOWN, TAKE_UP, PUT_OUT, CARRY_IN = range(4)


@inline
def carry(net, what, at):
    """Where packets carry what they meet (pdes/network/telemetry.py): move that to or from the packet in hand."""
    if net.hooks.telemetry != 0:
        call_hook(net.hooks.telemetry, net.const.address, what, at)


@inline
def append(net, tail, time, w1, w2, w3):
    """Write a record at `tail`, a place in a block, and return the next place. The pool must have a block."""
    packet = net.record[tail]
    packet.ready_ps = time
    packet.w1 = w1
    packet.w2 = w2
    packet.w3 = w3
    tail += 1
    if tail & (BLOCK_RECORDS - 1) == 0:
        following = take_block(net)
        net.block_next[(tail >> BLOCK_SHIFT) - 1] = following >> BLOCK_SHIFT
        tail = following
    return tail


@inline
def push(net, tail, time, w1, w2, w3):
    """The same where the reader sees the end by the time INF."""
    tail = append(net, tail, time, w1, w2, w3)
    net.record[tail].ready_ps = INF
    return tail


@inline
def ends(head, tail):
    """First record of a queue and place behind its last, in a word."""
    return head | tail << 32


@inline
def step(net, head):
    """The place behind a record; gives its block back if that is empty now."""
    head += 1
    if head & (BLOCK_RECORDS - 1) == 0:
        block = (head >> BLOCK_SHIFT) - 1
        head = np.int64(net.block_next[block]) << BLOCK_SHIFT
        free_block(net, block)
    return head


@inline
def without_first(net, queue):
    """The word of a queue without its first record, NONE if it is empty then; gives blocks back as they empty."""
    head = step(net, head_of(queue))
    tail = tail_of(queue)
    if head == tail:
        free_block(net, head >> BLOCK_SHIFT)
        return np.int64(NONE)
    return ends(head, tail)


@inline
def after(net, head):
    """The record behind `head`, NONE if the queue is empty then; gives blocks back as they empty."""
    head = step(net, head)
    if net.record[head].ready_ps == INF:
        free_block(net, head >> BLOCK_SHIFT)
        head = np.int64(NONE)
    return head
