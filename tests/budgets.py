"""How many random examples a test gets: the same ones in every run, or fresh ones where tests/fuzz.py asks for them."""

import os

from hypothesis import HealthCheck, Phase, settings

FRESH = "NADI_FRESH_EXAMPLES"
"""Set in the environment of a run whose examples come from pytest's --hypothesis-seed."""


def bounded(examples):
    """So many examples, however long each takes."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=not os.environ.get(FRESH),
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
