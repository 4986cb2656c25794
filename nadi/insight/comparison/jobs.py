"""Comparison of the jobs of runs, by name, and what each lost to others."""

from collections.abc import Sequence
from typing import Any

from nadi.insight.comparison.tables import relative
from nadi.insight.runs import Run


def jobs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per name of a job that any run has.

    Lists have a value per run, None where the run lacks it: `time_ps`, `change` from the first run, `digest`,
    `alone_ps` and `slowdown` ([output] alone), and `shares`, the jobs with which it shares links.
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
