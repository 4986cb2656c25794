"""Collectives alone on machines take the same time at all fidelities; scripts/fidelities_agree.py has all of them."""

import pytest

import nadi

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
