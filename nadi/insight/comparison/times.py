"""Comparison of how the NPUs of runs spend their time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.insight.comparison.changes import difference
from nadi.insight.runs import Run
from nadi.simulation.schemas import STEP_CATEGORIES

_OF_NPU = ("compute_ps", "exposed_ps", "host_ps", "idle_ps", "finish_ps")
Parts = dict[str, NDArray[np.float64]]


def times(runs: Sequence[Run]) -> dict[str, Any]:
    """Compare the time per category, as the mean over all NPUs of a run; the categories add up to the run's time.

    Returns:
        `by`: "axes" where the node names of every run give the axes of communication, else "kinds", without axes;
        `rows`: per category `time_ps` and `share` by run, and `change_ps`, the difference from the first run.
    """
    by_axes = all(run.steps is not None for run in runs)
    parts = [_of_steps(run) if by_axes else _of_npus(run) for run in runs]
    rows = []
    for name in dict.fromkeys(name for each in parts for name in each):
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
    columns = {name: np.array([np.asarray(run.npus[name], np.float64) for run in runs]) for name in _OF_NPU}
    moved = np.max([np.abs(of - of[:1]).max(axis=0) for of in columns.values()], axis=0)
    order = np.argsort(-moved, kind="stable")[:max_rows]
    number = np.asarray(runs[0].npus["npu"])
    return [
        {"npu": int(number[row])} | {name: of[:, row].tolist() for name, of in columns.items()}
        for row in order.tolist()
        if moved[row]
    ]


def _of_steps(run: Run) -> Parts:
    assert run.steps is not None  # noqa: S101 - the caller has checked it
    return {name: np.asarray(run.steps[f"{name}_ps"], np.float64) for name in STEP_CATEGORIES}


def _of_npus(run: Run) -> Parts:
    """Return times by kind: communication that compute does not cover is exposed; memory time alone is "other"."""
    known = {name: np.asarray(run.npus[f"{name}_ps"], np.float64) for name in ("compute", "exposed", "host", "idle")}
    known["other"] = run.finish_time_ps - np.sum(list(known.values()), axis=0)
    return {name: known[name] for name in ("compute", "exposed", "host", "other", "idle")}
