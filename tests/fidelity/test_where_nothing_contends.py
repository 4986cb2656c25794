"""Collectives alone on machines take the same time at all fidelities; scripts/fidelities_agree.py has all of them."""

from functools import partial

import numpy as np
import pytest

import nadi
from nadi.configuration.run_file import collective_config
from nadi.inputs.units import parse_bytes
from nadi.simulation.closed_forms import IsolatedCollectives
from nadi.simulation.closed_forms.collective import formula_ps
from nadi.simulation.resolving import Resolver
from nadi.studies.collectives.measuring import CollectiveCase
from nadi.workload.collectives import choose

CASES = [
    pytest.param("dgx-a100:npus=8", "all-reduce", "direct", "1MiB", marks=pytest.mark.slow),
    ("dgx-h100:npus=8", "all-reduce", "ring", "1MiB"),
    ("dgx-h100:npus=8", "all-gather", "nccl", "64KiB"),
    ("dgx-h100:npus=8", "all-to-all", "nccl", "8KiB"),
    pytest.param("dgx-h100:npus=16", "all-reduce", "hierarchical", "1MiB", marks=pytest.mark.slow),
    pytest.param("dgx-h100:npus=16", "all-reduce", "nccl:algo=nvls-tree", "64MiB", marks=pytest.mark.slow),
    pytest.param("dgx-h100:npus=16", "all-reduce", "nccl:algo=nvls-tree", "256MiB", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("machine", "kind", "algorithm", "size"), CASES)
def test_flows_take_the_closed_form(machine, kind, algorithm, size):
    for collectives in ("steps", "coupled"):
        network = {"fidelity": "flow", "collectives": collectives}
        (row,) = nadi.collective(kind, machine, size, algorithm, network=network)["rows"]
        assert row["model"] == f"flow, {collectives}"
        assert row["time_ps"] == pytest.approx(row["closed_form_ps"], rel=0.02)
        assert row["closed_form_played"]


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_packets_take_the_closed_form(algorithm):
    (row,) = nadi.collective("all-reduce", "dgx-h100:npus=8", "64KiB", algorithm)["rows"]
    assert row["model"] == "packet"
    assert row["time_ps"] == pytest.approx(row["closed_form_ps"], rel=0.001)


# Pairs of kind and algorithm, machine, and size, each at least once
ALONE = [
    ("dgx-h100:npus=16", "all-reduce", "halving-doubling", "64KiB"),
    ("dgx-a100:npus=16", "all-reduce", "recursive-doubling", "16MiB"),
    ("dgx-b200:npus=8", "all-reduce", "nvls", "16MiB"),
    ("mi300x-8:gpus=16", "all-reduce", "grid", "1MiB"),
    ("dgx-h100:npus=16", "all-reduce", "direct", "16MiB"),
    ("dgx-h100:npus=16", "all-gather", "bruck", "16MiB"),
    ("dgx-a100:npus=16", "all-gather", "nccl", "64MiB"),
    ("switch:npus=7", "reduce-scatter", "pat", "64KiB"),
    ("dgx-b200:npus=8", "reduce-scatter", "pairwise", "1MiB"),
    ("dgx-a100:npus=16", "all-to-all", "pairwise", "16MiB"),
    ("dgx-b200:npus=16", "all-to-all", "nccl:pxn=false", "16MiB"),
    ("mi300x-8:gpus=16", "broadcast", "ring", "16MiB"),
    ("dgx-h100:npus=16", "broadcast", "binomial", "1MiB"),
    ("mi300x-8:gpus=16", "reduce", "double-binary-tree", "64KiB"),
    ("torus:sizes=4x4", "all-gather", "ring", "1MiB"),
    ("dgx-a100:npus=16", "gather", "direct", "64KiB"),
]


def collective_alone(machine, kind, algorithm, size):
    """Return functions that give the time on ports of its own: as packets, as flows, and by the formula."""
    idle = Resolver(collective_config(machine, [], {})).idle_fabric(1)
    program = CollectiveCase(kind).program(idle.graph, algorithm, parse_bytes(size))
    schedule, bytes_ = int(program.node_schedule[0]), int(program.node_bytes[0])
    members = np.arange(idle.graph.npus)
    how = idle.graph, program, idle.settings, choose(kind, algorithm), schedule, members.tolist(), bytes_
    alone = IsolatedCollectives()
    formula = partial(formula_ps, *how[:3], kind, algorithm, schedule, members, bytes_, alone)
    return partial(alone.time_ps, *how), partial(alone.flows_ps, *how), formula


@pytest.mark.parametrize(("machine", "kind", "algorithm", "size"), ALONE)
def test_flows_on_ports_of_their_own_take_the_time_of_packets(machine, kind, algorithm, size):
    packets_ps, flows_ps, _ = collective_alone(machine, kind, algorithm, size)
    assert flows_ps() == pytest.approx(packets_ps(), rel=0.02)


@pytest.mark.parametrize(
    ("machine", "kind", "algorithm"),
    [
        ("dgx-h100:npus=16", "all-reduce", "grid"),
        ("dgx-h100:npus=16", "all-to-all", "hierarchical"),
        ("torus:sizes=4x4", "all-reduce", "grid"),
        ("dgx-h100:npus=16", "all-gather", "nccl:algo=ring,channels=8"),
        ("dgx-a100:npus=16", "all-gather", "nccl:algo=ring"),
    ],
)
def test_formulas_of_several_rates_take_the_time_of_packets(machine, kind, algorithm):
    packets_ps, _, formula = collective_alone(machine, kind, algorithm, "64MiB")
    assert formula() == pytest.approx(packets_ps(), rel=0.02)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("all-reduce", "halving-doubling"), ("all-reduce", "recursive-doubling"), ("all-to-all", "pairwise")],
)
def test_closed_forms_of_buffers_that_are_not_played_continue_those_that_are(kind, algorithm):
    """Over two hosts the formulas of these algorithms, which know one rate, are up to 2.8 times too long."""
    network = {"fidelity": "closed-form"}
    rows = nadi.collective(kind, "dgx-h100:npus=16", "64MiB,128MiB,8GiB", f"{algorithm}:proto=simple", network=network)[
        "rows"
    ]
    assert [row["closed_form_played"] for row in rows] == [True, True, False]
    small_ps, large_ps, found_ps = (row["closed_form_ps"] for row in rows)
    assert found_ps == pytest.approx(large_ps + (large_ps - small_ps) * (8192 - 128) / 64, rel=0.02)


def test_rows_of_coupled_flows_name_those_that_send_message_by_message():
    network = {"fidelity": "flow", "collectives": "coupled"}
    rows = nadi.collective("all-gather", "dgx-h100:npus=8", "1MiB", "ring,pat", network=network)["rows"]
    assert [row["model"] for row in rows] == ["flow, coupled", "flow, steps"]
