"""The jobs of a run as kernels read them: who each NPU is, and what each job does."""

import hashlib
from typing import Any

import numpy as np

from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import packet
from nadi.pdes.core import state as s
from nadi.pdes.core.inputs import Array, Int64, Program
from nadi.pdes.core.memory import aligned, full, rows_of, zeros
from nadi.pdes.core.message_digest import PRIME_A, PRIME_B
from nadi.pdes.core.rows.jobs import JobTotal

NOBODY = (1 << 20) - 1  # rank of NPUs without a job, where there are several jobs
_PLAIN_WORDS = 4  # words of totals that are not modulo a prime
_JOB_SHIFT = 20  # of the job in `Jobs.who`


def job_tables(program: Program, npus: int, queue_pairs: str = "pair") -> s.JobTables:
    """Return the tables of jobs, with totals of zero and without bytes on links.

    Args:
        program: Work of all NPUs (`Program`).
        npus: Number of NPUs of the fabric that runs.
        queue_pairs: "pair" or "message", the choice of jobs without one of their own: a queue pair per pair of NPUs or
            per message.
    """
    jobs, groups = program.jobs, len(program.group_ptr) - 1
    if jobs is None:
        everyone = np.arange(npus)
        total = rows_of(JobTotal, 1, pair_per_message=queue_pairs == "message")
        return s.JobTables(aligned(everyone), aligned(everyone, np.int32), _numbers(groups), total, zeros(1))
    count = len(jobs.begin_ps)
    # NPUs without a job count in the last row
    who = full(npus, NOBODY | count << _JOB_SHIFT)
    for job in range(count):
        own = jobs.npu[jobs.rank_ptr[job] : jobs.rank_ptr[job + 1]]
        who[own] = np.arange(len(own)) | job << _JOB_SHIFT
    npu = np.arange(npus)
    npu[: len(jobs.npu)] = jobs.npu
    group = np.concatenate([np.arange(size) for size in np.diff(jobs.group_ptr)])
    own_pairs = [(own or queue_pairs) == "message" for own in (*jobs.queue_pairs, "")]
    total = rows_of(JobTotal, count + 1, begin_ps=np.append(jobs.begin_ps, 0), pair_per_message=own_pairs)
    return s.JobTables(aligned(who, np.int64), aligned(npu, np.int32), aligned(group, np.int32), total, zeros(1))


def slow_1000ths(jobs: s.JobTables, settings: Settings, npus: Array) -> Int64:
    """Return int64[n]: the factors in 1000ths by which computation of `npus` is slower while a collective runs.

    Args:
        jobs: Jobs that share the fabric (`JobTables`).
        settings: Settings of the run.
        npus: int64[n], numbers of NPUs of the fabric.
    """
    factors = np.full(len(jobs.total), settings.compute_slowdown)
    if settings.job_slowdowns:
        factors[:] = *settings.job_slowdowns, 1.0  # the last is that of NPUs without a job
    return np.rint(s.SLOWDOWN_UNIT * factors).astype(np.int64)[packet.job_of(jobs.who[npus])]


def own_tables(jobs: s.JobTables, links: int) -> s.JobTables:
    """Return the tables of jobs of one LP, with totals of its own; links: rows of `tx`."""
    total = jobs.total.copy()
    rows = rows_of(JobTotal, len(total))
    rows[:] = total
    return jobs._replace(total=rows, link_bytes=zeros(links * jobs_per_link(jobs)))


def jobs_per_link(jobs: s.JobTables) -> int:
    """Return the rows of `link_bytes` per link: one for each job and one for none; 0 where there is one job.

    Args:
        jobs: Jobs that share the fabric (`JobTables`).
    """
    return len(jobs.total) if len(jobs.total) > 1 else 0


def begins_ps(jobs: s.JobTables, npus: Array) -> Int64:
    """Return int64[n]: the times at which the jobs of `npus` begin."""
    times: Int64 = jobs.total.begin_ps[packet.job_of(jobs.who[npus])]
    return times


def places(program: Program, npus: Array) -> Any:
    """Return the places of `npus` among the ranks of all jobs; aggregators, which are no ranks, keep their numbers.

    Args:
        program: Work of all NPUs (`Program`).
        npus: int64[n], numbers of NPUs and aggregators.
    """
    if program.jobs is None:
        return npus
    place = program.jobs.place
    return np.where(npus < len(place), np.append(place, 0)[np.minimum(npus, len(place))], npus)


def digests(totals: Int64, program: Program) -> dict[str, Any]:
    """Return the fields digest and job_digests of Results, the same for any partition.

    Args:
        totals: int64[jobs, 4 or 6], digests, messages, trace rows, and sums of messages of each job (JobTotal), which
            may be sums of several LPs; the last of several jobs is none.
        program: Work of all NPUs (`Program`).
    """
    jobs = program.jobs
    if totals.shape[1] > _PLAIN_WORDS:
        # sums of several LPs again below their primes
        totals = np.concatenate([totals[:, :_PLAIN_WORDS], totals[:, _PLAIN_WORDS:] % (PRIME_A, PRIME_B)], axis=1)
    if jobs is None:
        return {"digest": _digest(totals)}
    whole = np.concatenate([totals.reshape(-1), jobs.npu, jobs.begin_ps])
    return {"digest": _digest(whole), "job_digests": tuple(_digest(job) for job in totals[:-1])}


def _digest(numbers: Int64) -> str:
    """Return a hash in 32 hexadecimal digits."""
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()[:32]


def _numbers(count: int) -> Any:
    return aligned(np.arange(max(1, count)), np.int32)
