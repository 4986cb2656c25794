"""Jobs in the engine: ranks, placements, starts, digests, links that they share, and replays of their collectives."""

from dataclasses import replace

import numpy as np
import pytest

from nadi import et, pdes
from nadi.configuration.sections import NetworkSection
from nadi.pdes import run as run_of_engine
from nadi.simulation.assembly import engine_inputs
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build, clusters, route
from nadi.workload import CollectiveSettings, build_program
from nadi.workload.collectives import defaults_on
from nadi.workload.program.building import WorkOfRanks
from nadi.workload.program.jobs import FabricJob, build_jobs
from tests.jobs.common import ALL_REDUCE, FIDELITIES, LEAVES, finish_of, job, program_of, run, run_jobs, tables, work
from tests.parallel.fingerprint import differing, outcome

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


SPINE = "leaf-spine:leaves=2,hosts_per_leaf=8,spines=1,uplinks=1,rate=100Gbps,delay=100ns"
MB = 10**6
TOLERANCE = 0.05  # of the slow-down; the issue of several jobs asks for 5 %


def pairs_job(name, npus, size):
    """A job in which rank r of the first half sends `size` bytes to rank r of the second half."""
    half = len(npus) // 2
    traces = [
        et.table_of(et.metadata(), [et.send_node(0, "s", rank, rank + half, size, 1)])
        if rank < half
        else et.table_of(et.metadata(), [et.recv_node(0, "r", rank - half, rank, size, 1)])
        for rank in range(len(npus))
    ]
    return FabricJob(name, work(traces), np.array(npus, np.int32), 0)


def max_min_rates(links_of_flow, capacity):
    """Progressive filling: all flows grow alike until a link is full, whose flows then stay as they are."""
    rates, growing, left = {}, set(range(len(links_of_flow))), dict(capacity)
    while growing:
        users = {link: [flow for flow in growing if link in links_of_flow[flow]] for link in left}
        link = min((each for each in left if users[each]), key=lambda each: left[each] / len(users[each]))
        share = left[link] / len(users[link])
        for flow in users[link]:
            rates[flow] = share
            for each in links_of_flow[flow]:
                left[each] -= share
            growing.discard(flow)
    return [rates[flow] for flow in range(len(links_of_flow))]


def fluid_ends_s(flows, graph):
    """End of each flow (src, dst, bytes) in seconds, as fluids at max-min rates, solved again whenever one ends."""
    links = [set(route(graph, src, dst)) for src, dst, _ in flows]
    left, ends, now = [size * 8.0 for _, _, size in flows], [0.0] * len(flows), 0.0
    while any(left):
        active = [flow for flow, bits in enumerate(left) if bits > 0]
        used = set().union(*(links[flow] for flow in active))
        rates = max_min_rates(
            [links[flow] for flow in active], {link: float(graph.link_rate_bps[link]) for link in used}
        )
        step = min(left[flow] / rate for flow, rate in zip(active, rates, strict=True))
        now += step
        for flow, rate in zip(active, rates, strict=True):
            left[flow] -= rate * step
            if left[flow] < 1e-6:
                left[flow], ends[flow] = 0.0, now
    return ends


CASES = {  # NPUs 0 to 7 are on one leaf, 8 to 15 on the other; one link joins each leaf to the spine
    "one pair each": (([0, 8], 20 * MB), ([1, 9], 20 * MB)),
    "one pair against three": (([0, 8], 20 * MB), ([1, 2, 3, 9, 10, 11], 10 * MB)),
    "a long one beside a short one": (([0, 1, 8, 9], 20 * MB), ([2, 10], 4 * MB)),
    "a pair within the leaf": (([0, 1, 8, 9], 10 * MB), ([2, 3, 10, 4], 10 * MB)),
}


@pytest.mark.parametrize("model", ["packet", "flow"])
@pytest.mark.parametrize("case", CASES)
def test_jobs_lose_what_max_min_fairness_takes(case, model):
    graph = build(SPINE)
    jobs = [pairs_job(name, *spec) for name, spec in zip("ab", CASES[case], strict=True)]
    flows = [
        [(npus[rank], npus[rank + len(npus) // 2], size) for rank in range(len(npus) // 2)]
        for npus, size in CASES[case]
    ]
    together = run_jobs(SPINE, *jobs, network=FIDELITIES[model])
    ends = fluid_ends_s([flow for of_job in flows for flow in of_job], graph)
    ends_of_job = max(ends[: len(flows[0])]), max(ends[len(flows[0]) :])
    for number, each in enumerate(jobs):
        alone_ps = run_jobs(SPINE, each, network=FIDELITIES[model]).finish_time_ps
        slowdown = finish_of(together, CASES[case][number][0]) / alone_ps
        expected = ends_of_job[number] / max(fluid_ends_s(flows[number], graph))
        assert slowdown == pytest.approx(expected, rel=TOLERANCE)
    assert max(ends_of_job) > max(fluid_ends_s(flows[0], graph))  # somebody loses something


CLUSTER = clusters.find("dgx-h100-superpod")
GRAPH = build(CLUSTER.topology(16))
LOWER, UPPER = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]  # halves of both hosts
IGNORED = {"count events"}  # timers and ports' events of the domains' own worlds are others
SETTINGS = network_settings(NetworkSection.model_validate(CLUSTER.network))
REDUCTIONS = 6
ALGORITHMS = defaults_on(GRAPH)


def job_of_hosts(name, npus, begin_ps=0, algorithms=ALGORITHMS):
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
    return run_of_engine(pdes.build_world(graph, program, replace(SETTINGS, reuse=reuse, tick_ps=tick_ps)))


@pytest.mark.parametrize(("tick_ps", "replayed"), [(0, True), (123_456_789 // 9, True), (1_000_000, False)])
def test_replays_change_nothing(tick_ps, replayed):
    """A domain has one record of an episode for jobs whose ticks are at the same times."""
    jobs = job_of_hosts("a", LOWER), job_of_hosts("b", UPPER, 123_456_789)
    found, wanted = results(*jobs, tick_ps=tick_ps), results(*jobs, reuse=False, tick_ps=tick_ps)
    assert (found.reuse["episodes_replayed"] >= REDUCTIONS) == replayed
    assert wanted.reuse.get("episodes_replayed", 0) == 0
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED
    assert found.job_digests == wanted.job_digests
    assert np.array_equal(found.job_bytes, wanted.job_bytes)


def test_replays_of_reductions_in_the_nvswitch_change_nothing():
    """An aggregator, which adds up for all jobs, belongs to none; its bytes count for the job of the other end."""
    algorithms = {**ALGORITHMS, "all-reduce": "nccl:algo=nvls"}
    jobs = job_of_hosts("a", LOWER, 0, algorithms), job_of_hosts("b", UPPER, 123_456_789, algorithms)
    found, wanted = results(*jobs), results(*jobs, reuse=False)
    assert found.reuse["episodes_replayed"] >= REDUCTIONS
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED
    assert found.job_digests == wanted.job_digests
    assert np.array_equal(found.job_bytes[: GRAPH.links], wanted.job_bytes[: GRAPH.links])
    assert not wanted.job_bytes[: GRAPH.links, -1].any()


def test_halves_of_hosts_are_as_fast_as_alone():
    """Jobs share the hosts' NVSwitches, but no link: packets that arrive at one moment may swap, and nothing else."""
    begin_ps = 123_456_789
    lower, upper = results(job_of_hosts("a", LOWER)), results(job_of_hosts("b", UPPER))
    both = results(job_of_hosts("a", LOWER), job_of_hosts("b", UPPER, begin_ps))
    assert lower.job_digests == upper.job_digests
    assert finish_of(both, LOWER) == pytest.approx(lower.finish_time_ps, abs=1000)
    assert finish_of(both, UPPER) == pytest.approx(begin_ps + upper.finish_time_ps, abs=1000)
    assert not np.any(both.job_bytes[:, 0] * both.job_bytes[:, 1])
