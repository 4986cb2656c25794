"""How many random examples a test gets: the same ones in every run, or fresh ones where tests/fuzz.py asks for them."""

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

FRESH = "NADI_FRESH_EXAMPLES"
"""Set in the environment of a run whose examples come from pytest's --hypothesis-seed."""


FEWEST, SHARE = 5, 3
"""Of the same examples in every run a test gets one in SHARE, and FEWEST at least."""

if not os.environ.get(FRESH):
    # Hypothesis also draws constants of the sources of all imported modules that are not installed. Which ones a worker
    # of pytest-xdist has imported depends on how fast the other one is.
    providers._get_local_constants = providers.Constants  # there is no setting


def bounded(examples):
    """So many fresh examples, or a share of that of the same ones, however long each takes."""
    fresh = bool(os.environ.get(FRESH))
    return settings(
        max_examples=examples if fresh else min(examples, max(FEWEST, examples // SHARE)),
        deadline=None,
        derandomize=not fresh,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
