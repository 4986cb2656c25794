"""Schedules without a formula, played on an idle switch in plain Python, beside the simulator."""

import numpy as np
import pytest

import topologies
from nadi.closed_form import idle_ps
from pdes import Settings
from tests.scenarios.running import simulate
from workload import closed_form, collective_program, uneven_program

PRECISION = 1e-2
TREE = "double-binary-tree"
SWITCH = "switch:npus={},switch_latency=300ns"


def ratio(graph, program, kind, algorithm):
    """Time of the simulator over what the steps take when they are played."""
    played_ps = idle_ps(
        graph,
        program,
        Settings(),
        kind=kind,
        algorithm=algorithm,
        schedule=0,
        members=np.arange(graph.npus),
        size_bytes=int(program.node_bytes[0]),
    )
    return simulate(graph, program).finish_time_ps / played_ps


@pytest.mark.parametrize("size", [1 << 20, 1 << 23])
@pytest.mark.parametrize("npus", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all-reduce"])
def test_two_trees(kind, npus, size):
    graph = topologies.build(SWITCH.format(npus))
    program = collective_program(kind, npus, size, TREE)
    assert ratio(graph, program, kind, TREE) == pytest.approx(1, rel=PRECISION)


@pytest.mark.parametrize("chunks", [1, 32])
def test_two_trees_of_other_chunks(chunks):
    graph, algorithm = topologies.build(SWITCH.format(8)), f"{TREE}:chunks={chunks}"
    program = collective_program("all-reduce", 8, 1 << 22, algorithm)
    assert ratio(graph, program, "all-reduce", algorithm) == pytest.approx(1, rel=PRECISION)


def test_the_formula_of_two_trees_is_a_bound_and_no_more():
    """Why they are played."""
    graph = topologies.build(SWITCH.format(8))
    program = collective_program("all-reduce", 8, 1 << 23, TREE)
    bound_ps = closed_form("all-reduce", TREE, 8, 1 << 23, 1.3e6, 50e9)
    assert simulate(graph, program).finish_time_ps > 1.15 * bound_ps


@pytest.mark.parametrize("unit", [64, 16384])
@pytest.mark.parametrize("algorithm", ["direct", "pairwise", "hierarchical"])
@pytest.mark.parametrize("network", [SWITCH.format(6), "ring:npus=2"])
def test_uneven_all_to_alls(network, algorithm, unit):
    graph = topologies.build(network)
    matrix = np.random.default_rng(2).integers(0, 33, (graph.npus, graph.npus)) * unit
    program = uneven_program(matrix, algorithm, graph)
    assert ratio(graph, program, "all-to-all", "direct") == pytest.approx(1, rel=PRECISION)


def test_many_packets_go_in_groups_with_little_loss(monkeypatch):
    graph = topologies.build(SWITCH.format(5))
    program = collective_program("all-reduce", 5, 1 << 23, TREE)
    monkeypatch.setattr("nadi.idle_switch._MOST_GROUPS", 4096)
    assert ratio(graph, program, "all-reduce", TREE) == pytest.approx(1, rel=2 * PRECISION)


def test_waits_of_lanes_and_launch_are_played():
    """One message from 0 to 1, by hand: launch, then the lane's latency, then a packet over two links."""
    from nadi.idle_switch import Link, played_ps
    from workload.plans import Lane, each_its_own
    from workload.schedules import pack

    lanes = [[Lane(latency_ps=7).step(send_to=1)], [Lane().step(receive_from=0)]]
    link = Link(1000, 10.0, 2.0, 1.0, 100.0, 1.0, 8)
    plans = each_its_own(1, lanes, launch_ps=5)
    assert played_ps(pack([plans]), 0, 300, link) == 5 + 7 + 2 * (10 + 600) + 100
    full, last = 10 + 2000, 10 + 600
    assert played_ps(pack([plans]), 0, 2300, link) == 5 + 7 + (2 * full + last) + full + 100
