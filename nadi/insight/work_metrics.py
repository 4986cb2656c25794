"""Metrics of the work that a run simulates: throughput of training steps, times of served requests, and each job."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.et import TraceTable
from nadi.et.statistics import values_needed
from nadi.inputs.arrays import Int32, Int64
from nadi.inputs.units import PS_PER_S
from nadi.insight.node_times import row_blocks
from nadi.pdes import Results
from nadi.simulation.run import FinishedRun
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.workload import Exchange, Program
from nadi.workload.generators.inference import requests_in
from nadi.workload.program import FabricJobs

_STEP_NAME = re.compile(r"step(\d{1,9})/")
_NO_STEP = np.iinfo(np.int64).max


class DoneSteps(NamedTuple):
    """The first steps of a run, all of whose nodes are done on all NPUs."""

    steps: int  # number of these steps
    of: int  # number of all steps of the run
    end_ps: int  # end of the last of their nodes, 0 without any


def done_steps(simulation: FinishedRun, exchange: Exchange) -> DoneSteps | None:
    """Return the steps that a run has done before its end so far, over all ranks; None if no node's name has a step.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        exchange: Function that gives every rank's value to all ranks.
    """
    program, results = simulation.program, simulation.results
    step_of_row = np.concatenate(
        [np.zeros(0, np.int64), *(_steps_of_names(trace.names) for trace in simulation.traces)]
    )
    ptr = np.cumsum([0, *(len(trace) for trace in simulation.traces)])
    blocks = [
        (step_of_row[ptr[simulation.trace_of_npu[rows.npu]] + rows.row], results.node_finish_ps[rows.result])
        for rows in row_blocks(program, results.npu_node_ptr)
    ]
    last, first_open = -1, _NO_STEP
    for step, finish_ps in blocks:
        last = max(last, int(step.max(initial=-1)))
        # a step is done when all its nodes, on all NPUs, have ended by then
        first_open = min(first_open, int(step[(step >= 0) & (finish_ps >= results.snapshot_ps)].min(initial=_NO_STEP)))
    lasts, opens = zip(*exchange((last, first_open)), strict=True)
    if max(lasts) < 0:
        return None
    of = max(lasts) + 1
    steps = min(*opens, of)
    ends_ps = [int(finish_ps[(step >= 0) & (step < steps)].max(initial=0)) for step, finish_ps in blocks]
    return DoneSteps(steps, of, max(exchange(max(ends_ps, default=0))))


def _steps_of_names(names: Iterable[str]) -> Int64:
    """Return int64[rows]: the step that the name of each trace node begins with, -1 = none."""
    found = map(_STEP_NAME.match, names)
    return np.array([int(match[1]) if match else -1 for match in found], np.int64)


class Throughput(NamedTuple):
    """Throughput of a run's training steps; fractions are of the peak of the plan's GPUs for the plan's data type.

    Of attention's pairs of query and key, those that a causal mask leaves count, about half (FlashAttention, arXiv
    2205.14135). With `all_pairs`, all count, as in Megatron-LM's papers (arXiv 2104.04473) and PaLM's definition of MFU
    (arXiv 2204.02311, appendix B).
    """

    steps: int  # number of optimizer steps
    time_ps: float  # mean time of a step
    tokens_per_s: float  # training tokens per second over all replicas
    model_flops: int  # floating-point operations that a step needs without recomputation
    hardware_flops: int  # model_flops plus the operations of recomputation
    mfu: float | None  # model_flops over the peak; None if the GPU is not known
    hfu: float | None  # hardware_flops over the peak
    model_flops_all_pairs: int
    mfu_all_pairs: float | None
    hfu_all_pairs: float | None


def throughput(simulation: FinishedRun, so_far: DoneSteps | None = None) -> Throughput | None:
    """Return the throughput of a run that simulates a model; None for other runs and for runs that take no time.

    `so_far`: Steps that a run which is not over has done.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        so_far: Steps that a run which is not over has done; None = the run is over.
    """
    found, results = simulation.training, simulation.results
    finish_ps = results.finish_time_ps if results.snapshot_ps is None else so_far.end_ps if so_far else 0
    if found is None or finish_ps == 0:
        return None
    from nadi.workload.generators.models import training_flops

    model, plan, peak, iterations = found
    steps = so_far.steps if so_far else plan.steps * iterations
    step_s = finish_ps / steps / PS_PER_S
    batch, tokens = plan.global_batch, plan.sequence
    needed, needed_all = (
        training_flops(model, batch, tokens, causal=causal, lora=plan.lora) for causal in (True, False)
    )
    done, done_all = (
        training_flops(model, batch, tokens, recompute=plan.recompute, dtype=plan.dtype, causal=causal, lora=plan.lora)
        for causal in (True, False)
    )
    # operations that the GPUs could have done at their peak in the time of a step
    could = None if peak is None else peak * plan.gpus * step_s
    return Throughput(
        steps=steps,
        time_ps=finish_ps / steps,
        tokens_per_s=plan.global_batch * plan.sequence / step_s,
        model_flops=needed,
        hardware_flops=done,
        mfu=None if could is None else needed / could,
        hfu=None if could is None else done / could,
        model_flops_all_pairs=needed_all,
        mfu_all_pairs=None if could is None else needed_all / could,
        hfu_all_pairs=None if could is None else done_all / could,
    )


def step_document(simulation: FinishedRun, times: Int64 | None, so_far: DoneSteps | None = None) -> dict[str, Any]:
    """Return the `step` table of summary.json.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        times: int64[npus, len(CATEGORIES)], time of each NPU by category in ps; None = no name has an axis.
        so_far: Steps that a run which is not over has done; None = the run is over.
    """
    fields: dict[str, Any] = {}
    rates = throughput(simulation, so_far)
    # runs without a model have times, but no rates
    if rates is not None:
        fields |= {key: value for key, value in rates._asdict().items() if value is not None}
    if times is not None:
        busy = rows_of_busy_npus(times)
        fields["npus"] = len(busy)
        fields |= {f"{name}_ps": float(value) for name, value in zip(STEP_CATEGORIES, busy.mean(axis=0), strict=True)}
    return fields


def rows_of_busy_npus(times: Int64) -> Int64:
    """Return the rows of NPUs that have any work.

    Args:
        times: int64[npus, len(CATEGORIES)], time of each NPU by category in ps.
    """
    # NPUs without work would lower all means
    busy = times[times[:, : STEP_CATEGORIES.index("idle")].sum(axis=1) > 0]
    return busy if len(busy) else times


PERCENTILES = (50, 90, 95, 99)  # percentiles of TTFT and TPOT that tables show
QUANTILES = 101  # points of a cumulative distribution: each percent


@dataclass
class Requests:
    """Arrival and token times: picoseconds by request and number of output tokens, with 0 tokens for the arrival."""

    times_ps: dict[int, dict[int, int]] = field(default_factory=dict)

    def note(self, request: int, token_index: int, at_ps: int) -> None:
        """Record a time; if several GPUs produce a token, the last one counts.

        Args:
            request: Number of the request.
            token_index: Index of the token; 0 = the arrival of the request.
            at_ps: Time in ps.
        """
        own = self.times_ps.setdefault(request, {})
        own[token_index] = max(own.get(token_index, 0), at_ps)


@dataclass(frozen=True)
class ServingMetrics:
    """Metrics over all requests with at least one token."""

    requests: int  # number of requests
    tokens: int  # number of output tokens
    ttft_ps: NDArray[np.float64]  # float64[requests], time from a request's arrival to its first token
    tpot_ps: NDArray[np.float64]  # float64[requests with several tokens], mean time per token after the first
    span_ps: int  # time from the first arrival to the last token

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second over the whole span."""
        return self.tokens / max(self.span_ps, 1) * PS_PER_S


def requests_of(
    program: Program, traces: Sequence[TraceTable], trace_of_npu: Int32, results: Results
) -> Requests | None:
    """Return arrival and token times of requests in traces; None without requests.

    Args:
        program: Work of all NPUs (`Program`).
        traces: The distinct traces.
        trace_of_npu: int32[npus], index of each NPU's trace, below 0 = none.
        results: Results of the engine.
    """
    named = [{row: request for row, *request in requests_in(trace)} for trace in traces]
    if not any(named):
        return None
    requests = Requests()
    for rows in row_blocks(program, results.npu_node_ptr):
        finish_ps = results.node_finish_ps[rows.result]
        # rows of an NPU are consecutive, so the first gives the place of all
        npus, firsts = np.unique(rows.npu, return_index=True)
        for npu, first in zip(npus.tolist(), firsts.tolist(), strict=True):
            for row, (request, tokens) in named[trace_of_npu[npu]].items():
                at_ps = int(finish_ps[first + row])
                if results.snapshot_ps is None or at_ps < results.snapshot_ps:  # else the token is not there yet
                    requests.note(request, tokens, at_ps)
    return requests


def serving_metrics(parts: Iterable[Requests | None]) -> ServingMetrics | None:
    """Return the metrics over the requests of all ranks; None if no request has a token.

    Args:
        parts: Requests of each rank; None = a rank without requests.
    """
    all_parts = Requests()
    for part in parts:
        for request, own in (part.times_ps if part else {}).items():
            for tokens, at_ps in own.items():
                all_parts.note(request, tokens, at_ps)
    # only requests that have both arrived and got a token
    done = [own for _, own in sorted(all_parts.times_ps.items()) if 0 in own and 1 in own]
    if not done:
        return None
    # a single token has no time per further token
    longer = [own for own in done if max(own) > 1]
    return ServingMetrics(
        requests=len(done),
        tokens=sum(max(own) for own in done),
        ttft_ps=np.array([own[1] - own[0] for own in done], np.float64),
        tpot_ps=np.array([(own[max(own)] - own[1]) / (max(own) - 1) for own in longer], np.float64),
        span_ps=max(own[max(own)] for own in done) - min(own[0] for own in done),
    )


def serving_document(found: ServingMetrics) -> dict[str, Any]:
    """Return what summary.json holds: counts, tokens per second, and for TTFT and TPOT mean, percentiles and quantiles.

    `ttft` and `tpot` hold `mean_ps`, `p50_ps` to `p99_ps`, None with too few requests, and `quantiles_ps`, the times of
    0 %, 1 % ... 100 % of the requests. A request with one token has no TPOT.

    Args:
        found: Metrics of the requests.
    """
    made: dict[str, Any] = {"requests": found.requests, "tokens": found.tokens, "tokens_per_s": found.tokens_per_s}
    for name, times_ps in (("ttft", found.ttft_ps), ("tpot", found.tpot_ps)):
        if len(times_ps):
            percentiles = {
                f"p{p}_ps": float(np.percentile(times_ps, p)) if len(times_ps) >= values_needed(p) else None
                for p in PERCENTILES
            }
            quantiles = np.quantile(times_ps, np.linspace(0, 1, QUANTILES)).tolist()
            made[name] = {"mean_ps": float(np.mean(times_ps)), **percentiles, "quantiles_ps": quantiles}
    return made


MIN_SHARE = 0.01  # part of a link's bytes below which a job counts as not using it: acknowledgements of other traffic
MAX_SHARED = 8  # other jobs that results list for each job, those with the most bytes on shared links first


def job_documents(simulation: FinishedRun, finish_ps: Int64, step_times: Int64 | None) -> list[dict[str, Any]]:
    """Return the table `jobs` of summary.json, one entry for each job.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        finish_ps: int64[jobs], end of each job in ps.
        step_times: int64[npus, categories], time of each NPU by axis in ps; None = no name has an axis.
    """
    jobs = simulation.program.jobs
    if jobs is None:
        return []
    found = []
    for number, (name, job) in enumerate(zip(jobs.names, simulation.jobs, strict=True)):
        begin_ps, end_ps = int(jobs.begin_ps[number]), int(finish_ps[number])
        npus = jobs.npus_of(number)
        entry: dict[str, Any] = {
            "name": name,
            "npus": len(npus),
            "start_ps": begin_ps,
            "finish_ps": end_ps,
            "time_ps": end_ps - begin_ps,
            "digest": simulation.results.job_digests[number],
        }
        if simulation.settings.job_slowdowns:
            entry["compute_slowdown"] = simulation.settings.job_slowdowns[number]
        # the same run as if it had this job only, for the metrics of a step
        own = replace(
            simulation,
            training=job.training,
            results=replace(simulation.results, finish_time_ps=end_ps - begin_ps),
        )
        times = _own_times(simulation, step_times, npus, end_ps - begin_ps)
        entry["step"] = {} if job.is_traffic else step_document(own, times)
        if simulation.alone_ps:
            entry["alone_ps"] = simulation.alone_ps[number]
            if entry["alone_ps"]:
                entry["slowdown"] = entry["time_ps"] / entry["alone_ps"]
        entry["shares"] = list(_shared_links(simulation, jobs, number, finish_ps))[:MAX_SHARED]
        found.append(entry)
    return found


def _own_times(simulation: FinishedRun, step_times: Int64 | None, npus: Int32, time_ps: int) -> Int64 | None:
    """Return the times by axis of a job's NPUs, which are idle only from the job's start to its end."""
    if step_times is None:
        return None
    own = step_times[npus].copy()
    own[:, STEP_CATEGORIES.index("idle")] -= simulation.results.finish_time_ps - time_ps
    return np.maximum(own, 0)


def _shared_links(simulation: FinishedRun, jobs: FabricJobs, number: int, finish_ps: Int64) -> Iterator[dict[str, Any]]:
    """Yield the other jobs that run at the same time and use the same links, those with the most bytes there first."""
    sent = simulation.results.job_bytes
    if not sent.size:
        return
    total = np.maximum(sent.sum(axis=1), 1)
    # a few bytes on a link do not slow others down
    uses = sent >= MIN_SHARE * total[:, None]
    uses &= sent > 0
    own = uses[:, number]
    overlaps = (jobs.begin_ps < finish_ps[number]) & (finish_ps > jobs.begin_ps[number])
    overlaps[number] = False
    others = [(other, np.flatnonzero(own & uses[:, other])) for other in np.flatnonzero(overlaps).tolist()]
    others.sort(key=lambda each: -int(sent[each[1], each[0]].sum()))
    for other, links in others:
        if len(links):
            # the link on which both send much
            busiest = int(links[np.argmax(np.minimum(sent[links, number], sent[links, other]))])
            graph = simulation.graph
            ends = graph.node_name(int(graph.link_src[busiest])), graph.node_name(int(graph.link_dst[busiest]))
            yield {
                "job": jobs.names[other],
                "links": len(links),
                "bytes": int(sent[links, number].sum()),
                "other_bytes": int(sent[links, other].sum()),
                "link": busiest,
                "link_name": " → ".join(ends),
            }
