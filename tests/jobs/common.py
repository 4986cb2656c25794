"""Small jobs on small fabrics."""

from dataclasses import replace

import numpy as np

from nadi import et
from nadi.configuration.sections import NetworkSection
from nadi.launching.progress import NoProgress
from nadi.simulation.assembly import with_flows
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.topologies import build
from nadi.workload import CollectiveSettings
from nadi.workload.program.building import WorkOfRanks
from nadi.workload.program.jobs import FabricJob, build_jobs
from tests.closed_forms import at_closed_forms

ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE
LEAVES = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=1,uplinks=4,rate=100Gbps"
SIZE = 1 << 20


def tables(ranks, size=SIZE):
    """A trace for each rank: an all-reduce, a message to the next rank, another all-reduce."""
    return [
        et.table_of(
            et.metadata(),
            [
                et.coll_node(0, "first", ALL_REDUCE, size),
                et.send_node(1, "on", rank, (rank + 1) % ranks, size // 4, 7, deps=[0]),
                et.recv_node(2, "from", (rank - 1) % ranks, rank, size // 4, 7, deps=[0]),
                et.coll_node(3, "last", ALL_REDUCE, size, deps=[1, 2]),
            ],
        )
        for rank in range(ranks)
    ]


def work(traces):
    return WorkOfRanks(traces, np.arange(len(traces)), len(traces), {}, None, CollectiveSettings())


def job(name, npus, begin_ps=0, size=SIZE):
    """A job of `tables` on these NPUs, in the order of its ranks."""
    return FabricJob(name, work(tables(len(npus), size)), np.array(npus, np.int32), begin_ps)


def program_of(graph, *jobs):
    return build_jobs(jobs, graph, np.ones(graph.npus, bool))


def run(graph, program, network=None, **how):
    """Results of a program by the model of the network that `network`, keys of [network], names."""
    section = NetworkSection(**(network or {}))
    settings = with_flows(network_settings(section), program, section.flows)
    if settings.fidelity.own.couples(0):
        costs = CollectiveCosts(graph, settings)
        settings = replace(settings, coupled=coupled_collectives(program, costs, CollectiveSettings()))
    if not settings.fidelity.model.has_links:
        return at_closed_forms(graph, program, settings, CollectiveSettings())[1]
    return run_program(graph, program, settings, NoProgress(), **how)


def run_jobs(spec, *jobs, network=None, **how):
    graph = build(spec)
    return run(graph, program_of(graph, *jobs), network, **how)


def finish_of(results, npus):
    ptr = results.npu_node_ptr
    return max(int(results.node_finish_ps[ptr[npu] : ptr[npu + 1]].max()) for npu in npus)


FIDELITIES = {
    "packet": {},
    "shared buffers": {"congestion_control": "dcqcn"},
    "flow": {"fidelity": "flow"},
    "coupled": {"fidelity": "flow", "collectives": "coupled"},
    "mixed": {"flows": ["p2p"]},
    "analytical": {"fidelity": "analytical"},
    "closed-form": {"fidelity": "closed-form"},
}
