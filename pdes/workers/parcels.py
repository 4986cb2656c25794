"""Parcels: one from each team to each other team after every window, packed by compiled code.

A parcel has a header (number of records, and the state of its team) and then blocks of BLOCK records: first all tags,
so that a reader that looks for its own records reads one cache line of each block, then the contents: the words of a
packet, and its telemetry where packets carry it. A tag names the LP that a record is for, which of that LP's neighbours
it comes from, and which of the links between the two it uses. The used part of a parcel has no gaps, however many LPs
have packed something: each reserves room for its records by adding to their number, and no result depends on the order
among LPs. Before a window each LP of the receiving team finds its own records and puts them into halves in the format
of its neighbours' outboxes (pdes.network.boundary).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

import numpy as np

from pdes.build.layout import Part, offsets
from pdes.core.inputs import Rows
from pdes.core.jit import fetch_add, inline, outline
from pdes.core.memory import row_of, rows_of, zeros
from pdes.core.rows.workers import MpiCalls, ParcelHeader, ParcelHooks
from pdes.core.state import Int64, world_at
from pdes.network.boundary import CROSSING_WORDS, HEADER_WORDS

PARCEL_HEADER = ParcelHeader.words
BLOCK = 8  # records of a block: their tags fill one cache line
PARCEL = 0  # tag of MPI messages
TAG_LP, TAG_NEIGHBOUR = 44, 24  # positions of the LP and of its neighbour's index in a tag; the link's index is below
PLACE_BITS, LINK_BITS = (1 << (TAG_LP - TAG_NEIGHBOUR)) - 1, (1 << TAG_NEIGHBOUR) - 1  # masks of both indices

Words = TypeVar("Words", int, np.ndarray)  # a number of words, or an array of such numbers


class Parcels(NamedTuple):
    """Parcels of a team, and the letters to other teams of the LPs of one of its processes."""

    words: Int64  # shared by the team; parcels, each on whole lines
    headers: Annotated[np.recarray, ParcelHeader]  # the same words as rows: place // PARCEL_HEADER
    outgoing: Int64  # per other team, begin of the parcel for it in `words`
    incoming: Int64  # per other team, begins of those from it, after windows of even and of odd number
    numbers: Int64  # per LP of this process, its number
    letter_ptr: Int64  # per LP, begin of its letters: one for each neighbour in another team
    letter_team: Int64  # other team of a letter
    letter_neighbour: Int64  # place of the neighbour among those of the LP that sends
    letter_tag: Int64  # tag of a record, without the link
    half_ptr: Int64  # per LP, begin of its `half_at`
    half_at: Int64  # per neighbour, begin in `halves` of the half with its packets; -1 = of this team
    halves: Int64  # see pdes.network.boundary
    record_words: Int64  # words of a record without its tag
    calls: Annotated[np.recarray, MpiCalls]  # one row
    requests: Int64  # after windows of even and of odd number, address of the handles of requests that send to
    # each team in `answers`, then of those that receive from each
    answers: Int64  # other teams that the first worker of this process exchanges parcels with
    ranks: Int64  # rank of each of those teams that exchanges parcels with this team
    hooks: Annotated[np.record, ParcelHooks]  # functions that workers call if there are other teams


def no_parcels(parts: Sequence[object]) -> Parcels:
    """Return the Parcels of a process in the only team."""
    empty, ptr = np.zeros(0, np.int64), np.zeros(len(parts) + 1, np.int64)
    places = empty, headers_of(empty), empty, empty, ptr, ptr, empty, empty, empty, ptr, empty, empty, empty
    return Parcels(*places, rows_of(MpiCalls, 1), zeros(2), empty, empty, row_of(ParcelHooks))


@inline
def has_others(parcels):
    """Return whether there are other teams."""
    return parcels.hooks.agree != 0


def headers_of(words: Int64) -> Rows:
    """Return words of parcels viewed as rows of headers."""
    return words.view(ParcelHeader.dtype).view(np.recarray)


@inline
def parcel_words(records, record_words):
    """Return the length in words of a parcel with `records` records, a number or an array."""
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
    """Return the Parcels of a process's LPs: their letters and halves; parts: those of the LPs.

    team_of_lp: int64[lps], number of each LP's team; here: that of this process, without which other teams are
    numbered; pairs: int64[m, 2], pairs of LPs with links from the first to the second, sorted; words: int64[], parcels
    of the team; outgoing, incoming: int64[other teams], int64[2 x other teams], begins of the parcels to and from them;
    partners: other team that this process exchanges parcels with -> the rank there that does so.
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
def pack(parcels, world_address, lp, window_number):
    """Put an LP's packets for LPs of other teams into parcels, after its window; world_address: of its world."""
    net = world_at(world_address).net
    crossing = net.const.crossing_words
    size = parcels.record_words[0]
    words = parcels.words
    for letter in range(parcels.letter_ptr[lp], parcels.letter_ptr[lp + 1]):
        half = net.out_at[2 * parcels.letter_neighbour[letter] + (window_number & 1)]
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
def unpack(parcels, lp, window_number):
    """Put an LP's packets from the parcels of the previous window into the halves that the LP reads."""
    size = parcels.record_words[0]
    words, halves, number_of_lp = parcels.words, parcels.halves, parcels.numbers[lp]
    first = parcels.half_ptr[lp]
    for half in range(first, parcels.half_ptr[lp + 1]):
        if parcels.half_at[half] >= 0:
            halves[parcels.half_at[half]] = 0
    for team in range(parcels.outgoing.shape[0]):
        parcel = parcels.incoming[2 * team + 1 - (window_number & 1)]
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
