"""Workers that share memory do windows together: each takes LPs, then all agree when the next window begins.

A worker is a thread, or a process of its own. A *crew* is the workers of one process: they take LPs from one list, the
one that cost most in the last window first (UNISON, EuroSys 2024, section 4: load-adaptive scheduling). A *team* is all
workers that meet at the end of a window. The first of them finds the earliest next event, the lower bound on time
stamps, and publishes the begin of the next window; with ranks elsewhere it returns to be told by them. All that
workers share are words that one of them writes and others read.
"""

from typing import NamedTuple

import numpy as np

from pdes.core.jit import fetch_add, inline, kernel, load_acquire, reader, store_release, yield_core
from pdes.core.state import INF, Int64
from pdes.core.status import DONE
from pdes.window import window
from pdes.workers.parcels import Parcels, pack, seal, unpack, unseal

LINE = 16
"""Words between what different workers write: two cache lines, since lines are fetched in pairs."""

# Team: words that the first worker writes.
TEAM_WORKERS = 0
TEAM_CELL = 1  # ps
TEAM_EXCHANGES = 2  # 1: there are other teams
TEAM_ABORT = LINE  # 1: stop
TEAM_PUBLISHED = 2 * LINE  # windows whose begin is known
TEAM_BEGIN = 2 * LINE + 1  # ps: begin of the last of them, INF = nothing is left
TEAM_SOONEST = 3 * LINE  # ps: earliest event of the team
TEAM_HOPS = 3 * LINE + 1
TEAM_LEFT = 3 * LINE + 2  # trace rows not finished
TEAM_ASKED = 3 * LINE + 3  # windows whose parcels were exchanged
TEAM_ALL_HOPS = 3 * LINE + 4  # of all teams
TEAM_ALL_LEFT = 3 * LINE + 5
TEAM_FIRST = 4 * LINE  # rows of the workers

# Row of a worker.
WORKER_ARRIVED = 0  # windows done
WORKER_SOONEST = 1
WORKER_HOPS = 2
WORKER_LEFT = 3
WORKER_WAITS = 4  # 1: has done its part of the window
WORKER_LP = 5  # LP in hand, -1 none
WORKER_BEGIN = 6
WORKER_NUMBER = 7  # of the window
WORKER_PLANS = 8  # 1: orders the LPs of its crew

# Crew.
CREW_TAKEN = 0  # and one line on: LPs taken in windows of even and odd number
CREW_FIRST = 2 * LINE  # order of the LPs in windows of even number, of odd number, and their costs

PAUSED, EXCHANGE, ABORTED, WAITING = range(4, 8)


class Meeting(NamedTuple):
    """What the workers of a process find by one address.

    Attributes:
        team: shared with all workers of the team.
        crew: of this process.
        addresses: of the worlds of its LPs.
        parcels: what they send to other teams.
    """

    team: Int64
    crew: Int64
    addresses: Int64
    parcels: Parcels


meeting_at = reader(Meeting)

SPINS = 4000
YIELDS = 50_000


def team_words(workers: int) -> int:
    """Length of a team."""
    return TEAM_FIRST + workers * LINE


def found_team(team: Int64, workers: int, cell_ps: int, *, crew_size: int, exchanges: bool = False) -> None:
    """Set up a zeroed team of so many workers, so many in each process."""
    team[TEAM_WORKERS] = workers
    team[TEAM_CELL] = cell_ps
    team[TEAM_EXCHANGES] = int(exchanges)
    for worker in range(workers):
        row = TEAM_FIRST + worker * LINE
        team[row + WORKER_SOONEST] = INF
        team[row + WORKER_LP] = -1
        team[row + WORKER_PLANS] = int(worker % crew_size == 0)


def new_crew(lps: int) -> Int64:
    """A crew for so many LPs."""
    crew = np.zeros(CREW_FIRST + 3 * lps, np.int64)
    crew[CREW_FIRST : CREW_FIRST + lps] = crew[CREW_FIRST + lps : CREW_FIRST + 2 * lps] = np.arange(lps)
    return crew


@inline
def plan_next(crew, lps, number):
    """Put the LPs in the order of the next window, the most costly first."""
    order = CREW_FIRST + (1 - (number & 1)) * lps
    cost = CREW_FIRST + 2 * lps
    for i in range(1, lps):
        lp = crew[order + i]
        j = i - 1
        while j >= 0 and crew[cost + crew[order + j]] < crew[cost + lp]:
            crew[order + j + 1] = crew[order + j]
            j -= 1
        crew[order + j + 1] = lp
    crew[CREW_TAKEN + (1 - (number & 1)) * LINE] = 0


@inline
def take_lp(team, crew, parcels, lps, row):
    """The LP in hand, or the next that nobody has taken, and what came for it; -1 if all are taken."""
    lp = team[row + WORKER_LP]
    if lp < 0:
        number = team[row + WORKER_NUMBER]
        half = number & 1
        turn = fetch_add(crew, CREW_TAKEN + half * LINE, np.int64(1))
        if turn < lps:
            lp = crew[CREW_FIRST + half * lps + turn]
            team[row + WORKER_LP] = lp
            if team[TEAM_EXCHANGES] == 1:
                unpack(parcels, lp, number)
    return lp


@inline
def await_word(team, at, least):
    """Wait until a word is at least so large. DONE, ABORTED, or WAITING after a while: look around and call again."""
    for _ in range(SPINS):
        if load_acquire(team, at) >= least:
            return DONE
    for _ in range(YIELDS):
        if load_acquire(team, at) >= least:
            return DONE
        if load_acquire(team, TEAM_ABORT) == 1:
            return ABORTED
        yield_core()
    return WAITING


@inline
def gather_team(team, number):
    """The first worker waits for all and sums up. DONE, ABORTED or WAITING."""
    soonest = INF
    hops = np.int64(0)
    left = np.int64(0)
    for worker in range(team[TEAM_WORKERS]):
        row = TEAM_FIRST + worker * LINE
        status = await_word(team, row + WORKER_ARRIVED, number + 1)
        if status != DONE:
            return status
        soonest = min(soonest, team[row + WORKER_SOONEST])
        hops += team[row + WORKER_HOPS]
        left += team[row + WORKER_LEFT]
    team[TEAM_SOONEST] = soonest
    team[TEAM_HOPS] = hops
    team[TEAM_LEFT] = left
    return DONE


@inline
def settle(team, parcels, number):
    """The first worker finds the earliest event of all. DONE, ABORTED or WAITING; EXCHANGE if other teams must say."""
    if team[TEAM_ASKED] <= number:
        status = gather_team(team, number)
        if status != DONE:
            return status
        team[TEAM_ALL_HOPS] = team[TEAM_HOPS]
        team[TEAM_ALL_LEFT] = team[TEAM_LEFT]
        if team[TEAM_EXCHANGES] == 1:
            seal(parcels, team[TEAM_SOONEST], team[TEAM_HOPS], team[TEAM_LEFT])
            team[TEAM_ASKED] = number + 1
            return EXCHANGE
    else:
        soonest, hops, left = unseal(parcels, number)
        team[TEAM_SOONEST] = min(team[TEAM_SOONEST], soonest)
        team[TEAM_ALL_HOPS] += hops
        team[TEAM_ALL_LEFT] += left
    return DONE


@inline
def publish_begin(team):
    """Tell all workers when the next window begins: at the grid's last line before the earliest event."""
    soonest = team[TEAM_SOONEST]
    if soonest < INF:
        soonest = soonest // team[TEAM_CELL] * team[TEAM_CELL]
    team[TEAM_BEGIN] = soonest
    store_release(team, TEAM_PUBLISHED, team[TEAM_PUBLISHED] + 1)


@kernel
def work(address, worker, hops, windows):
    """Do windows as worker `worker` of the team, with the others of its crew; address: of the Directory of a Meeting.

    DONE: nothing is left. FULL, FAILED: see pdes.window, about the LP in hand. ABORTED: another failed. WAITING: others
    take long. And for the first worker: PAUSED, the team has done `hops` packet-hops or `windows` windows in all;
    EXCHANGE, the parcels must be sent and those of other teams taken. Call again to go on.
    """
    m = meeting_at(address)
    team, crew, lps = m.team, m.crew, m.addresses.shape[0]
    row = TEAM_FIRST + worker * LINE
    while True:
        number = team[row + WORKER_NUMBER]
        if team[row + WORKER_WAITS] == 0:
            while True:
                lp = take_lp(team, crew, m.parcels, lps, row)
                if lp < 0:
                    break
                status, hops_done, rows_done, cost, soonest = window(m.addresses[lp], team[row + WORKER_BEGIN], number)
                team[row + WORKER_HOPS] += hops_done
                team[row + WORKER_LEFT] -= rows_done
                if status != DONE:
                    return status
                if team[TEAM_EXCHANGES] == 1:
                    pack(m.parcels, m.addresses[lp], lp, number)
                team[row + WORKER_SOONEST] = min(team[row + WORKER_SOONEST], soonest)
                crew[CREW_FIRST + 2 * lps + lp] = cost
                team[row + WORKER_LP] = -1
            if team[row + WORKER_PLANS] == 1:
                plan_next(crew, lps, number)
            team[row + WORKER_WAITS] = 1
            store_release(team, row + WORKER_ARRIVED, number + 1)
        if worker == 0 and team[TEAM_PUBLISHED] == number:
            status = settle(team, m.parcels, number)
            if status != DONE:
                return status
            publish_begin(team)
        status = await_word(team, TEAM_PUBLISHED, number + 1)
        if status != DONE:
            return status
        if team[TEAM_BEGIN] >= INF:
            return DONE
        team[row + WORKER_BEGIN] = team[TEAM_BEGIN]
        team[row + WORKER_NUMBER] = number + 1
        team[row + WORKER_SOONEST] = INF
        team[row + WORKER_WAITS] = 0
        if worker == 0 and (team[TEAM_HOPS] >= hops or number >= windows):
            return PAUSED
