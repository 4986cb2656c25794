"""Analysis of a FinishedRun: names, algorithms and closed forms of its collectives, where the time went, and warnings.

Each rank analyses its own NPUs (`analyse_rank`), and rank 0 merges the parts (`merge_ranks`). What the run answers are
questions whose classes have errors in validation (nadi.validation).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int32, Int64, arrow_texts, arrow_words
from nadi.inputs.units import PS_PER_S, format_time
from nadi.insight import node_times, work_metrics
from nadi.insight.step_times import names_an_axis, step_times
from nadi.insight.work_metrics import throughput
from nadi.pdes.wire import SELECTIVE_PACKETS, covering_packets
from nadi.simulation.closed_forms import ClosedForm, GroupPositions, IsolatedCollectives, busiest_member_ps, closed_form
from nadi.simulation.run import WITH_TICKS, FinishedRun, job_finish_ps
from nadi.simulation.schemas import COLLECTIVES
from nadi.validation import ErrorBar, Question, error_bars, serving_questions, step_question
from nadi.workload import KINDS, Exchange, alone
from nadi.workload.collectives import UNEVEN
from nadi.workload.compute import find_gpu

ClosedFormKey = tuple[int, int, int]  # a key of `_keys`
_ANY_SIZE = -1
# number of packets that are played for the closed forms of a run, each kind, size and group size once; about 2 s
_MAX_PACKETS = 1 << 21


@dataclass(frozen=True, eq=False)
class RunAnalysis:
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
    warnings: list[str]  # sentences about what the run leaves out or cannot show; see warnings_of
    # int64[npus, categories], time of each NPU by axis (step_times); None if no name has one
    step_times: Int64 | None = None
    serving: work_metrics.ServingMetrics | None = None  # serving metrics; None if no node belongs to a request
    jobs: Sequence[dict[str, Any]] = ()  # results of each of [[jobs]] (work_metrics)
    done_steps: work_metrics.DoneSteps | None = None  # steps done by a run that is not over; None = over, or no steps

    @property
    def ratio(self) -> Float64:
        """Return float64[c]: time over closed form; NaN where the closed form is 0."""
        time_ps = self.collectives.time_ps
        ratio = np.full(len(time_ps), np.nan)
        np.divide(time_ps, self.closed_form_ps, out=ratio, where=self.closed_form_ps > 0)
        return ratio


@dataclass(frozen=True, eq=False)
class RankAnalysis:
    """The part of the analysis that one rank contributes for its own k NPUs."""

    npus: Int64  # int64[k], NPU numbers
    npu_times: node_times.NpuTimes  # time of each of the k NPUs by kind
    collectives: node_times.CollectiveTimes  # times of the collectives over the members on this rank
    group_names: dict[int, str]  # names of the groups that ran collectives, by group
    # closed forms by group, kind and size; for all-to-alls with split sizes by group, place and -1
    closed_forms: dict[ClosedFormKey, ClosedForm]
    # int64[k, categories], time of each NPU by axis (step_times); None if no name has an axis
    step_times: Int64 | None
    requests: work_metrics.Requests | None = None  # times of requests on these NPUs; None = no node belongs to one
    # int64[jobs], end of the last trace node of each job on these NPUs
    job_finish_ps: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    done_steps: work_metrics.DoneSteps | None = None  # as in RunAnalysis, over all ranks


def analyse(simulation: FinishedRun) -> RunAnalysis:
    """Analyse a run of one rank.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
    """
    return merge_ranks(simulation, [analyse_rank(simulation)])


def analyse_rank(
    simulation: FinishedRun, exchange: Exchange = alone, known: dict[ClosedFormKey, ClosedForm] | None = None
) -> RankAnalysis:
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
    found = node_times.find_collectives(program, *nodes, results.kept_rows.group_like if results.kept_rows else None)
    if results.kept_rows:
        times = node_times.NpuTimes(*(column[results.kept_rows.like] for column in times))
    schedule = program.node_schedule[program.trace_ptr[program.trace_of_npu[found.npu]] + found.row]
    # all ranks must divide by the same number, so they exchange the kinds
    unlike = set(zip(found.kind.tolist(), found.members.tolist(), found.size_bytes.tolist(), strict=True))
    # collectives of different kinds and sizes share the budget of simulated packets
    max_packets = _MAX_PACKETS // max(1, len(set().union(*exchange(unlike))))
    played = IsolatedCollectives(max_packets, GroupPositions(simulation.graph))
    steps = None
    if names_an_axis(simulation.traces, exchange):
        steps = step_times(program, simulation.traces, simulation.trace_of_npu, results, exchange)
        # memories and jobs of messages without a model do no training step
        steps[list(simulation.memories)] = 0
        if program.jobs is not None:
            for number in np.flatnonzero([job.is_traffic for job in simulation.jobs]).tolist():
                steps[program.jobs.npus_of(number)] = 0
    return RankAnalysis(
        npus=npus,
        npu_times=node_times.NpuTimes(*(column[npus] for column in times)),
        collectives=found,
        group_names={group: program.group_names[group] for group in np.unique(found.group).tolist()},
        closed_forms=_closed_forms(simulation, found, schedule, played, {} if known is None else known),
        step_times=None if steps is None else steps[npus],
        requests=work_metrics.requests_of(program, simulation.traces, simulation.trace_of_npu, results),
        job_finish_ps=job_finish_ps(program, results),
        done_steps=None if results.snapshot_ps is None else work_metrics.done_steps(simulation, exchange),
    )


def merge_ranks(simulation: FinishedRun, parts: Sequence[RankAnalysis]) -> RunAnalysis:
    """Merge the parts of all ranks, in any order, into the analysis of a run that has the counters of all links.

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
    return RunAnalysis(
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
        warnings=warnings_of(simulation),
        step_times=step_times,
        jobs=work_metrics.job_documents(simulation, np.max([p.job_finish_ps for p in parts], axis=0), step_times),
        serving=work_metrics.serving_metrics(p.requests for p in parts),
        done_steps=parts[0].done_steps,
    )


def collectives_table(analysis: RunAnalysis) -> pa.Table:
    """Return collectives.parquet of a run.

    Args:
        analysis: Result of the analysis of the run (`RunAnalysis`).
    """
    found = analysis.collectives
    columns = {
        "group_name": arrow_texts(analysis.group_names),
        "kind": arrow_words(KINDS, found.kind),
        "algorithm": arrow_texts(analysis.algorithms),
        "bytes": found.size_bytes,
        "algbw_Bps": analysis.algorithm_Bps,
        "busbw_Bps": analysis.bus_Bps,
    }
    own = ("group", "seq", "members", "start_ps", "ready_ps", "finish_ps", "time_ps")
    columns |= {name: getattr(found, name) for name in own}
    columns |= {name: getattr(analysis, name) for name in ("closed_form_ps", "closed_form_played", "ratio")}
    return COLLECTIVES.table(columns)


def _keys(found: node_times.CollectiveTimes) -> tuple[list[ClosedFormKey], Int64, Int64]:
    """Return the distinct keys of collectives, the first collective of each, and the key of each by its number.

    A key is group, kind and size; that of an all-to-all with split sizes is group, place and _ANY_SIZE.
    """
    second = np.where(found.uneven, found.seq, found.kind)
    columns = [found.group, second, np.where(found.uneven, _ANY_SIZE, found.size_bytes)]
    first, number = node_times.distinct_rows(columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return list(rows), first, number


def _closed_forms(
    simulation: FinishedRun,
    collectives: node_times.CollectiveTimes,
    schedule_of_collective: Int32,
    played_collectives: IsolatedCollectives,
    known: dict[ClosedFormKey, ClosedForm],
) -> dict[ClosedFormKey, ClosedForm]:
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


SEVERAL_EPISODES = 50  # simulated episodes of which a run says that they seldom repeat
MANY_RESENDS = 10  # retransmissions for each packet of data, above which a run says so
FEW_REPLAYS = 4  # collectives that are replayed for each simulated episode, up to which they seldom repeat


def warnings_of(simulation: FinishedRun) -> list[str]:
    """Return the warnings about a run.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
    """
    end_ps, finish_ps = simulation.results.snapshot_ps, simulation.results.finish_time_ps
    warnings = [] if end_ps is None else [f"partial results, of the first {format_time(end_ps)}: the run is not over"]
    warnings += simulation.warnings
    others = _narrow_window(simulation), _overtaken(simulation), _sent_again(simulation), _seldom_repeats(simulation)
    without = simulation.without_effect.sentence(finish_ps)
    warnings += [sentence for sentence in (without, *others) if sentence]
    if finish_ps == 0:
        warnings.append(simulation.if_no_time)
    if simulation.settings.fidelity.hooks.overload:
        warnings += _overloaded_links(simulation)
    return warnings


def _narrow_window(simulation: FinishedRun) -> str:
    """Return a warning if selective repeat keeps `window = "auto"` below the bandwidth-delay product, else ""."""
    settings = simulation.settings
    if not settings.fidelity.model.has_packets or settings.window_bytes or not settings.selective_repeat:
        return ""
    packets = covering_packets(simulation.graph, settings)
    if packets <= SELECTIVE_PACKETS:
        return ""
    return (
        f'[network] window = "auto" is {SELECTIVE_PACKETS} packets, the most that selective repeat keeps, and the '
        f"longest round trip holds {packets:,}: one flow alone may not fill the fastest port; a larger mtu helps"
    )


def _overtaken(simulation: FinishedRun) -> str:
    """Return a warning if all retransmissions come from reordering by flowlets, else ""."""
    settings, counters = simulation.settings, simulation.results.counters
    again = int(counters.get("retransmitted_packets", 0))
    may_overtake = any(rule.has_flowlets for rule in settings.balancings) and not settings.selective_repeat
    if not again or counters.get("dropped_packets", 0) or not may_overtake:
        return ""
    return (
        f'{again:,} packets were sent again, and none was dropped: with load_balancing = "flowlet" packets overtook '
        "others of their flow, which go-back-N takes for a loss; selective_repeat = true, or a flowlet_gap longer than "
        f"{format_time(settings.flowlet_gap_ps)}, avoids it"
    )


def _sent_again(simulation: FinishedRun) -> str:
    """Return a warning if the network carried mostly packets that were sent again, else ""."""
    counters = simulation.results.counters
    again = int(counters.get("retransmitted_packets", 0))
    fresh = int(counters.get("data_packets", 0)) - again
    if again <= MANY_RESENDS * fresh:
        return ""
    return (
        f"{again:,} packets were sent again, {again / fresh:.3g} times the {fresh:,} of the data: the network is "
        "overloaded, and times depend on its retransmissions; a congestion control, a smaller window, larger buffers "
        "or selective_repeat = true avoid it"
    )


def _seldom_repeats(simulation: FinishedRun) -> str:
    """Return a warning if collectives of NVLink domains start at so many offsets that few are replayed, else ""."""
    counts = simulation.results.reuse
    simulated, replayed = (counts.get(f"episodes_{how}", 0) for how in ("simulated", "replayed"))
    if simulation.settings.tick_ps or simulated < SEVERAL_EPISODES or replayed > FEW_REPLAYS * simulated:
        return ""
    return (
        f"collectives of NVLink domains seldom repeat: of {replayed:,}, {simulated:,} start at offsets of their "
        f"members that no other has{WITH_TICKS}"
    )


def _overloaded_links(simulation: FinishedRun) -> list[str]:
    """Return a warning if links would have to carry more than their capacity."""
    graph, results = simulation.graph, simulation.results
    share = node_times.utilisation(graph, results.links["tx_bytes"], results.finish_time_ps)
    # only models without queues let a link carry more than its rate
    if not (share > 1).any():
        return []
    most = int(share.argmax())
    name = f"{graph.node_name(graph.link_src[most])} → {graph.node_name(graph.link_dst[most])}"
    count = f"{np.count_nonzero(share > 1):,} of {graph.links:,} links"
    why = simulation.settings.fidelity.hooks.overload
    return [f"{count} would have to carry more than they can, up to {share[most]:.0%} of it ({name}): {why}"]


def error_bars_of(simulation: FinishedRun, analysis: RunAnalysis | None) -> list[ErrorBar]:
    """Return how far the answers of a run may be trusted.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis of the run; None = no analysis.
    """
    return error_bars(_questions(simulation, analysis))


def _questions(simulation: FinishedRun, analysis: RunAnalysis | None) -> Iterator[Question]:
    """Yield the questions that a run answers, those of the whole run and not of its parts."""
    config = simulation.config
    faults = bool(config.faults)
    gpu = find_gpu(config.compute.gpu).name if config.compute.gpu else ""
    if simulation.jobs:
        yield Question(subject="jobs")
    elif analysis and analysis.serving:
        from nadi.workload.generators.models import find

        model, plan = config.workload.model, config.workload.plan
        experts = model is not None and find(model).experts is not None
        for question in serving_questions(simulation.graph, gpu, plan.dtype if plan else "", experts=experts):
            yield replace(question, faults=faults)
    elif simulation.training is not None:
        rates = throughput(simulation, analysis.done_steps if analysis else None)
        time_s = None if rates is None else rates.time_ps / PS_PER_S
        model_and_plan = simulation.training.model, simulation.training.plan
        yield replace(step_question(*model_and_plan, config.workload.framework, gpu, time_s), faults=faults)
    else:
        yield Question(subject="messages" if config.workload.traffic is not None else "traces", faults=faults)
