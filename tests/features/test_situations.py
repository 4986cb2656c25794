"""A part of the matrix of situations in every test run, and relations that must hold in it."""

import itertools
import os
import secrets

import pyarrow.parquet as pq
import pytest

from nadi import et, topologies
from nadi.topologies.clusters import clusters
from nadi.topologies.machines import machines
from nadi.workload import algorithms_of
from tests.budgets import FRESH
from tests.features.matrix import REFUSED, Matrix
from tests.features.running import outcome_of_file, toml_of
from tests.features.situations import changes, values
from tests.features.situations.__main__ import is_any_valid
from tests.features.situations.relations import broken
from tests.features.situations.running import outcome, run_with_results, sections, warm_up
from tests.features.situations.values import FACTORS, LIMITS, PLACE, conflicts, described
from tests.samples import pairwise, some

RUNS, PAIRS = some(5, 8), some(2, 4)
PLAIN = dict.fromkeys(FACTORS, 0)
SYMMETRIC = {
    "bruck",
    "direct",
    "halving-doubling",
    "nccl",
    "nvls",
    "pairwise",
    "pat",
    "recursive-doubling",
    "ring",
    "rotated-ring",
}
"""Algorithms in which every member does what every other one does."""
IN_TURNS = {"nccl", "nvls"}
"""Those in which messages of different members meet in a port, so that one of them is first."""
RANKS = 8
FABRICS = {
    "NVSwitch": ({"spec": f"dgx-h100:npus={RANKS}"}, 3.6e12),
    "rack": ({"cluster": "gb200-nvl72", "gpus": RANKS}, 7.2e12),
    "full mesh": ({"cluster": "mi300x-8", "gpus": RANKS}, 0.384e12),
    "switch": ({"spec": f"switch:npus={RANKS}"}, 0.4e12),
}
"""Fabrics whose NPUs are all in the same place, and the rates of their links in bit/s."""
SIZE_BYTES = 1 << 20
MTU_BYTES = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("situations")
    warm_up(folder)
    return folder


def seed_of_this_run():
    """Return 0, or another number in each run that asks for fresh examples."""
    return secrets.randbelow(2**31) if os.environ.get(FRESH) else 0


def test_every_named_machine_and_cluster_is_a_place():
    assert {text.split()[1] for text in FACTORS[PLACE]} == {*clusters(), *machines(), *values.FABRICS}


@pytest.mark.parametrize("limit", LIMITS)
def test_documented_limits_are_refused(folder, limit):
    situation = PLAIN | {factor: FACTORS[factor].index(values[0]) for factor, values in LIMITS[limit].items()}
    assert outcome(situation, folder).startswith(REFUSED)


@pytest.mark.slow
def test_some_situations(folder):
    seed, outcomes = seed_of_this_run(), []

    def tried(situation):
        outcomes.append(outcome(situation, folder))
        return outcomes[-1]

    matrix = Matrix(is_any_valid, tried, seed, FACTORS, {}, conflicts())
    matrix.cover(RUNS)
    assert [(described(situation), found) for situation, found in matrix.defects] == [], f"seed {seed}"
    assert "" in outcomes


@pytest.mark.slow
def test_some_better_fabrics_are_not_slower(folder):
    seed, ratios = seed_of_this_run(), []
    matrix = Matrix(
        lambda situation: changes.is_possible(situation, folder),
        lambda situation: changes.outcome(situation, folder, ratios),
        seed,
        changes.CHANGES,
        {},
    )
    matrix.cover(PAIRS)
    assert matrix.defects == [], f"seed {seed}"
    assert ratios


def test_sums_and_bounds_are_checked(folder):
    """A run's own results hold; with a message less, or a collective that takes no time, they do not."""
    path = folder / "run.toml"
    path.write_text(toml_of(sections(PLAIN, folder)))
    assert outcome_of_file(path, run_with_results) == ""
    graph = topologies.build({"name": "dgx-h100-superpod", "gpus": 16})
    results = folder / "results"
    assert broken(results, graph) == ""
    table = pq.read_table(results / "collectives.parquet")
    begins = table["start_ps"]
    quick = table.set_column(table.schema.get_field_index("finish_ps"), "finish_ps", begins)
    pq.write_table(quick, results / "collectives.parquet")
    assert "takes less than its lower bound" in broken(results, graph)
    pq.write_table(table, results / "collectives.parquet")
    flows = pq.read_table(results / "flows.parquet")
    pq.write_table(flows.slice(1), results / "flows.parquet")
    assert f"{flows.num_rows - 1} flows in flows.parquet" in broken(results, graph)


def symmetric_cases():
    """Return fabrics, kinds, algorithms and models of the network in which all ranks are alike."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    for fabric, kind, network in itertools.product(FABRICS, kinds, ("packet", "flow", "closed-form")):
        for algorithm in sorted(SYMMETRIC & set(algorithms_of(kind))):
            if algorithm != "nvls" or "mesh" not in fabric:
                yield fabric, kind, algorithm, network


@pytest.mark.parametrize(("fabric", "kind", "algorithm", "network"), pairwise(symmetric_cases()))
def test_equal_ranks_end_together(tmp_path, fabric, kind, algorithm, network):
    """To the picosecond; where messages meet in a port, within the time of two packets of each member there."""
    node = et.coll_node(1, "collective", et.CollectiveCommType[kind.replace("-", "_").upper()], SIZE_BYTES)
    for rank in range(RANKS):
        et.write_trace(tmp_path / f"trace.{rank}.et", et.metadata(), [node])
    topology, rate_bps = FABRICS[fabric]
    run = {
        "workload": {"traces": str(tmp_path / "trace")},
        "topology": topology,
        "system": {"collectives": {kind: algorithm}},
        "network": {"fidelity": network},
    }
    path = tmp_path / "run.toml"
    path.write_text(toml_of(run))
    assert run_with_results(path) == 0
    ends_ps = pq.read_table(tmp_path / "results" / "nodes.parquet")["finish_ps"].to_pylist()
    packet_ps = MTU_BYTES * 8e12 / rate_bps
    noise_ps = 2 * RANKS * packet_ps if algorithm in IN_TURNS else 0
    assert len(ends_ps) == RANKS
    assert max(ends_ps) - min(ends_ps) <= noise_ps
