"""Queues of packet records in blocks of eight, all from one pool.

A queue is a chain of blocks. Its tail is the next free record, whose time is INF, which marks the end for the reader
(`push`). No mark is needed where the reader knows the tail (`append`): in inboxes, which are read completely, and in
queues whose head and tail are packed into one word (`ends`).
Blocks return to the pool as they empty and are reused last in, first out, so the memory in use is that of the packets
in flight. An empty queue holds no block: its head and tail are NONE.
"""

import numpy as np

from nadi.pdes.core.jit import call_hook, inline, prefetch
from nadi.pdes.core.packet import bits
from nadi.pdes.core.state import BLOCK_RECORDS, BLOCK_SHIFT, INF

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
