"""Jobs in the engine: ranks, placements, starts, digests."""

import numpy as np
import pytest

from nadi import pdes
from nadi.configuration.sections import NetworkSection
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build
from nadi.workload import build_program
from tests.jobs.common import FIDELITIES, LEAVES, finish_of, job, program_of, run, run_jobs, tables

FIRST, SECOND = list(range(4)), list(range(8, 12))  # a leaf each
START_PS = 123_456_789


@pytest.fixture(params=FIDELITIES)
def network(request):
    return FIDELITIES[request.param]


def test_a_job_of_all_npus_is_the_run_without_jobs(network):
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps")
    alone = run(graph, build_program(tables(8), np.arange(8), 8, fabric=graph), network)
    as_job = run(graph, program_of(graph, job("all", range(8))), network)
    assert as_job.job_digests == (alone.digest,)
    assert as_job.finish_time_ps == alone.finish_time_ps


def test_jobs_on_leaves_of_their_own_are_as_fast_as_alone(network):
    first = run_jobs(LEAVES, job("a", FIRST), network=network)
    second = run_jobs(LEAVES, job("b", SECOND), network=network)
    both = run_jobs(LEAVES, job("a", FIRST), job("b", SECOND, START_PS), network=network)
    assert both.job_digests == first.job_digests + second.job_digests
    assert first.job_digests == second.job_digests  # on equal leaves
    assert finish_of(both, FIRST) == first.finish_time_ps
    assert finish_of(both, SECOND) == START_PS + second.finish_time_ps
    assert both.digest != first.digest


def test_no_row_begins_before_its_job(network):
    both = run_jobs(LEAVES, job("a", FIRST), job("b", SECOND, START_PS), network=network)
    ptr = both.npu_node_ptr
    begins = [int(both.node_start_ps[ptr[npu] : ptr[npu + 1]].min()) for npu in range(16) if ptr[npu] < ptr[npu + 1]]
    assert begins == [0] * 4 + [START_PS] * 4


@pytest.mark.parametrize("network", [FIDELITIES["packet"], FIDELITIES["flow"], FIDELITIES["closed-form"]])
def test_messages_go_to_the_npus_of_their_ranks(network):
    placement = [5, 14, 0, 9, 2]
    results = run_jobs(LEAVES, job("a", placement), job("b", [1, 3]), network=network)
    sends = results.flows["group"] < 0
    found = sorted(zip(results.flows["src"][sends].tolist(), results.flows["dst"][sends].tolist(), strict=True))
    after = dict(zip(placement, np.roll(placement, -1).tolist(), strict=True)) | {1: 3, 3: 1}
    assert found == sorted(after.items())


def test_the_order_of_jobs_does_not_change_their_digests():
    jobs = job("a", [0, 5, 10, 15]), job("b", [1, 4, 11, 14])
    there, back = run_jobs(LEAVES, *jobs), run_jobs(LEAVES, *reversed(jobs))
    assert there.job_digests == back.job_digests[::-1]
    assert there.finish_time_ps == back.finish_time_ps


@pytest.mark.parametrize("threads", [1, 2])
def test_jobs_are_the_same_on_any_number_of_logical_processes(threads):
    graph = build(LEAVES)
    jobs = job("a", [0, 5, 10, 15]), job("b", [1, 4, 11, 14], START_PS)
    program = program_of(graph, *jobs)
    alone = run(graph, program)
    owner = np.concatenate([np.arange(16) // 4, np.arange(4), [0]]).astype(np.int32)
    sim = pdes.build_world(graph, program, network_settings(NetworkSection()), owner)
    several = pdes.run(sim, threads=threads)
    assert several.digest == alone.digest
    assert several.job_digests == alone.job_digests
    assert np.array_equal(several.job_bytes, alone.job_bytes)


def test_bytes_of_jobs_add_up_to_those_of_links():
    for name in ("packet", "flow", "coupled", "analytical"):
        results = run_jobs(LEAVES, job("a", [0, 5, 10, 15]), job("b", [1, 4, 11]), network=FIDELITIES[name])
        assert np.array_equal(results.job_bytes.sum(axis=1), results.links["tx_bytes"])
        assert results.job_bytes[:, 0].any()
        assert results.job_bytes[:, 1].any()
        assert not results.job_bytes[:, 2].any()


def test_equal_jobs_share_traces_and_schedules_wherever_they_are():
    graph = build(LEAVES)
    one = program_of(graph, job("a", FIRST))
    both = program_of(graph, job("a", FIRST), job("b", [15, 4, 9, 6], START_PS))
    assert len(both.trace_ptr) == len(one.trace_ptr)
    assert len(both.schedules.members) == len(one.schedules.members)
