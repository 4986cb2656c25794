"""Collectives over several dimensions, packet by packet: closed forms, and bounds that a flat ring does not reach."""

import pytest

from nadi import topologies
from nadi.workload import closed_form, collective_program
from nadi.workload.shape import shape_of
from tests.scenarios.closed_forms import ROCE
from tests.scenarios.running import simulate

TORUS = "torus:sizes=4x4,rate=400Gbps,delay=500ns"
ON_THE_WIRE = ROCE.full / ROCE.mtu


def run(kind, spec, algorithm, size_bytes):
    graph = topologies.build(spec)
    program = collective_program(kind, graph.npus, size_bytes, algorithm, graph)
    return graph, simulate(graph, program)


def form_ps(graph, kind, algorithm, size_bytes):
    """Of what the packets of the buffer are on the wire."""
    shape = shape_of(graph, range(graph.npus))
    return closed_form(kind, algorithm, graph.npus, round(size_bytes * ON_THE_WIRE), 0.0, 0.0, shape)


@pytest.mark.parametrize("size_bytes", [16 * 4096, 64 * 16 * 4096])
@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter", "all-gather"])
def test_rings_along_a_torus(kind, size_bytes):
    """Data goes one way round and acknowledgements the other."""
    graph, results = run(kind, TORUS, "grid", size_bytes)
    assert results.finish_time_ps == pytest.approx(form_ps(graph, kind, "grid", size_bytes), rel=0.01)
    whole = (2 if kind == "all-reduce" else 1) * 15 * size_bytes
    assert results.flows["bytes"].sum() == whole


@pytest.mark.parametrize("order", ["baseline", "themis"])
def test_splits_use_both_dimensions_of_a_torus_at_once(order):
    """Between what the busiest dimension carries and the phases one after another."""
    size_bytes = 16 * 16 * 4096 * 4
    _, alone = run("all-reduce", TORUS, "grid", size_bytes)
    _, results = run("all-reduce", TORUS, f"grid:splits=16,order={order}", size_bytes)
    wire_ps = size_bytes * ON_THE_WIRE * 8e12 / 400e9
    bound_ps = 2 * wire_ps * (15 / 16 / 2 if order == "themis" else 3 / 4)
    assert bound_ps <= results.finish_time_ps < alone.finish_time_ps


@pytest.mark.parametrize("algorithm", ["grid", "hierarchical:algorithms=direct/direct"])
def test_all_to_all_in_two_steps(algorithm):
    spec = "stack:dims=Switch(4)_Switch(4),rates=400Gbps_100Gbps,delays=500ns,host_dims=1"
    size_bytes = 16 * 16 * 4096
    graph, results = run("all-to-all", spec, algorithm, size_bytes)
    assert results.flows["bytes"].sum() == 16 * 2 * 3 * size_bytes // 4
    assert len(results.flows["bytes"]) == 16 * 2 * 3
    assert results.finish_time_ps >= form_ps(graph, "all-to-all", algorithm, size_bytes) * (1 - 1e-9)


@pytest.mark.parametrize("algorithm", ["grid", "hierarchical"])
def test_two_levels_beat_a_flat_ring(algorithm):
    """Hosts of 8 at 1 Tb/s each, 100 Gb/s between them: theory says 31/32 to 7/80 + 3/32."""
    spec = "stack:dims=Switch(8)_Switch(4),rates=1Tbps_100Gbps,delays=100ns,host_dims=1"
    size_bytes = 32 * 32 * 4096
    graph, results = run("all-reduce", spec, algorithm, size_bytes)
    _, flat = run("all-reduce", spec, "ring", size_bytes)
    slow_ps = size_bytes * ON_THE_WIRE * 8e12 / 100e9
    assert flat.finish_time_ps >= 2 * 31 / 32 * slow_ps
    bound_ps = 2 * (7 / 8 / 10 + 3 / 4 / 8) * slow_ps
    assert bound_ps <= results.finish_time_ps < 1.1 * bound_ps
    assert flat.finish_time_ps > 4.8 * results.finish_time_ps
    assert form_ps(graph, "all-reduce", algorithm, size_bytes) == pytest.approx(results.finish_time_ps, rel=0.1)


@pytest.mark.parametrize("order", ["baseline", "themis"])
@pytest.mark.parametrize("splits", [2, 8])
def test_one_phase_at_a_time_in_each_dimension(order, splits):
    """With one token the packets follow the closed form, which does one phase at a time in each dimension."""
    size_bytes = 16 * 16 * 4096 * splits
    algorithm = f"grid:splits={splits},order={order}"
    graph = topologies.build(TORUS)
    program = collective_program("all-reduce", graph.npus, size_bytes, algorithm, graph)
    results = simulate(graph, program, phases_per_dimension=1)
    assert results.finish_time_ps == pytest.approx(form_ps(graph, "all-reduce", algorithm, size_bytes), rel=0.01)
