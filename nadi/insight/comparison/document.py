"""All that `nadi compare` says of runs, as one document."""

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

MOST_LINKS = 1000
MOST_NPUS = 100
LEAST_RUNS, MOST_RUNS = 2, 20


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """Runs beside each other; the first is what the others are compared with.

    Lists in it have a value for each run, in their order; None = the run has none. Times are picoseconds.

    Raises:
        ConfigError: too few or too many runs, or a table that cannot be read.
    """
    if not LEAST_RUNS <= len(runs) <= MOST_RUNS:
        raise ConfigError(f"nadi compare: found {len(runs)} runs; expected {LEAST_RUNS} to {MOST_RUNS}")
    rows, of_links = collectives(runs), links(runs, MOST_LINKS)
    return {
        "runs": [_about(run, name) for run, name in zip(runs, names(runs), strict=True)],
        "notes": _notes(runs, rows, of_links),
        "settings": differing_settings(runs),
        "figures": _figures(runs),
        "times": times(runs),
        "npus": npus(runs, MOST_NPUS),
        "collectives": rows,
        "groups": by_group_and_kind(rows),
        "tiers": tiers(runs),
        "links": of_links,
    }


def names(runs: Sequence[Run]) -> list[str]:
    """A short name for each: as much of the end of its path as tells it from the others."""
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
    """Of shares `change` is in points, of others relative."""
    found = [figures(run) for run in runs]
    rows = []
    for figure in FIGURES:
        values = [each.get(figure.name) for each in found]
        if any(values):
            change = difference(values) if figure.form == "share" else relative(values)
            rows.append({**figure._asdict(), "values": values, "change": change})
    return rows


def _notes(runs: Sequence[Run], rows: list[dict[str, Any]], of_links: dict[str, Any]) -> list[str]:
    """What a reader must know before believing a difference."""
    said = []
    if len({run.digest for run in runs}) == 1 and runs[0].digest:
        said.append("All runs have the same digest: they are the same run.")
    counts = [run.summary.get("npus") for run in runs]
    if len(set(counts)) > 1:
        numbers = ", ".join(f"{count:,}" for count in counts)
        said.append(f"Runs have {numbers} NPUs: times are means of each run's NPUs, NPUs are not compared one by one.")
    if len({_workload(run) for run in runs}) > 1:
        said.append("Runs do other work (workload differs): only throughputs and shares say which is better.")
    without = [name for run, name in zip(runs, names(runs), strict=True) if not knows_links(run)]
    if without:
        said.append(f"{', '.join(without)}: closed forms know of no links, so that links are not compared.")
    elif of_links["matched"] < max(of_links["of"]):
        counted = ", ".join(f"{count:,}" for count in of_links["of"])
        matched = of_links["matched"]
        said.append(
            f"Fabrics differ: {matched:,} links have the same ends in all runs, of {counted}; tiers are by name."
        )
    networks = {run.summary.get("network") for run in runs}
    if len(networks) > 1:
        said.append(f"Network models differ ({', '.join(sorted(map(str, networks)))}): docs/explanation/fidelity.md.")
    if rows and not any(None not in row["time_ps"] for row in rows):
        said.append("No collective has the same group, kind, members and size in all runs.")
    return said


def _workload(run: Run) -> str:
    """What is computed, whatever the plan: a model and its tokens a step, or traces."""
    work, step = run.summary.get("config", {}).get("workload", {}), run.summary.get("step", {})
    return str((work.get("model"), work.get("traces"), step.get("model_flops")))
