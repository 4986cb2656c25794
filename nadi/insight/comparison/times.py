"""Where the time of the NPUs went, of runs beside each other."""

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
    """Kinds of time, the mean of all NPUs of a run; they add up to the run.

    Returns:
        `by`: "axes" where every run's names of communication tell its axis, else "kinds", which have no axes;
        `rows`: of each kind `time_ps` and `share` by run, and `change_ps`, what it adds to the run beside the first.
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


def npus(runs: Sequence[Run], most: int) -> list[dict[str, Any]]:
    """The NPUs whose time changes most, at most so many; none where runs have other numbers of them."""
    count = {len(run.npus) for run in runs}
    if len(count) > 1:
        return []
    columns = {name: np.array([np.asarray(run.npus[name], np.float64) for run in runs]) for name in _OF_NPU}
    moved = np.max([np.abs(of - of[:1]).max(axis=0) for of in columns.values()], axis=0)
    order = np.argsort(-moved, kind="stable")[:most]
    number = np.asarray(runs[0].npus["npu"])
    return [
        {"npu": int(number[row])} | {name: of[:, row].tolist() for name, of in columns.items()}
        for row in order.tolist()
        if moved[row]
    ]


def _of_steps(run: Run) -> Parts:
    assert run.steps is not None  # noqa: S101 - asked before
    return {name: np.asarray(run.steps[f"{name}_ps"], np.float64) for name in STEP_CATEGORIES}


def _of_npus(run: Run) -> Parts:
    """What compute does not cover is exposed; what only memory covers is other."""
    known = {name: np.asarray(run.npus[f"{name}_ps"], np.float64) for name in ("compute", "exposed", "host", "idle")}
    known["other"] = run.finish_time_ps - np.sum(list(known.values()), axis=0)
    return {name: known[name] for name in ("compute", "exposed", "host", "other", "idle")}
