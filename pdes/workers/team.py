"""Workers that share memory do windows together: each takes LPs, then all agree when the next window begins.

A worker is a thread, or a process of its own. A *crew* is the workers of one process: they take LPs from one list, the
one that cost most in the last window first (UNISON, EuroSys 2024, section 4: load-adaptive scheduling), but each those
first that it did in the last window, since they are in its core's caches. A *team* is all
workers that meet at the end of a window. The first of them finds the earliest next event, the lower bound on time
stamps, and publishes the begin of the next window; with ranks elsewhere it returns to be told by them. All that
workers share are words that one of them writes and others read.
"""

from typing import Annotated, NamedTuple

import numpy as np

from pdes.core.jit import (
    call_hook,
    clock_ns,
    fetch_add,
    inline,
    kernel,
    load_acquire,
    reader,
    store_release,
    yield_core,
)
from pdes.core.rows.workers import LpTurn, TeamState, Worker
from pdes.core.state import INF, Int64
from pdes.core.status import DONE, SENT
from pdes.window import window
from pdes.workers.parcels import Parcels, has_others

WORKER_WORDS, TURN_WORDS = Worker.words, LpTurn.words
ABORT, PUBLISHED = TeamState.place("abort"), TeamState.place("published")
ARRIVED, PACKED = (TeamState.words + Worker.place(name) for name in ("arrived", "packed"))
TAKEN = LpTurn.place("taken")
"""Words that workers read and write atomically, in a team's words and in a crew's; ARRIVED, PACKED: of the first."""

PAUSED, EXCHANGE, ABORTED, WAITING = range(SENT + 1, SENT + 5)
FIRST, SECOND, ALL = range(3)
"""How far a worker is in a window: it does what other teams wait for, then the rest, then it has done all."""


class Team(NamedTuple):
    """What all workers of a team share.

    Attributes:
        state: of the team.
        workers: a row for each.
        words: the memory of both as words, for those that are read and written atomically.
    """

    state: Annotated[np.record, TeamState]
    workers: Annotated[np.recarray, Worker]
    words: Int64


class CrewLists(NamedTuple):
    """What the workers of one process share.

    Attributes:
        turns: [2 x LPs], in windows of even number and in those of odd number.
        words: the same memory as words, likewise.
        worker: [LPs] who did it last; others may be reading it, and what they find matters to no result.
        orders: [2 x LPs] in which they are taken, in windows of even number and in those of odd number.
        costs: [LPs] packet-hops in the last window.
        rest: [LPs] the next that its worker has done in part only, -1 none.
    """

    turns: Annotated[np.recarray, LpTurn]
    words: Int64
    worker: Int64
    orders: Int64
    costs: Int64
    rest: Int64


class Meeting(NamedTuple):
    """What the workers of a process find by one address.

    Attributes:
        team: shared with all workers of the team.
        crew: of this process.
        addresses: of the worlds of its LPs.
        parcels: what they send to other teams.
    """

    team: Team
    crew: CrewLists
    addresses: Int64
    parcels: Parcels


meeting_at = reader(Meeting)

SPINS = 4000
YIELDS = 50_000


def team_words(workers: int) -> int:
    """Length of a team's words."""
    return TeamState.words + workers * Worker.words


def team_in(words: Int64) -> Team:
    """A team that lies in int64[team_words(workers)], which are shared where its workers are several processes."""
    state = words[: TeamState.words].view(TeamState.dtype).view(np.recarray)
    workers = words[TeamState.words :].view(Worker.dtype).view(np.recarray)
    return Team(state[0], workers, words)


def found_team(team: Team, cell_ps: int, window_ps: int, *, crew_size: int) -> None:
    """Set up a zeroed team, so many of its workers in each process."""
    team.state.cell_ps = cell_ps
    team.state.window_ps = window_ps
    team.workers.soonest_ps = INF
    team.workers.known_ps = INF
    team.workers.lp = -1
    team.workers.rest = -1
    team.workers.plans[::crew_size] = 1


def new_crew(lps: int, first: int = 0, threads: int = 1) -> CrewLists:
    """A crew for so many LPs, of workers from number `first` of the team on."""
    words = np.zeros(2 * lps * LpTurn.words, np.int64)
    turns = words.view(LpTurn.dtype).view(np.recarray)
    lp = np.arange(lps)
    return CrewLists(
        turns, words, first + lp * threads // max(lps, 1), np.tile(lp, 2), np.zeros(lps, np.int64), np.full(lps, -1)
    )


@inline
def plan_next(crew, lps, number):
    """Put the LPs in the order of the next window, the most costly first."""
    half = 1 - (number & 1)
    orders, costs = crew.orders, crew.costs
    begin = half * lps
    for i in range(1, lps):
        lp = orders[begin + i]
        j = i - 1
        while j >= 0 and costs[orders[begin + j]] < costs[lp]:
            orders[begin + j + 1] = orders[begin + j]
            j -= 1
        orders[begin + j + 1] = lp
    for turn in range(begin, begin + lps):
        crew.turns[turn].taken = 0


@inline
def next_lp(crew, lps, half, worker):
    """The next LP for a worker, of those that it did last or else of all, that nobody has taken; -1 if all are."""
    for of_all in range(2):
        for place in range(half * lps, (half + 1) * lps):
            lp = crew.orders[place]
            taken = (half * lps + lp) * TURN_WORDS + TAKEN
            if of_all == 0 and crew.worker[lp] != worker:
                continue
            if load_acquire(crew.words, taken) == 0 and fetch_add(crew.words, taken, np.int64(1)) == 0:
                crew.worker[lp] = worker
                return lp
    return np.int64(-1)


@inline
def take_lp(address, own, worker):
    """The LP in hand, or the next for this worker, and what came for it; -1 if all are taken."""
    m = meeting_at(address)
    lp = own.lp
    if lp < 0:
        number = own.window
        lp = next_lp(m.crew, m.addresses.shape[0], number & 1, worker)
        if lp >= 0:
            own.lp = lp
            if has_others(m.parcels):
                call_hook(m.parcels.hooks.unpack_parcels, address, lp, number)
    return lp


@inline
def await_word(team, at, least, own):
    """Wait until a word is at least so large. DONE, ABORTED, or WAITING after a while: look around and call again.

    Time is taken by who must wait, and while it does.
    """
    if load_acquire(team.words, at) >= least:
        return DONE
    begun = clock_ns()
    status = look_out(team, at, least)
    own.waited_ns += clock_ns() - begun
    return status


@inline
def look_out(team, at, least):
    """What `await_word` does, without a clock."""
    words = team.words
    for _ in range(SPINS):
        if load_acquire(words, at) >= least:
            return DONE
    for _ in range(YIELDS):
        if load_acquire(words, at) >= least:
            return DONE
        if load_acquire(words, ABORT) == 1:
            return ABORTED
        yield_core()
    return WAITING


@inline
def gather_team(team, own, number):
    """The first worker waits for all and sums up. DONE, ABORTED or WAITING."""
    soonest = INF
    hops = np.int64(0)
    left = np.int64(0)
    for worker in range(team.workers.shape[0]):
        status = await_word(team, ARRIVED + worker * WORKER_WORDS, number + 1, own)
        if status != DONE:
            return status
        other = team.workers[worker]
        soonest = min(soonest, other.soonest_ps)
        hops += other.hops
        left += other.rows_left
    team.state.soonest_ps = soonest
    team.state.hops = hops
    team.state.rows_left = left
    return DONE


@inline
def settle(address, own, number):
    """The first worker finds the earliest event of all. DONE, ABORTED or WAITING; EXCHANGE if Python must ask."""
    m = meeting_at(address)
    team, parcels = m.team, m.parcels
    state = team.state
    if state.asked <= number:
        status = gather_team(team, own, number)
        if status != DONE:
            return status
        state.all_hops = state.hops
        state.all_rows_left = state.rows_left
        state.asked = number + 1
        if has_others(parcels) and call_hook(parcels.hooks.take_parcels, address, number) != DONE:
            return EXCHANGE
    if has_others(parcels):
        return call_hook(parcels.hooks.agree, address, number)
    return DONE


@inline
def publish_begin(team):
    """Tell all workers when the next window begins: at the grid's last line before the earliest event."""
    state = team.state
    soonest = state.soonest_ps
    if soonest < INF:
        soonest = soonest // state.cell_ps * state.cell_ps
    state.begin_ps = soonest
    store_release(team.words, PUBLISHED, state.published + 1)


@inline
def do_window(m, own, lp):
    """An LP's part of the window, or what is left of it; see pdes.window: its status, and what it says of its time."""
    status, hops, events, rows, cost, soonest = window(m.addresses[lp], own.begin_ps, own.window)
    own.hops += hops
    own.events += events
    own.rows_left -= rows
    if status == DONE:
        own.soonest_ps = min(own.soonest_ps, soonest)
        m.crew.costs[lp] = cost
        own.lp = -1
    return status, soonest


@inline
def first_parts(address, own, worker):
    """LP after LP as far as what it sends to other teams is out. DONE; or FULL or FAILED, about the LP in hand."""
    m = meeting_at(address)
    crew = m.crew
    while True:
        lp = take_lp(address, own, worker)
        if lp < 0:
            return DONE
        status, soonest = do_window(m, own, lp)
        if status != DONE and status != SENT:
            return status
        own.known_ps = min(own.known_ps, soonest)
        if has_others(m.parcels):
            call_hook(m.parcels.hooks.pack_parcels, address, lp, own.window)
        if status == SENT:
            own.parts += 1
            own.lp = -1
            crew.rest[lp] = own.rest
            own.rest = lp


@inline
def second_parts(address, own, worker):
    """What is left of LPs, while parcels travel. DONE; or FULL or FAILED, about the LP in hand."""
    m = meeting_at(address)
    while own.rest >= 0:
        own.lp = own.rest
        status, _ = do_window(m, own, own.rest)
        if status != DONE:
            return status
        own.rest = m.crew.rest[own.rest]
        if worker == 0 and has_others(m.parcels):
            call_hook(m.parcels.hooks.help_along, address, own.window)
    return DONE


@inline
def do_parts(address, own, worker):
    """All that a worker does in a window. DONE; or why it could not go on."""
    m = meeting_at(address)
    team, number = m.team, own.window
    if own.stage == FIRST:
        status = first_parts(address, own, worker)
        if status != DONE:
            return status
        own.stage = SECOND
        store_release(team.words, PACKED + worker * WORKER_WORDS, number + 1)
    if worker == 0 and has_others(m.parcels) and team.state.sent <= number:
        status = call_hook(m.parcels.hooks.send_parcels, address, number)
        if status != DONE:
            return status
    status = second_parts(address, own, worker)
    if status != DONE:
        return status
    if own.plans == 1:
        plan_next(m.crew, m.addresses.shape[0], number)
    own.stage = ALL
    store_release(team.words, ARRIVED + worker * WORKER_WORDS, number + 1)
    return DONE


@kernel
def work(address, worker, hops, windows):
    """Do windows as worker `worker` of the team, with the others of its crew; address: of the Directory of a Meeting.

    DONE: nothing is left. FULL, FAILED: see pdes.window, about the LP in hand. ABORTED: another failed. WAITING: others
    take long. And for the first worker: PAUSED, the team has done `hops` packet-hops or `windows` windows in all;
    EXCHANGE, the parcels must be sent and those of other teams taken, or all teams must agree on what follows. Call
    again to go on.
    """
    team = meeting_at(address).team
    own = team.workers[worker]
    while True:
        number = own.window
        if own.stage != ALL:
            status = do_parts(address, own, worker)
            if status != DONE:
                return status
        if worker == 0 and team.state.published == number:
            status = settle(address, own, number)
            if status != DONE:
                return status
            publish_begin(team)
        status = await_word(team, PUBLISHED, number + 1, own)
        if status != DONE:
            return status
        if team.state.begin_ps >= INF:
            return DONE
        own.begin_ps = team.state.begin_ps
        own.window = number + 1
        own.soonest_ps = INF
        own.known_ps = INF
        own.parts = 0
        own.stage = FIRST
        if worker == 0 and (team.state.hops >= hops or number >= windows):
            return PAUSED
