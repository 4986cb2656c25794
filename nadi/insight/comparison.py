"""Comparison of finished runs: settings, metrics, time by category, collectives, tiers, links and jobs.

The first run is the baseline. Runs of other fabrics, plans or numbers of NPUs are compared as far as that is
meaningful; the notes of `compare` list what is not compared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.inputs.arrays import numpy_column
from nadi.insight.metrics import METRICS, metrics_of
from nadi.insight.network import tiers as tiers_of
from nadi.insight.node_times import CollectiveKey, collectives_by_key
from nadi.insight.runs import Run
from nadi.simulation.schemas import COLLECTIVES, LINKS, STEP_CATEGORIES

MAX_LINKS = 1000  # number of links that the document lists
MAX_NPUS = 100  # number of NPUs that the document lists
MIN_RUNS, MAX_RUNS = 2, 20  # number of runs that one comparison takes
_HASH_DIGITS = 12  # number of digits of a file's hash that the settings show
_IRRELEVANT = ("output.dir",)  # keys that differ between any two runs and do not affect the results


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Compare runs with the first one; lists have a value per run or None, times are picoseconds."""
    if not MIN_RUNS <= len(runs) <= MAX_RUNS:
        raise ConfigError(f"nadi compare: found {len(runs)} runs; expected {MIN_RUNS} to {MAX_RUNS}")
    rows, of_links = _collectives(runs), _links(runs, MAX_LINKS)
    return {
        "runs": [_about(run, name) for run, name in zip(runs, run_names(runs), strict=True)],
        "notes": _notes(runs, rows, of_links),
        "settings": differing_settings(runs),
        "figures": _metrics(runs),
        "jobs": _jobs(runs),
        "times": _times(runs),
        "npus": _npus(runs, MAX_NPUS),
        "collectives": rows,
        "groups": _by_group_and_kind(rows),
        "tiers": _tiers(runs),
        "links": of_links,
    }


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return a short name per run: the end of its path, as long as it must be to differ from the other runs."""
    parts = [run.folder.absolute().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        found = ["/".join(each[-length:]) for each in parts]
        if len(set(found)) == len(set(parts)):
            break
    return [f"{name} ({number})" if found.count(name) > 1 else name for number, name in enumerate(found, 1)]


def _about(run: Run, short_name: str) -> dict[str, Any]:
    """Return what a run is: its name, folder, fabric, network, time and digest."""
    summary = run.summary
    known = {key: summary.get(key) for key in ("topology", "npus", "network", "version")}
    return {
        "name": short_name,
        "folder": str(run.folder),
        **known,
        "finish_time_ps": run.finish_time_ps,
        "digest": run.digest,
        "error_bars": summary.get("error_bars", []),
    }


def _metrics(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the metrics with their changes: differences for shares, relative changes for all others."""
    found = [metrics_of(run) for run in runs]
    rows = []
    for metric in METRICS:
        values = [each.get(metric.name) for each in found]
        # metrics that no run has, or that are 0 everywhere, say nothing
        if any(values):
            change = difference(values) if metric.form == "share" else relative(values)
            rows.append({**metric._asdict(), "values": values, "change": change})
    return rows


def _notes(runs: Sequence[Run], collective_rows: list[dict[str, Any]], link_changes: dict[str, Any]) -> list[str]:
    """Return the caveats that a reader needs before trusting a difference."""
    notes = []
    if len({run.digest for run in runs}) == 1 and runs[0].digest:
        notes.append("All runs have the same digest: they are the same run.")
    counts = [run.summary.get("npus") for run in runs]
    if len(set(counts)) > 1:
        numbers = ", ".join(f"{count:,}" for count in counts)
        notes.append(f"Runs have {numbers} NPUs: times are means of each run's NPUs, NPUs are not compared one by one.")
    if len({_workload(run) for run in runs}) > 1:
        notes.append("The workloads differ: only throughputs and shares show which run is better.")
    if any(
        run.summary.get("config", {}).get("faults") != runs[0].summary.get("config", {}).get("faults") for run in runs
    ):
        notes.append("The faults differ: the differences include what the faults cost.")
    without = [name for run, name in zip(runs, run_names(runs), strict=True) if not _knows_links(run)]
    if without:
        notes.append(f"{', '.join(without)}: closed forms do not model links, so links are not compared.")
    elif link_changes["matched"] < max(link_changes["of"]):
        of, matched = ", ".join(f"{count:,}" for count in link_changes["of"]), link_changes["matched"]
        notes.append(f"Fabrics differ: {matched:,} links have the same ends in all runs, of {of}; tiers are by name.")
    networks = {run.summary.get("network") for run in runs}
    if len(networks) > 1:
        models = ", ".join(sorted(map(str, networks)))
        notes.append(f"Networks are modelled differently ({models}): see docs/explanation/fidelity.md.")
    if collective_rows and not any(None not in row["time_ps"] for row in collective_rows):
        notes.append("No collective has the same group, kind, members and size in all runs.")
    return notes


def _workload(run: Run) -> str:
    """Return what the run computes regardless of its plan: the model and its tokens per step, or the traces."""
    config, step = run.summary.get("config", {}), run.summary.get("step", {})
    works = config.get("jobs") or [config.get("workload", {})]
    return str(
        ([[work.get(source) for source in ("model", "traces", "traffic")] for work in works], step.get("model_flops"))
    )


def differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per key of the settled configurations whose values differ between runs.

    It has `key`, as `--set` takes it, or `sha256 of FILE` for a file that the same key names in all runs; `values`, one
    per run, None where the run lacks the key; and `is_derived`: Nadi derived the value, because neither a run file nor
    a file that it names contains it (a cluster's rates, a window from a delay). Keys that a run file sets come first,
    then files and the version of Nadi, then derived keys and settled values (settled.KEY).
    """
    # the beginning of the hash of each file or folder that keys of a run name
    contents: list[dict[str, str]] = [
        {
            f"sha256 of {entry['path']}": entry["sha256"][:_HASH_DIGITS]
            for entry in run.summary.get("files", ())
            if entry["sha256"]
        }
        for run in runs
    ]
    files = set.intersection(*map(set, contents))
    found = [
        dict(_flat("", run.summary.get("config", {})))
        | {key: content[key] for key in files}
        | {"version": run.summary.get("version")}
        | dict(_flat("settled.", run.summary.get("settled", {})))
        for run, content in zip(runs, contents, strict=True)
    ]
    named = {key for run in runs for key in run.summary.get("named", ())} | files | {"version"}
    keys = dict.fromkeys(key for settings in found for key in settings)
    rows = []
    for key in keys:
        values = [settings.get(key) for settings in found]
        if key not in _IRRELEVANT and any(value != values[0] for value in values):
            is_named = any(key == name or key.startswith(f"{name}.") for name in named)
            rows.append({"key": key, "values": values, "is_derived": not is_named})
    if all(row["is_derived"] for row in rows):  # these are then the only explanation of the difference
        rows = [row | {"is_derived": False} for row in rows]
    return sorted(rows, key=lambda row: bool(row["is_derived"]))


def _flat(path: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield tables as dotted keys, and lists of tables with their index, as `--set` takes both: "faults.0.npu"."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path and not path.endswith(".") else f"{path}{key}", inner)
    elif isinstance(value, list) and all(isinstance(inner, Mapping) for inner in value):  # none without faults or jobs
        for place, inner in enumerate(value):
            yield from _flat(f"{path}.{place}", inner)
    else:
        yield path, value


_SUMS = ("tx_bytes", "dropped_packets", "marked_packets", "pause_frames", "paused_ps")
_OF_LINK = ("rate_bps", "tx_bytes", "utilisation", "max_queue_bytes", "dropped_packets", "paused_ps")
_Link = tuple[str, str, int]  # names of the source and the destination, and the index among parallel links between them
_OF_NPU = ("compute_ps", "exposed_ps", "host_ps", "idle_ps", "finish_ps")
_Times = dict[str, NDArray[np.float64]]


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


def _collectives(runs: Sequence[Run]) -> list[dict[str, Any]]:
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


def _by_group_and_kind(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
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
    for key, rows in collectives_by_key(table).items():
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


def _knows_links(run: Run) -> bool:
    """Return whether the run's network model has links that carried packets or messages."""
    return run.has(LINKS) and len(run.links) > 0 and run.network.has_links


def _tiers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per tier ("npu → leaf") that any run has; lists have a value per run, None where it is missing.

    Args:
        runs: Runs to compare; the first is the baseline.
    """
    names = ("links", "rate_bps", "mean_utilisation", "max_utilisation", "max_queue_bytes", *_SUMS)
    of_runs = [_by_tier(run) if _knows_links(run) else {} for run in runs]
    return [{"tier": tier} | values for tier, values in _by_key(of_runs, names)]


def _links(runs: Sequence[Run], max_rows: int) -> dict[str, Any]:
    """Return the links that all runs have, sorted by the change of their utilisation.

    Returns:
        `matched`: number of links that all runs have; `of`: number of links per run; `rows`: at most `max_rows` links
        that differ; `left_out`: number of other links that differ.
    """
    counts = [len(run.links) if _knows_links(run) else 0 for run in runs]
    if not all(counts):
        return {"matched": 0, "of": counts, "rows": [], "left_out": 0}
    places = [_rows_of_links(run) for run in runs]
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
        {"link": _link_name(common[row])} | {name: of[:, row].tolist() for name, of in columns.items()}
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


def _rows_of_links(run: Run) -> dict[_Link, int]:
    """Return the row of each link."""
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    ends = zip(run.links["src"].to_pylist(), run.links["dst"].to_pylist(), strict=True)
    for row, (src, dst) in enumerate(ends):
        # parallel links have equal names: their order tells them apart
        found[src, dst, seen[src, dst]] = row
        seen[src, dst] += 1
    return found


def _link_name(link: _Link) -> str:
    src, dst, number = link
    return f"{src} → {dst}" + (f" #{number}" if number else "")


def _times(runs: Sequence[Run]) -> dict[str, Any]:
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


def _npus(runs: Sequence[Run], max_rows: int) -> list[dict[str, Any]]:
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


def _by_kind(run: Run) -> _Times:
    """Return times by kind: communication that compute does not cover is exposed; memory time alone is "other"."""
    known = {name: numpy_column(run.npus[f"{name}_ps"], np.float64) for name in ("compute", "exposed", "host", "idle")}
    known["other"] = run.finish_time_ps - np.sum(list(known.values()), axis=0)
    return {name: known[name] for name in ("compute", "exposed", "host", "other", "idle")}


def _jobs(runs: Sequence[Run]) -> list[dict[str, Any]]:
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
