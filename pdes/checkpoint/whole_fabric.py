"""State of a checkpoint independent of a division of the fabric: names of things, and packets as plain arrays.

A queue pair is named by its NPU and its ordinal among the NPU's queue pairs, nodes and links by their numbers in the
fabric, messages and active collectives by the lists that hold them. Local numbers of a world follow from these.
Packets lie in queues and under way between worlds; as plain arrays they can be put into other worlds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nadi.pdes.construction.layout import LogicalProcess, Part, offsets
from nadi.pdes.core import Int64, packet, state as s
from nadi.pdes.core.algorithms import CARRY_IN, SET_DOWN, carry
from nadi.pdes.core.jit import kernel, load_unaligned
from nadi.pdes.network.link import inbox_of, wait_turn

PAIR_MASK = (1 << 24) - 1  # of the field `sender_pair` of word 2
PAIR_SHIFT = 24


class QueuePairs:
    """New numbers of all queue pairs of a run: those of an NPU keep their order, which decides between equal times."""

    def __init__(self, npu_of_pair: Sequence[Int64], old_owner: Int64, owner: Int64, npus: int) -> None:
        """Number the queue pairs.

        Args:
            npu_of_pair: NPU of each queue pair, an int64[queue pairs] per old LP.
            old_owner: int64[nodes], LP of each node in the saved run.
            owner: int64[nodes], LP of each node now.
            npus: Number of NPUs of the fabric.
        """
        self._ptr = offsets([len(each) for each in npu_of_pair])
        self._old_owner = old_owner
        npu = np.concatenate([*npu_of_pair, np.zeros(0, np.int64)]).astype(np.int64)
        count = np.bincount(npu, minlength=npus)
        order = np.argsort(owner[:npus], kind="stable")  # NPUs by their LPs, ascending in each
        before = np.zeros(npus, np.int64)
        before[order] = np.cumsum(count[order]) - count[order]
        first_npu = order[np.searchsorted(owner[order], owner[:npus])]  # the first of the same LP
        begin = before - before[first_npu]
        by_npu = np.argsort(npu, kind="stable")
        ordinal = np.zeros(len(npu), np.int64)
        ordinal[by_npu] = np.arange(len(npu)) - np.repeat(offsets(count)[:-1], count)
        self._new = begin[npu] + ordinal

    def of_lp(self, number: int) -> Int64:
        """Return the new numbers of the queue pairs of an old LP.

        Args:
            number: Number of the LP in the division of the checkpoint.
        """
        return self._new[self._ptr[number] : self._ptr[number + 1]]

    def renumbered(self, word1: Int64, word2: Int64) -> Int64:
        """Return words 2 of packets with new numbers of queue pairs.

        Args:
            word1: int64[n], words 1 of the packets (pdes/core/packet.py).
            word2: int64[n], their words 2 with old numbers.
        """
        # an acknowledgement goes to the sender of the data, and a pause frame names none
        sender = np.where(packet.flags(word1) & packet.FLAG_ACK != 0, packet.destination(word1), packet.source(word1))
        is_pause = packet.destination(word1) == packet.PAUSE_FRAME
        sender = np.where(is_pause, 0, sender)
        pair = self._number(sender, np.where(is_pause, -1, packet.sender_pair(word2)))
        return np.where(is_pause, word2, (word2 & ~(PAIR_MASK << PAIR_SHIFT)) | (pair << PAIR_SHIFT))

    def receiver_keys(self, keys: Int64) -> Int64:
        """Return keys of receiving queue pairs, dst << 44 | src << 24 | queue pair of src, with new numbers."""
        sender, pair = keys >> PAIR_SHIFT & ((1 << 20) - 1), keys & packet.PSN_MASK
        return (keys & ~np.int64(packet.PSN_MASK)) | self._number(sender, pair)

    def _number(self, npu: Int64, pair: Int64) -> Int64:
        """Return the new number of a queue pair of an NPU by its old number, 0 for the number -1."""
        at = self._ptr[self._old_owner[npu]] + np.maximum(pair, 0)
        return np.where(pair < 0, 0, np.append(self._new, 0)[np.minimum(at, len(self._new))])


def looked_up(table: Int64, numbers: Any, plus: int = 0) -> Int64:
    """Return the new numbers of a word that holds an old number + plus, or less than plus for none.

    Args:
        table: int64[old numbers], the new number of each old one.
        numbers: Values of the word.
        plus: Offset that the word adds to a number.
    """
    numbers = np.asarray(numbers, np.int64)
    old = numbers - plus
    if len(table) == 0:
        return numbers
    return np.where(old >= 0, table[np.clip(old, 0, len(table) - 1)] + plus, numbers)


def walked(heads: Any, following: Any) -> Int64:
    """Return all members of the lists that begin at `heads` (-1: empty); following: the next of each, -1 at the end."""
    found = []
    at = np.asarray(heads, np.int64)
    at = at[at >= 0]
    # all lists advance together, one element in each round
    while len(at):
        found.append(at)
        at = following[at].astype(np.int64)
        at = at[at >= 0]
    return np.concatenate([*found, np.zeros(0, np.int64)])


@dataclass(eq=False)
class Shared:
    """What an old LP, whose world is `world`, and a new one, `lp`, have in common; pairs of old and new numbers."""

    part: Part  # of the old LP
    world: s.World
    lp: LogicalProcess
    slot_ptr: Int64  # int64[NPUs of the program + 1] group slots of each NPU
    node: Int64  # new number of each old node, -1: of another LP
    link: Int64  # new row of `tx` of each old outgoing link, -1: of another LP
    pairs: QueuePairs  # new numbers of all queue pairs
    pair: Int64  # new number of each old queue pair, whose NPU may be of another LP
    message: Int64  # new row of `msg` of each old one that is in use, -1
    collective: Int64  # new row of `inst`, likewise

    @property
    def nodes(self) -> tuple[Int64, Int64]:
        """Old and new numbers of the nodes that both have."""
        old = np.flatnonzero(self.node >= 0)
        return old, self.node[old]

    @property
    def npus(self) -> tuple[Int64, Int64]:
        """Old and new numbers of the NPUs that both have."""
        old, new = self.nodes
        is_npu = old < self.part.npus
        return old[is_npu], new[is_npu]

    @property
    def links(self) -> tuple[Int64, Int64]:
        """Old and new rows of the outgoing links that both have."""
        old = np.flatnonzero(self.link >= 0)
        return old, self.link[old]


def shared_by(part: Part, world: s.World, lp: LogicalProcess, slot_ptr: Int64, pairs: QueuePairs) -> Shared:
    """Return what an old LP and a new one have in common.

    Args:
        part: Nodes and links of the old LP.
        world: State of the old LP.
        lp: The new LP.
        slot_ptr: int64[npus + 1], first group slot of each NPU (Program.slot_ptr).
        pairs: New numbers of all queue pairs.
    """
    place = np.full(int(max(part.links.max(initial=-1), lp.part.links.max(initial=-1))) + 1, -1, np.int64)
    place[lp.part.links] = np.arange(len(lp.part.links))
    none = np.full(0, -1, np.int64)
    node, pair = lp.part.local[part.nodes], pairs.of_lp(part.number)
    return Shared(part, world, lp, slot_ptr, node, place[part.links], pairs, pair, none, none)


# Packets in queues and under way between worlds, as plain arrays and back.


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


def put_back(lp: LogicalProcess, packets: Int64) -> None:
    """Let packets of the one LP of a run, as of `sent_packets`, wait on their links.

    Args:
        lp: The logical process.
        packets: int64[n, words], packets by link and time.
    """
    row = np.zeros(len(lp.part.links), np.int64)
    row[lp.part.links] = np.arange(len(lp.part.links))
    packets = packets.copy()
    packets[:, LINK] = row[packets[:, LINK]]
    put_on_links(lp, packets)


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


def coming_in(part: Part, packets: Int64) -> Int64:
    """Return the packets of `sent_packets` over links to this part, with rows of its `tx`, in order of arrival."""
    links = np.concatenate([*part.links_in, np.zeros(0, np.int64)]).astype(np.int64)  # rows behind its own links
    if not len(links):
        return packets[:0]
    order = np.argsort(links)
    place = np.minimum(np.searchsorted(links[order], packets[:, LINK]), len(links) - 1)
    is_own = links[order][place] == packets[:, LINK]
    found = packets[is_own]
    found[:, LINK] = len(part.links) + order[place[is_own]]
    return found[np.argsort(found[:, 0], kind="stable")]
