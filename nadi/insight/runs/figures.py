"""The metrics that comparisons of runs use, with the unit and the better direction of each, and rankings by them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.et.statistics import percentile
from nadi.inputs.arrow import numpy_column
from nadi.insight.runs.energy import energy_of
from nadi.insight.runs.repetitions import confidence_interval
from nadi.insight.runs.run import Run
from nadi.simulation.schemas import COLLECTIVES, COMMUNICATION_AXES, FLOWS, LINKS, NPUS, STEP_CATEGORIES

# relative difference below which two points of a sweep are equally good: the model is no more accurate than that
SAME_WITHIN = 0.01
# figures that rank the points of a sweep whose file names none
_DEFAULTS = (
    *("step_time_ps", "ttft_p99_ps", "ttft_p50_ps"),
    *("finish_time_ps", "collectives_ratio", "p99_completion_ps", "busiest_link"),
)


class Balance(NamedTuple):
    """The load balance of a run's workers."""

    imbalance: float  # longest working time of a worker over the mean of all workers; 1 is even
    waiting: float  # share of the workers' wall time that they spent waiting for each other


def balance(run: Run) -> Balance:
    """Return the load balance of a run; a run without recorded workers is even."""
    if run.workers is None or not len(run.workers):
        return Balance(1.0, 0.0)
    working, waiting = (numpy_column(run.workers[name], np.float64) for name in ("working_s", "waiting_s"))
    wall_s = float(working.sum() + waiting.sum())
    mean = float(working.mean())
    return Balance(float(working.max()) / mean if mean else 1.0, float(waiting.sum()) / wall_s if wall_s else 0.0)


class Figure(NamedTuple):
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
FIGURES = (
    Figure("finish_time_ps", "time at which the last NPU finishes", "time"),
    Figure("step_time_ps", "time of one optimizer step", "time"),
    Figure("tokens_per_s", "training tokens per second, all replicas", "rate", is_cost=False),
    Figure("ttft_p50_ps", "median time to first token", "time"),
    Figure("ttft_p99_ps", "99th percentile of the time to first token", "time"),
    Figure("tpot_p50_ps", "median time per output token", "time"),
    Figure("tpot_p99_ps", "99th percentile of the time per output token", "time"),
    Figure("output_tokens_per_s", "output tokens served per second", "rate", is_cost=False),
    Figure("mfu", "model FLOP, causal attention counted half, over the GPUs' peak", "share", is_cost=False),
    Figure(
        "mfu_all_pairs", "model FLOP, all pairs of query and key counted, over the GPUs' peak", "share", is_cost=False
    ),
    Figure("compute_share", "compute, mean share of the NPUs' time", "share", is_cost=False),
    Figure("exposed_share", "exposed communication, mean share of the NPUs' time", "share"),
    *(Figure(f"{axis}_share", f"exposed communication of the axis {axis}", "share") for axis in COMMUNICATION_AXES),
    Figure("bubble_share", "waiting for other pipeline stages, mean share of the NPUs' time", "share"),
    Figure("idle_share", "time after an NPU's last node, mean share", "share"),
    Figure("collectives_ps", "summed time of all collectives", "time"),
    Figure("collectives_ratio", "summed time of all collectives over their closed forms", "number"),
    Figure("median_completion_ps", "median completion time of messages", "time"),
    Figure("p99_completion_ps", "99th percentile of the completion time of messages", "time"),
    Figure("p99_slowdown", "99th percentile of messages' time over their time on an idle network", "number", minimum=1),
    Figure("busiest_link", "highest utilisation of a link", "share"),
    *(Figure(name, meaning, "count") for name, meaning in _COUNTS.items()),
    Figure("energy_J", "energy of one optimizer step, else of the run, data centre overhead included", "number"),
    Figure(
        "cost_usd", "cost of one optimizer step, else of the run: GPU hours, and electricity for owned GPUs", "number"
    ),
    Figure("wall_s", "wall time of the simulation in seconds", "number"),
    Figure(
        "imbalance", "longest working time of a simulation worker over the mean of all workers", "number", minimum=1
    ),
    Figure("waiting_share", "share of the simulation workers' wall time spent waiting for each other", "share"),
    Figure("peak_rss_bytes", "peak memory of the simulation", "bytes"),
)

_STEP_KEYS = {"step_time_ps": "time_ps", "tokens_per_s": "tokens_per_s", "mfu": "mfu", "mfu_all_pairs": "mfu_all_pairs"}


def figures(run: Run) -> dict[str, float]:
    """Return the metrics that the run has, by name, in the order of FIGURES.

    A run that only sends messages has no shares of computation and communication, energy or cost.
    """
    found = dict(_of_summary(run)) | dict(_of_tables(run))
    return {figure.name: found[figure.name] for figure in FIGURES if figure.name in found}


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
        yield from (("imbalance", balance(run).imbalance), ("waiting_share", balance(run).waiting))
    if run.has(LINKS) and len(run.links):
        yield "busiest_link", float(np.max(numpy_column(run.links["utilisation"])))


def ranking_figure(table: pa.Table, figure_name: str = "") -> Figure | None:
    """Return the figure that ranks points of a sweep; None = no point is finished.

    Args:
        table: Points of the sweep with their figures as columns.
        figure_name: Name of the figure; "" = a default.
    """
    known = {figure.name: figure for figure in FIGURES if figure.name in table.column_names}
    wanted = (figure_name, *_DEFAULTS) if figure_name else _DEFAULTS
    return next((known[name] for name in wanted if name in known), None)


def order(points: pa.Table, figure: Figure | None) -> NDArray[np.int64]:
    """Return int64[points]: rows from the best to the worst, those without the figure last."""
    if figure is None:
        return np.arange(len(points))
    cost = costs(points, figure)
    return np.argsort(np.where(np.isnan(cost), np.inf, cost), kind="stable")


def costs(points: pa.Table, figure: Figure) -> NDArray[np.float64]:
    """Return float64[points]: the figure where less is better, else its negative; NaN where a point lacks it."""
    values = numpy_column(points[figure.name], np.float64)
    return values if figure.is_cost else -values


def as_good_as_best(cost: NDArray[np.float64], intervals: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
    """Return bool[n]: whether a result is within SAME_WITHIN of the best, or its interval overlaps that of the best.

    cost: float64[n], less is better. intervals: float64[n, 2], confidence intervals of the results (of which costs may
    be the negatives), NaN where a result has none.
    """
    best = int(np.nanargmin(cost))
    good = np.abs(cost - cost[best]) <= SAME_WITHIN * abs(cost[best])
    if intervals is not None:
        low, high = intervals.T
        good |= (low <= high[best]) & (high >= low[best])
    return good


def best_value(results: Mapping[object, Sequence[float]], figure: Figure) -> object | None:
    """Return the value of a key whose mean is best, or None where another value is as good.

    results: for each value of a key its repetitions, one per seed.

    Args:
        results: Results of the repetitions, one per seed, by value of a key.
        figure: The figure that ranks.
    """
    # smaller is better for both kinds of figures then
    cost = np.array([np.mean(own) for own in results.values()]) * (1 if figure.is_cost else -1)
    none = (np.nan, np.nan)
    intervals = np.array([confidence_interval(own, figure.minimum) or none for own in results.values()])
    good = np.flatnonzero(as_good_as_best(cost, intervals))
    return list(results)[good[0]] if len(good) == 1 else None
