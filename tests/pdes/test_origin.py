"""Faults have absolute times; where they are later by as much as the NPUs, and on the grid of cells, so is all else."""

import dataclasses

import numpy as np
import pytest

from nadi.pdes import LinkFault, NpuFault, Settings, SharedBuffer, build_world, run
from nadi.topologies import build
from tests.failures.common import cable, faults_of
from tests.features.shifting import begun_at, differences
from tests.pdes.cases import BASE, Traces

US = 1_000_000
NPUS = 8
GRAPH = build("leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps")
SHARED = {"switch": SharedBuffer()}


def program():
    """All to all, with compute before it and after."""
    traces = Traces(NPUS)
    for npu in range(NPUS):
        traces.compute(npu, 1)
    for kind in (2, 0):
        traces.collective(range(NPUS), kind, 160_000, deps={npu: [len(traces.nodes[npu]) - 1] for npu in range(NPUS)})
        for npu in range(NPUS):
            traces.compute(npu, 10, deps=[len(traces.nodes[npu]) - 1])
    return traces.program()


def later(fault, by_ps):
    """Return a fault that begins and ends later."""
    return dataclasses.replace(fault, at_ps=fault.at_ps + by_ps, until_ps=fault.until_ps + by_ps)


LINKS = [
    LinkFault(cable(GRAPH, 8, 12), 5 * US, 60 * US, down=True),
    LinkFault(cable(GRAPH, 0, 8), 11 * US, 40 * US, rate_bps=30 * 10**9),
    LinkFault(cable(GRAPH, 9, 13), 7 * US, 50 * US, added_latency_ps=3 * US),
    LinkFault(cable(GRAPH, 2, 9), 1 * US, 90 * US, error_rate=0.01),
]
SLOW = NpuFault(5, 2 * US, 80 * US, slowdown=1.7)


@pytest.mark.parametrize("switch", [{}, SHARED], ids=["plain", "shared"])
@pytest.mark.parametrize("cells", [1, 17, 10**6, 10**10])
def test_faults_that_are_later_too_change_the_same(switch, cells):
    results, by_ps = [], 0
    for shift in (0, cells):
        faults = faults_of(GRAPH, [later(fault, by_ps) for fault in LINKS], [later(SLOW, by_ps)], detection_ps=10 * US)
        chosen = Settings(**(BASE | switch | {"faults": faults, "rto_ps": 30 * US, "max_retries": 100}))
        sim = build_world(GRAPH, begun_at(program(), by_ps), chosen)
        results.append(run(sim))
        by_ps = cells * int(sim.lps[0].world.net.const.cell_ps) if shift == 0 else by_ps
    assert results[0].counters["dropped_packets"] > 0
    assert len(np.unique(results[0].node_finish_ps)) > NPUS
    assert differences(*results, by_ps) == []
