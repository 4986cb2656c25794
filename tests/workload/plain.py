"""Algorithms that need to know nothing but the number of members."""

from nadi.workload import algorithms_of, collectives


def plain_algorithms(kind):
    """Names of those that do a kind."""
    return [name for name in algorithms_of(kind) if not collectives.choose(kind, name).needs_shape]
