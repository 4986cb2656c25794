"""The document that `nadi compare` prints: all differences between runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nadi.errors import ConfigError
from nadi.insight.comparison import tables
from nadi.insight.comparison.tables import jobs
from nadi.insight.runs import Run
from nadi.insight.runs.figures import FIGURES, figures

MAX_LINKS = 1000  # number of links that the document lists
MAX_NPUS = 100  # number of NPUs that the document lists
MIN_RUNS, MAX_RUNS = 2, 20  # number of runs that one comparison takes
_HASH_DIGITS = 12  # number of digits of a file's hash that the settings show
_IRRELEVANT = ("output.dir",)  # keys that differ between any two runs and do not affect the results


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """Compare runs with the first one; lists have a value per run or None, times are picoseconds."""
    if not MIN_RUNS <= len(runs) <= MAX_RUNS:
        raise ConfigError(f"nadi compare: found {len(runs)} runs; expected {MIN_RUNS} to {MAX_RUNS}")
    rows, of_links = tables.collectives(runs), tables.links(runs, MAX_LINKS)
    return {
        "runs": [_about(run, name) for run, name in zip(runs, names(runs), strict=True)],
        "notes": _notes(runs, rows, of_links),
        "settings": differing_settings(runs),
        "figures": _figures(runs),
        "jobs": jobs(runs),
        "times": tables.times(runs),
        "npus": tables.npus(runs, MAX_NPUS),
        "collectives": rows,
        "groups": tables.by_group_and_kind(rows),
        "tiers": tables.tiers(runs),
        "links": of_links,
    }


def names(runs: Sequence[Run]) -> list[str]:
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
    }


def _figures(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the metrics with their changes: differences for shares, relative changes for all others."""
    found = [figures(run) for run in runs]
    rows = []
    for figure in FIGURES:
        values = [each.get(figure.name) for each in found]
        # metrics that no run has, or that are 0 everywhere, say nothing
        if any(values):
            change = tables.difference(values) if figure.form == "share" else tables.relative(values)
            rows.append({**figure._asdict(), "values": values, "change": change})
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
    without = [name for run, name in zip(runs, names(runs), strict=True) if not tables.knows_links(run)]
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
    contents = [_contents(run) for run in runs]
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


def _contents(run: Run) -> dict[str, str]:
    """Return the beginning of the hash of each file or folder that keys of the run name, by "sha256 of PATH"."""
    entries = run.summary.get("files", ())
    return {f"sha256 of {entry['path']}": entry["sha256"][:_HASH_DIGITS] for entry in entries if entry["sha256"]}


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
