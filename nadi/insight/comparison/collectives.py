"""Comparison of the collectives of runs, by group, kind and size."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.insight.comparison.changes import relative, size
from nadi.insight.runs import Run
from nadi.simulation.schemas import COLLECTIVES


class Key(NamedTuple):
    """The key by which collectives of different runs are matched."""

    group: str  # name of the group in the traces, which groups of one family share; "" for all NPUs
    kind: str  # kind of the collective, such as "all-reduce"
    members: int  # number of NPUs in the group
    size_bytes: int  # size of the whole buffer in bytes


def collectives(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per key that any run has, sorted by the change of the summed time.

    Values are None for runs without such collectives. `count` is the number of collectives, `time_ps` the sum of their
    times since the last member began, `median_ps` the median of these times, `wait_ps` the summed time that the first
    member waited for the last, and `ratio` the summed time over the summed closed forms.
    """
    found = [_of(run) for run in runs]
    rows = []
    for key in dict.fromkeys(key for each in found for key in each):
        of_run = [each.get(key) for each in found]
        row: dict[str, Any] = {**key._asdict(), "algorithm": [each and each["algorithm"] for each in of_run]}
        for name in ("count", "time_ps", "median_ps", "wait_ps", "ratio"):
            row[name] = [None if each is None else each[name] for each in of_run]
        rows.append(row | {"change": relative(row["time_ps"])})
    return sorted(rows, key=lambda row: -size(row["time_ps"]))


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
            total["count"][run] += count or 0
            total["bytes"][run] += (count or 0) * row["size_bytes"]
            total["time_ps"][run] += row["time_ps"][run] or 0
    made = [row | {"change": relative(row["time_ps"])} for row in found.values()]
    return sorted(made, key=lambda row: -size(row["time_ps"]))


def _of(run: Run) -> dict[Key, dict[str, Any]]:
    if not run.has(COLLECTIVES) or not len(run.collectives):
        return {}
    table = run.collectives
    names, kinds, algorithms = (table[name].to_pylist() for name in ("group_name", "kind", "algorithm"))
    members, sizes = (table[name].to_pylist() for name in ("members", "bytes"))
    keys = list(map(Key, names, kinds, members, sizes))
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    number = np.array([order[key] for key in keys])
    by_key = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[by_key], prepend=-1))
    parts = np.split(by_key, starts[1:])
    values = {name: np.asarray(table[name], np.float64) for name in ("time_ps", "closed_form_ps")}
    values["wait_ps"] = np.asarray(table["ready_ps"], np.float64) - np.asarray(table["start_ps"], np.float64)
    return {key: _summary(part, values, algorithms) for key, part in zip(order, parts, strict=True)}


def _summary(part: NDArray[np.int64], values: dict[str, NDArray[np.float64]], algorithms: list[str]) -> dict[str, Any]:
    time_ps, closed_ps = values["time_ps"][part], float(values["closed_form_ps"][part].sum())
    return {
        "count": len(part),
        "time_ps": float(time_ps.sum()),
        "median_ps": float(np.median(time_ps)),
        "wait_ps": float(values["wait_ps"][part].sum()),
        "ratio": float(time_ps.sum()) / closed_ps if closed_ps else None,
        "algorithm": ", ".join(dict.fromkeys(algorithms[row] for row in part.tolist())),
    }
