"""How evenly the workers of a simulation were used."""

from typing import NamedTuple

import numpy as np

from nadi.insight.runs.run import Run


class Balance(NamedTuple):
    """Of the workers of a run.

    Attributes:
        imbalance: the most that a worker worked over the mean of all; 1 = even.
        waiting: share of their wall time in which they waited for each other.
    """

    imbalance: float
    waiting: float


def balance(run: Run) -> Balance:
    """Of a run that has recorded its workers."""
    if run.workers is None or not len(run.workers):
        return Balance(1.0, 0.0)
    working, waiting = (np.asarray(run.workers[name], np.float64) for name in ("working_s", "waiting_s"))
    together = float(working.sum() + waiting.sum())
    mean = float(working.mean())
    return Balance(float(working.max()) / mean if mean else 1.0, float(waiting.sum()) / together if together else 0.0)
