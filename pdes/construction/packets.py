"""Packets of a world as plain arrays: those in queues, in inboxes and on links, and how they are put into worlds."""

from typing import Any

import numpy as np

from nadi.pdes.construction.layout import Layout, LogicalProcess, Part, offsets
from nadi.pdes.core import Int64, packet, state as s
from nadi.pdes.core.algorithms import CARRY_IN, SET_DOWN, carry
from nadi.pdes.core.jit import kernel, load_unaligned
from nadi.pdes.network.link import inbox_of, wait_turn


@kernel
def follow_queues(ready_ps, block_next, heads, tails, records, ends):
    """Write the records of queues, in their order, and where those of each end.

    Args:
        ready_ps: int64[records], times of the packets; INF marks the place behind the last of some queues.
        block_next: int64[blocks], the block that follows each in its queue.
        heads: int64[queues], first record of each queue.
        tails: int64[queues], place behind the last record; -1 = the queue ends at a time INF.
        records: int64[n], output: the records of all queues, queue by queue.
        ends: int64[queues], output: end of each queue in `records`.
    """
    count = 0
    for queue in range(heads.shape[0]):
        record = heads[queue]
        while record >= 0 and record != tails[queue]:
            # a queue whose end is not given ends at a record that is never ready
            if tails[queue] < 0 and ready_ps[record] == s.INF:
                break
            records[count] = record
            count += 1
            record += 1
            if record & (s.BLOCK_RECORDS - 1) == 0:
                record = block_next[(record >> s.BLOCK_SHIFT) - 1] << s.BLOCK_SHIFT
        ends[queue] = count
    return 0


def queues_of(net: s.Net, heads: Int64, tails: Int64) -> tuple[Int64, Int64]:
    """Return the records of queues, in their order, and int64[queues], their numbers.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        heads: int64[queues], first record of each queue.
        tails: int64[queues], place behind the last record; -1 = the queue ends at a time INF.
    """
    records, ends = np.zeros(len(net.record) + 1, np.int64), np.zeros(max(1, len(heads)), np.int64)
    # contiguous copies, which compiled code can take
    ready_ps = np.array(net.record.ready_ps)
    block_next = net.block_next.astype(np.int64)
    heads, tails = (np.ascontiguousarray(each, np.int64) for each in (heads, tails))
    if len(heads):
        follow_queues(ready_ps, block_next, heads, tails, records, ends)
    ends = ends[: len(heads)]
    return records[: ends[-1] if len(ends) else 0], np.diff(ends, prepend=0)


def words_of_packets(net: s.Net, records: Int64) -> tuple[Int64, Int64]:
    """Return int64[n, 4], the words of packet records, and int64[n, words], their telemetry, without words if none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        records: int64[n], numbers of packet records.
    """
    packets = net.record[records].view(np.ndarray).view(np.int64).reshape(-1, 4)
    telemetry = np.zeros((len(records), 0), np.int64)
    if len(net.telemetry) == len(net.record):
        words = net.telemetry.itemsize // np.int64().itemsize
        telemetry = net.telemetry[records].view(np.ndarray).view(np.int64).reshape(len(records), words)
    return packets, telemetry


def make_blocks(lp: LogicalProcess, blocks: int) -> None:
    """Let the pool of an LP have `blocks` free blocks beside those that an action may use.

    Args:
        lp: The logical process.
        blocks: Number of free blocks that the caller needs.
    """
    lp.make_room("free_blocks", s.NEED_BLOCKS, blocks + int(lp.world.net.const.reserve_blocks))


def put_in_queues(lp: LogicalProcess, counts: Int64, packets: Int64, telemetry: Int64) -> tuple[Int64, Int64]:
    """Put packets into new queues of an LP; return the first record of each and the place behind its last.

    Args:
        lp: The logical process.
        counts: int64[queues], number of packets of each queue, above 0.
        packets: int64[n, 4], words of the packets, queue by queue.
        telemetry: int64[n, words], their telemetry as `words_of_packets` returns it.
    """
    blocks = counts // s.BLOCK_RECORDS + 1  # the place behind the last is in a block, too
    first = offsets(blocks)
    make_blocks(lp, int(first[-1]))
    net = lp.world.net
    free = int(net.ctl.free_blocks)
    own = net.block_free[free - int(first[-1]) : free][::-1].astype(np.int64)
    net.ctl.free_blocks = free - int(first[-1])
    within = np.arange(int(counts.sum())) - np.repeat(offsets(counts)[:-1], counts)
    at = own[np.repeat(first[:-1], counts) + within // s.BLOCK_RECORDS] * s.BLOCK_RECORDS + within % s.BLOCK_RECORDS
    rows = np.ascontiguousarray(packets).view(net.record.dtype).reshape(-1)
    net.record[at] = rows
    if telemetry.shape[1] and len(at):
        net.telemetry[at] = np.ascontiguousarray(telemetry).view(net.telemetry.dtype).reshape(-1)
    is_last = np.zeros(len(own), bool)
    is_last[first[1:] - 1] = True
    net.block_next[own[:-1][~is_last[:-1]]] = own[1:][~is_last[:-1]]
    tails = own[first[1:] - 1] * s.BLOCK_RECORDS + counts % s.BLOCK_RECORDS
    return own[first[:-1]] * s.BLOCK_RECORDS, tails


# Packets under way between worlds at a snapshot point: taken from outboxes, and put on the links that they cross.

LINK = packet.CROSSING_WORDS - 1  # word of a packet between worlds that names its link


def sent_packets(lp: LogicalProcess) -> Int64:
    """Return int64[packets, words]: what an LP has sent to others in the last window.

    The word LINK is the link's number in the fabric.

    Args:
        lp: The logical process.
    """
    net, part = lp.world.net, lp.part
    found = [np.zeros((0, part.crossing_words), np.int64)]
    list_of_link = packet.end_of(net.tx.meta[: len(part.links)]) - len(part.nodes)
    for number in range(part.lists):
        half = int(net.out_at[2 * number + int(net.ctl.parity)])
        count, at = int(net.outbox[half]), half + packet.HEADER_WORDS
        packets = net.outbox[at : at + count * part.crossing_words].reshape(count, part.crossing_words).copy()
        own = np.flatnonzero(list_of_link == number)
        # packets name the link by `far`, which is not in the order of links
        own = own[np.argsort(net.far[own])]
        packets[:, LINK] = part.links[own[np.searchsorted(net.far[own], packets[:, LINK])]]
        found.append(packets)
    return np.concatenate(found)


def packets_on_wires(world: s.World, part: Part, columns: int) -> Int64:
    """Return int64[n, columns]: packets of an LP in inboxes and on links, as of `sent_packets`.

    Args:
        world: State of the LP (`World`).
        part: Nodes and links of the LP.
        columns: Number of words of a packet in the result.
    """
    net: Any = world.net
    ctl, nodes = net.ctl, len(part.nodes)
    box = inbox_of(np.arange(nodes)[:, None], np.arange(s.SIDES)).reshape(-1)
    side = np.tile(np.arange(s.SIDES), nodes)
    used = net.inbox[box] >= 0
    box, side = box[used], side[used]
    records, counts = queues_of(net, net.inbox[box], net.inbox[box + 1])
    packets, telemetry = words_of_packets(net, records)
    # begin of the cell whose packets the inbox collects
    begin_ps = ctl.now_ps + ((side - ctl.side) & (s.SIDES - 1)) * ctl.cell_ps
    in_inboxes = _crossing(packets, telemetry, packet.inbox_link(packets[:, 0]), columns)
    in_inboxes[:, 0] = np.repeat(begin_ps, counts) + packet.inbox_later_ps(packets[:, 0])
    links = np.flatnonzero(net.wait_head >= 0)
    records, counts = queues_of(net, net.wait_head[links], np.full(len(links), -1))
    packets, telemetry = words_of_packets(net, records)
    numbers = np.repeat(packet.number_of(net.tx.meta[links]), counts)
    return np.concatenate([in_inboxes, _crossing(packets, telemetry, numbers, columns)])


def _crossing(packets: Int64, telemetry: Int64, links: Int64, columns: int) -> Int64:
    """Return packets with their links as between worlds (pdes/core/packet.py)."""
    rows = np.zeros((len(packets), columns), np.int64)
    rows[:, :LINK], rows[:, LINK] = packets, links
    rows[:, LINK + 1 :] = telemetry[:, : columns - LINK - 1]
    return rows


def put_on_links(lp: LogicalProcess, packets: Int64) -> None:
    """Let packets wait on the LP's links.

    Args:
        lp: The logical process.
        packets: int64[n, words], packets in the order of their arrivals; the word LINK is a row of `tx`.
    """
    make_blocks(lp, len(packets))  # at worst each is on a link of its own
    packets = np.ascontiguousarray(packets)
    wait_on_links(lp.address, packets.ctypes.data, len(packets))


@kernel
def wait_on_links(world_address, packets_address, count):
    """Let packets wait on their links.

    Args:
        world_address: Address of the directory of the LP's `World`.
        packets_address: Address of the packets in the format of pdes/core/packet.py, with rows of `tx` as links.
        count: Number of packets.
    """
    net = s.world_at(world_address).net
    for i in range(count):
        p = packets_address + packet.WORD_BYTES * i * net.const.crossing_words
        carry(net, CARRY_IN, p)
        link = load_unaligned(p + packet.WORD_BYTES * LINK)
        words = load_unaligned(p + 8), load_unaligned(p + 16), load_unaligned(p + 24)
        at = wait_turn(net, link, net.tx[link].meta, load_unaligned(p), words[0], words[1], words[2])
        carry(net, SET_DOWN, at)


def arriving(part: Part, layout: Layout, packets: Int64) -> Int64:
    """Return the packets of `sent_packets` that come to nodes of a part, in order of arrival, by rows of its `tx`.

    Args:
        part: Nodes and links of the LP.
        layout: Division of the fabric among LPs (`Layout`).
        packets: Packets as of `sent_packets`, of any links.
    """
    graph = layout.graph
    found = packets[layout.owner[graph.link_dst[packets[:, LINK]]] == part.number]
    links = np.concatenate([part.links, *part.links_in]).astype(np.int64)
    # from the link's number in the fabric to its row of `tx`
    row = np.zeros(graph.links, np.int64)
    row[links] = np.arange(len(links))
    found[:, LINK] = row[found[:, LINK]]
    return found[np.argsort(found[:, 0], kind="stable")]


def sending_pairs(word1: Int64, word2: Int64) -> tuple[Int64, Int64]:
    """Return the NPU that sends the data of each packet, and the number of its queue pair there.

    A pause frame names none: it gets NPU 0 and number -1.

    Args:
        word1: int64[n], words 1 of the packets (pdes/core/packet.py).
        word2: int64[n], their words 2.
    """
    is_pause = packet.destination(word1) == packet.PAUSE_FRAME
    # an acknowledgement goes to the sender of the data
    is_ack = packet.flags(word1) & packet.FLAG_ACK != 0
    sender = np.where(is_ack, packet.destination(word1), packet.source(word1))
    return np.where(is_pause, 0, sender), np.where(is_pause, -1, packet.sender_pair(word2))
