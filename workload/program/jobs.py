"""A Program of several jobs on one fabric, from the work of each one's ranks and their placement on NPUs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nadi.et import TraceError
from nadi.et.arrays import Int32, Int64, Mask, pointers
from nadi.topologies import Graph
from nadi.workload.errors import Exchange, WorkloadError, alone
from nadi.workload.program.assembling import NOT_HERE
from nadi.workload.program.building import RankWork, SharedParts, WorkOfRanks
from nadi.workload.program.program import FabricJobs, Program
from nadi.workload.trace_sets.groups import GroupTable


class FabricJob(NamedTuple):
    """A job: the work of its ranks, and where and when they run."""

    name: str
    work: WorkOfRanks  # The ranks of this process have traces, those of others ELSEWHERE (-2)
    placement: Int32  # int32[ranks], NPU of each rank
    begin_ps: int  # Time at which all its ranks start
    queue_pairs: str = ""  # Queue pairs of its messages, "pair" or "message"; "" = as the settings of the run say


def build_jobs(jobs: Sequence[FabricJob], fabric: Graph, is_here: Mask, exchange: Exchange = alone) -> Program:
    """Check the traces of each job and build the program of all; jobs with the same work share traces.

    `is_here` is bool[npus], the NPUs of this rank of MPI; no two jobs have an NPU in common. Raises WorkloadError: a
    trace is invalid; the message names the job.
    """
    parts, built = SharedParts(jobs[0].work.settings), []
    for job in jobs:
        try:
            built.append(parts.build(job.work, fabric, exchange, placement=job.placement))
        except (WorkloadError, TraceError) as error:
            raise WorkloadError(f'job "{job.name}": {error}') from None
    is_idle = np.array(is_here, np.bool_)
    trace_of_npu = np.full(fabric.npus, NOT_HERE, np.int32)
    for job, work in zip(jobs, built, strict=True):
        trace_of_npu[job.placement] = work.trace_of_rank
        is_idle[job.placement] = False
    if np.any(is_idle):
        trace_of_npu[is_idle] = parts.idle()
    groups = _groups(jobs, built, fabric.npus)
    chooser = parts.chooser(jobs[0].work.settings, groups, fabric)
    return parts.program(trace_of_npu, groups, chooser, exchange)._replace(jobs=_jobs(jobs, built, fabric.npus))


def _groups(jobs: Sequence[FabricJob], built: Sequence[RankWork], npus: int) -> GroupTable:
    """Return the groups of all jobs, whose members are NPUs, job after job."""
    tables = [work.groups for work in built]
    first = np.cumsum([0, *(len(table.names) for table in tables)])
    counts = np.zeros(npus, np.int64)
    for job, table in zip(jobs, tables, strict=True):
        counts[job.placement] = np.diff(table.slot_ptr)
    slot_ptr = pointers(counts)
    slot_group, slot_member = np.zeros(int(slot_ptr[-1]), np.int32), np.zeros(int(slot_ptr[-1]), np.int32)
    for job, table, base in zip(jobs, tables, first.tolist(), strict=False):
        own = np.diff(table.slot_ptr)
        rank = np.repeat(np.arange(len(own)), own)
        at = slot_ptr[job.placement[rank]] + np.arange(len(rank)) - table.slot_ptr[rank]
        slot_group[at], slot_member[at] = table.slot_group + base, table.slot_member
    members = [job.placement[table.group_member] for job, table in zip(jobs, tables, strict=True)]
    return GroupTable(
        group_ptr=pointers(np.concatenate([table.sizes() for table in tables])),
        group_member=np.concatenate(members).astype(np.int32),
        names=tuple(name for table in tables for name in table.names),
        slot_ptr=slot_ptr,
        slot_group=slot_group,
        slot_member=slot_member,
    )


def _jobs(jobs: Sequence[FabricJob], built: Sequence[RankWork], npus: int) -> FabricJobs:
    """Return who the NPUs of the fabric are."""
    placed = np.concatenate([job.placement for job in jobs]).astype(np.int32)
    npu = np.concatenate([placed, np.setdiff1d(np.arange(npus, dtype=np.int32), placed)])
    place = np.empty(npus, np.int32)
    place[npu] = np.arange(npus, dtype=np.int32)
    return FabricJobs(
        names=tuple(job.name for job in jobs),
        rank_ptr=_ends([len(job.placement) for job in jobs]),
        npu=npu,
        place=place,
        group_ptr=_ends([len(work.groups.names) for work in built]),
        begin_ps=np.array([job.begin_ps for job in jobs], np.int64),
        queue_pairs=tuple(job.queue_pairs for job in jobs),
    )


def _ends(counts: Sequence[int]) -> Int64:
    return np.cumsum([0, *counts]).astype(np.int64)
