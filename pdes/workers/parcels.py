"""What teams send each other: one parcel from each team to each other one after every window, packed by compiled code.

A parcel has a header (records, and what its team says of itself) and then blocks of BLOCK records: the tags of all
first, so that whoever looks for what is his reads a line of each block and no more, and then what they hold: the words
of a packet, and what it has met where packets carry telemetry. A tag says for which LP a record is, from which of that
LP's neighbours, and over which of the links between the two. So what is used of a parcel is a piece of memory without
gaps, however many LPs have put something in: each takes room for its records by adding to their number, and an order
among them no result depends on. Before a window each LP of the receiving team looks for its own records and puts them
into halves as its neighbours' outboxes have them (pdes.network.boundary).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

import numpy as np

from pdes.build.part import Part, offsets
from pdes.core.inputs import Rows
from pdes.core.jit import fetch_add, inline, outline
from pdes.core.memory import row_of, rows_of, zeros
from pdes.core.rows.workers import MpiCalls, ParcelHeader, ParcelHooks
from pdes.core.state import Int64
from pdes.core.world import world_at
from pdes.network.boundary import CROSSING_WORDS, HEADER_WORDS

PARCEL_HEADER = ParcelHeader.words
BLOCK = 8
"""Records whose tags stand on one cache line."""
PARCEL = 0
"""Tag of messages."""
TAG_LP, TAG_NEIGHBOUR = 44, 24
"""Where in a tag the LP begins, and its neighbour's place; below is the link's."""
PLACE_BITS, LINK_BITS = (1 << (TAG_LP - TAG_NEIGHBOUR)) - 1, (1 << TAG_NEIGHBOUR) - 1

Words = TypeVar("Words", int, np.ndarray)
"""A number or an array of them."""


class Parcels(NamedTuple):
    """Parcels of a team, and what the LPs of one of its processes put in and take out."""

    words: Int64  # shared by the team; parcels, each on whole lines
    headers: Annotated[np.recarray, ParcelHeader]  # the same words as rows: that of a place is its by PARCEL_HEADER
    outgoing: Int64  # per other team, where the parcel for it begins in `words`
    incoming: Int64  # per other team, where those from it begin, after windows of even number and of odd number
    numbers: Int64  # per LP of this process, its number
    letter_ptr: Int64  # per LP, where its letters begin: one for each neighbour in another team
    letter_team: Int64  # other team of a letter
    letter_neighbour: Int64  # place of the neighbour among those of the LP that sends
    letter_tag: Int64  # tag of a record, without the link
    half_ptr: Int64  # per LP, where its `half_at` begin
    half_at: Int64  # per neighbour, where in `halves` the half begins that holds what has come; -1 = of this team
    halves: Int64  # see pdes.network.boundary
    record_words: Int64  # of a record beside its tag
    calls: Annotated[np.recarray, MpiCalls]  # one row
    requests: Int64  # after windows of even number and of odd number, address of the handles of requests that send to
    # each team in `answers`, then of those that receive from each
    answers: Int64  # other teams for which the first worker of this process answers: it sends to them, takes from them
    ranks: Int64  # which rank of each of those answers for this team
    hooks: Annotated[np.record, ParcelHooks]  # what workers call where there are other teams


def no_parcels(parts: Sequence[object]) -> Parcels:
    """Of a process whose team is the only one."""
    none, ptr = np.zeros(0, np.int64), np.zeros(len(parts) + 1, np.int64)
    places = none, headers_of(none), none, none, ptr, ptr, none, none, none, ptr, none, none, none
    return Parcels(*places, rows_of(MpiCalls, 1), zeros(2), none, none, row_of(ParcelHooks))


@inline
def has_others(parcels):
    """Whether there are other teams."""
    return parcels.hooks.agree != 0


def headers_of(words: Int64) -> Rows:
    """What words of parcels are as rows of headers."""
    return words.view(ParcelHeader.dtype).view(np.recarray)


@inline
def parcel_words(records, record_words):
    """Length of a parcel of so many records, a number or an array."""
    return PARCEL_HEADER + (records + BLOCK - 1) // BLOCK * BLOCK * (1 + record_words)


def parcels_of(
    parts: Sequence[Part],
    team_of_lp: Int64,
    here: int,
    pairs: Int64,
    words: Int64,
    outgoing: Int64,
    incoming: Int64,
    partners: Mapping[int, int],
) -> Parcels:
    """Letters and halves of LPs.

    Args:
        parts: of LPs of one process.
        team_of_lp: int64[lps], number of the team of each.
        here: that of this process; other teams are numbered without it.
        pairs: int64[m, 2], LPs that have links from the first to the second, in order.
        words: int64[], parcels of the team.
        outgoing: int64[other teams], where they begin.
        incoming: int64[2 x other teams], likewise.
        partners: other team for which this process answers -> the rank that answers there for this one.
    """
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
                letters.append((team - (team > here), j, other << TAG_LP | mine << TAG_NEIGHBOUR))
        letter_ptr.append(len(letters))
    letter_team, letter_neighbour, letter_tag = np.array(letters, np.int64).reshape(-1, 3).T.copy()
    return Parcels(
        words=words,
        headers=headers_of(words),
        outgoing=outgoing,
        incoming=incoming,
        numbers=np.array([part.number for part in parts], np.int64),
        letter_ptr=np.array(letter_ptr, np.int64),
        letter_team=letter_team,
        letter_neighbour=letter_neighbour,
        letter_tag=letter_tag,
        half_ptr=offsets([len(part.neighbours) for part in parts]),
        half_at=np.array(half_at, np.int64),
        halves=zeros(used),
        record_words=np.array([parts[0].crossing_words - 1], np.int64),
        calls=rows_of(MpiCalls, 1),
        requests=zeros(2),
        answers=np.array(list(partners), np.int64),
        ranks=np.array(list(partners.values()), np.int64),
        hooks=row_of(ParcelHooks),
    )


@outline
def pack(parcels, address, lp, number):
    """After its window, put what an LP has for LPs of other teams into the parcels for those."""
    net = world_at(address).net
    crossing = net.const.crossing_words
    size = parcels.record_words[0]
    words = parcels.words
    for letter in range(parcels.letter_ptr[lp], parcels.letter_ptr[lp + 1]):
        half = net.out_at[2 * parcels.letter_neighbour[letter] + (number & 1)]
        count = net.outbox[half]
        if count == 0:
            continue
        parcel = parcels.outgoing[parcels.letter_team[letter]]
        first = fetch_add(words, parcel, count)
        for i in range(count):
            out = half + HEADER_WORDS + i * crossing
            block = parcel + PARCEL_HEADER + (first + i) // BLOCK * BLOCK * (1 + size)
            place = (first + i) % BLOCK
            words[block + place] = parcels.letter_tag[letter] | net.outbox[out + CROSSING_WORDS - 1]
            at = block + BLOCK + place * size
            for word in range(CROSSING_WORDS - 1):
                words[at + word] = net.outbox[out + word]
            for word in range(CROSSING_WORDS, crossing):
                words[at + word - 1] = net.outbox[out + word]


@outline
def unpack(parcels, lp, number):
    """Before its window, put what came for an LP after the window before into the halves that the LP looks into."""
    size = parcels.record_words[0]
    words, halves, number_of_lp = parcels.words, parcels.halves, parcels.numbers[lp]
    first = parcels.half_ptr[lp]
    for half in range(first, parcels.half_ptr[lp + 1]):
        if parcels.half_at[half] >= 0:
            halves[parcels.half_at[half]] = 0
    for team in range(parcels.outgoing.shape[0]):
        parcel = parcels.incoming[2 * team + 1 - (number & 1)]
        records = parcels.headers[parcel // PARCEL_HEADER].records
        for begin in range(0, records, BLOCK):
            block = parcel + PARCEL_HEADER + begin * (1 + size)
            for place in range(min(BLOCK, records - begin)):
                tag = words[block + place]
                if tag >> TAG_LP != number_of_lp:
                    continue
                half = parcels.half_at[first + ((tag >> TAG_NEIGHBOUR) & PLACE_BITS)]
                into = half + HEADER_WORDS + halves[half] * (size + 1)
                halves[half] += 1
                at = block + BLOCK + place * size
                for word in range(CROSSING_WORDS - 1):
                    halves[into + word] = words[at + word]
                halves[into + CROSSING_WORDS - 1] = tag & LINK_BITS
                for word in range(CROSSING_WORDS, size + 1):
                    halves[into + word] = words[at + word - 1]
