"""The document that `nadi compare` prints: all differences between runs."""

from collections.abc import Sequence
from typing import Any

from nadi.errors import ConfigError
from nadi.insight.comparison.changes import difference, relative
from nadi.insight.comparison.collectives import by_group_and_kind, collectives
from nadi.insight.comparison.links import knows_links, links, tiers
from nadi.insight.comparison.settings import differing_settings
from nadi.insight.comparison.times import npus, times
from nadi.insight.runs import Run
from nadi.insight.runs.figures import FIGURES, figures

MAX_LINKS = 1000  # number of links that the document lists
MAX_NPUS = 100  # number of NPUs that the document lists
MIN_RUNS, MAX_RUNS = 2, 20  # number of runs that one comparison takes


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """Compare runs; the first run is the baseline.

    Lists in the document have a value per run, in their order; None where a run lacks the value. Times are
    picoseconds.

    Raises:
        ConfigError: Too few or too many runs, or a table that cannot be read.
    """
    if not MIN_RUNS <= len(runs) <= MAX_RUNS:
        raise ConfigError(f"nadi compare: found {len(runs)} runs; expected {MIN_RUNS} to {MAX_RUNS}")
    rows, of_links = collectives(runs), links(runs, MAX_LINKS)
    return {
        "runs": [_about(run, name) for run, name in zip(runs, names(runs), strict=True)],
        "notes": _notes(runs, rows, of_links),
        "settings": differing_settings(runs),
        "figures": _figures(runs),
        "times": times(runs),
        "npus": npus(runs, MAX_NPUS),
        "collectives": rows,
        "groups": by_group_and_kind(rows),
        "tiers": tiers(runs),
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


def _about(run: Run, name: str) -> dict[str, Any]:
    summary = run.summary
    known = {key: summary.get(key) for key in ("topology", "npus", "network", "version")}
    return {
        "name": name,
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
        if any(values):
            change = difference(values) if figure.form == "share" else relative(values)
            rows.append({**figure._asdict(), "values": values, "change": change})
    return rows


def _notes(runs: Sequence[Run], rows: list[dict[str, Any]], of_links: dict[str, Any]) -> list[str]:
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
    without = [name for run, name in zip(runs, names(runs), strict=True) if not knows_links(run)]
    if without:
        notes.append(f"{', '.join(without)}: closed forms do not model links, so links are not compared.")
    elif of_links["matched"] < max(of_links["of"]):
        counted = ", ".join(f"{count:,}" for count in of_links["of"])
        matched = of_links["matched"]
        notes.append(
            f"Fabrics differ: {matched:,} links have the same ends in all runs, of {counted}; tiers are by name."
        )
    networks = {run.summary.get("network") for run in runs}
    if len(networks) > 1:
        notes.append(
            f"Networks are modelled differently ({', '.join(sorted(map(str, networks)))}): "
            "see docs/explanation/fidelity.md."
        )
    if rows and not any(None not in row["time_ps"] for row in rows):
        notes.append("No collective has the same group, kind, members and size in all runs.")
    return notes


def _workload(run: Run) -> str:
    """Return what the run computes regardless of its plan: the model and its tokens per step, or the traces."""
    work, step = run.summary.get("config", {}).get("workload", {}), run.summary.get("step", {})
    return str((work.get("model"), work.get("traces"), step.get("model_flops")))
