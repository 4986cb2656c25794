"""Collectives in parts: they do what the whole does, and the parts follow each other."""

import numpy as np
import pytest

from nadi import topologies
from nadi.workload import KINDS, CollectiveSettings, WorkloadError, closed_form, collective_program, collectives
from nadi.workload.collectives.schedules.oracle import OracleError, check
from nadi.workload.collectives.schedules.packed import pack
from tests.workload.alpha_beta import Network
from tests.workload.plain import plain_algorithms

CASES = [(kind, name) for kind in KINDS if kind != "barrier" for name in plain_algorithms(kind)]
SPLITS = ("dataset_splits=3", "dataset_splits=4,chains=2", "dataset_splits=2,chains=2")


@pytest.mark.parametrize(("kind", "name"), [*CASES, ("all-to-all", "ring")])
def test_parts_do_what_the_kind_promises(kind, name):
    schedules = pack([collectives.plan(kind, f"{name}:{splits}", n) for splits in SPLITS for n in range(1, 10)])
    for index in range(9 * len(SPLITS)):
        check(kind, schedules, index, seed=index)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_stripes_do_what_the_kind_promises_on_connections_of_their_own(kind, name):
    for parts in ("", ":dataset_splits=2"):
        choice = collectives.choose(kind, name + parts).striped(kind, 4)
        plans = [choice.plan(kind, n) for n in (2, 5, 8)]
        for index in range(3):
            check(kind, pack(plans), index, seed=index)
        sending = {
            lane.connection
            for each in plans
            for row, plan in enumerate(each.plans)
            for steps, lane in zip(plan, each.attributes_of(row), strict=True)
            if any(step.send_peer >= 0 for step in steps)
        }
        assert sending == {0, 1, 2, 3}


def test_a_barrier_and_algorithms_with_own_connections_have_no_stripes():
    for kind, name in (("barrier", "dissemination"), ("all-reduce", "nccl"), ("all-reduce", "rotated-ring")):
        choice = collectives.choose(kind, name)
        assert choice.striped(kind, 4) == choice


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("all-reduce", "grid:algorithms=ring/direct,splits=2,dataset_splits=3"),
        ("reduce-scatter", "grid:algorithms=ring/bruck,dataset_splits=2"),
        ("all-gather", "hierarchical:splits=2,dataset_splits=2,chains=2"),
        ("all-to-all", "grid:dataset_splits=2"),
        ("all-reduce", "nccl:dataset_splits=2"),
        ("reduce-scatter", "in-network:dataset_splits=3"),
    ],
)
def test_parts_of_algorithms_that_know_the_fabric(kind, spec):
    graph = topologies.build("leaf-spine:leaves=3,hosts_per_leaf=4,spines=2")
    check(kind, collective_program(kind, graph.npus, 4096 * 12, spec, graph).schedules, 0)


def test_the_oracle_notices_parts_in_the_wrong_order():
    plans = collectives.plan("reduce-scatter", "ring:dataset_splits=3", 4)
    check("reduce-scatter", pack([plans]), 0)
    with pytest.raises(OracleError):
        check("reduce-scatter", pack([plans._replace(arrangements=(np.roll(plans.arrangements[0], 1),))]), 0)


@pytest.mark.parametrize("members", [2, 5, 8])
@pytest.mark.parametrize(("kind", "name"), [("all-reduce", "ring"), ("all-to-all", "ring"), ("all-reduce", "direct")])
def test_parts_take_one_after_another_what_each_takes_alone(kind, name, members):
    """Four of a quarter; two chains of two parts, side by side, where latencies count only."""
    size, own = 1 << 20, (1_000_000.0, 20.0)
    alone = Network(pack([collectives.plan(kind, name, members)]), 0, size // 4, *own).finish_time()
    parts = pack([collectives.plan(kind, f"{name}:dataset_splits=4", members)])
    assert Network(parts, 0, size, *own).finish_time() == pytest.approx(4 * alone, rel=1e-9)
    form = closed_form(kind, f"{name}:dataset_splits=4", members, size, own[0], 1e12 / own[1])
    assert form == pytest.approx(4 * alone, rel=1e-9)
    chains = pack([collectives.plan(kind, f"{name}:dataset_splits=4,chains=2", members)])
    short = Network(pack([collectives.plan(kind, name, members)]), 0, 0, *own).finish_time()
    assert Network(chains, 0, 0, *own).finish_time() == pytest.approx(2 * short, rel=1e-9)


@pytest.mark.parametrize("rings", ["", "channels=2", "bidirectional=true"])
def test_an_all_to_all_on_a_ring(rings):
    """n(n-1)/2 steps; of rings side by side the messages of a step follow each other."""
    for n in range(2, 9):
        schedules = pack([collectives.plan("all-to-all", f"ring:{rings}", n)])
        check("all-to-all", schedules, 0, seed=n)
        for latency in (10.0, 3e6):
            simulated = Network(schedules, 0, 1 << 20, latency, 20.0).finish_time()
            form = closed_form("all-to-all", f"ring:{rings}", n, 1 << 20, latency, 5e10)
            assert form == pytest.approx(simulated, rel=1e-9)
            assert rings or form == pytest.approx(n * (n - 1) / 2 * (latency + (1 << 20) / n * 20))
        assert set(schedules.send_peer.tolist()) <= {1, n - 1}


def test_an_all_to_all_on_a_ring_must_be_named():
    assert "ring" not in collectives.algorithms_of("all-to-all")
    assert collectives.default_algorithm("all-to-all") == "direct"
    assert collectives.choose("all-to-all", "ring").name == "ring"


def test_a_run_cuts_all_its_collectives():
    chosen = CollectiveSettings(
        {"all-reduce": "grid", "all-gather": "ring:dataset_splits=2"}, dataset_splits=4, chains=2
    )
    assert chosen.algorithm_of("all-reduce") == "grid:splits=4"
    assert chosen.algorithm_of("all-gather") == "ring:dataset_splits=2"
    assert chosen.algorithm_of("all-to-all") == "direct:dataset_splits=4,chains=2"
    assert chosen.algorithm_of("barrier") == "dissemination"
    assert CollectiveSettings({"all-reduce": "custom:file=x"}, dataset_splits=4).algorithm_of("all-reduce") == (
        "custom:file=x"
    )
    more = CollectiveSettings({"all-reduce": "grid"}, splits=3, dataset_splits=4)
    assert more.algorithm_of("all-reduce") == "grid:splits=3"
    assert more.algorithm_of("all-gather") == "ring:dataset_splits=4"


def test_a_dimension_cannot_be_cut():
    graph = topologies.build("torus:sizes=2x2")
    text = r"^algorithms 'ring:dataset_splits=2': dataset_splits in a dimension, expected splits of the whole$"
    with pytest.raises(WorkloadError, match=text):
        collective_program("all-reduce", 4, 4096, "grid:algorithms=ring:dataset_splits=2", graph)
