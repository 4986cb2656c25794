"""Running programs on message-level networks."""

from nadi import pdes
from nadi.pdes.fidelity import fidelity
from nadi.topologies import build

KINDS = ("congestion_unaware", "congestion_aware")


def simulate(network, program, kind, *, concurrent_collectives=False, compute_slowdown=1.0, **parameters):
    """Results of a program on a network (a spec or a Graph); parameters are those of fidelity.Fidelity."""
    graph = build(network) if isinstance(network, str) else network
    settings = pdes.Settings(
        fidelity=fidelity(kind, **parameters),
        concurrent_collectives=concurrent_collectives,
        compute_slowdown=compute_slowdown,
    )
    return pdes.run(pdes.build_world(graph, program, settings))
