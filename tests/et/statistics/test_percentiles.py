"""Percentiles and the number of values that they need."""

import numpy as np
import pytest

from nadi.et.statistics.timing import percentile, values_needed


@pytest.mark.parametrize(("percent", "needed"), [(50, 1), (90, 10), (95, 20), (99, 100), (99.9, 1000), (100, 1)])
def test_a_percentile_needs_a_value_above_it(percent, needed):
    assert values_needed(percent) == needed
    values = np.arange(needed)
    assert percentile(values, percent) == np.sort(values)[max(int(np.ceil(needed * percent / 100 - 1e-9)) - 1, 0)]
    assert percentile(values[:-1], percent) is None
