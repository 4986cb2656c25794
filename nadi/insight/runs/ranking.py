"""Ranking of sweep points by one metric, with a tolerance below which two points count as equal."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.insight.runs.figures import FIGURES, Figure

SAME_WITHIN = 0.01
"""Relative difference below which two points count as equally good: the model is no more accurate than that."""
_DEFAULTS = ("step_time_ps", "ttft_p99_ps", "finish_time_ps", "collectives_ratio", "p99_completion_ps", "busiest_link")
"""Figures by which points are ranked where the sweep file names none; the first that the runs have."""


def ranking_figure(table: pa.Table, named: str = "") -> Figure | None:
    """Return the figure that ranks the points.

    `named`: Name of the figure that the user asks for; "" = the first of the defaults.

    Returns:
        The figure, or None where no point is finished.
    """
    known = {figure.name: figure for figure in FIGURES if figure.name in table.column_names}
    wanted = (named, *_DEFAULTS) if named else _DEFAULTS
    return next((known[name] for name in wanted if name in known), None)


def order(table: pa.Table, figure: Figure | None) -> NDArray[np.int64]:
    """Return int64[points]: rows from the best to the worst, those without the figure last."""
    if figure is None:
        return np.arange(len(table))
    cost = costs(table, figure)
    return np.argsort(np.where(np.isnan(cost), np.inf, cost), kind="stable")


def costs(table: pa.Table, figure: Figure) -> NDArray[np.float64]:
    """Return float64[points]: the figure where less is better, else its negative; NaN where a point lacks it."""
    values = table[figure.name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values if figure.is_cost else -values


def as_good_as_best(cost: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return bool[points]: whether a point is within SAME_WITHIN of the best."""
    best = np.nanmin(cost)
    return np.abs(cost - best) <= SAME_WITHIN * abs(best)


def best_value(means: Mapping[object, float], *, is_cost: bool) -> object | None:
    """Return the value of a key whose mean is best, or None where another value is as good."""
    cost = np.array(list(means.values())) * (1 if is_cost else -1)
    good = np.flatnonzero(as_good_as_best(cost))
    return list(means)[good[0]] if len(good) == 1 else None
