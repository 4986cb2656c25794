"""Analysis of a FinishedRun: names, algorithms and closed forms of its collectives, and where the time went.

Each rank analyses its own NPUs (`part`), and rank 0 merges the parts (`merge`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int32, Int64
from nadi.inputs.units import PS_PER_S
from nadi.insight.analysis import jobs, node_times
from nadi.insight.analysis.cautions import cautions
from nadi.insight.analysis.done_steps import DoneSteps, done_steps
from nadi.insight.analysis.serving import Figures, Requests, figures, requests_of
from nadi.insight.analysis.step_times import names_an_axis, step_times
from nadi.simulation.closed_forms import ClosedForm, GroupPositions, IsolatedCollectives, busiest_member_ps, closed_form
from nadi.simulation.run import FinishedRun, job_finish_ps
from nadi.workload import KINDS, Exchange, alone
from nadi.workload.collectives import UNEVEN

CollectiveKey = tuple[int, int, int]  # a key of `_keys`
_ANY_SIZE = -1
# number of packets that are played for the closed forms of a run, each kind, size and group size once; about 2 s
_MAX_PACKETS = 1 << 21


@dataclass(frozen=True, eq=False)
class Findings:
    """The analysis of a run with c collectives."""

    npu_times: node_times.NpuTimes  # time of each NPU by kind
    collectives: node_times.CollectiveTimes  # times of the c collectives
    group_names: list[str]  # c group names as the traces have them; "" for all NPUs
    algorithms: list[str]  # c names of algorithms
    closed_form_ps: Float64  # float64[c], time on an idle network
    # bool[c], whether the closed form played the algorithm's steps; else it is a formula
    closed_form_played: NDArray[np.bool_]
    # float64[c], size over time
    algorithm_Bps: Float64  # noqa: N815 - bytes, not bits
    # float64[c], algorithm bandwidth times the bus factor of nccl-tests
    bus_Bps: Float64  # noqa: N815 - bytes, not bits
    utilisation: Float64  # float64[links], bytes sent over the capacity during the run
    warnings: list[str]  # sentences about what the run leaves out or cannot show; see analysis.cautions
    # int64[npus, categories], time of each NPU by axis (analysis.step_times); None if no name has one
    step_times: Int64 | None = None
    serving: Figures | None = None  # serving metrics; None if no node belongs to a request
    jobs: Sequence[dict[str, Any]] = ()  # results of each of [[jobs]] (analysis.jobs)
    done_steps: DoneSteps | None = None  # steps that a run which is not over has done; None = it is over, or has none

    @property
    def ratio(self) -> Float64:
        """Return float64[c]: time over closed form; NaN where the closed form is 0."""
        time_ps = self.collectives.time_ps
        ratio = np.full(len(time_ps), np.nan)
        np.divide(time_ps, self.closed_form_ps, out=ratio, where=self.closed_form_ps > 0)
        return ratio


@dataclass(frozen=True, eq=False)
class RankFindings:
    """The part of the findings that one rank contributes for its own k NPUs."""

    npus: Int64  # int64[k], NPU numbers
    npu_times: node_times.NpuTimes  # time of each of the k NPUs by kind
    collectives: node_times.CollectiveTimes  # times of the collectives over the members on this rank
    group_names: dict[int, str]  # names of the groups that ran collectives, by group
    # closed forms by group, kind and size; for all-to-alls with split sizes by group, place and -1
    closed_forms: dict[CollectiveKey, ClosedForm]
    # int64[k, categories], time of each NPU by axis (analysis.step_times); None if no name has an axis
    step_times: Int64 | None
    requests: Requests | None = None  # times of requests and tokens on these NPUs; None if no node belongs to a request
    # int64[jobs], end of the last trace node of each job on these NPUs
    job_finish_ps: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    done_steps: DoneSteps | None = None  # as in Findings, over all ranks


def find(simulation: FinishedRun) -> Findings:
    """Analyse a run of one rank.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
    """
    return merge(simulation, [part(simulation)])


def part(
    simulation: FinishedRun, exchange: Exchange = alone, known: dict[CollectiveKey, ClosedForm] | None = None
) -> RankFindings:
    """Analyse the NPUs of this rank, whose Program has no traces of others; all ranks call it.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        exchange: Function that gives every rank's value to all ranks.
        known: Closed forms that an earlier analysis of the same run has found, to which this one adds; None = none.
    """
    results, program = simulation.results, simulation.program
    nodes = results.npu_node_ptr, results.node_start_ps, results.node_finish_ps
    npus = np.flatnonzero(program.trace_of_npu >= 0)
    times = node_times.npu_times(program, *nodes, results.finish_time_ps)
    found = node_times.find_collectives(program, *nodes, results.folded.group_like if results.folded else None)
    if results.folded:
        times = node_times.NpuTimes(*(column[results.folded.like] for column in times))
    schedule = program.node_schedule[program.trace_ptr[program.trace_of_npu[found.npu]] + found.row]
    # all ranks must divide by the same number, so they exchange the kinds
    unlike = set(zip(found.kind.tolist(), found.members.tolist(), found.size_bytes.tolist(), strict=True))
    # collectives of different kinds and sizes share the budget of simulated packets
    max_packets = _MAX_PACKETS // max(1, len(set().union(*exchange(unlike))))
    played = IsolatedCollectives(max_packets, GroupPositions(simulation.graph))
    steps = None
    if names_an_axis(simulation.traces, exchange):
        steps = step_times(program, simulation.traces, simulation.trace_of_npu, results, exchange)
        steps[list(_without_step(simulation))] = 0
    return RankFindings(
        npus=npus,
        npu_times=node_times.NpuTimes(*(column[npus] for column in times)),
        collectives=found,
        group_names={group: program.group_names[group] for group in np.unique(found.group).tolist()},
        closed_forms=_closed_forms(simulation, found, schedule, played, {} if known is None else known),
        step_times=None if steps is None else steps[npus],
        requests=requests_of(program, simulation.traces, simulation.trace_of_npu, results),
        job_finish_ps=job_finish_ps(program, results),
        done_steps=None if results.snapshot_ps is None else done_steps(simulation, exchange),
    )


def _without_step(simulation: FinishedRun) -> Iterator[int]:
    """Yield the NPUs that do no training step: memories, and those of jobs that are messages without a model."""
    yield from simulation.memories
    jobs = simulation.program.jobs
    if jobs is not None:
        for number in np.flatnonzero([job.is_traffic for job in simulation.jobs]).tolist():
            yield from jobs.npus_of(number).tolist()


def merge(simulation: FinishedRun, parts: Sequence[RankFindings]) -> Findings:
    """Merge the parts of all ranks, in any order, into the findings of a run that has the counters of all links.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        parts: Parts of the ranks.
    """
    results = simulation.results
    # ranks have NPUs in any order; rows must be in that of the NPUs
    place = np.argsort(np.concatenate([p.npus for p in parts]))
    times = (np.concatenate(column)[place] for column in zip(*(p.npu_times for p in parts), strict=True))
    found = node_times.merge_collectives([p.collectives for p in parts])
    if results.snapshot_ps is not None:  # others are not done
        done = found.finish_ps < results.snapshot_ps
        found = found._replace(**{name: column[done] for name, column in found._asdict().items()})
    steps = [p.step_times for p in parts if p.step_times is not None]
    names = {group: name for p in parts for group, name in p.group_names.items()}
    closed_forms = {key: form for p in parts for key, form in p.closed_forms.items()}
    keys, first, number = _keys(found)
    forms = [closed_forms[key] for key in keys]
    kinds = [UNEVEN if key[2] == _ANY_SIZE else KINDS[found.kind[i]] for key, i in zip(keys, first, strict=True)]
    algorithms = [simulation.collectives.algorithm_of(kind) for kind in kinds]
    factors = [node_times.bus_factor(KINDS[found.kind[i]], int(found.members[i])) for i in first.tolist()]
    algorithm_Bps = np.zeros(len(number))  # noqa: N806 - bytes, not bits
    # a collective that takes no time has no bandwidth
    np.divide(found.size_bytes, found.time_ps, out=algorithm_Bps, where=found.time_ps > 0)
    algorithm_Bps *= PS_PER_S  # noqa: N806
    step_times = np.concatenate(steps)[place] if steps else None
    return Findings(
        npu_times=node_times.NpuTimes(*times),
        collectives=found,
        group_names=[names[group] for group in found.group.tolist()],
        algorithms=[algorithms[key] for key in number.tolist()],
        closed_form_ps=np.array([form.time_ps for form in forms], np.float64)[number],
        closed_form_played=np.array([form.is_simulated for form in forms], np.bool_)[number],
        algorithm_Bps=algorithm_Bps,
        bus_Bps=algorithm_Bps * np.array(factors, np.float64)[number],
        utilisation=node_times.utilisation(
            simulation.graph,
            results.links["tx_bytes"],
            results.finish_time_ps,
            simulation.settings.faults.links,
            int(results.settled.get("cell_ps", 1)),
        ),
        warnings=cautions(simulation),
        step_times=step_times,
        jobs=jobs.documents(simulation, np.max([p.job_finish_ps for p in parts], axis=0), step_times),
        serving=figures(p.requests for p in parts),
        done_steps=parts[0].done_steps,
    )


def _keys(found: node_times.CollectiveTimes) -> tuple[list[CollectiveKey], Int64, Int64]:
    """Return the distinct keys of collectives, the first collective of each, and the key of each by its number.

    A key is group, kind and size; that of an all-to-all with split sizes is group, place and _ANY_SIZE.
    """
    second = np.where(found.uneven, found.seq, found.kind)
    columns = [found.group, second, np.where(found.uneven, _ANY_SIZE, found.size_bytes)]
    first, number = distinct_rows(columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return list(rows), first, number


def _closed_forms(
    simulation: FinishedRun,
    collectives: node_times.CollectiveTimes,
    schedule_of_collective: Int32,
    played_collectives: IsolatedCollectives,
    known: dict[CollectiveKey, ClosedForm],
) -> dict[CollectiveKey, ClosedForm]:
    """Add to `known`, and return, the closed form of each key of `_keys`, for c collectives with schedules int32[c].

    All-to-alls with split sizes may be many, so that their closed form is the time of the fullest member alone.
    """
    program, graph, settings = simulation.program, simulation.graph, simulation.settings
    keys, first, _ = _keys(collectives)
    for i, key in zip(first.tolist(), keys, strict=True):
        if key in known:
            continue
        group, kind, number = int(collectives.group[i]), KINDS[collectives.kind[i]], int(schedule_of_collective[i])
        size_bytes = int(collectives.size_bytes[i])
        members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].astype(np.int64)
        # the run itself is one of closed forms
        if not settings.fidelity.model.has_links:
            is_simulated = (number, size_bytes) not in simulation.formulas
            known[key] = ClosedForm(float(collectives.time_ps[i]), is_simulated=is_simulated)
        # split sizes differ from one collective to the next
        elif key[2] == _ANY_SIZE:
            busiest_ps = busiest_member_ps(graph, program, settings, number, members, size_bytes)
            known[key] = ClosedForm(busiest_ps, is_simulated=False)
        else:
            algorithm = simulation.collectives.algorithm_of(kind)
            known[key] = closed_form(
                graph, program, settings, kind, algorithm, number, members, size_bytes, played_collectives
            )
    return known


def distinct_rows(columns: Sequence[NDArray[np.integer]]) -> tuple[Int64, Int64]:
    """Return the first row of each distinct row, and int64[n], the number of each row among the distinct ones.

    columns: Arrays of n numbers each.
    """
    order = np.lexsort(columns)  # a stable sort, so that the first row of each kind comes first
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    first = order[is_new]
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    number = np.empty(len(order), np.int64)
    number[order] = rank[np.cumsum(is_new) - 1]
    return np.sort(first), number
