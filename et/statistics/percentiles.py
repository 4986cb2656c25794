"""Percentiles of samples, and how many values they need."""

import numpy as np
from numpy.typing import ArrayLike


def values_needed(percent: float) -> int:
    """Return how many values a percentile needs: 1 / (1 - percent / 100), so that one of them lies above it.

    With fewer values it would be their maximum by another name. A median or maximum needs one value.

    Args:
        percent: The percentile, 50 for the median.
    """
    return round(100 / (100 - percent)) if 50 < percent < 100 else 1


def percentile(values: ArrayLike, percent: float) -> float | None:
    """Return the smallest value with `percent` % of all at or below it; None if there are too few values.

    Args:
        values: The sample, in any order.
        percent: The percentile, 50 for the median.
    """
    found = np.asarray(values)
    if found.size < values_needed(percent):
        return None
    share = round(percent / 100, 12)  # 99.9 / 100 is above 0.999, and would give the maximum of 1,000 values
    return np.quantile(found, share, method="inverted_cdf").item()  # type: ignore[no-any-return]
