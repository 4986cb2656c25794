"""Load balance between the workers of a simulation."""

from typing import NamedTuple

import numpy as np

from nadi.insight.runs.run import Run


class Balance(NamedTuple):
    """The load balance of a run's workers."""

    imbalance: float  # longest working time of a worker over the mean of all workers; 1 is even
    waiting: float  # share of the workers' wall time that they spent waiting for each other


def balance(run: Run) -> Balance:
    """Return the load balance of a run; a run without recorded workers is even."""
    if run.workers is None or not len(run.workers):
        return Balance(1.0, 0.0)
    working, waiting = (np.asarray(run.workers[name], np.float64) for name in ("working_s", "waiting_s"))
    wall_s = float(working.sum() + waiting.sum())
    mean = float(working.mean())
    return Balance(float(working.max()) / mean if mean else 1.0, float(waiting.sum()) / wall_s if wall_s else 0.0)
