"""Means over repetitions, which are runs that differ only in the seeds of their random numbers."""

import math

import numpy as np
from numpy.typing import ArrayLike

# quantile 0.975 of Student's t by degrees of freedom from 1 (NIST/SEMATECH e-Handbook, section 1.3.6.7.2)
_STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_STUDENT_T_OF_MANY = 1.96


def confidence_interval(values: ArrayLike, minimum: float) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean of n repetitions; None if n is 1.

    values: n results of repetitions, none below `minimum`, which no result can fall below: 1 for a slow-down, 0 for a
    time. The interval is mean ± t e with the standard error e and the quantile t of Student's distribution with n - 1
    degrees of freedom, cut at the minimum. As the true mean is not below the minimum either, the cut interval contains
    it exactly when the whole one does.
    """
    found = np.asarray(values, np.float64)
    if len(found) <= 1:
        return None
    freedom = len(found) - 1
    factor = _STUDENT_T[freedom - 1] if freedom <= len(_STUDENT_T) else _STUDENT_T_OF_MANY
    mean, half = float(found.mean()), factor * float(found.std(ddof=1)) / math.sqrt(len(found))
    return max(mean - half, min(minimum, mean)), mean + half
