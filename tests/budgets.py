"""How many random examples a test gets."""

from hypothesis import HealthCheck, Phase, settings


def bounded(examples):
    """So many examples, the same ones in every run, however long each takes."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
