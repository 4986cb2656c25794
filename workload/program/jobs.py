"""Programs with aggregators in switches, and programs of several jobs on one fabric.

A Program lists the groups and their switches (`InNetworkGroup`); its NPUs, groups and traces are those of the user.
`extended` returns the program that runs: it appends the aggregators to the NPUs (topologies.endpoints) and to the
members of their groups, with traces that hold every collective of each of their groups, without dependencies.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nadi.et import TraceError
from nadi.inputs.arrays import Int32, Int64, Mask, pointers
from nadi.topologies import Graph
from nadi.workload.errors import Exchange, WorkloadError, alone
from nadi.workload.node_kinds import COLLECTIVE
from nadi.workload.program.building import RankWork, SharedParts, WorkOfRanks
from nadi.workload.program.program import NOT_HERE, FabricJobs, InNetworkGroup, Program, assemble, empty_rows
from nadi.workload.trace_sets.groups import GroupTable


def switches_of(program: Program) -> list[int]:
    """Return the nodes of the fabric with aggregators, ascending, each as often as the largest need of a group.

    Args:
        program: The work of all NPUs as arrays.
    """
    counts = Counter[int]()
    for use in program.in_network:
        # The maximum of counts: groups share a switch's aggregators, and one group may need several
        counts |= Counter(use.switches)
    return sorted(counts.elements())


def extended(program: Program, *, is_acting: bool = True) -> Program:
    """Return the program with its aggregators as NPUs.

    Args:
        program: The work of all NPUs as arrays.
        is_acting: Whether this rank has the traces of the aggregators.
    """
    switches, uses = switches_of(program), sorted(program.in_network, key=lambda use: use.group)
    npu_of = {key: program.npus + i for i, key in enumerate(_counted(switches))}
    served: list[list[tuple[InNetworkGroup, int]]] = [[] for _ in switches]
    for use in uses:
        for member, key in enumerate(_counted(use.switches), start=len(use.members)):
            served[npu_of[key] - program.npus].append((use, member))
    own = _aggregators(program, served)
    groups = _groups(program, uses, npu_of)
    traces, slots = len(program.trace_ptr) - 1, int(program.trace_slot_ptr[-1])
    # Each aggregator has a trace of its own, behind those of the NPUs
    trace = np.arange(traces, traces + len(switches), dtype=np.int32)
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(program, name), getattr(own, name)])
        for name in (*(n for n in own._fields if n.startswith("node_")), "slot_group", "slot_member", "coll_node")
    }
    return program._replace(
        npus=program.npus + len(switches),
        trace_of_npu=np.concatenate([program.trace_of_npu, trace if is_acting else np.full_like(trace, -1)]),
        trace_ptr=_longer(program.trace_ptr, own.trace_ptr),
        **joined,
        child_ptr=_longer(program.child_ptr, own.child_ptr),
        slot_ptr=_longer(program.slot_ptr, own.slot_ptr),
        group_ptr=groups[0],
        group_member=groups[1],
        trace_slot_ptr=_longer(program.trace_slot_ptr, own.trace_slot_ptr),
        coll_ptr=np.concatenate([program.coll_ptr[: slots + 1], own.coll_ptr[1:] + program.coll_ptr[slots]]),
        recv_ptr=_longer(program.recv_ptr, own.recv_ptr),
        in_network=(),
    )


def _counted(switches: Sequence[int]) -> list[tuple[int, int]]:
    """Return each switch with the number of its earlier occurrences."""
    before = Counter[int]()
    counted = []
    for switch in switches:
        counted.append((switch, before[switch]))
        before[switch] += 1
    return counted


def _longer(pointer: Int64, more: Int64) -> Int64:
    return np.concatenate([pointer, pointer[-1] + more[1:]])


def _aggregators(program: Program, groups_of_aggregators: list[list[tuple[InNetworkGroup, int]]]) -> Program:
    """Return a program of the aggregators alone, one trace each, with the groups of the program."""
    # groups_of_aggregators: by aggregator, its groups, each with its member number there.
    rows = []
    for groups in groups_of_aggregators:
        own = [use for use, _ in groups]
        counts = [len(use.schedule) for use in own]
        rows.append(
            empty_rows(sum(counts))._replace(
                kind=np.full(sum(counts), COLLECTIVE, np.int8),
                bytes=np.concatenate([use.bytes for use in own]),
                seq=np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
                group=np.repeat(np.arange(len(own), dtype=np.int32), counts),
                schedule=np.concatenate([use.schedule for use in own]),
                priority=np.concatenate([use.priority for use in own]),
            )
        )
    table = GroupTable(
        group_ptr=program.group_ptr,
        group_member=program.group_member,
        names=program.group_names,
        slot_ptr=pointers([len(groups) for groups in groups_of_aggregators]),
        slot_group=np.array([use.group for groups in groups_of_aggregators for use, _ in groups], np.int32),
        slot_member=np.array([member for groups in groups_of_aggregators for _, member in groups], np.int32),
    )
    return assemble(np.arange(len(groups_of_aggregators), dtype=np.int32), rows, table, program.schedules)


def _groups(
    program: Program, in_network_groups: Sequence[InNetworkGroup], npu_of: dict[tuple[int, int], int]
) -> tuple[Int64, Int32]:
    """Return group_ptr and group_member with the members and aggregators of all in-network groups."""
    # npu_of: NPU of an aggregator, by its switch and number there.
    pointer, members = program.group_ptr, program.group_member
    extended_groups = [members[pointer[group] : pointer[group + 1]] for group in range(len(pointer) - 1)]
    for use in in_network_groups:
        aggregators = [npu_of[key] for key in _counted(use.switches)]
        extended_groups[use.group] = np.concatenate([use.members, aggregators]).astype(np.int32)
    return pointers([len(group) for group in extended_groups]), np.concatenate(extended_groups).astype(np.int32)


# A Program of several jobs on one fabric, from the work of each one's ranks and their placement on NPUs.


class FabricJob(NamedTuple):
    """A job: the work of its ranks, and where and when they run."""

    name: str  # Name of the job
    work: WorkOfRanks  # The ranks of this process have traces, those of others ELSEWHERE (-2)
    placement: Int32  # int32[ranks], NPU of each rank
    begin_ps: int  # Time at which all its ranks start
    queue_pairs: str = ""  # Queue pairs of its messages, "pair" or "message"; "" = as the settings of the run say


def build_jobs(jobs: Sequence[FabricJob], fabric: Graph, is_here: Mask, exchange: Exchange = alone) -> Program:
    """Check the traces of each job and build the program of all; jobs with the same work share traces.

    Raises WorkloadError: a trace is invalid; the message names the job.

    Args:
        jobs: The jobs, no two of them on the same NPU.
        fabric: The fabric as a graph of nodes and links; None = unknown.
        is_here: Whether each NPU belongs to this rank of MPI, bool[npus].
        exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
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
    groups = _groups_of_jobs(jobs, built, fabric.npus)
    chooser = parts.chooser(jobs[0].work.settings, groups, fabric)
    return parts.program(trace_of_npu, groups, chooser, exchange)._replace(jobs=_jobs(jobs, built, fabric.npus))


def _groups_of_jobs(jobs: Sequence[FabricJob], built: Sequence[RankWork], npus: int) -> GroupTable:
    """Return the groups of all jobs, whose members are NPUs, job after job."""
    tables = [work.groups for work in built]
    # Number of each job's first group: jobs of 3 and 2 groups have 0 to 2 and 3 to 4
    first = np.cumsum([0, *(len(table.names) for table in tables)])
    counts = np.zeros(npus, np.int64)
    for job, table in zip(jobs, tables, strict=True):
        counts[job.placement] = np.diff(table.slot_ptr)
    slot_ptr = pointers(counts)
    slot_group, slot_member = np.zeros(int(slot_ptr[-1]), np.int32), np.zeros(int(slot_ptr[-1]), np.int32)
    for job, table, base in zip(jobs, tables, first.tolist(), strict=False):
        own = np.diff(table.slot_ptr)
        rank = np.repeat(np.arange(len(own)), own)
        # A rank's slots keep their order behind the first slot of the NPU on which the rank is placed
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
    # Ranks job after job, and then the idle NPUs: jobs on NPUs 4, 5 and 1, of 6, give 4 5 1 0 2 3
    npu = np.concatenate([placed, np.setdiff1d(np.arange(npus, dtype=np.int32), placed)])
    place = np.empty(npus, np.int32)
    # The inverse of the line above, in the example 3 2 4 5 0 1
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
