"""Slow-down of messages by size class, over several runs: the means of percentiles with their confidence intervals.

Runs of one group differ in the seed of their traffic only. `confidence_interval` describes the intervals.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from nadi.errors import ConfigError
from nadi.inputs.arrow import arrow_texts, numpy_column
from nadi.insight.analysis.network import percentiles, size_classes
from nadi.insight.runs import Run
from nadi.insight.runs.repetitions import confidence_interval
from nadi.simulation.schemas import FLOWS

PERCENTILES = (50.0, 95.0, 99.0, 99.9)
MIN_SLOWDOWN = 1.0  # slow-down of a message that meets no other one
_COLUMNS = ("bytes", "slowdown")
_Samples = dict[
    int | None, list[tuple[int, dict[str, float | None]]]
]  # lower limit of a size class -> number of messages and percentiles by run


def slowdown_by_size(folders: Sequence[Path], key: str = "", job: str = "") -> list[dict[str, Any]]:
    """Return a row for each group of runs and size class, as a JSON document.

    folders: Results of runs. key: Section and key of the run file whose values distinguish groups,
    "network.congestion_control"; "" = all runs are one group. job: Name of the job of [[jobs]] whose messages count;
    "" = all messages. A class holds the messages of one decade of sizes;
    `from_bytes` None is the class of all messages. `slowdown` has the mean of each percentile over runs, None if
    any run has too few messages for it, and `interval` both ends of its 95 % confidence interval, None with a single
    run. Raises ConfigError for a folder without
    slow-downs or without the job, or a key that the run file does not have.
    """
    groups: dict[str, _Samples] = {}
    for folder in folders:
        run = Run(folder)
        samples = groups.setdefault(group_of(run, key), {})
        if job:
            run.check_job(job)
        columns = (*_COLUMNS, "job") if job else _COLUMNS
        flows = run.read(FLOWS, columns, columns)
        if flows is None:
            raise ConfigError(f"{folder}: no flows.parquet; expected results of a run that keeps its messages")
        if job:
            flows = flows.filter(pc.equal(flows["job"], arrow_texts([job])[0]))
        # messages whose ideal time is not known
        flows = flows.drop_null()
        if not len(flows):
            raise ConfigError(f"{folder}: no message with a known slow-down")
        slowdown = numpy_column(flows["slowdown"], np.float64)
        for from_bytes, here in size_classes(numpy_column(flows["bytes"], np.int64)):
            samples.setdefault(from_bytes, []).append((int(here.sum()), percentiles(slowdown[here], PERCENTILES)))
    return [
        _row(group, from_bytes, samples[from_bytes])
        for group, samples in groups.items()
        for from_bytes in sorted(samples, key=lambda limit: limit or 0)
    ]


def group_of(run: Run, key: str) -> str:
    """Return the value of a key of a run's settled configuration as text, which is its group; "" without a key."""
    value: Any = run.summary.get("config", {})
    for part in key.split(".") if key else ():
        entries = dict(enumerate(value)) if isinstance(value, list) else value
        value = entries.get(int(part) if part.isdecimal() else part) if isinstance(entries, dict) else None
    if value is None or (key and isinstance(value, dict | list)):
        raise ConfigError(f"--by {key}: {run.folder} has no such key; expected one such as network.congestion_control")
    return str(value) if key else ""


def _row(group: str, from_bytes: int | None, samples: list[tuple[int, dict[str, float | None]]]) -> dict[str, Any]:
    """Return the row of a group and size class; samples: number of messages and percentiles of each run."""
    means: dict[str, float | None] = {}
    intervals: dict[str, tuple[float, float] | None] = {}
    for name in samples[0][1]:
        values = [of_run[name] for _, of_run in samples]
        known = [value for value in values if value is not None]
        # runs with too few messages for a percentile would bias the mean
        is_known = len(known) == len(values)
        means[name] = float(np.mean(known)) if is_known else None
        intervals[name] = confidence_interval(known, MIN_SLOWDOWN) if is_known else None
    return {
        "group": group,
        "from_bytes": from_bytes,
        "runs": len(samples),
        "messages": sum(messages for messages, _ in samples),
        "slowdown": means,
        "interval": intervals,
    }
