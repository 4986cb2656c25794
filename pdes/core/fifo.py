"""Queues of packet records in blocks of eight, all from one pool.

A queue is a chain of blocks. Its tail is the next free record, whose time is INF, which marks the end for the reader
(`push`). No mark is needed where the reader knows the tail (`append`): in inboxes, which are read completely, and in
queues whose head and tail are packed into one word (`ends`).
Blocks return to the pool as they empty and are reused last in, first out, so the memory in use is that of the packets
in flight. An empty queue holds no block: its head and tail are NONE.
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
    """Prefetch the records of a block."""
    for record in range(0, BLOCK_RECORDS, 2):  # two to a cache line
        prefetch(net.record, block * BLOCK_RECORDS + record)


@inline
def prefetch_following(net, block, last):
    """Prefetch a block of a queue that ends in block `last`, and the number of the block after the next."""
    # returns the block that follows, NONE at the end
    prefetch_block(net, block)
    following = np.int64(NONE)
    if block != last:
        following = np.int64(net.block_next[block])
        prefetch(net.block_next, following)
    return following


@inline
def take_block(net):
    """Take a block from the pool, which must have one, and return its first record."""
    free = net.ctl.free_blocks - 1
    net.ctl.free_blocks = free
    return np.int64(net.block_free[free]) << BLOCK_SHIFT


@inline
def free_block(net, block):
    """Return a block to the pool."""
    net.block_free[net.ctl.free_blocks] = block
    net.ctl.free_blocks += 1


SET_DOWN, TAKE_UP, PUT_OUT, CARRY_IN = range(4)  # operations of the hook `telemetry` on the packet in hand


@inline
def carry(net, operation, at):
    """Move the packet's telemetry to or from the packet in hand, where packets carry it (pdes/network/telemetry.py)."""
    if net.hooks.telemetry != 0:
        call_hook(net.hooks.telemetry, net.const.address, operation, at)


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
    """Append a record to a queue whose end the time INF marks, and return the next place."""
    tail = append(net, tail, time, w1, w2, w3)
    net.record[tail].ready_ps = INF
    return tail


@inline
def ends(head, tail):
    """Return the word that packs a queue's first record and the place behind its last."""
    return head | tail << 32


@inline
def step(net, head):
    """Return the place behind a record, and free the record's block if that is now empty."""
    head += 1
    if head & (BLOCK_RECORDS - 1) == 0:
        block = (head >> BLOCK_SHIFT) - 1
        head = np.int64(net.block_next[block]) << BLOCK_SHIFT
        free_block(net, block)
    return head


@inline
def without_first(net, queue):
    """Return the word of a queue without its first record, NONE if that leaves it empty; free empty blocks."""
    head = step(net, head_of(queue))
    tail = tail_of(queue)
    if head == tail:
        free_block(net, head >> BLOCK_SHIFT)
        return np.int64(NONE)
    return ends(head, tail)


@inline
def after(net, head):
    """Return the record behind `head`, NONE if the queue is then empty; free empty blocks."""
    head = step(net, head)
    if net.record[head].ready_ps == INF:
        free_block(net, head >> BLOCK_SHIFT)
        head = np.int64(NONE)
    return head
