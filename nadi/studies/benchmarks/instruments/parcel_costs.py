"""What parcels between teams cost the LPs that pack and unpack them, measured on one core with the engine's kernels."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pdes import Simulation
from pdes.arrays import Int64
from pdes.instruments import (
    BLOCK,
    CROSSING_WORDS,
    HEADER_WORDS,
    PARCEL_HEADER,
    TAG_LP,
    Meeting,
    Parcels,
    headers_of,
    meeting_at,
    new_crew,
    no_parcels,
    pack,
    parcel_words,
    team_in,
    team_words,
    unpack,
)
from pdes.kernels import Directory, kernel, zeros

RECORD_WORDS = CROSSING_WORDS - 1
TEAMS, RECORDS_EACH = 64, 4096
"""Parcels that an LP looks through: together more than the caches of one core hold."""
LETTERS, ROUNDS = 64, 200
ONE_IN = 32
"""Of the records that an LP looks at, one in so many is its own."""


class ParcelCosts(NamedTuple):
    """Nanoseconds: of a letter in which nothing is, of a record put into a parcel, looked at, taken out."""

    letter_ns: float
    pack_ns: float
    look_ns: float
    take_ns: float


@kernel
def _pack_often(address, rounds):
    m = meeting_at(address)
    for _ in range(rounds):
        m.parcels.headers[0].records = 0
        pack(m.parcels, m.addresses[0], 0, 0)


@kernel
def _unpack_once(address):
    unpack(meeting_at(address).parcels, 0, 0)


def parcel_costs(sim: Simulation) -> ParcelCosts:
    """Measure them; sim: of two LPs or more, whose first has a link to another, not begun."""
    lp = sim.lps[0]
    half = int(lp.world.net.out_at[0])
    most = min(lp.part.rooms[0], 8)
    timed = []
    for count in (0, most):
        lp.world.net.outbox[half] = count
        parcels = _made(words=zeros(parcel_words(LETTERS * most, RECORD_WORDS)), letters=LETTERS)
        meeting = _meeting(np.array([lp.address], np.int64), parcels)
        timed.append(_least_ns(_pack_often, meeting.address, ROUNDS) / ROUNDS / LETTERS)
    lp.world.net.outbox[half] = 0
    looked = [_look_ns(own) for own in (False, True)]
    records = TEAMS * RECORDS_EACH
    return ParcelCosts(
        letter_ns=timed[0],
        pack_ns=max(0.0, timed[1] - timed[0]) / most,
        look_ns=looked[0] / records,
        take_ns=max(0.0, looked[1] - looked[0]) / (records / ONE_IN),
    )


def _look_ns(own: bool) -> int:
    """Nanoseconds to look through all parcels, of which one record in some is the LP's own, or none is."""
    length = parcel_words(RECORDS_EACH, RECORD_WORDS)
    words = zeros(TEAMS * length).reshape(TEAMS, length)
    words[:, 0] = RECORDS_EACH
    tags = words[:, PARCEL_HEADER:].reshape(TEAMS, -1, BLOCK * (1 + RECORD_WORDS))[:, :, :BLOCK]
    lps = np.arange(RECORDS_EACH).reshape(-1, BLOCK) % ONE_IN
    tags[:] = (lps + (0 if own else ONE_IN)) << TAG_LP
    meeting = _meeting(zeros(1), _made(words=words.reshape(-1)))
    return _least_ns(_unpack_once, meeting.address)


def _meeting(addresses: Int64, parcels: Parcels) -> Directory:
    """With parcels, and one worker that never works."""
    return Directory(Meeting(team_in(zeros(team_words(1))), new_crew(1), addresses, parcels))


def _made(words: Int64, letters: int = 0) -> Parcels:
    """Parcels of one LP with one neighbour in another team."""
    own = HEADER_WORDS + TEAMS * RECORDS_EACH // ONE_IN * CROSSING_WORDS
    begins = np.arange(TEAMS) * parcel_words(RECORDS_EACH, RECORD_WORDS)
    return no_parcels([None])._replace(
        words=words,
        headers=headers_of(words),
        outgoing=np.zeros(1 if letters else TEAMS, np.int64),
        incoming=np.repeat(begins, 2),
        numbers=np.zeros(1, np.int64),
        letter_ptr=np.array([0, letters], np.int64),
        letter_team=np.zeros(letters, np.int64),
        letter_neighbour=np.zeros(letters, np.int64),
        letter_tag=np.zeros(letters, np.int64),
        half_ptr=np.array([0, 1], np.int64),
        half_at=np.zeros(1, np.int64),
        halves=zeros(own),
        record_words=np.array([RECORD_WORDS], np.int64),
    )


def _least_ns(function: Callable[..., Any], *arguments: int) -> int:
    """The least of some calls; the first compiles."""
    took = []
    for _ in range(9):
        begun = time.perf_counter_ns()
        function(*arguments)
        took.append(time.perf_counter_ns() - begun)
    return min(took)
