"""Comparison of the collectives of runs by group, kind and size, and of their jobs by name."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrow import numpy_column
from nadi.insight.analysis.alike import CollectiveKey, alike
from nadi.insight.analysis.network import tiers as tiers_of
from nadi.insight.runs import Run
from nadi.simulation.schemas import COLLECTIVES, LINKS, STEP_CATEGORIES

_SUMS = ("tx_bytes", "dropped_packets", "marked_packets", "pause_frames", "paused_ps")
_OF_LINK = ("rate_bps", "tx_bytes", "utilisation", "max_queue_bytes", "dropped_packets", "paused_ps")
Link = tuple[str, str, int]  # names of the source and the destination, and the index among parallel links between them
_OF_NPU = ("compute_ps", "exposed_ps", "host_ps", "idle_ps", "finish_ps")
Parts = dict[str, NDArray[np.float64]]


def relative(values: Sequence[float | None]) -> list[float | None]:
    """Return each value over the first, minus 1; None where either is missing or only the first is 0.

    Args:
        values: Value of each run; None = missing.
    """
    first = values[0]
    changes: list[float | None] = []
    for value in values:
        # from nothing to something is no relative change
        if first is None or value is None or (first == 0 and value != 0):
            changes.append(None)
        else:
            changes.append(value / first - 1 if first else 0.0)
    return changes


def difference(values: Sequence[float | None]) -> list[float | None]:
    """Return each value minus the first; None where either is missing.

    Args:
        values: Value of each run; None = missing.
    """
    first = values[0]
    return [None if first is None or value is None else value - first for value in values]


def size(values_of_run: Sequence[float | None]) -> float:
    """Return the largest absolute difference from the first value, missing values being 0; rows are sorted by it.

    Args:
        values_of_run: Value of each run; None = missing, which counts as 0.
    """
    first = values_of_run[0] or 0.0
    return max(abs((value or 0.0) - first) for value in values_of_run)


def collectives(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per key that any run has, sorted by the change of the summed time.

    Values are None for runs without such collectives. `count` is the number of collectives, `time_ps` the sum of their
    times since the last member began, `median_ps` the median of these times, `wait_ps` the summed time that the first
    member waited for the last, and `ratio` the summed time over the summed closed forms.
    """
    names = ("algorithm", "count", "time_ps", "median_ps", "wait_ps", "ratio")
    rows = [
        {**key._asdict(), **values, "change": relative(values["time_ps"])}
        for key, values in _by_key([_collectives_of(run) for run in runs], names)
    ]
    return sorted(rows, key=lambda row: -size(row["time_ps"]))


def _by_key(rows_of_run: Sequence[Mapping[Any, dict[str, Any]]], columns: Sequence[str]) -> Iterator[tuple[Any, dict]]:
    """Yield each key that any run has, and the list of each value by run; None where a run lacks the key."""
    for key in dict.fromkeys(key for of_run in rows_of_run for key in of_run):
        yield key, {name: [of_run[key][name] if key in of_run else None for of_run in rows_of_run] for name in columns}


def by_group_and_kind(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum the rows of `collectives` over sizes and members, so that runs with other plans are comparable.

    Returns:
        A row per group and kind: `count`, `bytes` (count times the buffer) and `time_ps` of each run, 0 where a run
        lacks them, and `change` of the time.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        runs = len(row["count"])
        empty = {name: [0] * runs for name in ("count", "bytes", "time_ps")}
        total = found.setdefault((row["group"], row["kind"]), {"group": row["group"], "kind": row["kind"], **empty})
        for run, count in enumerate(row["count"]):
            # None: the run has no such collective
            total["count"][run] += count or 0
            total["bytes"][run] += (count or 0) * row["size_bytes"]
            total["time_ps"][run] += row["time_ps"][run] or 0
    changed = [row | {"change": relative(row["time_ps"])} for row in found.values()]
    return sorted(changed, key=lambda row: -size(row["time_ps"]))


def _collectives_of(run: Run) -> dict[CollectiveKey, dict[str, Any]]:
    """Return count, times, waits and algorithms of the collectives of each key."""
    if not run.has(COLLECTIVES):
        return {}
    table = run.collectives
    times_ps, closed_form_ps = (numpy_column(table[name], np.float64) for name in ("time_ps", "closed_form_ps"))
    wait_ps = numpy_column(table["ready_ps"], np.float64) - numpy_column(table["start_ps"], np.float64)
    algorithms = table["algorithm"].to_pylist()
    found = {}
    for key, rows in alike(table).items():
        time_ps, closed_ps = times_ps[rows], float(closed_form_ps[rows].sum())
        found[key] = {
            "count": len(rows),
            "time_ps": float(time_ps.sum()),
            "median_ps": float(np.median(time_ps)),
            "wait_ps": float(wait_ps[rows].sum()),
            # ratio of sums, so that long collectives weigh more
            "ratio": float(time_ps.sum()) / closed_ps if closed_ps else None,
            "algorithm": ", ".join(dict.fromkeys(algorithms[row] for row in rows.tolist())),
        }
    return found


def knows_links(run: Run) -> bool:
    """Return whether the run's network model has links that carried packets or messages."""
    return run.has(LINKS) and len(run.links) > 0 and run.network.has_links


def tiers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per tier ("npu → leaf") that any run has; lists have a value per run, None where it is missing.

    Args:
        runs: Runs to compare; the first is the baseline.
    """
    names = ("links", "rate_bps", "mean_utilisation", "max_utilisation", "max_queue_bytes", *_SUMS)
    of_runs = [_by_tier(run) if knows_links(run) else {} for run in runs]
    return [{"tier": tier} | values for tier, values in _by_key(of_runs, names)]


def links(runs: Sequence[Run], max_rows: int) -> dict[str, Any]:
    """Return the links that all runs have, sorted by the change of their utilisation.

    Returns:
        `matched`: number of links that all runs have; `of`: number of links per run; `rows`: at most `max_rows` links
        that differ; `left_out`: number of other links that differ.
    """
    counts = [len(run.links) if knows_links(run) else 0 for run in runs]
    if not all(counts):
        return {"matched": 0, "of": counts, "rows": [], "left_out": 0}
    places = [_places(run) for run in runs]
    # fabrics may differ: links with the same ends are compared
    common = [link for link in places[0] if all(link in each for each in places)]
    at = [np.array([each[link] for link in common], np.int64) for each in places]
    columns = {
        name: np.array([numpy_column(run.links[name], np.float64)[rows] for run, rows in zip(runs, at, strict=True)])
        for name in _OF_LINK
    }
    differs = np.zeros(len(common), np.bool_)
    for values in columns.values():
        # unchanged links would hide the others
        differs |= (values != values[:1]).any(axis=0)
    # columns are float64[runs, links]
    busy = columns["utilisation"]
    order = np.argsort(-np.abs(busy - busy[:1]).max(axis=0), kind="stable") if common else np.zeros(0, np.int64)
    order = order[differs[order]]
    rows = [
        {"link": _name(common[row])} | {name: of[:, row].tolist() for name, of in columns.items()}
        for row in order[:max_rows]
    ]
    return {"matched": len(common), "of": counts, "rows": rows, "left_out": max(len(order) - max_rows, 0)}


def by_load(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tiers sorted by the change of their highest utilisation.

    Args:
        rows: Rows of `tiers`.
    """
    return sorted(rows, key=lambda row: -size(row["max_utilisation"]))


def _by_tier(run: Run) -> dict[str, dict[str, Any]]:
    """Return count, rate, utilisation, queue and sums of the links of each tier."""
    table = run.links
    tier = np.array(tiers_of({name: table[name].to_pylist() for name in ("src", "dst")}))
    values = {name: numpy_column(table[name], np.float64) for name in {*_SUMS, *_OF_LINK}}
    found = {}
    for name in dict.fromkeys(tier.tolist()):
        own = {column: numbers[tier == name] for column, numbers in values.items()}
        found[name] = {
            "links": len(own["utilisation"]),
            "rate_bps": float(own["rate_bps"].mean()),
            "mean_utilisation": float(own["utilisation"].mean()),
            "max_utilisation": float(own["utilisation"].max()),
            "max_queue_bytes": float(own["max_queue_bytes"].max()),
            **{column: float(own[column].sum()) for column in _SUMS},
        }
    return found


def _places(run: Run) -> dict[Link, int]:
    """Return the row of each link."""
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    ends = zip(run.links["src"].to_pylist(), run.links["dst"].to_pylist(), strict=True)
    for row, (src, dst) in enumerate(ends):
        # parallel links have equal names: their order tells them apart
        found[src, dst, seen[src, dst]] = row
        seen[src, dst] += 1
    return found


def _name(link: Link) -> str:
    src, dst, number = link
    return f"{src} → {dst}" + (f" #{number}" if number else "")


def times(runs: Sequence[Run]) -> dict[str, Any]:
    """Compare the time per category, as the mean over all NPUs of a run; the categories add up to the run's time.

    Returns:
        `by`: "axes" where the node names of every run give the axes of communication, else "kinds", without axes;
        `rows`: per category `time_ps` and `share` by run, and `change_ps`, the difference from the first run; none if
        all runs only send messages.
    """
    steps = [run.steps for run in runs]
    # categories must be the same in all runs
    by_axes = all(table is not None for table in steps)
    parts = [
        _by_kind(run)
        if table is None or not by_axes
        else {name: numpy_column(table[f"{name}_ps"], np.float64) for name in STEP_CATEGORIES}
        for run, table in zip(runs, steps, strict=True)
    ]
    rows = []
    has_work = not all(run.has_only_messages for run in runs)
    for name in dict.fromkeys(name for each in parts for name in each if has_work):
        mean_ps = [float(each[name].mean()) if name in each else 0.0 for each in parts]
        if any(mean_ps):
            share = [
                mean / run.finish_time_ps if run.finish_time_ps else 0.0
                for mean, run in zip(mean_ps, runs, strict=True)
            ]
            rows.append({"what": name, "time_ps": mean_ps, "share": share, "change_ps": difference(mean_ps)})
    return {"by": "axes" if by_axes else "kinds", "rows": rows}


def npus(runs: Sequence[Run], max_rows: int) -> list[dict[str, Any]]:
    """Return up to max_rows NPUs whose times change most; an empty list where the runs differ in the number of NPUs."""
    count = {len(run.npus) for run in runs}
    if len(count) > 1:
        return []
    columns = {name: np.array([numpy_column(run.npus[name], np.float64) for run in runs]) for name in _OF_NPU}
    # the largest change of any kind of time decides
    moved = np.max([np.abs(of - of[:1]).max(axis=0) for of in columns.values()], axis=0)
    order = np.argsort(-moved, kind="stable")[:max_rows]
    number = numpy_column(runs[0].npus["npu"])
    return [
        {"npu": int(number[row])} | {name: of[:, row].tolist() for name, of in columns.items()}
        for row in order.tolist()
        if moved[row]
    ]


def _by_kind(run: Run) -> Parts:
    """Return times by kind: communication that compute does not cover is exposed; memory time alone is "other"."""
    known = {name: numpy_column(run.npus[f"{name}_ps"], np.float64) for name in ("compute", "exposed", "host", "idle")}
    known["other"] = run.finish_time_ps - np.sum(list(known.values()), axis=0)
    return {name: known[name] for name in ("compute", "exposed", "host", "other", "idle")}


def jobs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per name of a job that any run has.

    Lists have a value per run, None where the run lacks it: `time_ps`, `change` from the first run, `digest`,
    `alone_ps` and `slowdown` ([output] alone), and `shares`, the jobs with which it shares links.

    Args:
        runs: Runs to compare; the first is the baseline.
    """
    of_runs = [{job["name"]: job for job in run.summary.get("jobs", ())} for run in runs]
    rows = []
    for name in dict.fromkeys(name for of_run in of_runs for name in of_run):
        found = [of_run.get(name, {}) for of_run in of_runs]
        columns = {
            key: [job.get(key) for job in found] for key in ("time_ps", "digest", "alone_ps", "slowdown", "shares")
        }
        rows.append({"job": name, **columns, "change": relative(columns["time_ps"])})
    return rows
