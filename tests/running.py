"""A run of a configuration without output and without a folder of results."""

from nadi.launching.progress import NoProgress
from nadi.simulation.resolving import Resolver
from nadi.simulation.run import execute


def simulate(config):
    return execute(Resolver(config).plan(), NoProgress())
