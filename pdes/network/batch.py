"""The arrivals of a node in a cell: gathered from its inbox and sorted by time, with a fair order of ties."""

import numpy as np

from nadi.pdes.core.algorithms import NONE, mix, mix2, prefetch_block
from nadi.pdes.core.jit import inline
from nadi.pdes.core.packet import LINK_BITS, inbox_later_ps, inbox_link, number_of
from nadi.pdes.core.state import BLOCK_RECORDS, BLOCK_SHIFT, INSIDE, NEED_BLOCKS
from nadi.pdes.network.link import class_row, inbox_of
from nadi.pdes.network.telemetry import samples_short

# Own counts of nodes and ports, from which its choices among equal packets or links follow as if at random.
#
# They depend neither on the time since the run's begin nor on the place of the node in the fabric. It forgets them
# after a pause (`const.tie_pause_ps`), so that later choices follow from what happens then.


TIES = 4096  # ties of a node or port after which the orders of ties are those of the first ones again


@inline
def count_tie(net, own, now_ps):
    """Count a tie in the row of a node or of a port; return how many it has had since its last pause, modulo TIES.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        own: Counts of the node or port (a row `NodeCounts` or `PortTies`).
        now_ps: Time of the tie in ps.
    """
    # after a pause without ties a node is in the state in which it began, whatever it did before: states recur
    if now_ps - own.last_tie_ps > net.const.tie_pause_ps:
        own.ties = 0
    own.last_tie_ps = now_ps
    # a number that returns, as streams that tie again and again recur with it (pdes/reuse/within_messages.py)
    own.ties = (own.ties + 1) & (TIES - 1)
    return own.ties


@inline
def count_choice(net, node, now_ps):
    """Count a choice of a link at a node; return how many it has made since its last pause without any.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the node.
        now_ps: Current time in ps.
    """
    own = net.counts[node]
    if now_ps - own.last_choice_ps > net.const.tie_pause_ps:
        own.choices = 0
        # the number of pauses makes counts of before recognisable as outdated (pdes/network/balancing/adaptive.py)
        own.pauses += 1
    own.last_choice_ps = now_ps
    own.choices += 1
    return own.choices


BUCKETS = 256  # buckets of the first sorting pass
SMALL_BATCH = 24  # batch size up to which insertion sort is used


@inline
def blocks_short(net):
    """Return whether the pool of blocks, or the log of samples, may be too small for a node's batch.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    # before a batch, not per packet: the reserve covers everything that one node can do with all arrivals of a cell
    if net.ctl.free_blocks < net.const.reserve_blocks:
        net.ctl.need = NEED_BLOCKS
        return True
    return samples_short(net)


@inline
def take_batch(net, inbox, node, begin_ps, end_ps):
    """Gather the packets that arrive at a node in a cell, sorted by time (`ctl.batch`).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        node: Number of the node.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    batch = gather(net, inbox, node)
    net.ctl.batch = batch
    net.ctl.resume_at = 0
    # counted when it arrives: a packet on the wire at a checkpoint counts in the part of the run that continues
    net.count.hops += batch
    net.count.events += batch
    if batch > 1:
        sort_batch(inbox, batch, begin_ps, end_ps)


@inline
def inbox_blocks(net, node):
    """Return the first and last block of a node's inbox, NONE if it is empty.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the node.
    """
    box = inbox_of(node, net.ctl.side)
    return np.int64(net.inbox[box]) >> BLOCK_SHIFT, np.int64(net.inbox[box + 1]) >> BLOCK_SHIFT


@inline
def gather(net, inbox, node):
    """Collect the packets of the node's inbox, which arrive in this window, into the batch; return their number.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        node: Number of the node.
    """
    # the records stay in place until the batch is done (`give_back`)
    record = net.record
    batch = 0
    freed = 0
    box = inbox_of(node, net.ctl.side)
    pos = np.int64(net.inbox[box])
    if pos >= 0:
        tail = np.int64(net.inbox[box + 1])
        net.inbox[box] = NONE
        net.inbox[box + 1] = NONE
        while pos != tail:
            # time above, index below: sorting the keys sorts the packets, and equal times keep the order of the inbox
            inbox.batch_key[batch] = (inbox_later_ps(record[pos].ready_ps) << 16) | batch
            inbox.batch_pos[batch] = pos
            batch += 1
            pos += 1
            if pos & (BLOCK_RECORDS - 1) == 0:
                emptied = (pos >> BLOCK_SHIFT) - 1
                inbox.batch_freed[freed] = emptied
                freed += 1
                block = np.int64(net.block_next[emptied])
                pos = block << BLOCK_SHIFT
                if block != tail >> BLOCK_SHIFT:
                    prefetch_block(net, np.int64(net.block_next[block]))
        inbox.batch_freed[freed] = pos >> BLOCK_SHIFT
        freed += 1
    net.ctl.batch_freed = freed
    return batch


@inline
def give_back(net, inbox):
    """Return the blocks that the batch has emptied.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
    """
    free = net.ctl.free_blocks
    freed = net.ctl.batch_freed
    # last in, first out: the next packets go to records that are in the cache
    for i in range(freed):
        net.block_free[free + i] = inbox.batch_freed[i]
    net.ctl.free_blocks = free + freed


@inline
def insert_each(keys, first, last):
    """Sort int64 keys[first:last] by insertion, which is fast for few keys or nearly sorted ones."""
    i = first + 1
    while i < last:
        k = keys[i]
        j = i
        while j > first and keys[j - 1] > k:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = k
        i += 1


@inline
def sort_run(keys, first, last):
    """Sort int64 keys[first:last]: few by insertion, more by heapsort, so that the time is never quadratic."""
    count = last - first
    if count <= SMALL_BATCH:
        insert_each(keys, first, last)
        return
    for i in range(count // 2 - 1, -1, -1):
        sink(keys, first, i, count)
    for end in range(count - 1, 0, -1):
        keys[first], keys[first + end] = keys[first + end], keys[first]
        sink(keys, first, np.int64(0), end)


@inline
def sink(keys, first, entry, count):
    """Move entry `entry` of the largest-first heap keys[first:first + count] down until its children are smaller."""
    k = keys[first + entry]
    while 2 * entry + 1 < count:
        child = 2 * entry + 1
        # the larger of both children, so that the heap order holds for the other one, too
        if child + 1 < count and keys[first + child + 1] > keys[first + child]:
            child += 1
        if keys[first + child] <= k:
            break
        keys[first + entry] = keys[first + child]
        entry = child
    keys[first + entry] = k


@inline
def sort_batch(inbox, batch, begin_ps, end_ps):
    """Sort the packets of a cell by time; distribute many to buckets first.

    Args:
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        batch: Number of packets in the batch.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    key = inbox.batch_key
    if batch <= SMALL_BATCH:
        insert_each(key, 0, batch)
        return
    # buckets of equal spans of time, at most two per packet; the time is above bit 16 of a key
    shift = 16
    # Example: 100 packets in a cell of 1,000,000 ps: at most 200 buckets, so 13 bits of the time are dropped (1,000,000
    # >> 13 = 122), and a bucket of 8192 ps gets about one packet.
    while end_ps - begin_ps >> (shift - 16) > min(2 * batch, BUCKETS):
        shift += 1
    buckets = (end_ps - begin_ps >> (shift - 16)) + 1
    bucket = inbox.bucket
    for b in range(buckets + 1):
        bucket[b] = 0
    # counting sort by bucket: count, sum up, distribute
    for i in range(batch):
        inbox.batch_tmp[i] = key[i]
        bucket[(key[i] >> shift) + 1] += 1
    max_count = np.int64(0)
    for b in range(buckets):
        max_count = max(max_count, bucket[b + 1])
        bucket[b + 1] += bucket[b]
    for i in range(batch):
        b = inbox.batch_tmp[i] >> shift
        key[bucket[b]] = inbox.batch_tmp[i]
        bucket[b] += 1
    # buckets are in order and hold few packets each, so an insertion sort moves each only a little
    if max_count <= SMALL_BATCH:
        insert_each(key, 0, batch)
        return
    first = 0
    for b in range(buckets):
        sort_run(key, first, bucket[b])
        first = bucket[b]


@inline
def came_over(net, inbox, index):
    """Return the incoming link of a packet of the batch, by its number in the whole fabric.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        index: Index of the packet in the batch.
    """
    return inbox_link(net.record[inbox.batch_pos[index]].ready_ps)


@inline
def draw_of(net, own, now_ps):
    """Count a tie in the row of a node or port; return a 32-bit hash of `count_tie`.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        own: Counts of the node or port (a row `NodeCounts` or `PortTies`).
        now_ps: Time of the tie in ps.
    """
    # the seed and the count alone: two equal nodes with the same past shuffle alike, which exact reuse relies on
    return mix2(net.const.seed, np.int64(count_tie(net, own, now_ps)))


@inline
def shuffle(inbox, first, last, draw):
    """Put the packets of a tie in `batch_tmp` in the order of a shuffle.

    Args:
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        first: Index of the first packet of the tie.
        last: Index behind its last packet.
        draw: 32-bit hash from which the order follows.
    """
    # Durstenfeld, CACM 1964. Each order is equally likely: a fixed one would starve one of two senders that always tie.
    entry = inbox.batch_tmp
    for j in range(last - 1, first, -1):
        other = first + ((draw * (j + 1 - first)) >> 32)
        entry[j], entry[other] = entry[other], entry[j]
        draw = mix(draw + 1)


@inline
def end_of_tie(key, first, batch):
    """Return the index behind the packets that have the time of packet `first` of the sorted batch.

    Args:
        key: Sorted keys of the batch (`Inbox.batch_key`).
        first: Index of the first packet of the tie.
        batch: Number of packets in the batch.
    """
    last = first + 1
    # equal above bit 16: the same ps
    while last < batch and (key[last] ^ key[first]) >> 16 == 0:
        last += 1
    return last


@inline
def nvlink_to(net, node):
    """Return the link by which packets of its NVLink domain reach an NPU, by its number in the whole fabric; -1 = none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the NPU in the LP.
    """
    for link in range(net.out_ptr[node], net.out_ptr[node + 1]):
        if class_row(net, link).special & INSIDE != 0:
            return number_of(net.tx[link].meta) ^ 1
    return np.int64(-1)


@inline
def first_of_fabric(net, inbox, node, first, last):
    """Return the first of the sorted packets of a tie that the node shuffles: one over NVLink goes before the others.

    Such a packet does not count: exact reuse replays it (docs/explanation/reuse.md), and the order in which packets of
    several NICs arrive must not tell whether it came.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        node: Number of the node.
        first: Index of the first packet of the tie in `batch_tmp`.
        last: Index behind its last packet.
    """
    if net.const.several_nics == 0 or node >= net.const.npus:
        return first
    nvlink = nvlink_to(net, node)
    for i in range(first, last):
        entry = inbox.batch_tmp[i]
        if entry >> 16 == nvlink:
            for j in range(i, first, -1):
                inbox.batch_tmp[j] = inbox.batch_tmp[j - 1]
            inbox.batch_tmp[first] = entry
            return first + 1
    return first


@inline
def order_ties(net, inbox, node, begin_ps):
    """Order the packets of the batch that tie, over different links, as if at random.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        node: Number of the node.
        begin_ps: Begin of the cell in ps.
    """
    # A shuffle of the packets in the order of their links, by hashes of the number of ties that the node has had since
    # its last pause (`const.tie_pause_ps`) without any: the same on any partition. It depends neither on the time since
    # the run's begin nor on the place of the node in the fabric; after a pause all ties are forgotten.
    key, batch = inbox.batch_key, net.ctl.batch
    first = np.int64(0)
    while first < batch:
        last = end_of_tie(key, first, batch)
        if last > first + 1:
            time = key[first] >> 16
            for j in range(first, last):
                index = key[j] & 0xFFFF
                # first the order of links, which is the same on any partition; the order in the inbox is not, as it
                # depends on which LP sent first
                inbox.batch_tmp[j] = came_over(net, inbox, index) << 16 | index
            sort_run(inbox.batch_tmp, first, last)
            own = first_of_fabric(net, inbox, node, first, last)
            if last > own + 1:
                shuffle(inbox, own, last, draw_of(net, net.counts[node], begin_ps + time))
            for j in range(first, last):
                key[j] = time << 16 | (inbox.batch_tmp[j] & 0xFFFF)
        first = last


@inline
def order_ties_at_ports(net, inbox, first_link, begin_ps):
    """Order the packets of a switch's batch that tie for one port, `batch_out`, by the port's own count of ties.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inbox: Rates of incoming links, and the batch of arrivals of the current node (`Inbox`).
        first_link: First outgoing link of the switch.
        begin_ps: Begin of the cell in ps.
    """
    # Where a switch's ports do not depend on each other, packets for different ports may come in any order. So traffic
    # between some ports does not depend on traffic between others.
    key, tie, batch = inbox.batch_key, inbox.batch_tmp, net.ctl.batch
    first = np.int64(0)
    while first < batch:
        last = end_of_tie(key, first, batch)
        if last > first + 1:
            time = key[first] >> 16
            for j in range(first, last):
                index = key[j] & 0xFFFF
                port = inbox.batch_out[j] - first_link
                # port, then link, then index, each in bits of its own, so that one sort of words groups a tie by port
                tie[j] = (port << LINK_BITS | came_over(net, inbox, index)) << 16 | index
            sort_run(tie, first, last)
            begin = first
            while begin < last:
                port = tie[begin] >> (LINK_BITS + 16)
                end = begin + 1
                while end < last and tie[end] >> (LINK_BITS + 16) == port:
                    end += 1
                if end > begin + 1:
                    shuffle(inbox, begin, end, draw_of(net, net.port_ties[first_link + port], begin_ps + time))
                begin = end
            for j in range(first, last):
                key[j] = time << 16 | (tie[j] & 0xFFFF)
                # links move with their packets
                inbox.batch_out[j] = first_link + (tie[j] >> (LINK_BITS + 16))
        first = last
