"""Cost for a team's first worker to read what the other workers have written, measured between two cores."""

import threading
import time
from typing import NamedTuple

import numpy as np

from pdes import RunError
from pdes.instruments import (
    ARRIVED,
    LINE_WORDS,
    PUBLISHED,
    WORKER_WORDS,
    Meeting,
    found_team,
    meeting_at,
    new_crew,
    no_parcels,
    settle,
    team_in,
    team_words,
)
from pdes.kernels import Directory, clock_ns, compile_for, kernel, load_acquire, store_release, zeros

FEW, MANY = 2, (8, 16, 32)
"""Team sizes that give the cost of the first line and of each further line."""
ROUNDS, TRIES, PAUSE_S = 5_000, 15, 0.1
"""Rounds per measurement, number of measurements, and seconds between them, in which the cores may change."""


class GatherCosts(NamedTuple):
    """Cost of reading cache lines that another core has written, with independent reads.

    Attributes:
        first_ns: Time in ns to read the first line. It depends on the pair of cores, which may change on a virtual
            machine: 15 and 110 ns were seen on the same one.
        share: Time of each further line relative to the first.
    """

    first_ns: float
    share: float


@kernel
def _write_all(address, done, rounds):
    """Play all workers but the first: on request, write what they would write at the end of a window."""
    team = meeting_at(address).team
    for number in range(rounds):
        while load_acquire(team.words, PUBLISHED) <= number:
            pass
        for worker in range(1, team.workers.shape[0]):
            other = team.workers[worker]
            other.soonest_ps = number
            other.hops = number
            other.rows_left = -number
            store_release(team.words, ARRIVED + worker * WORKER_WORDS, number + 1)
        store_release(done, 0, number + 1)


@kernel
def _gather_all(address, done, settle_ns, rounds):
    """Play the first worker: send a request, wait for the writes, and then measure `settle`."""
    team = meeting_at(address).team
    own = team.workers[0]
    for number in range(rounds):
        store_release(team.words, ARRIVED, number + 1)
        store_release(team.words, PUBLISHED, number + 1)
        while load_acquire(done, 0) <= number:
            pass
        start_ns = clock_ns()
        settle(address, own, number)
        settle_ns[number] = clock_ns() - start_ns


def gather_costs() -> GatherCosts:
    """Measure the costs on an idle machine with at least two cores."""
    samples = []
    for _ in range(TRIES):
        alone_ns, few_ns, *many_ns = (_settle_ns(workers) for workers in (1, FEW, *MANY))
        further_ns = max((took_ns - few_ns) / (workers - FEW) for workers, took_ns in zip(MANY, many_ns, strict=True))
        samples.append((few_ns - alone_ns, further_ns / (few_ns - alone_ns)))
        time.sleep(PAUSE_S)
    return GatherCosts(*np.median(samples, axis=0).tolist())


def _settle_ns(workers: int) -> float:
    """Return the mean time in ns for a team of that many workers, without the slowest tenth of rounds (interrupts)."""
    team = team_in(np.zeros(team_words(workers), np.int64))
    found_team(team, 1, 1, crew_size=1)
    meeting = Directory(Meeting(team, new_crew(1), zeros(1), no_parcels([None])))
    done, took_ns = zeros(LINE_WORDS), zeros(ROUNDS)
    compile_for(_write_all, meeting.address, done, 0)
    compile_for(_gather_all, meeting.address, done, took_ns, 0)
    others = threading.Thread(target=_write_all, args=(meeting.address, done, ROUNDS))
    others.start()
    _gather_all(meeting.address, done, took_ns, ROUNDS)
    others.join()
    if team.state.hops != (workers - 1) * (ROUNDS - 1):
        raise RunError(f"engine defect: the first of {workers} workers has not seen what the others wrote")
    return float(np.sort(took_ns)[: -ROUNDS // 10].mean())
