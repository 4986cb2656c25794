"""What passes at the ends of messages, against the naive model to the picosecond and for any division among LPs."""

import dataclasses
from functools import partial

import pytest
from hypothesis import given, strategies as st

from nadi.pdes import RunError, Settings, build_world, run
from nadi.pdes.fidelity import fidelity
from nadi.topologies import build
from nadi.workload import KINDS
from tests.budgets import bounded
from tests.every import programs
from tests.parallel.fingerprint import differing, fingerprint
from tests.pdes import compare, naive_ends
from tests.pdes.cases import BASE, crowded_program, runs

ALL = fidelity(
    "packet", endpoint_delay_ps=10_000, reduction_bandwidth_bps=8e12 / 7.0, send_latency_ps=600_000, acknowledged=True
)


@st.composite
def models(draw):
    return fidelity(
        "packet",
        endpoint_delay_ps=draw(st.sampled_from([0, 0, 1, 10_000, 3_000_000])),
        reduction_bandwidth_bps=draw(st.sampled_from([None, None, 8e12 / 0.625, 4e11, 8e9])),
        send_latency_ps=draw(st.sampled_from([0, 0, 1, 90_000, 6_000_000])),
        acknowledged=draw(st.booleans()),
    )


check = partial(compare.check, simulator=naive_ends.Simulator)


@pytest.mark.parametrize("lossy", [False, True])
@bounded(70)
@given(st.data(), models())
def test_random_runs_agree(lossy, data, model):
    spec, workload, chosen = data.draw(runs(lossy=lossy))
    graph = build(spec)
    check(graph, workload.program(graph.npus), dataclasses.replace(chosen, fidelity=model))


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_and_algorithm_agrees(kind):
    graph = build("stack:dims=Ring(3)_Switch(2),rates=100Gbps_40Gbps,delays=300ns,switch_latency=50ns")
    for _, fabric, program in programs(kind, graph, 7001):
        if not program.schedules.launch_ps.any():  # the naive model has no launches and no waits of lanes
            check(fabric, program, Settings(**(BASE | {"fidelity": ALL})))


@bounded(60)
@given(runs(lossy=True), models(), st.randoms(use_true_random=False))
def test_any_owner_gives_the_same(case, model, random):
    spec, workload, chosen = case
    graph = build(spec)
    parts = graph, workload.program(graph.npus), dataclasses.replace(chosen, fidelity=model)
    numbers = [random.randrange(3) for _ in range(graph.nodes)]
    owner = [sorted(set(numbers)).index(number) for number in numbers]
    try:
        wanted = run(build_world(*parts))
    except RunError:
        return
    assert differing(fingerprint(run(build_world(*parts, owner), threads=2)), fingerprint(wanted)) == []


def test_pools_grow():
    results = check(build("ring:npus=6"), crowded_program(100), Settings(**(BASE | {"fidelity": ALL})))
    assert results.counters["flows"] == 600 + 90 * 60
