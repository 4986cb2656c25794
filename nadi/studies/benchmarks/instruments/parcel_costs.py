"""Cost of packing and unpacking parcels between teams, measured on one core with the engine's kernels."""

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
"""Number of parcels that an LP scans, and records per parcel: together larger than the caches of one core."""
LETTERS, ROUNDS = 64, 200
ONE_IN = 32
"""One in this many scanned records is addressed to the scanning LP."""


class ParcelCosts(NamedTuple):
    """Costs of parcels.

    Attributes:
        letter_ns: Time in ns of an empty letter.
        pack_ns: Time in ns to pack one record.
        look_ns: Time in ns to scan one record.
        take_ns: Time in ns to take one record out.
    """

    letter_ns: float
    pack_ns: float
    look_ns: float
    take_ns: float


@kernel
def _pack_often(address, rounds):
    """Pack all letters `rounds` times."""
    m = meeting_at(address)
    for _ in range(rounds):
        m.parcels.headers[0].records = 0
        pack(m.parcels, m.addresses[0], 0, 0)


@kernel
def _unpack_once(address):
    """Unpack all parcels for the first LP."""
    unpack(meeting_at(address).parcels, 0, 0)


def parcel_costs(sim: Simulation) -> ParcelCosts:
    """Measure the costs; sim: unstarted simulation of at least two LPs, the first with a link to another."""
    lp = sim.lps[0]
    half = int(lp.world.net.out_at[0])
    max_records = min(lp.part.rooms[0], 8)
    letters_ns = []
    for count in (0, max_records):
        lp.world.net.outbox[half] = count
        parcels = _parcels(words=zeros(parcel_words(LETTERS * max_records, RECORD_WORDS)), letters=LETTERS)
        meeting = _meeting(np.array([lp.address], np.int64), parcels)
        letters_ns.append(_fastest_ns(_pack_often, meeting.address, ROUNDS) / ROUNDS / LETTERS)
    lp.world.net.outbox[half] = 0
    scans_ns = [_scan_ns(own) for own in (False, True)]
    records = TEAMS * RECORDS_EACH
    return ParcelCosts(
        letter_ns=letters_ns[0],
        pack_ns=max(0.0, letters_ns[1] - letters_ns[0]) / max_records,
        look_ns=scans_ns[0] / records,
        take_ns=max(0.0, scans_ns[1] - scans_ns[0]) / (records / ONE_IN),
    )


def _scan_ns(own: bool) -> int:
    """Return the time in ns to scan all parcels; own: whether one in ONE_IN records is the LP's own, else none."""
    length = parcel_words(RECORDS_EACH, RECORD_WORDS)
    words = zeros(TEAMS * length).reshape(TEAMS, length)
    words[:, 0] = RECORDS_EACH
    tags = words[:, PARCEL_HEADER:].reshape(TEAMS, -1, BLOCK * (1 + RECORD_WORDS))[:, :, :BLOCK]
    lps = np.arange(RECORDS_EACH).reshape(-1, BLOCK) % ONE_IN
    tags[:] = (lps + (0 if own else ONE_IN)) << TAG_LP
    meeting = _meeting(zeros(1), _parcels(words=words.reshape(-1)))
    return _fastest_ns(_unpack_once, meeting.address)


def _meeting(addresses: Int64, parcels: Parcels) -> Directory:
    """Return a meeting with the parcels and one idle worker."""
    return Directory(Meeting(team_in(zeros(team_words(1))), new_crew(1), addresses, parcels))


def _parcels(words: Int64, letters: int = 0) -> Parcels:
    """Return the parcels of one LP with one neighbour in another team."""
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


def _fastest_ns(function: Callable[..., Any], *arguments: int) -> int:
    """Return the fastest of nine calls in ns; the first call compiles."""
    durations_ns = []
    for _ in range(9):
        start_ns = time.perf_counter_ns()
        function(*arguments)
        durations_ns.append(time.perf_counter_ns() - start_ns)
    return min(durations_ns)
