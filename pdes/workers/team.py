"""Workers that share memory: each takes LPs of the window, then all agree when the next window begins.

A worker is a thread, or a process of its own. A *pool* is the workers of one process: they take LPs from one list, in
decreasing order of cost in the last window (UNISON, EuroSys 2024, section 4: load-adaptive scheduling), but each first
those that it did in the last window, since they are in its core's caches. A *team* is all workers that meet at the end
of a window. The first of them finds the earliest next event, the lower bound on time stamps, and publishes the begin of
the next window; if there are ranks elsewhere, it first agrees with them. Workers share only words that one of them
writes and others read.
"""

from typing import Annotated, NamedTuple

import numpy as np

from nadi.pdes.core import Record
from nadi.pdes.core.jit import (
    aligned,
    call_hook,
    clock_ns,
    fetch_add,
    full,
    inline,
    kernel,
    load_acquire,
    reader,
    row_of,
    store_release,
    yield_core,
    zeros,
)
from nadi.pdes.core.rows.run import LpTurn, TeamState, WatchedNpu, Worker
from nadi.pdes.core.state import DONE, INF, SENT, Int64, world_at
from nadi.pdes.reuse_kernels.quiescent import has_no_packets
from nadi.pdes.window import window
from nadi.pdes.workers.batches import MessageBatches, has_others

WORKER_WORDS, TURN_WORDS = Worker.words, LpTurn.words
ABORT, PUBLISHED = TeamState.place("abort"), TeamState.place("published")
ARRIVED, PACKED = (TeamState.words + Worker.place(name) for name in ("arrived", "packed"))
TAKEN = LpTurn.place("taken")  # words with atomic access, of a team and of a pool; ARRIVED, PACKED: of the first worker

PAUSED, EXCHANGE, ABORTED, WAITING, SNAPSHOT, WITHIN = range(SENT + 1, SENT + 7)
NO_MARK = -1  # word `mark` of a process that asks for no quiescent moments
LOOK = 1  # snapshot point at a quiescent moment after a mark; it gives way to those of pdes.workers
# Signs of LPs after a window. All workers stop where they have AT_MARK alone together: no packet is under way anywhere,
# not between processes either, as an LP that has sent one in the window is busy.
BUSY, AT_MARK = 1, 2
# stages of a worker in a window: events that other teams wait for, sending, the other events, receiving, the end
FIRST, SENDING, SECOND, RECEIVING, RECEIVED, ALL = range(6)


class Team(NamedTuple):
    """Memory that all workers of a team share."""

    state: Annotated[np.record, TeamState]
    workers: Annotated[np.recarray, Worker]
    words: Int64  # the memory of both as words, for atomic access


class PoolLists(NamedTuple):
    """Lists that the workers of one process share; 2 x LPs: for windows of even number, then of odd number."""

    turns: Annotated[np.recarray, LpTurn]  # [2 x LPs]
    words: Int64  # the same memory as words
    worker: Int64  # [LPs] its last worker; reads may be outdated, which affects no result
    orders: Int64  # [2 x LPs] LPs in the order in which they are taken
    costs: Int64  # [LPs] packet-hops in the last window
    rest: Int64  # [LPs] next LP that its worker has done in part, -1 none
    watch: Annotated[np.record, WatchedNpu]


class WorkerContext(NamedTuple):
    """Everything that the workers of a process find by one address."""

    team: Team
    pool: PoolLists
    addresses: Int64  # addresses of its LPs' worlds
    batches: MessageBatches  # packets for other teams


context_at = reader(WorkerContext)

SPINS = 4000  # checks of a word in a busy loop, before the core is yielded
YIELDS = 50_000  # checks of a word between which the core is yielded, before control returns to Python


def team_words(workers: int) -> int:
    """Return the length of a team's words.

    workers: number of its workers.
    """
    return TeamState.words + workers * Worker.words


def team_in(words: Int64) -> Team:
    """Return a team in `words`, int64[team_words(workers)], memory that all its processes share."""
    state = words[: TeamState.words].view(TeamState.dtype).view(np.recarray)
    workers = words[TeamState.words :].view(Worker.dtype).view(np.recarray)
    return Team(state[0], workers, words)


def found_team(team: Team, cell_ps: int, window_ps: int, *, pool_size: int) -> None:
    """Set up a zeroed team with `pool_size` workers in each process.

    A window, `window_ps` long, is the time that workers simulate between two exchanges of packets; a cell, `cell_ps`
    long, is a part of it in which nothing that happens at one node can reach another.
    """
    team.state.cell_ps = cell_ps
    team.state.window_ps = window_ps
    team.workers.soonest_ps = team.workers.known_ps = INF
    team.workers.lp = team.workers.rest = -1
    # workers of a process are consecutive: of 6 workers with pool_size 3, workers 0 and 3 lead
    team.workers.leads[::pool_size] = 1
    team.state.look_hops = INF


def new_pool(lps: int, first: int = 0, threads: int = 1, watch: Record | None = None) -> PoolLists:
    """Return the lists of a pool of `threads` workers, from number `first` of the team on, for `lps` LPs.

    watch: the NPU that is watched (`WatchedNpu`); None = nobody looks at quiescent moments.
    """
    watch = row_of(WatchedNpu, mark=NO_MARK) if watch is None else watch
    words = zeros(2 * max(lps, 1) * LpTurn.words)  # rows without LPs, too: NumPy refuses a view without items
    turns = words.view(LpTurn.dtype).view(np.recarray)
    lp = np.arange(lps)
    # LPs are dealt out in blocks at first; from the second window on each worker prefers what it did last
    workers = first + lp * threads // max(lps, 1)
    return PoolLists(turns, words, aligned(workers), aligned(np.tile(lp, 2)), zeros(lps), full(lps, -1), watch)


@inline
def plan_next(pool, lps, window_number):
    """Order the `lps` LPs of a pool for the window after window_number, the most costly first."""
    # of the other parity: workers may still take LPs of this window from the lists of this one
    half = 1 - (window_number & 1)
    orders, costs = pool.orders, pool.costs
    begin = half * lps
    # insertion sort: the order changes little from window to window
    for i in range(1, lps):
        lp = orders[begin + i]
        j = i - 1
        while j >= 0 and costs[orders[begin + j]] < costs[lp]:
            orders[begin + j + 1] = orders[begin + j]
            j -= 1
        orders[begin + j + 1] = lp
    for turn in range(begin, begin + lps):
        pool.turns[turn].taken = 0


@inline
def next_lp(pool, lps, parity, worker):
    """Take the next free LP of a pool for a worker, preferably one that it did last; -1 = all are taken.

    pool: lists of the process's workers; lps: number of LPs of the process; parity: 1 in windows of odd number, else 0;
    worker: number of the worker in the team.
    """
    # first the LPs that the worker did last, whose data may be in its cache
    for of_all in range(2):
        for place in range(parity * lps, (parity + 1) * lps):
            lp = pool.orders[place]
            taken = (parity * lps + lp) * TURN_WORDS + TAKEN
            if of_all == 0 and pool.worker[lp] != worker:
                continue
            # a read first, since an atomic addition takes the cache line from others
            if load_acquire(pool.words, taken) == 0 and fetch_add(pool.words, taken, np.int64(1)) == 0:
                pool.worker[lp] = worker
                return lp
    return np.int64(-1)


@inline
def await_word(team, place, minimum, worker_row):
    """Wait until a word of the team's memory is at least `minimum`. Return DONE, ABORTED, or WAITING after a while.

    team: memory of the team; place: index of the word in `team.words`; minimum: value to wait for; worker_row: row of
    the worker (`Worker`).
    """
    # The waiting time is counted in worker_row, the waiting worker's, only while it actually waits.
    words = team.words
    if load_acquire(words, place) >= minimum:
        return DONE
    begun = clock_ns()
    status = WAITING
    # microseconds of spinning, as most waits are short; then the core is given away: the worker waited for may need it
    for turn in range(SPINS + YIELDS):
        if load_acquire(words, place) >= minimum:
            status = DONE
            break
        if turn >= SPINS:
            if load_acquire(words, ABORT) == 1:
                status = ABORTED
                break
            yield_core()
    worker_row.waited_ns += clock_ns() - begun
    return status


@inline
def await_all(team, place, worker_row, window_number):
    """Wait until all workers have written a word in a window. Return as `await_word`.

    team: memory of the team; place: index in `team.words` of the first worker's word; worker_row: row of the worker
    (`Worker`); window_number: number of the window.
    """
    for worker in range(team.workers.shape[0]):
        status = await_word(team, place + worker * WORKER_WORDS, window_number + 1, worker_row)
        if status != DONE:
            return status
    return DONE


@inline
def settle(context_address, worker_row, window_number):
    """Find the earliest event of all, in the first worker. Return DONE, ABORTED, WAITING, or EXCHANGE (call Python).

    context_address: address of the directory of the process's `WorkerContext`; worker_row: row of the worker
    (`Worker`); window_number: number of the window.
    """
    context = context_at(context_address)
    team, batches = context.team, context.batches
    state = team.state
    # a worker that came back from Python, which has agreed with other teams, does not add up twice
    if state.agreed <= window_number:
        status = await_all(team, ARRIVED, worker_row, window_number)
        if status != DONE:
            return status
        soonest, hops, left, signs = INF, np.int64(0), np.int64(0), np.int64(0)
        for worker in range(team.workers.shape[0]):
            other = team.workers[worker]
            soonest = min(soonest, other.soonest_ps)
            hops += other.hops
            left += other.rows_left
            signs |= other.signs
        state.soonest_ps = soonest
        state.signs = signs
        state.all_hops = state.hops = hops
        state.all_rows_left = state.rows_left = left
        state.snapshot_point = state.said_snapshot_point
        # others learn of it with the next batches, and all act after the same window
        state.said_snapshot_point = state.asked
    if has_others(batches):
        return call_hook(batches.hooks.agree, context_address, window_number)
    return DONE


@inline
def signs_of(context, lp):
    """Return the signs of an LP after a window.

    context: memory that the workers of the process share; lp: index of the LP in the process.
    """
    watch = context.pool.watch
    if watch.mark == NO_MARK:
        return BUSY
    world = world_at(context.addresses[lp])
    # the mark first: it takes fewer instructions
    is_watched = lp == watch.lp
    if (is_watched and world.npus.npu[watch.npu].rows_left > watch.mark) or not has_no_packets(world):
        return BUSY
    return AT_MARK if is_watched else 0


@inline
def do_window(context, worker_row, lp):
    """Do an LP's part of a worker's window, or the rest of it; return its status and earliest event (pdes.window).

    context: memory that the workers of the process share; worker_row: row of the worker (`Worker`); lp: index of the
    LP in the process.
    """
    status, hops, events, rows, cost, soonest = window(context.addresses[lp], worker_row.begin_ps, worker_row.window)
    worker_row.hops += hops
    worker_row.events += events
    worker_row.rows_left -= rows
    if status == DONE:
        # by worker, not by LP: `settle` then reads one word per worker
        worker_row.soonest_ps = min(worker_row.soonest_ps, soonest)
        worker_row.signs |= signs_of(context, lp)
        context.pool.costs[lp] = cost
        worker_row.lp = -1
    return status, soonest


@inline
def first_parts(context_address, worker_row, worker):
    """Do LPs until their packets for other teams are sent, by `worker` (worker_row); FULL, FAILED: current LP."""
    context = context_at(context_address)
    pool = context.pool
    while True:
        if worker_row.lp < 0:
            worker_row.lp = next_lp(pool, context.addresses.shape[0], worker_row.window & 1, worker)
            if worker_row.lp >= 0 and has_others(context.batches):
                call_hook(context.batches.hooks.unpack_batches, context_address, worker_row.lp, worker_row.window)
        lp = worker_row.lp
        if lp < 0:
            return DONE
        status, soonest = do_window(context, worker_row, lp)
        if status != DONE and status != SENT:
            return status
        worker_row.known_ps = min(worker_row.known_ps, soonest)
        if has_others(context.batches):
            call_hook(context.batches.hooks.pack_batches, context_address, lp, worker_row.window)
        # the rest of the LP follows while batches travel (`second_parts`)
        if status == SENT:
            worker_row.parts += 1
            worker_row.lp = -1
            pool.rest[lp] = worker_row.rest
            worker_row.rest = lp


@inline
def second_parts(context_address, worker_row, worker):
    """Do the rest of LPs, while batches travel, by `worker` with its worker_row. Return as `first_parts`."""
    context = context_at(context_address)
    while worker_row.rest >= 0:
        worker_row.lp = worker_row.rest
        status, _ = do_window(context, worker_row, worker_row.rest)
        if status != DONE:
            return status
        worker_row.rest = context.pool.rest[worker_row.rest]
        if has_others(context.batches):
            # between LPs, since MPI moves data only while it is called
            call_hook(context.batches.hooks.help_along, context_address, worker)
    return DONE


@inline
def do_parts(context_address, worker_row, worker):
    """Do all work of `worker`, with its worker_row, in a window. Return DONE, or the status that interrupts it."""
    context = context_at(context_address)
    team, batches, number = context.team, context.batches, worker_row.window
    if worker_row.stage == FIRST:
        status = first_parts(context_address, worker_row, worker)
        if status != DONE:
            return status
        worker_row.stage = SENDING
        # batches may be sent once all workers have packed theirs
        store_release(team.words, PACKED + worker * WORKER_WORDS, number + 1)
    if worker_row.stage == SENDING:
        if has_others(batches):
            status = call_hook(batches.hooks.send_batches, context_address, worker)
            if status != DONE:
                return status
        worker_row.stage = SECOND
    if worker_row.stage == SECOND:
        status = second_parts(context_address, worker_row, worker)
        if status != DONE:
            return status
        worker_row.stage = RECEIVING
    if worker_row.stage == RECEIVING and has_others(batches):
        status = call_hook(batches.hooks.take_batches, context_address, worker)
        if status != DONE:
            return status
    if worker_row.leads == 1:
        plan_next(context.pool, context.addresses.shape[0], number)
    worker_row.stage = ALL
    store_release(team.words, ARRIVED + worker * WORKER_WORDS, number + 1)
    return DONE


@kernel
def work(context_address, worker, max_hops, max_windows):
    """Do windows as a worker of the team, with others of its pool.

    context_address: address of the directory of the process's `WorkerContext`; worker: number of the worker in the
    team; max_hops: packet-hops of the team after which the first worker returns; max_windows: windows after which it
    returns.
    """
    # Returns DONE: no event is left. FULL, FAILED: see pdes.window, for the current LP. ABORTED: another worker failed.
    # WAITING: others take long. EXCHANGE, to the first worker of a process: batches must be exchanged, or, if its work
    # is done, all teams must agree on the next event. SNAPSHOT, to all workers before the same window: the snapshot
    # point that a process has asked for (pdes/workers/__init__.py), or LOOK: no packet is under way after a mark of
    # the watched NPU. PAUSED, to the first of all: the team has done `max_hops` packet-hops or `max_windows` windows in
    # all. WITHIN, likewise: a window has ended, after `look_hops`. Call again to continue.
    team = context_at(context_address).team
    worker_row = team.workers[worker]
    while True:
        number = worker_row.window
        if worker_row.stage != ALL:
            status = do_parts(context_address, worker_row, worker)
            if status != DONE:
                return status
        if worker == 0 and team.state.published == number:
            status = settle(context_address, worker_row, number)
            if status != DONE:
                return status
            state = team.state
            if state.hops >= state.look_hops and state.soonest_ps < INF:
                return WITHIN
            if state.signs == AT_MARK and state.soonest_ps < INF:
                state.snapshot_point = max(state.snapshot_point, LOOK)
            # the next window begins at the grid's last line before the earliest event
            # idle time is skipped: after 5 us without an event, the next window begins where something happens
            state.begin_ps = INF if state.soonest_ps >= INF else state.soonest_ps // state.cell_ps * state.cell_ps
            # release: a worker that sees the new number also sees begin_ps and snapshot_point, which were written
            # before
            store_release(team.words, PUBLISHED, state.published + 1)
        status = await_word(team, PUBLISHED, number + 1, worker_row)
        if status != DONE:
            return status
        if team.state.begin_ps >= INF:
            return DONE
        worker_row.begin_ps = team.state.begin_ps
        worker_row.window = number + 1
        worker_row.soonest_ps = worker_row.known_ps = INF
        worker_row.parts = worker_row.signs = 0
        worker_row.stage = FIRST
        if team.state.snapshot_point != 0:
            return SNAPSHOT
        if worker == 0 and (team.state.hops >= max_hops or number >= max_windows):
            return PAUSED
