"""The same run later: whatever features it has, all times are later by as much, and nothing else changes."""

import numpy as np
import pytest

from tests.features.matrix import Matrix
from tests.features.running import described, is_valid, outcome, warm_up, write_traces
from tests.features.shifting import begins_together, shift
from tests.samples import some

RUNS = some(6, np.inf)
"""Runs of the part that belongs to every test run, refused ones too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shifts")
    write_traces(folder)
    warm_up(folder)
    return folder


@pytest.mark.slow
def test_runs_that_begin_later_end_later_by_as_much(folder):
    matrix = Matrix(
        lambda run: begins_together(run) and is_valid(run, folder),
        lambda run: outcome(run, folder, shift),
        refusal_of=lambda run: outcome(run, folder, lambda path: shift(path, ())),
    )
    matrix.cover(RUNS)
    assert [(described(run), what) for run, what in matrix.defects] == []
