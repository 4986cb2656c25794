"""The bound of the links is never above what a run takes, whatever the fabric, the algorithm and the way of packets."""

import numpy as np
import pytest

from nadi import pdes, topologies, workload
from nadi.pdes.network import balancing
from nadi.studies.collectives.link_bound import link_bound_ps
from tests.scenarios.running import simulate

FABRICS = (
    "switch:npus=8,rate=100Gbps,delay=0",
    "switch:npus=8,rate=300Gbps,delay=1us",
    "ring:npus=5,rate=300Gbps",
    "ring:npus=2,rate=70Gbps",
    "torus:sizes=4x2,rate=130Gbps",
    "fully-connected:npus=6,rate=30Gbps",
    "leaf-spine:leaves=4,hosts_per_leaf=2,spines=3,rate=100Gbps",
    "leaf-spine:npus=8,hosts_per_leaf=4,spines=1,rate=100Gbps",
    "fat-tree:k=4,rate=90Gbps",
    "rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2",
    "stack:dims=Ring(4)_Switch(2),rates=200Gbps_50Gbps",
)
SIZES = (1, 4096, 70_001, 3_000_000)


def chosen(seed):
    """What changes the ways and the number of packets."""
    pick = np.random.default_rng(seed)
    rule = balancing.balancing(str(pick.choice(["ecmp", "spray", "static"])))
    return pdes.Settings(
        seed=seed,
        mtu_bytes=int(pick.choice([1024, 4096])),
        header_bytes=int(pick.choice([1, 82])),
        load_balancing=rule,
        selective_repeat=rule.reorders,
        reorder_packets=0 if rule.reorders else 3,
        window_bytes=int(pick.choice([0, 1 << 17])),
        nvlink_framing=bool(seed % 2),
    )


@pytest.mark.parametrize("fabric", FABRICS)
def test_no_run_takes_less(fabric):
    graph = topologies.build(fabric)
    for number, (kind, size) in enumerate((kind, size) for kind in ("all-reduce", "all-to-all") for size in SIZES):
        names = workload.algorithms_of(kind)
        for algorithm in (names[number % len(names)], workload.default_algorithm(kind)):
            try:
                program = workload.collective_program(kind, graph.npus, size, algorithm, graph)
            except workload.WorkloadError:
                continue
            settings = chosen(number)
            taken_ps = simulate(graph, program, **vars(settings)).finish_time_ps
            assert 0 < link_bound_ps(graph, program, settings) <= taken_ps, (kind, algorithm, size)


@pytest.mark.parametrize("resolution_ps", [1, 1000])
@pytest.mark.parametrize("fabric", FABRICS)
def test_nor_do_messages_that_go_whole(fabric, resolution_ps):
    graph = topologies.build(fabric)
    aware = pdes.fidelity.fidelity("congestion_aware", resolution_ps=resolution_ps)
    unaware = pdes.fidelity.fidelity("congestion_unaware", resolution_ps=resolution_ps)
    for kind, size in (("all-reduce", 70_001), ("all-to-all", 3_000_000)):
        program = workload.collective_program(kind, graph.npus, size, None, graph)
        settings = pdes.Settings(fidelity=aware, record_nodes=False)
        results = pdes.run(pdes.build_world(graph, program, settings))
        assert 0 < link_bound_ps(graph, program, settings) <= results.finish_time_ps
        assert link_bound_ps(graph, program, pdes.Settings(fidelity=unaware)) == 0


@pytest.mark.parametrize(
    ("fabric", "kind", "size"),
    [
        ("switch:npus=8,rate=100Gbps,delay=100ns", "all-to-all", 1 << 24),
        ("ring:npus=5,rate=300Gbps,delay=100ns", "all-reduce", 1 << 25),
        ("rail-optimised:npus=8", "all-to-all", 1 << 27),
        ("torus:sizes=2x5,rate=100Gbps,delay=100ns", "all-to-all", 1 << 24),  # two slices of five beside the others
        ("leaf-spine:npus=8,hosts_per_leaf=4,spines=1,rate=100Gbps,delay=100ns", "all-to-all", 1 << 24),
    ],
)
def test_the_bound_is_near_where_links_are_all_that_counts(fabric, kind, size):
    """Half as large, or twice: it would say nothing."""
    graph = topologies.build(fabric)
    program = workload.collective_program(kind, graph.npus, size, None, graph)
    taken_ps = simulate(graph, program).finish_time_ps
    assert 0.97 * taken_ps < link_bound_ps(graph, program, pdes.Settings()) <= taken_ps
