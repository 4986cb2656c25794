"""Collectives of several jobs in one NVLink domain are replayed with the same results."""

from dataclasses import replace

import numpy as np
import pytest

from nadi import et
from nadi.configuration.sections import NetworkSection
from nadi.pdes import build_world, run
from nadi.simulation.assembly.engine_inputs import engine_inputs
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build, clusters
from nadi.workload import CollectiveSettings
from nadi.workload.collectives import defaults_on
from nadi.workload.program.building import WorkOfRanks
from nadi.workload.program.jobs import FabricJob, build_jobs
from tests.jobs.common import ALL_REDUCE, finish_of
from tests.parallel.fingerprint import differing, outcome

CLUSTER = clusters.find("dgx-h100-superpod")
GRAPH = build(CLUSTER.topology(16))
LOWER, UPPER = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]  # halves of both hosts
IGNORED = {"count events"}  # timers and ports' events of the domains' own worlds are others
SETTINGS = network_settings(NetworkSection.model_validate(CLUSTER.network))
REDUCTIONS = 6
ALGORITHMS = defaults_on(GRAPH)


def job(name, npus, begin_ps=0, algorithms=ALGORITHMS):
    """All-reduces within each host between computation, then one of all ranks."""
    tables = []
    for rank in range(8):
        nodes, last = [], []
        for turn in range(REDUCTIONS):
            nodes.append(et.comp_node(2 * turn, "compute", duration_micros=40, deps=last))
            nodes.append(
                et.coll_node(2 * turn + 1, "tp", ALL_REDUCE, 1000, deps=[2 * turn], pg_name=f"host{rank // 4}")
            )
            last = [2 * turn + 1]
        nodes.append(et.coll_node(2 * REDUCTIONS, "dp", ALL_REDUCE, 1 << 20, deps=last))
        tables.append(et.table_of(et.metadata(), nodes))
    groups = {"host0": (0, 1, 2, 3), "host1": (4, 5, 6, 7)}
    work = WorkOfRanks(tables, np.arange(8), 8, groups, None, CollectiveSettings(algorithms))
    return FabricJob(name, work, np.array(npus, np.int32), begin_ps)


def results(*jobs, reuse=True, tick_ps=0):
    program = build_jobs(jobs, GRAPH, np.ones(16, bool))
    graph, program, _ = engine_inputs(GRAPH, program)
    return run(build_world(graph, program, replace(SETTINGS, reuse=reuse, tick_ps=tick_ps)))


@pytest.mark.parametrize(("tick_ps", "replayed"), [(0, True), (123_456_789 // 9, True), (1_000_000, False)])
def test_replays_change_nothing(tick_ps, replayed):
    """A domain has one record of an episode for jobs whose ticks are at the same times."""
    jobs = job("a", LOWER), job("b", UPPER, 123_456_789)
    found, wanted = results(*jobs, tick_ps=tick_ps), results(*jobs, reuse=False, tick_ps=tick_ps)
    assert (found.reuse["episodes_replayed"] >= REDUCTIONS) == replayed
    assert wanted.reuse.get("episodes_replayed", 0) == 0
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED
    assert found.job_digests == wanted.job_digests
    assert np.array_equal(found.job_bytes, wanted.job_bytes)


def test_replays_of_reductions_in_the_nvswitch_change_nothing():
    """An aggregator, which adds up for all jobs, belongs to none; its bytes count for the job of the other end."""
    algorithms = {**ALGORITHMS, "all-reduce": "nccl:algo=nvls"}
    jobs = job("a", LOWER, 0, algorithms), job("b", UPPER, 123_456_789, algorithms)
    found, wanted = results(*jobs), results(*jobs, reuse=False)
    assert found.reuse["episodes_replayed"] >= REDUCTIONS
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED
    assert found.job_digests == wanted.job_digests
    assert np.array_equal(found.job_bytes[: GRAPH.links], wanted.job_bytes[: GRAPH.links])
    assert not wanted.job_bytes[: GRAPH.links, -1].any()


def test_halves_of_hosts_are_as_fast_as_alone():
    """Jobs share the hosts' NVSwitches, but no link: packets that arrive at one moment may swap, and nothing else."""
    begin_ps = 123_456_789
    lower, upper = results(job("a", LOWER)), results(job("b", UPPER))
    both = results(job("a", LOWER), job("b", UPPER, begin_ps))
    assert lower.job_digests == upper.job_digests
    assert finish_of(both, LOWER) == pytest.approx(lower.finish_time_ps, abs=1000)
    assert finish_of(both, UPPER) == pytest.approx(begin_ps + upper.finish_time_ps, abs=1000)
    assert not np.any(both.job_bytes[:, 0] * both.job_bytes[:, 1])
