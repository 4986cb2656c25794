"""The study of synthetic traces: its distances between traces."""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.nonempty import nonempty

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def study():
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("synthesis_study")
    finally:
        sys.path.remove(str(SCRIPTS))


def test_distances_against_closed_forms(study):
    """Nothing from itself; an octave where all is twice as large."""
    tables = study.Step("tp2,pp2,dp2,gb8", 2, 4, 512, 512).traces().traces
    assert all(value == pytest.approx(0) for value in nonempty(study.distances(tables, tables).values()))
    twice = [
        dataclasses.replace(
            table,
            comm_size=np.where(table.comm_size > 0, 2 * table.comm_size, table.comm_size),
            duration_micros=4 * table.duration_micros,
        )
        for table in tables
    ]
    found = study.distances(twice, tables)
    assert found["sizes (Wasserstein, octaves)"] == pytest.approx(1)
    assert found["durations (Wasserstein, octaves)"] == pytest.approx(2)
    assert found["node kinds (JS, bits)"] == pytest.approx(0)
    colls = [dataclasses.replace(table, type=np.full(len(table), 4, np.int8)) for table in tables]
    assert 0.1 < study.distances(colls, tables)["node kinds (JS, bits)"] <= 1
