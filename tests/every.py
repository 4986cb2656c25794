"""Every algorithm that does a collective on a fabric."""

from nadi.simulation.assembly import engine_inputs
from nadi.workload import WorkloadError, algorithms_of, collective_program, collectives


def programs(kind, graph, size_bytes):
    """Name, fabric and program, with aggregators where switches reduce; only such algorithms may refuse a fabric."""
    for algorithm in algorithms_of(kind):
        try:
            program = collective_program(kind, graph.npus, size_bytes, algorithm, graph)
        except WorkloadError:
            assert collectives.choose(kind, algorithm).trees
        else:
            yield (algorithm, *engine_inputs(graph, program)[:2])
