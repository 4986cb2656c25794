"""Metrics by which runs are compared: unit and better direction of each, rankings by them, means over repetitions.

Repetitions are runs that differ only in the seeds of their random numbers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from nadi.errors import ConfigError
from nadi.et.statistics import percentile
from nadi.inputs.arrays import arrow_texts, numpy_column
from nadi.insight.network import percentiles, size_classes
from nadi.insight.runs import Run, energy_of
from nadi.simulation.schemas import COLLECTIVES, COMMUNICATION_AXES, FLOWS, LINKS, NPUS, STEP_CATEGORIES

# relative difference below which two points of a sweep are equally good: the model is no more accurate than that
SAME_WITHIN = 0.01
# metrics that rank the points of a sweep whose file names none
_RANKING_METRICS = (
    *("step_time_ps", "ttft_p99_ps", "ttft_p50_ps"),
    *("finish_time_ps", "collectives_ratio", "p99_completion_ps", "busiest_link"),
)


class WorkerBalance(NamedTuple):
    """The load balance of a run's workers."""

    imbalance: float  # longest working time of a worker over the mean of all workers; 1 is even
    waiting: float  # share of the workers' wall time that they spent waiting for each other


def worker_balance(run: Run) -> WorkerBalance:
    """Return the load balance of a run; a run without recorded workers is even."""
    if run.workers is None or not len(run.workers):
        return WorkerBalance(1.0, 0.0)
    working, waiting = (numpy_column(run.workers[name], np.float64) for name in ("working_s", "waiting_s"))
    wall_s = float(working.sum() + waiting.sum())
    mean = float(working.mean())
    return WorkerBalance(float(working.max()) / mean if mean else 1.0, float(waiting.sum()) / wall_s if wall_s else 0.0)


class Metric(NamedTuple):
    """One metric of a run."""

    name: str  # column name in tables, with its unit at the end
    meaning: str  # description in a few words
    form: str  # how the value is formatted: "time", "share", "count", "rate", "number" or "bytes"
    is_cost: bool = True  # whether a smaller value is better
    minimum: float = 0.0  # value below which no result can fall


_COUNTS = {
    "packet_hops": "packets times the number of links that each crossed",
    "dropped_packets": "packets lost at full queues or by faults",
    "marked_packets": "packets that ECN marked",
    "pause_frames": "pauses that PFC sent",
    "retransmitted_packets": "packets sent again",
    "timeouts": "retransmission timeouts of senders",
}
METRICS = (
    Metric("finish_time_ps", "time at which the last NPU finishes", "time"),
    Metric("step_time_ps", "time of one optimizer step", "time"),
    Metric("tokens_per_s", "training tokens per second, all replicas", "rate", is_cost=False),
    Metric("ttft_p50_ps", "median time to first token", "time"),
    Metric("ttft_p99_ps", "99th percentile of the time to first token", "time"),
    Metric("tpot_p50_ps", "median time per output token", "time"),
    Metric("tpot_p99_ps", "99th percentile of the time per output token", "time"),
    Metric("output_tokens_per_s", "output tokens served per second", "rate", is_cost=False),
    Metric("mfu", "model FLOP, causal attention counted half, over the GPUs' peak", "share", is_cost=False),
    Metric(
        "mfu_all_pairs", "model FLOP, all pairs of query and key counted, over the GPUs' peak", "share", is_cost=False
    ),
    Metric("compute_share", "compute, mean share of the NPUs' time", "share", is_cost=False),
    Metric("exposed_share", "exposed communication, mean share of the NPUs' time", "share"),
    *(Metric(f"{axis}_share", f"exposed communication of the axis {axis}", "share") for axis in COMMUNICATION_AXES),
    Metric("bubble_share", "waiting for other pipeline stages, mean share of the NPUs' time", "share"),
    Metric("idle_share", "time after an NPU's last node, mean share", "share"),
    Metric("collectives_ps", "summed time of all collectives", "time"),
    Metric("collectives_ratio", "summed time of all collectives over their closed forms", "number"),
    Metric("median_completion_ps", "median completion time of messages", "time"),
    Metric("p99_completion_ps", "99th percentile of the completion time of messages", "time"),
    Metric("p99_slowdown", "99th percentile of messages' time over their time on an idle network", "number", minimum=1),
    Metric("busiest_link", "highest utilisation of a link", "share"),
    *(Metric(name, meaning, "count") for name, meaning in _COUNTS.items()),
    Metric("energy_J", "energy of one optimizer step, else of the run, data centre overhead included", "number"),
    Metric(
        "cost_usd", "cost of one optimizer step, else of the run: GPU hours, and electricity for owned GPUs", "number"
    ),
    Metric("wall_s", "wall time of the simulation in seconds", "number"),
    Metric(
        "imbalance", "longest working time of a simulation worker over the mean of all workers", "number", minimum=1
    ),
    Metric("waiting_share", "share of the simulation workers' wall time spent waiting for each other", "share"),
    Metric("peak_rss_bytes", "peak memory of the simulation", "bytes"),
)

_STEP_KEYS = {"step_time_ps": "time_ps", "tokens_per_s": "tokens_per_s", "mfu": "mfu", "mfu_all_pairs": "mfu_all_pairs"}


def metrics_of(run: Run) -> dict[str, float]:
    """Return the metrics that the run has, by name, in the order of METRICS.

    A run that only sends messages has no shares of computation and communication, energy or cost.
    """
    found = dict(_of_summary(run)) | dict(_of_tables(run))
    return {metric.name: found[metric.name] for metric in METRICS if metric.name in found}


def _of_summary(run: Run) -> Iterator[tuple[str, float]]:
    """Yield name and value of the metrics in the summary of a run."""
    summary = run.summary
    yield "finish_time_ps", run.finish_time_ps
    step = summary.get("step", {})
    for name, key in _STEP_KEYS.items():
        if key in step:
            yield name, float(step[key])
    serving = summary.get("serving", {})
    for name in ("ttft", "tpot"):
        if name in serving:
            values = {f"{name}_{share}_ps": serving[name][f"{share}_ps"] for share in ("p50", "p99")}
            yield from ((key, value) for key, value in values.items() if value is not None)
    if serving:
        yield "output_tokens_per_s", serving["tokens_per_s"]
    times = {name: float(step.get(f"{name}_ps", 0.0)) for name in STEP_CATEGORIES}
    # categories add up to the time of the run
    whole = sum(times.values())
    if whole and not run.has_only_messages:
        axes = {axis: times[axis] / whole for axis in COMMUNICATION_AXES}
        yield "exposed_share", sum(axes.values()) + times["unnamed"] / whole
        yield from ((f"{axis}_share", share) for axis, share in axes.items() if share)
        yield from ((f"{name}_share", times[name] / whole) for name in ("compute", "bubble", "idle"))
    yield from ((name, float(summary[name])) for name in (*_COUNTS, "wall_s", "peak_rss_bytes") if name in summary)


def _of_tables(run: Run) -> Iterator[tuple[str, float]]:
    """Yield name and value of the metrics from the tables that the run has."""
    has_work = not run.has_only_messages
    if has_work and "compute_ps" not in run.summary.get("step", {}) and run.finish_time_ps:
        for name in ("compute", "exposed", "idle"):
            yield f"{name}_share", float(np.mean(numpy_column(run.npus[f"{name}_ps"]))) / run.finish_time_ps
    if run.has(COLLECTIVES) and len(run.collectives):
        columns = (numpy_column(run.collectives[name]) for name in ("time_ps", "closed_form_ps"))
        time_ps, closed_ps = (float(column.sum()) for column in columns)
        yield "collectives_ps", time_ps
        if closed_ps:
            yield "collectives_ratio", time_ps / closed_ps
    if run.has(FLOWS) and len(run.flows):
        # completion times of messages, waiting at the sender included
        took = numpy_column(run.flows["finish_ps"]) - numpy_column(run.flows["start_ps"])
        yield "median_completion_ps", float(np.median(took))
        tails = {"p99_completion_ps": took, "p99_slowdown": numpy_column(run.flows["slowdown"].drop_null())}
        values = {name: percentile(sample, 99) for name, sample in tails.items()}
        yield from ((name, value) for name, value in values.items() if value is not None)
    if has_work and run.finish_time_ps and run.has(NPUS):
        bill, steps = energy_of(run).bill, int(run.summary.get("step", {}).get("steps", 0)) or 1
        yield "energy_J", bill.joules / steps
        yield "cost_usd", bill.usd / steps
    if run.workers is not None and len(run.workers):
        yield from (("imbalance", worker_balance(run).imbalance), ("waiting_share", worker_balance(run).waiting))
    if run.has(LINKS) and len(run.links):
        yield "busiest_link", float(np.max(numpy_column(run.links["utilisation"])))


def ranking_metric(table: pa.Table, metric_name: str = "") -> Metric | None:
    """Return the metric that ranks points of a sweep; None = no point is finished.

    Args:
        table: Points of the sweep with their metrics as columns.
        metric_name: Name of the metric; "" = a default.
    """
    known = {metric.name: metric for metric in METRICS if metric.name in table.column_names}
    wanted = (metric_name, *_RANKING_METRICS) if metric_name else _RANKING_METRICS
    return next((known[name] for name in wanted if name in known), None)


def ranked_rows(points: pa.Table, metric: Metric | None) -> NDArray[np.int64]:
    """Return int64[points]: rows from the best to the worst, those without the metric last.

    Args:
        points: The table of a sweep's points.
        metric: The metric that ranks; None = rows keep their order.
    """
    if metric is None:
        return np.arange(len(points))
    cost = costs(points, metric)
    return np.argsort(np.where(np.isnan(cost), np.inf, cost), kind="stable")


def costs(points: pa.Table, metric: Metric) -> NDArray[np.float64]:
    """Return float64[points]: the metric where less is better, else its negative; NaN where a point lacks it.

    Args:
        points: The table of a sweep's points.
        metric: The metric that ranks.
    """
    values = numpy_column(points[metric.name], np.float64)
    return values if metric.is_cost else -values


def as_good_as_best(cost: NDArray[np.float64], intervals: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
    """Return bool[n]: whether a result is within SAME_WITHIN of the best, or its interval overlaps that of the best.

    Args:
        cost: float64[n], results of which less is better.
        intervals: float64[n, 2], confidence intervals of the results, of which costs may be the negatives; NaN where a
            result has none. None = no result has one.
    """
    best = int(np.nanargmin(cost))
    good = np.abs(cost - cost[best]) <= SAME_WITHIN * abs(cost[best])
    if intervals is not None:
        low, high = intervals.T
        good |= (low <= high[best]) & (high >= low[best])
    return good


def best_value(results: Mapping[object, Sequence[float]], metric: Metric) -> object | None:
    """Return the value of a key whose mean is best, or None where another value is as good.

    Args:
        results: Results of the repetitions, one per seed, by value of a key.
        metric: The metric that ranks.
    """
    # smaller is better for both kinds of metrics then
    cost = np.array([np.mean(own) for own in results.values()]) * (1 if metric.is_cost else -1)
    none = (np.nan, np.nan)
    intervals = np.array([confidence_interval(own, metric.minimum) or none for own in results.values()])
    good = np.flatnonzero(as_good_as_best(cost, intervals))
    return list(results)[good[0]] if len(good) == 1 else None


# quantile 0.975 of Student's t by degrees of freedom from 1 (NIST/SEMATECH e-Handbook, section 1.3.6.7.2)
_STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_STUDENT_T_OF_MANY = 1.96


def confidence_interval(values: ArrayLike, minimum: float) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean of n repetitions; None if n is 1.

    The interval is mean ± t e with the standard error e and the quantile t of Student's distribution with n - 1
    degrees of freedom, clipped at the minimum. As the true mean is not below it either, the clipped interval contains
    it exactly when the whole one does.

    Args:
        values: float64[n], results of repetitions.
        minimum: The value below which no result can fall: 1 for a slow-down, 0 for a time.
    """
    found = np.asarray(values, np.float64)
    if len(found) <= 1:
        return None
    freedom = len(found) - 1
    factor = _STUDENT_T[freedom - 1] if freedom <= len(_STUDENT_T) else _STUDENT_T_OF_MANY
    mean, half = float(found.mean()), factor * float(found.std(ddof=1)) / math.sqrt(len(found))
    return max(mean - half, min(minimum, mean)), mean + half


SLOWDOWN_PERCENTILES = (50.0, 95.0, 99.0, 99.9)
MIN_SLOWDOWN = 1.0  # slow-down of a message that meets no other one
_COLUMNS = ("bytes", "slowdown")
_Samples = dict[
    int | None, list[tuple[int, dict[str, float | None]]]
]  # lower limit of a size class -> number of messages and percentiles by run


def slowdown_by_size(folders: Sequence[Path], key: str = "", job: str = "") -> list[dict[str, Any]]:
    """Return a row for each group of runs and size class, as a JSON document.

    A class holds the messages of one decade of sizes; `from_bytes` None is the class of all messages. `slowdown` has
    the mean of each percentile over runs, None if any run has too few messages for it, and `interval` both ends of its
    95 % confidence interval, None with a single run. Raises ConfigError for a folder without slow-downs or without the
    job, or a key that the run file does not have.

    Args:
        folders: Folders with the results of runs.
        key: Section and key of the run file whose values distinguish groups, "network.congestion_control"; "" = all
            runs are one group.
        job: Name of the job of [[jobs]] whose messages count; "" = all messages.
    """
    groups: dict[str, _Samples] = {}
    for folder in folders:
        run = Run(folder)
        samples = groups.setdefault(group_of(run, key), {})
        if job:
            run.check_job(job)
        columns = (*_COLUMNS, "job") if job else _COLUMNS
        flows = run.read(FLOWS, columns, columns)
        if flows is None:
            raise ConfigError(f"{folder}: no flows.parquet; expected results of a run that keeps its messages")
        if job:
            flows = flows.filter(pc.equal(flows["job"], arrow_texts([job])[0]))
        # messages whose ideal time is not known
        flows = flows.drop_null()
        if not len(flows):
            raise ConfigError(f"{folder}: no message with a known slow-down")
        slowdown = numpy_column(flows["slowdown"], np.float64)
        for from_bytes, here in size_classes(numpy_column(flows["bytes"], np.int64)):
            samples.setdefault(from_bytes, []).append(
                (int(here.sum()), percentiles(slowdown[here], SLOWDOWN_PERCENTILES))
            )
    return [
        _slowdown_row(group, from_bytes, samples[from_bytes])
        for group, samples in groups.items()
        for from_bytes in sorted(samples, key=lambda limit: limit or 0)
    ]


def group_of(run: Run, key: str) -> str:
    """Return the value of a key of a run's settled configuration as text, which is its group; "" without a key.

    Args:
        run: The run, read from its folder (`Run`).
        key: Section and key of the run file, "network.congestion_control"; "" = none.
    """
    value: Any = run.summary.get("config", {})
    for part in key.split(".") if key else ():
        entries = dict(enumerate(value)) if isinstance(value, list) else value
        value = entries.get(int(part) if part.isdecimal() else part) if isinstance(entries, dict) else None
    if value is None or (key and isinstance(value, dict | list)):
        raise ConfigError(f"--by {key}: {run.folder} has no such key; expected one such as network.congestion_control")
    return str(value) if key else ""


def _slowdown_row(
    group: str, from_bytes: int | None, samples: list[tuple[int, dict[str, float | None]]]
) -> dict[str, Any]:
    """Return the row of a group and size class; samples: number of messages and percentiles of each run."""
    means: dict[str, float | None] = {}
    intervals: dict[str, tuple[float, float] | None] = {}
    for name in samples[0][1]:
        values = [of_run[name] for _, of_run in samples]
        known = [value for value in values if value is not None]
        # runs with too few messages for a percentile would bias the mean
        is_known = len(known) == len(values)
        means[name] = float(np.mean(known)) if is_known else None
        intervals[name] = confidence_interval(known, MIN_SLOWDOWN) if is_known else None
    return {
        "group": group,
        "from_bytes": from_bytes,
        "runs": len(samples),
        "messages": sum(messages for messages, _ in samples),
        "slowdown": means,
        "interval": intervals,
    }
