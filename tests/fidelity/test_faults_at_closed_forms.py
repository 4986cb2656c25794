"""Slow NPUs and links at closed forms: against packets, and classes of NPUs that are slow apart from the others."""

import functools
import itertools
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

import nadi
from nadi import pdes, topologies
from nadi.configuration.sections import NetworkSection
from nadi.launching.progress import NoProgress
from nadi.simulation.assembly import with_slow_links
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.network_settings import network_settings
from nadi.workload import CollectiveSettings, ComputeModel, build_program
from tests.failures.common import cable
from tests.fidelity.test_interference import STEPS, ran
from tests.pdes.cases import Traces
from tests.samples import each_value

SETTINGS = network_settings(NetworkSection(fidelity="closed-form"))
LEAVES = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=500ns"
FAULTS = {
    "a slow GPU": {"at": "0s", "npu": 3, "slowdown": 1.1},
    "a slow GPU for a while": {"at": "2ms", "until": "8ms", "npu": 3, "slowdown": 2},
    "a rail at half rate": {"at": "0s", "switch": "leaf 3", "rate": "100Gbps"},
    "a NIC at a quarter": {"at": "0s", "link": "npu 3-leaf 3", "rate": "50Gbps"},
    "a long cable": {"at": "0s", "link": "npu 3-leaf 3", "added_latency": "5us"},
    "a slow NVLink": {"at": "0s", "link": "npu 3-nvswitch 0", "rate": "600Gbps"},
}


@functools.cache
def healthy_ps(step):
    return ran(step, "closed-form").finish_time_ps


@pytest.mark.slow
@pytest.mark.parametrize(("step", "fault"), each_value(itertools.product(STEPS, FAULTS)))
def test_steps_with_faults_take_as_long_as_by_packets(step, fault):
    closed, packets = (ran(step, fidelity, faults=[FAULTS[fault]]) for fidelity in ("closed-form", "packet"))
    assert closed.finish_time_ps == pytest.approx(packets.finish_time_ps, rel=0.03)
    assert closed.finish_time_ps >= healthy_ps(step)


def program_of(graph, size, how):
    """Each NPU computes, all reduce, each computes again."""
    traces = Traces(graph.npus)
    for npu in range(graph.npus):
        traces.compute(npu, 20)
    traces.collective(range(graph.npus), 0, size, deps=dict.fromkeys(range(graph.npus), (0,)))
    for npu in range(graph.npus):
        traces.compute(npu, 20, deps=(1,))
    return build_program(traces.tables(), range(graph.npus), graph.npus, {}, ComputeModel("trace"), how, fabric=graph)


def by_packets_ps(graph, size, links):
    program = program_of(graph, size, CollectiveSettings({"all-reduce": "ring"}))
    settings = replace(network_settings(NetworkSection(fidelity="packet")), faults=pdes.Faults(tuple(links)))
    return pdes.run(pdes.build_world(graph, program, settings)).finish_time_ps


def alike(graph, faults=(), links=(), *, size=1 << 20, fold=True, algorithm="ring"):
    """Each NPU computes, all reduce, each computes again, by classes."""
    how = CollectiveSettings({"all-reduce": algorithm})
    program = program_of(graph, size, how)
    slow = with_slow_links(graph, pdes.Faults(tuple(links)))
    costs = CollectiveCosts(slow, SETTINGS, planned_on=graph)
    settings = network_settings(NetworkSection(fidelity="closed-form"))
    object.__setattr__(settings, "faults", pdes.Faults(npus=tuple(faults)))
    with nullcontext() if fold else patch.object(running, "_paces", lambda npus, _: np.arange(npus)):
        folded = running.laid_out(graph, program, costs, slow_npus=faults)
    return folded, running.run(graph, folded, running.costed(folded, costs, how), costs, settings, NoProgress())


def test_slow_npus_are_classes_of_their_own():
    graph = topologies.build(LEAVES)
    faults = [pdes.NpuFault(5, 0, slowdown=1.5), pdes.NpuFault(9, 0, slowdown=1.5), pdes.NpuFault(2, 0, slowdown=3.0)]
    folded, found = alike(graph, faults)
    _, every = alike(graph, faults, fold=False)
    assert sorted(folded.classes.size.tolist()) == [1, 2, 13]
    assert found.digest == every.digest
    finish = found.node_finish_ps.reshape(graph.npus, 3) / 1e6
    first = np.full(graph.npus, 20.0)
    first[[5, 9, 2]] = 30, 30, 60
    assert np.array_equal(finish[:, 0], first)
    done = finish[0, 1]
    assert np.array_equal(finish[:, 2] - done, np.where(first == 20, 20, first))


def test_a_slow_link_slows_a_ring_to_its_rate():
    """2 (n - 1) / n of the buffer cross each link of a ring, with headers and the acknowledgements of what comes in."""
    graph = topologies.build(LEAVES)
    links = [pdes.LinkFault(cable(graph, 7, 17), 0, rate_bps=10_000_000_000)]
    size = 64 << 20
    _, healthy = alike(graph, size=size)
    _, slow = alike(graph, links=links, size=size)
    at_10_gbps_ps = 2 * 15 / 16 * size * (4096 + 82 + 86) / 4096 * 8e12 / 10e9
    assert healthy.finish_time_ps == pytest.approx(at_10_gbps_ps / 10, rel=0.03)
    # the window, which is that of the fabric without the fault, holds back what the slow link could carry
    assert slow.finish_time_ps > at_10_gbps_ps
    assert slow.finish_time_ps == pytest.approx(by_packets_ps(graph, size, links), rel=0.001)


def test_a_slow_link_among_equal_ones_counts():
    """Which of the spines a message takes is a hash; at closed forms the slow one is taken, both ways."""
    graph = topologies.build(LEAVES)
    leaf, spine = graph.npus + 1, graph.npus + 5
    assert (graph.node_name(leaf), graph.node_name(spine)) == ("leaf 1", "spine 1")
    fault = pdes.LinkFault(cable(graph, leaf, spine), 0, rate_bps=25_000_000_000)
    found = with_slow_links(graph, pdes.Faults((fault,)))
    changed = np.flatnonzero(found.link_rate_bps != graph.link_rate_bps)
    ends = {tuple(graph.node_name(int(side[link])) for side in (graph.link_src, graph.link_dst)) for link in changed}
    spines = {"spine 0", "spine 1"}
    assert ends == {("leaf 1", name) for name in spines} | {(name, "leaf 1") for name in spines}
    _, healthy = alike(graph)
    _, slow = alike(graph, links=[fault])
    assert slow.finish_time_ps > 1.5 * healthy.finish_time_ps


def test_algorithms_do_not_know_of_slow_links():
    """NCCL plans by what its GPUs and NICs are, so a slow link changes times and no plans."""
    graph = topologies.build("rail-optimised:npus=16,gpus_per_host=8,rate=200Gbps,nvlink_rate=2400Gbps")
    links = [pdes.LinkFault(cable(graph, 3, graph.npus + 2 + 3), 0, rate_bps=200_000_000_000)]
    for size in (1 << 16, 1 << 26):
        folded, same = alike(graph, links=links, size=size, algorithm="nccl")
        assert same.finish_time_ps == alike(graph, size=size, algorithm="nccl")[1].finish_time_ps
        assert len(folded.classes.example) >= 1


DIRECT = "hierarchical:algorithms=direct/ring,splits=8"
TORUS = "torus:sizes=4x2,rate=100Gbps,delay=500ns"


@pytest.mark.parametrize(
    ("fabric", "link", "members", "algorithm"),
    [
        ("mi300x-8:gpus=8", (1, 4), (0, 1, 2, 3), DIRECT),
        (TORUS, (4, 5), (0, 1, 2, 3), "ring"),
        (LEAVES, (12, 19), (0, 1, 4, 5), "ring"),
    ],
)
def test_a_group_that_uses_no_slow_link_has_the_time_without_it(fabric, link, members, algorithm):
    """Windows and the choice between playing and formula are those of the fabric without faults, too."""
    graph = topologies.build(fabric)
    how, group = CollectiveSettings({"all-reduce": algorithm}), np.array(members)
    healthy = CollectiveCosts(graph, SETTINGS)
    for rate_bps in (10**8, 10**10, 9 * 10**10):
        faults = pdes.Faults((pdes.LinkFault(cable(graph, *link), 0, rate_bps=rate_bps),))
        slow = CollectiveCosts(with_slow_links(graph, faults), replace(SETTINGS, faults=faults), planned_on=graph)
        for size in (1 << 10, 4 << 10, 32 << 10, 1 << 20, 3 << 30):
            args = how, "all-reduce", group, size
            assert slow.of_group(*args) == healthy.of_group(*args), (rate_bps, size)


def test_a_slow_link_never_makes_a_group_faster():
    """A window that covers the round trip over a slow link would let more of the small messages of splits leave."""
    graph = topologies.build("mi300x-8:gpus=8")
    how, group = CollectiveSettings({"all-reduce": DIRECT}), np.arange(4)
    healthy = CollectiveCosts(graph, SETTINGS)
    nominal_bps = int(graph.link_rate_bps[cable(graph, 1, 2)[0]])
    for percent in (10, 50, 70, 80, 95):
        faults = pdes.Faults((pdes.LinkFault(cable(graph, 1, 2), 0, rate_bps=nominal_bps * percent // 100),))
        slow = CollectiveCosts(with_slow_links(graph, faults), replace(SETTINGS, faults=faults), planned_on=graph)
        for size in (1 << 10, 4 << 10, 32 << 10, 1 << 20):
            args = how, "all-reduce", group, size
            assert slow.of_group(*args).time_ps > healthy.of_group(*args).time_ps, (percent, size)


@pytest.mark.parametrize(
    ("fabric", "links", "with_slow", "without"),
    [
        ("mi300x-8:gpus=8", ((0, 1), (2, 4), (3, 5)), (0, 1), (2, 3)),
        (TORUS, ((0, 1), (2, 3), (4, 5), (6, 7)), (0, 1), (1, 2)),
    ],
)
@pytest.mark.parametrize("is_slow_first", [False, True])
def test_groups_with_and_without_a_slow_link_are_told_apart(fabric, links, with_slow, without, is_slow_first):
    """All their NPUs have one slow link each, but only that of the first group is inside it."""
    graph = topologies.build(fabric)
    faults = pdes.Faults(tuple(pdes.LinkFault(cable(graph, *link), 0, rate_bps=10**10) for link in links))
    costs = CollectiveCosts(with_slow_links(graph, faults), replace(SETTINGS, faults=faults), planned_on=graph)
    how = CollectiveSettings({"all-reduce": "ring"})
    groups = [with_slow, without] if is_slow_first else [without, with_slow]
    times = {group: costs.of_group(how, "all-reduce", np.array(group), 1 << 20).time_ps for group in groups}
    assert times[with_slow] > 5 * times[without]
    ways = costs.positions.of_pairs(*np.array([with_slow, without]).T)
    assert ways[0] != ways[1]


def test_a_run_says_that_faults_need_a_known_place():
    with pytest.raises(nadi.ConfigError, match="npu: found 99; expected one of the NPUs 0 to 15"):
        ran("fsdp", "closed-form", faults=[{"at": "0s", "npu": 99, "slowdown": 2}])
