"""Parcels: one from each team to each other team after every window, packed by compiled code.

A parcel has a header (number of records, and the state of its team) and then blocks of BLOCK records: first a byte of
each, its mark, then their words. The mark is the last MARK_BITS bits of the number of the LP that the record is for: a
reader that looks for its own records reads one cache line of marks per block, and compares eight at a time. The first
word of a record names this LP, which of that LP's neighbours it comes from, which of the links between the two it uses,
and when the packet arrives, from the begin of the window on. Words 1 and 2 of the packet follow, word 3 (the tag) where
packets in the middle of messages need it, and telemetry where packets carry it. Elsewhere a second record holds tag and
arrival of the last packet of a message, and of a packet that arrives too late for the first word. So most packets take
25 bytes: everything that a node sends passes through its one link of the cluster.

The used part of a parcel has no gaps, however many LPs have packed something: each reserves room for its records by
adding to their number, and no result depends on the order among LPs. Before a window each LP of the receiving team
finds its own records and puts them into halves in the format of its neighbours' outboxes (pdes.network.boundary).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

import numpy as np

from pdes.build.layout import Layout, Part, offsets
from pdes.core.errors import RunError
from pdes.core.inputs import Record, Rows
from pdes.core.jit import fetch_add, inline, outline
from pdes.core.memory import row_of, rows_of, zeros
from pdes.core.packet import FLAG_ACK, FLAG_LAST, flags
from pdes.core.rows.workers import MpiCalls, ParcelHeader, ParcelHooks, ParcelShape
from pdes.core.state import Int8, Int64, world_at
from pdes.network.boundary import CROSSING_WORDS, HEADER_WORDS, WORD_BYTES

PARCEL_HEADER = ParcelHeader.words
BLOCK = 64  # records of a block: their marks fill one cache line
MARK_WORDS = BLOCK // WORD_BYTES  # words of the marks of a block
MARK_BITS = 7  # bits of a mark: eight marks are a word that is not negative
MARKS = (1 << MARK_BITS) - 1
EACH_BYTE = 0x0101010101010101  # times a mark: the word of eight such marks
HIGH_BITS = -0x7F7F7F7F7F7F7F80  # highest bit of each byte of a word
PARCEL = 0  # tag of MPI messages
FIRST_WORD_BITS = 63  # bits of a first word that is not negative
SECOND = -1  # first word of a second record: of no LP
MOST_RECORDS = 2  # maximum number of records of a packet

Words = TypeVar("Words", int, np.ndarray)  # a number of words, or an array of such numbers


class Parcels(NamedTuple):
    """Parcels of a team, and the letters to other teams of the LPs of one of its processes."""

    words: Int64  # shared by the team; parcels, each on whole lines
    headers: Annotated[np.recarray, ParcelHeader]  # the same words as rows: place // PARCEL_HEADER
    marks: Int8  # the same words as bytes
    outgoing: Int64  # per other team, begin of the parcel for it in `words`
    incoming: Int64  # per other team, begins of those from it, after windows of even and of odd number
    numbers: Int64  # per LP of this process, its number in the team
    letter_ptr: Int64  # per LP, begin of its letters: one for each neighbour in another team
    letter_team: Int64  # other team of a letter
    letter_neighbour: Int64  # place of the neighbour among those of the LP that sends
    letter_word: Int64  # first word of a record, without link and time
    half_ptr: Int64  # per LP, begin of its `half_at`
    half_at: Int64  # per neighbour, begin in `halves` of the half with its packets; -1 = of this team
    halves: Int64  # see pdes.network.boundary
    shape: Annotated[np.record, ParcelShape]  # format of records
    calls: Annotated[np.recarray, MpiCalls]  # one row
    requests: Int64  # after windows of even and of odd number, address of the handles of requests that send to
    # each team in `answers`, then of those that receive from each
    answers: Int64  # other teams that the first worker of this process exchanges parcels with
    ranks: Int64  # rank of each of those teams that exchanges parcels with this team
    hooks: Annotated[np.record, ParcelHooks]  # functions that workers call if there are other teams


def no_parcels(parts: Sequence[object]) -> Parcels:
    """Return the Parcels of a process in the only team."""
    empty, ptr = np.zeros(0, np.int64), np.zeros(len(parts) + 1, np.int64)
    places = empty, headers_of(empty), marks_of(empty), empty, empty, ptr, ptr, empty, empty, empty, ptr, empty, empty
    return Parcels(*places, row_of(ParcelShape), rows_of(MpiCalls, 1), zeros(2), empty, empty, row_of(ParcelHooks))


@inline
def has_others(parcels):
    """Return whether there are other teams."""
    return parcels.hooks.agree != 0


def headers_of(words: Int64) -> Rows:
    """Return words of parcels viewed as rows of headers."""
    return words.view(ParcelHeader.dtype).view(np.recarray)


def marks_of(words: Int64) -> Int8:
    """Return words of parcels viewed as bytes."""
    return words.view(np.int8)


@inline
def parcel_words(records, record_words):
    """Return the length in words of a parcel with `records` records, a number or an array."""
    return PARCEL_HEADER + (records + BLOCK - 1) // BLOCK * MARK_WORDS + records * (1 + record_words)


def record_words(part: Part) -> int:
    """Return the words of a record without its first one, in a run with a part `part` of the fabric."""
    return part.crossing_words - CROSSING_WORDS + 2 + part.has_tags


def shape_of(layout: Layout, part: Part, team_of_lp: Int64) -> Record:
    """Return the format of records; part: any of the layout; team_of_lp: int64[lps], number of each LP's team.

    Raises RunError: the first word has no room for the time.
    """
    graph, owner = layout.graph, layout.owner
    src, dst = owner[graph.link_src], owner[graph.link_dst]
    links = np.unique((src * layout.lps + dst)[src != dst], return_counts=True)[1]
    neighbours = np.bincount(layout.pairs()[:, 0])
    lp_bits, neighbour_bits, link_bits = (
        int(counts.max(initial=1) - 1).bit_length() for counts in (np.bincount(team_of_lp), neighbours, links)
    )
    time_bits = FIRST_WORD_BITS - 1 - lp_bits - neighbour_bits - link_bits
    if time_bits < 1:
        raise RunError(f"{layout.lps} LPs with {links.max()} links between two: packets cannot name all of them")
    link, words = time_bits + 1, record_words(part)
    neighbour = link + link_bits
    lp = neighbour + neighbour_bits
    return row_of(
        ParcelShape,
        record_words=words,
        has_tags=part.has_tags,
        time_bits=time_bits,
        link=link,
        neighbour=neighbour,
        lp=lp,
    )


def numbers_in_teams(team_of_lp: Int64) -> Int64:
    """Return int64[lps]: number of each LP in its team; team_of_lp: int64[lps], number of its team."""
    order = np.argsort(team_of_lp, kind="stable")
    begins = offsets(np.bincount(team_of_lp))
    numbers = np.empty_like(team_of_lp)
    numbers[order] = np.arange(len(team_of_lp)) - begins[team_of_lp[order]]
    return numbers


def parcels_of(
    parts: Sequence[Part],
    layout: Layout,
    team_of_lp: Int64,
    here: int,
    words: Int64,
    outgoing: Int64,
    incoming: Int64,
    partners: Mapping[int, int],
) -> Parcels:
    """Return the Parcels of a process's LPs: their letters and halves; parts: those of the LPs.

    team_of_lp: int64[lps], number of each LP's team; here: that of this process, without which other teams are
    numbered; words: int64[], parcels of the team; outgoing, incoming: int64[other teams], int64[2 x other teams],
    begins of the parcels to and from them; partners: other team that this process exchanges parcels with -> the rank
    there that does so.
    """
    pairs, shape, numbers = layout.pairs(), shape_of(layout, parts[0], team_of_lp), numbers_in_teams(team_of_lp)
    begin = np.searchsorted(pairs[:, 0], np.arange(len(team_of_lp) + 1))
    letters: list[tuple[int, int, int]] = []
    letter_ptr, half_at = [0], []
    used = 0
    for part in parts:
        for j, (other, room) in enumerate(zip(part.neighbours, part.rooms_in, strict=True)):
            team = int(team_of_lp[other])
            half_at.append(-1 if team == here else used)
            if team != here:
                used += part.half_words(room)
                mine = int(np.searchsorted(pairs[begin[other] : begin[other + 1], 1], part.number))
                first = int(numbers[other]) << int(shape.lp) | mine << int(shape.neighbour)
                letters.append((team - (team > here), j, first))
        letter_ptr.append(len(letters))
    letter_team, letter_neighbour, letter_word = np.array(letters, np.int64).reshape(-1, 3).T.copy()
    return Parcels(
        words=words,
        headers=headers_of(words),
        marks=marks_of(words),
        outgoing=outgoing,
        incoming=incoming,
        numbers=numbers[[part.number for part in parts]],
        letter_ptr=np.array(letter_ptr, np.int64),
        letter_team=letter_team,
        letter_neighbour=letter_neighbour,
        letter_word=letter_word,
        half_ptr=offsets([len(part.neighbours) for part in parts]),
        half_at=np.array(half_at, np.int64),
        halves=zeros(used),
        shape=shape,
        calls=rows_of(MpiCalls, 1),
        requests=zeros(2),
        answers=np.array(list(partners), np.int64),
        ranks=np.array(list(partners.values()), np.int64),
        hooks=row_of(ParcelHooks),
    )


@inline
def block_at(parcel, record, size):
    """Return the place of the block with a record; size: record_words of ParcelShape."""
    return parcel + PARCEL_HEADER + record // BLOCK * (MARK_WORDS + BLOCK * (1 + size))


@inline
def word_at(parcel, record, size):
    """Return the place of a record's mark, among bytes, and of its first word; size: record_words of ParcelShape."""
    block = block_at(parcel, record, size)
    return block * WORD_BYTES + record % BLOCK, block + MARK_WORDS + record % BLOCK * (1 + size)


@inline
def equal_marks(eight_marks, mark):
    """Return a word with the lowest bit of each byte of a word of eight marks that equals `mark`; others may be set.

    A bit too many is set only above one that belongs there.
    """
    differences = eight_marks ^ mark * EACH_BYTE
    return ((differences - EACH_BYTE) & ~differences & HIGH_BITS) >> MARK_BITS & EACH_BYTE


@inline
def needed_tag(has_tags, word1, tag):
    """Return word 3 of a packet, 0 for data in the middle of a message where nothing reads it (`Part.has_tags`)."""
    return tag if has_tags == 1 or flags(word1) & (FLAG_ACK | FLAG_LAST) != 0 else np.int64(0)


@inline
def has_second(time_bits, has_tags, later_ps, tag):
    """Return whether a packet with `tag` that arrives later_ps after the window's begin needs a second record."""
    # The other arguments are those of ParcelShape.
    return later_ps >> time_bits != 0 or (has_tags == 0 and tag != 0)


@inline
def records_in(outbox, half, crossing, shape, begin_ps):
    """Return the number of records for the packets in a half of an outbox after the window that begins at begin_ps."""
    count = outbox[half]
    records = count
    for i in range(count):
        out = half + HEADER_WORDS + i * crossing
        tag = needed_tag(shape.has_tags, outbox[out + 1], outbox[out + 3])
        records += has_second(shape.time_bits, shape.has_tags, outbox[out] - begin_ps, tag)
    return records


@outline
def pack(parcels, world_address, lp, window_number, begin_ps):
    """Put an LP's packets for LPs of other teams into parcels, after its window, which begins at begin_ps."""
    # world_address: of its world. Words of rows that the loops use are read before: stores might change them.
    net = world_at(world_address).net
    crossing = net.const.crossing_words
    shape, words, marks, outbox = parcels.shape, parcels.words, parcels.marks, net.outbox
    size, has_tags, time_bits = shape.record_words, shape.has_tags, shape.time_bits
    link_place, lp_place = shape.link, shape.lp
    begin, end = parcels.letter_ptr[lp], parcels.letter_ptr[lp + 1]
    while begin < end:
        # One reservation for all letters to a team: workers contend for the cache line of its number of records.
        team, after, records = parcels.letter_team[begin], begin, np.int64(0)
        while after < end and parcels.letter_team[after] == team:
            half = net.out_at[2 * parcels.letter_neighbour[after] + (window_number & 1)]
            records += records_in(outbox, half, crossing, shape, begin_ps)
            after += 1
        parcel = parcels.outgoing[team]
        record = fetch_add(words, parcel, records) if records > 0 else np.int64(0)
        for letter in range(begin, after):
            half = net.out_at[2 * parcels.letter_neighbour[letter] + (window_number & 1)]
            named = parcels.letter_word[letter]
            own_mark = named >> lp_place & MARKS
            for i in range(outbox[half]):
                out = half + HEADER_WORDS + i * crossing
                later_ps, tag = outbox[out] - begin_ps, needed_tag(has_tags, outbox[out + 1], outbox[out + 3])
                mark, first = word_at(parcel, record, size)
                record += 1
                marks[mark] = own_mark
                word = named | outbox[out + CROSSING_WORDS - 1] << link_place
                words[first + 1] = outbox[out + 1]
                words[first + 2] = outbox[out + 2]
                at = first + 3
                if has_tags == 1:
                    words[at] = tag
                    at += 1
                for more in range(CROSSING_WORDS, crossing):
                    words[at + more - CROSSING_WORDS] = outbox[out + more]
                if has_second(time_bits, has_tags, later_ps, tag):
                    words[first] = word | 1 << time_bits
                    mark, first = word_at(parcel, record, size)
                    record += 1
                    marks[mark] = own_mark
                    words[first] = SECOND
                    words[first + 1] = tag
                    words[first + 2] = outbox[out]
                else:
                    words[first] = word | later_ps
        begin = after


@outline
def unpack(parcels, lp, window_number):
    """Put an LP's packets from the parcels of the previous window into the halves that the LP reads."""
    shape, words, halves = parcels.shape, parcels.words, parcels.halves
    number_of_lp = parcels.numbers[lp]
    own_mark = number_of_lp & MARKS
    size, has_tags, time_bits = shape.record_words, shape.has_tags, shape.time_bits
    lp_place, neighbour_place, link_place = shape.lp, shape.neighbour, shape.link
    crossing = size - 2 - has_tags + CROSSING_WORDS
    neighbours, links = (1 << (lp_place - neighbour_place)) - 1, (1 << (neighbour_place - link_place)) - 1
    times = (1 << time_bits) - 1
    half_ptr = parcels.half_ptr[lp]
    for half in range(half_ptr, parcels.half_ptr[lp + 1]):
        if parcels.half_at[half] >= 0:
            halves[parcels.half_at[half]] = 0
    for team in range(parcels.outgoing.shape[0]):
        parcel = parcels.incoming[2 * team + 1 - (window_number & 1)]
        header = parcels.headers[parcel // PARCEL_HEADER]
        records, begin_ps = header.records, header.begin_ps
        for begin in range(0, records, WORD_BYTES):
            block = block_at(parcel, begin, size)
            equal = equal_marks(words[block + begin % BLOCK // WORD_BYTES], own_mark)
            while equal != 0:
                lowest = equal & -equal
                equal ^= lowest
                # the number of bytes below: their lowest bits, summed in the highest byte of the product
                record = begin + ((lowest - 1 & EACH_BYTE) * EACH_BYTE >> 8 * (WORD_BYTES - 1))
                if record >= records:
                    break
                first = block + MARK_WORDS + record % BLOCK * (1 + size)
                word = words[first]
                if word >> lp_place != number_of_lp:
                    continue
                half = parcels.half_at[half_ptr + (word >> neighbour_place & neighbours)]
                into = half + HEADER_WORDS + halves[half] * crossing
                halves[half] += 1
                arrival_ps, tag = begin_ps + (word & times), np.int64(0)
                halves[into + 1] = words[first + 1]
                halves[into + 2] = words[first + 2]
                at = first + 3
                if has_tags == 1:
                    tag = words[at]
                    at += 1
                for more in range(CROSSING_WORDS, crossing):
                    halves[into + more] = words[at + more - CROSSING_WORDS]
                if word >> time_bits & 1 == 1:
                    _, second = word_at(parcel, record + 1, size)
                    tag, arrival_ps = words[second + 1], words[second + 2]
                halves[into] = arrival_ps
                halves[into + 3] = tag
                halves[into + CROSSING_WORDS - 1] = word >> link_place & links
