"""Closed forms on idle networks: written out by hand, and beside the simulator."""

import itertools

import numpy as np
import pytest

from nadi import topologies, workload
from nadi.launching.progress import NoProgress
from nadi.pdes import Settings
from nadi.simulation.closed_forms.collective import closed_form
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.simulation.closed_forms.lone_message import train
from nadi.simulation.run import run_program
from tests.samples import pairwise

WIRE_PS = 8 * 10**12


def test_a_train_over_three_links():
    graph = topologies.build(
        "leaf-spine:leaves=2,spines=1,hosts_per_leaf=1,rate=100Gbps,delay=1us,switch_latency=300ns"
    )
    links = topologies.route(graph, 0, 1)
    assert len(links) == 4
    settings = Settings()
    full, last = 4096 + 82, 100 + 82
    found = train(graph, links, 2 * 4096 + 100, settings)
    by_hand = (2 * full + last) * WIRE_PS / 100e9 + 3 * last * WIRE_PS / 100e9 + 4 * 1e6 + 3 * 3e5
    assert found.total_ps == pytest.approx(by_hand)
    assert found.serial_ps == pytest.approx((2 * full + last) * WIRE_PS / 100e9)


def test_a_ring_all_reduce_by_hand():
    graph = topologies.build("ring:npus=8,rate=400Gbps,delay=500ns")
    program = workload.collective_program("all-reduce", 8, 8 << 20, "ring")
    step_ps = 256 * (4096 + 82) * WIRE_PS / 400e9 + 500e3
    played, formula = (
        _closed_form(graph, program, "all-reduce", "ring", IsolatedCollectives(most)) for most in (None, 0)
    )
    assert played == (14 * step_ps, True)
    assert formula == (pytest.approx(14 * step_ps), False)


def test_what_takes_long_gets_its_formula():
    graph = topologies.build("rail-optimised:npus=8")
    program = workload.collective_program("all-reduce", 8, 1 << 20, "nccl:algo=tree", fabric=graph)
    one = ("all-reduce", "nccl:algo=tree")
    exact, enough, estimate = (
        _closed_form(graph, program, *one, IsolatedCollectives(most)) for most in (None, 10**5, 9)
    )
    assert exact == enough
    assert exact.is_simulated
    assert not estimate.is_simulated
    assert abs(estimate.time_ps / exact.time_ps - 1) > 1e-3


def test_it_is_played_once(monkeypatch):
    graph = topologies.build("rail-optimised:npus=8")
    program = workload.collective_program("all-reduce", 8, 1 << 20, "nccl:algo=tree", fabric=graph)
    one, played = ("all-reduce", "nccl:algo=tree"), IsolatedCollectives()
    first = _closed_form(graph, program, *one, played)
    monkeypatch.setattr("nadi.simulation.closed_forms.isolated.IdleFabric.time_ps", None)
    assert _closed_form(graph, program, *one, played) == first


def _closed_form(graph, program, kind, algorithm, played):
    return closed_form(
        graph,
        program,
        Settings(),
        kind=kind,
        algorithm=algorithm,
        schedule=int(program.node_schedule[0]),
        members=np.arange(graph.npus),
        size_bytes=int(program.node_bytes[0]),
        isolated=played,
    )


EVEN = ["ring:npus=6", "switch:npus=8,rate=400Gbps"]
UNEVEN = ["fat-tree:k=4,rate=100Gbps,delay=1us", "leaf-spine:leaves=2,spines=2,hosts_per_leaf=4"]


@pytest.mark.parametrize(
    ("spec", "kind", "algorithm", "tolerance"),
    [
        *((spec, kind, "ring", 1e-3) for spec in EVEN for kind in ("all-reduce", "all-gather", "reduce-scatter")),
        *((spec, kind, "ring", 2e-2) for spec in UNEVEN for kind in ("all-reduce", "all-gather")),
        *((EVEN[1], kind, "direct", 2e-2) for kind in ("all-to-all", "all-reduce", "broadcast", "gather")),
        (EVEN[1], "barrier", "dissemination", 1e-2),
    ],
)
@pytest.mark.parametrize("size", [6 << 10, 3 << 20])
def test_the_simulator_agrees(spec, kind, algorithm, tolerance, size):
    graph = topologies.build(spec)
    program = workload.collective_program(kind, graph.npus, size, algorithm)
    results = run_program(graph, program, Settings(record_nodes=False), NoProgress())
    formula = _closed_form(graph, program, kind, algorithm, IsolatedCollectives(0))
    assert results.finish_time_ps == pytest.approx(formula.time_ps, rel=tolerance)


def test_a_group_of_one_takes_no_time():
    graph = topologies.build("ring:npus=4")
    program = workload.collective_program("all-reduce", 4, 1024)
    arguments = {"kind": "all-reduce", "algorithm": "ring", "schedule": -1, "members": np.array([2]), "size_bytes": 9}
    assert closed_form(graph, program, Settings(), **arguments).time_ps == 0


RAILS = "rail-optimised:npus={}"
LEAVES = "leaf-spine:npus={},hosts_per_leaf=16"
OF_MANY = [("all-reduce", "ring"), ("all-gather", "ring"), ("all-to-all", "direct"), ("reduce-scatter", "pairwise")]


def formula_ps(graph, kind, algorithm, size):
    program = workload.collective_program(kind, graph.npus, size, algorithm, graph)
    return _closed_form(graph, program, kind, algorithm, IsolatedCollectives(0)).time_ps


@pytest.mark.parametrize("spec", [RAILS, LEAVES])
@pytest.mark.parametrize("npus", [8, 64, 96])
@pytest.mark.parametrize(("kind", "algorithm"), OF_MANY[1:3])
def test_formulas_meet_every_kind_of_path(monkeypatch, spec, npus, kind, algorithm):
    graph = topologies.build(spec.format(npus))
    found = formula_ps(graph, kind, algorithm, npus << 13)
    monkeypatch.setattr("nadi.simulation.closed_forms.collective._MAX_SAMPLED_SENDS", npus**2)
    assert found == pytest.approx(formula_ps(graph, kind, algorithm, npus << 13), rel=1e-12)


@pytest.mark.parametrize(
    ("spec", "npus", "kind", "algorithm"),
    [
        (spec, npus, *one)
        for spec, npus, one in pairwise(itertools.product([RAILS, LEAVES], [8, 16, 40, 64, 192, 512], OF_MANY))
    ],
)
def test_formulas_are_no_less_than_the_links_of_the_npus_allow(spec, npus, kind, algorithm):
    """A member sends most of its share to other hosts, by its own link to the fabric."""
    graph = topologies.build(spec.format(npus))
    size = npus << 16
    hosts = len(set(graph.host.tolist()))
    to_others = (npus - npus // hosts) / npus * size if algorithm != "ring" else (npus - 1) / npus * size
    least_ps = 8e12 * to_others / 400e9 * (2 if kind == "all-reduce" else 1) * (hosts > 1)
    assert formula_ps(graph, kind, algorithm, size) > least_ps


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("npus", [32, 64])
def test_formulas_beside_packets_where_hosts_are_as_large_as_steps(npus, algorithm):
    graph = topologies.build(LEAVES.format(npus))
    program = workload.collective_program("all-reduce", npus, npus << 15, algorithm)
    time_ps = run_program(graph, program, Settings(record_nodes=False, record_flows=False), NoProgress()).finish_time_ps
    assert time_ps == pytest.approx(formula_ps(graph, "all-reduce", algorithm, npus << 15), rel=0.04)
