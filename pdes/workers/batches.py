"""Message batches: one from each team to each other team after every window, packed by compiled code.

A batch has a header (number of records, and the state of its team) and then blocks of BLOCK records: first a byte of
each, its mark, then their words. The mark is the last MARK_BITS bits of the number of the LP that the record is for: a
reader that looks for its own records reads one cache line of marks per block, and compares eight at a time. The first
word of a record names this LP, which of the links from the team to it the packet uses, and when the packet arrives,
from the begin of the window on. Words 1 and 2 of the packet follow, word 3 (the tag) where packets in the middle of
messages need it, and telemetry where packets carry it. Elsewhere a second record holds tag and arrival of the last
packet of a message, and of a packet that arrives too late for the first word. So most packets take 25 bytes: everything
that a node sends passes through its one link of the cluster.

The outbox of an LP has one list of packets for each other team (pdes.core.packet), and what comes from a team is
put into one list, too: an LP has links to a hundred LPs of other nodes in a large run, but to seven nodes.

The used part of a batch has no gaps, however many LPs have packed something: each reserves room for its records by
adding to their number, once, as workers contend for its cache line. No result depends on the order among LPs. Before a
window each LP of the receiving team finds its own records.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

import numpy as np

from nadi.pdes.construction.layout import Layout, Part, numbers_in_teams
from nadi.pdes.core import Record, Rows, RunError, packet
from nadi.pdes.core.jit import fetch_add, inline, outline, row_of, rows_of, zeros
from nadi.pdes.core.rows.run import BatchHeader, BatchHooks, BatchShape, MpiCalls
from nadi.pdes.core.state import Int8, Int64, world_at

BATCH_HEADER = BatchHeader.words
BLOCK = 64  # records of a block: their marks fill one cache line
MARK_WORDS = BLOCK // packet.WORD_BYTES  # words of the marks of a block
MARK_BITS = 7  # bits of a mark: eight marks are a word that is not negative
MARKS = (1 << MARK_BITS) - 1
EACH_BYTE = 0x0101010101010101  # times a mark: the word of eight such marks
HIGH_BITS = -0x7F7F7F7F7F7F7F80  # highest bit of each byte of a word
BATCH = 0  # tag of MPI messages
FIRST_WORD_BITS = 63  # bits of a first word that is not negative
SECOND = -1  # first word of a second record: of no LP
FAR_LINKS = (1 << packet.FAR_LP) - 1
MOST_RECORDS = 2  # maximum number of records of a packet

Words = TypeVar("Words", int, np.ndarray)  # a number of words, or an array of such numbers


class MessageBatches(NamedTuple):
    """Message batches of a team, and the lists of the LPs of one of its processes for other teams."""

    words: Int64  # shared by the team; batches, each on whole lines
    headers: Annotated[np.recarray, BatchHeader]  # the same words as rows: place // BATCH_HEADER
    marks: Int8  # the same words as bytes
    outgoing: Int64  # per other team, begin of the batch for it in `words`
    incoming: Int64  # per other team, begins of those from it, after windows of even and of odd number
    numbers: Int64  # per LP of this process, its number in the team
    list_to: Int64  # per LP and other team, the list of what goes there; -1 = no link leads there
    half_at: Int64  # per LP and other team, begin in `halves` of the half with what came from there; -1 = no link does
    halves: Int64  # see pdes.core.packet
    shape: Annotated[np.record, BatchShape]  # format of records
    calls: Annotated[np.recarray, MpiCalls]  # one row
    requests: Int64  # after windows of even and of odd number, address of the handles of requests that send to
    # each team in `answers`, then of those that receive from each
    answers: Int64  # other teams that the first worker of this process exchanges batches with
    ranks: Int64  # rank of each of those teams that exchanges batches with this team
    hooks: Annotated[np.record, BatchHooks]  # functions that workers call if there are other teams


def no_batches(parts: Sequence[object]) -> MessageBatches:
    """Return the message batches of a process in the only team.

    Args:
        parts: Parts of the process's LPs.
    """
    empty, numbers = np.zeros(0, np.int64), np.zeros(len(parts), np.int64)
    places = empty, headers_of(empty), marks_of(empty), empty, empty, numbers, empty, empty, empty
    return MessageBatches(*places, row_of(BatchShape), rows_of(MpiCalls, 1), zeros(2), empty, empty, row_of(BatchHooks))


@inline
def has_others(batches):
    """Return whether there are other teams.

    Args:
        batches: Message batches of the team (`MessageBatches`).
    """
    return batches.hooks.agree != 0


def headers_of(words: Int64) -> Rows:
    """Return words of batches viewed as rows of headers."""
    return words.view(BatchHeader.dtype).view(np.recarray)


def marks_of(words: Int64) -> Int8:
    """Return words of batches viewed as bytes."""
    return words.view(np.int8)


@inline
def batch_words(records, record_words):
    """Return the length in words of a batch.

    Args:
        records: Number of records in it; a number or an array.
        record_words: Words of a record without its first one.
    """
    return BATCH_HEADER + (records + BLOCK - 1) // BLOCK * MARK_WORDS + records * (1 + record_words)


def record_words(part: Part) -> int:
    """Return the words of a record without its first one, in a run with a part `part` of the fabric."""
    return part.crossing_words - packet.CROSSING_WORDS + 2 + part.has_tags


def shape_of(layout: Layout, part: Part, team_of_lp: Int64) -> Record:
    """Return the format of records; part: any of the layout; team_of_lp: int64[lps], number of each LP's team.

    Raises RunError: the first word has no room for the time.
    """
    graph, owner = layout.graph, layout.owner
    team, dst = team_of_lp[owner[graph.link_src]], owner[graph.link_dst]
    # links that lead from one team to one LP: the longest such list decides how many bits name a link
    links = np.unique((team * layout.lps + dst)[team != team_of_lp[dst]], return_counts=True)[1]
    lp_bits, link_bits = (int(counts.max(initial=1) - 1).bit_length() for counts in (np.bincount(team_of_lp), links))
    # the first word holds LP and link; the time gets what is left, and one bit marks a second record
    time_bits = FIRST_WORD_BITS - 1 - lp_bits - link_bits
    if time_bits < 1 or link_bits > packet.FAR_LP:
        raise RunError(f"{layout.lps} LPs with {links.max()} links from a team to one: packets cannot name all of them")
    link, words = time_bits + 1, record_words(part)
    return row_of(
        BatchShape,
        record_words=words,
        has_tags=part.has_tags,
        time_bits=time_bits,
        link=link,
        lp=link + link_bits,
    )


def batches_of(
    parts: Sequence[Part],
    layout: Layout,
    team_of_lp: Int64,
    here: int,
    words: Int64,
    outgoing: Int64,
    incoming: Int64,
    partners: Mapping[int, int],
) -> MessageBatches:
    """Return the message batches of a process's LPs.

    parts: parts of the LPs, which have joined teams; layout: division of the fabric among LPs; team_of_lp: int64[lps],
    number of each LP's team; here: number of this process's team, without which other teams are numbered; words:
    int64[], batches of the team; outgoing: int64[other teams], begins of the batches to them; incoming: int64[2 x other
    teams], begins of the batches from them; partners: other team that this process exchanges batches with -> the rank
    there that does so.
    """
    used = 0
    list_to, half_at = (np.full((len(parts), len(outgoing)), -1, np.int64) for _ in range(2))
    for place, part in enumerate(parts):
        rooms = np.bincount(part.list_of, part.rooms_in, part.lists).astype(np.int64).tolist()
        for lp, number in part.list_of_neighbour().items():
            team = int(team_of_lp[lp])
            # teams are numbered without the own one
            other = team - (team > here)
            if team != here and list_to[place, other] < 0:
                list_to[place, other], half_at[place, other] = number, used
                used += part.half_words(rooms[number])
    return MessageBatches(
        words=words,
        headers=headers_of(words),
        marks=marks_of(words),
        outgoing=outgoing,
        incoming=incoming,
        numbers=numbers_in_teams(team_of_lp)[[part.number for part in parts]],
        list_to=list_to.reshape(-1),
        half_at=half_at.reshape(-1),
        halves=zeros(used),
        shape=shape_of(layout, parts[0], team_of_lp),
        calls=rows_of(MpiCalls, 1),
        requests=zeros(2),
        answers=np.array(list(partners), np.int64),
        ranks=np.array(list(partners.values()), np.int64),
        hooks=row_of(BatchHooks),
    )


@inline
def block_at(batch, record, size):
    """Return the place of the block with a record.

    Args:
        batch: Place of the batch in the words of the team.
        record: Number of the record in the batch.
        size: Words of a record without its first one (BatchShape.record_words).
    """
    return batch + BATCH_HEADER + record // BLOCK * (MARK_WORDS + BLOCK * (1 + size))


@inline
def word_at(batch, record, size):
    """Return the place of a record's mark, among bytes, and of its first word.

    Args:
        batch: Place of the batch in the words of the team.
        record: Number of the record in the batch.
        size: Words of a record without its first one (BatchShape.record_words).
    """
    block = block_at(batch, record, size)
    return block * packet.WORD_BYTES + record % BLOCK, block + MARK_WORDS + record % BLOCK * (1 + size)


@inline
def equal_marks(eight_marks, mark):
    """Return a word with the lowest bit of each byte that equals a mark; others may be set.

    A bit too many is set only above one that belongs there.

    Args:
        eight_marks: Word of eight marks.
        mark: Mark that is sought.
    """
    # A byte of `differences` is 0 where the mark is equal. Subtracting 1 from each byte borrows into the high bit of a
    # byte that was 0, and `& ~differences` drops bytes whose high bit was set before (Warren, Hacker's Delight, section
    # 6-1). A borrow that passes on may mark the byte above, which the reader finds by the LP's whole number in the
    # first word.
    differences = eight_marks ^ mark * EACH_BYTE
    return ((differences - EACH_BYTE) & ~differences & HIGH_BITS) >> MARK_BITS & EACH_BYTE


@inline
def needed_tag(has_tags, word1, tag):
    """Return word 3 of a packet, 0 for data in the middle of a message where nothing reads it (`Part.has_tags`).

    Args:
        has_tags: 1 if each record has the tag of its packet's message (BatchShape).
        word1: Word 1 of the packet (pdes/core/packet.py).
        tag: Word 3 of the packet.
    """
    return tag if has_tags == 1 or packet.flags(word1) & (packet.FLAG_ACK | packet.FLAG_LAST) != 0 else np.int64(0)


@inline
def has_second(time_bits, has_tags, later_ps, tag):
    """Return whether a packet needs a second record.

    Args:
        time_bits: Bits of the first word for the time (BatchShape).
        has_tags: 1 if each record has the tag of its packet's message (BatchShape).
        later_ps: Time in ps from the window's begin until the packet arrives.
        tag: Word 3 of the packet.
    """
    return later_ps >> time_bits != 0 or (has_tags == 0 and tag != 0)


@inline
def records_in(outbox, half, crossing, shape, begin_ps):
    """Return the number of records for the packets in a half of an outbox after a window.

    Args:
        outbox: Outboxes of the LP (`Net.outbox`).
        half: Index in `outbox` where the half begins.
        crossing: Words of a packet in an outbox.
        shape: Format of records (a row `BatchShape`).
        begin_ps: Begin of the window in ps.
    """
    count = outbox[half]
    # one each, and one more for packets that need a second
    records = count
    # counted before any is written: one atomic addition then reserves room for all of the LP
    for i in range(count):
        out = half + packet.HEADER_WORDS + i * crossing
        tag = needed_tag(shape.has_tags, outbox[out + 1], outbox[out + 3])
        records += has_second(shape.time_bits, shape.has_tags, outbox[out] - begin_ps, tag)
    return records


@outline
def pack(batches, world_address, lp, window_number, begin_ps):
    """Put an LP's packets for LPs of other teams into batches, after its window.

    Args:
        batches: Message batches of the team (`MessageBatches`).
        world_address: Address of the directory of the LP's `World`.
        lp: Index of the LP in the process.
        window_number: Number of the window.
        begin_ps: Begin of the window in ps.
    """
    # Words of rows that the loops use are read before: stores might change them.
    net = world_at(world_address).net
    crossing = net.const.crossing_words
    shape, words, marks, outbox = batches.shape, batches.words, batches.marks, net.outbox
    size, has_tags, time_bits = shape.record_words, shape.has_tags, shape.time_bits
    link_place, lp_place = shape.link, shape.lp
    others = batches.outgoing.shape[0]
    for team in range(others):
        number = batches.list_to[lp * others + team]
        if number < 0:
            continue
        # the half that this window has written
        half = net.out_at[2 * number + (window_number & 1)]
        if outbox[half] == 0:
            continue
        batch = batches.outgoing[team]
        # word 0 of the batch is its number of records (BatchHeader): the old value is the number of the first own
        # record
        record = fetch_add(words, batch, records_in(outbox, half, crossing, shape, begin_ps))
        for i in range(outbox[half]):
            out = half + packet.HEADER_WORDS + i * crossing
            later_ps, tag = outbox[out] - begin_ps, needed_tag(has_tags, outbox[out + 1], outbox[out + 3])
            name = outbox[out + packet.CROSSING_WORDS - 1]
            own_mark = name >> packet.FAR_LP & MARKS
            word = name >> packet.FAR_LP << lp_place | (name & FAR_LINKS) << link_place
            mark, first = word_at(batch, record, size)
            record += 1
            marks[mark] = own_mark
            words[first + 1] = outbox[out + 1]
            words[first + 2] = outbox[out + 2]
            at = first + 3
            if has_tags == 1:
                words[at] = tag
                at += 1
            for more in range(packet.CROSSING_WORDS, crossing):
                words[at + more - packet.CROSSING_WORDS] = outbox[out + more]
            if has_second(time_bits, has_tags, later_ps, tag):
                words[first] = word | 1 << time_bits
                mark, first = word_at(batch, record, size)
                record += 1
                marks[mark] = own_mark
                words[first] = SECOND
                words[first + 1] = tag
                words[first + 2] = outbox[out]
            else:
                words[first] = word | later_ps


@outline
def unpack(batches, lp, window_number):
    """Put an LP's packets from the batches of the previous window into the halves that the LP reads.

    Args:
        batches: Message batches of the team (`MessageBatches`).
        lp: Index of the LP in the process.
        window_number: Number of the window.
    """
    shape, words, halves = batches.shape, batches.words, batches.halves
    number_of_lp = batches.numbers[lp]
    own_mark = number_of_lp & MARKS
    size, has_tags, time_bits = shape.record_words, shape.has_tags, shape.time_bits
    lp_place, link_place = shape.lp, shape.link
    crossing = size - 2 - has_tags + packet.CROSSING_WORDS
    links = (1 << (lp_place - link_place)) - 1
    times = (1 << time_bits) - 1
    others = batches.outgoing.shape[0]
    for team in range(others):
        half = batches.half_at[lp * others + team]
        if half < 0:
            continue
        into = half + packet.HEADER_WORDS
        # of the window before: it was received into the half of that window's parity
        batch = batches.incoming[2 * team + 1 - (window_number & 1)]
        header = batches.headers[batch // BATCH_HEADER]
        records, begin_ps = header.records, header.begin_ps
        for begin in range(0, records, packet.WORD_BYTES):
            block = block_at(batch, begin, size)
            equal = equal_marks(words[block + begin % BLOCK // packet.WORD_BYTES], own_mark)
            while equal != 0:
                lowest = equal & -equal
                equal ^= lowest
                # the number of bytes below: their lowest bits, summed in the highest byte of the product
                record = begin + ((lowest - 1 & EACH_BYTE) * EACH_BYTE >> 8 * (packet.WORD_BYTES - 1))
                if record >= records:
                    break
                first = block + MARK_WORDS + record % BLOCK * (1 + size)
                word = words[first]
                if word >> lp_place != number_of_lp:
                    continue
                arrival_ps, tag = begin_ps + (word & times), np.int64(0)
                halves[into + 1] = words[first + 1]
                halves[into + 2] = words[first + 2]
                at = first + 3
                if has_tags == 1:
                    tag = words[at]
                    at += 1
                for more in range(packet.CROSSING_WORDS, crossing):
                    halves[into + more] = words[at + more - packet.CROSSING_WORDS]
                if word >> time_bits & 1 == 1:
                    _, second = word_at(batch, record + 1, size)
                    tag, arrival_ps = words[second + 1], words[second + 2]
                halves[into] = arrival_ps
                halves[into + 3] = tag
                halves[into + packet.CROSSING_WORDS - 1] = word >> link_place & links
                into += crossing
        halves[half] = (into - half - packet.HEADER_WORDS) // crossing
