"""Periods of runs on MPI ranks: they are counted there, too, and every result is that of one process."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nadi.pdes import RunError
from nadi.pdes.parallel import Layout, Processes, run_divided
from nadi.pdes.reuse import recurrence
from tests.reuse.test_recurrence import on_leaves, pipeline
from tests.reuse.test_replay import IGNORED, SETTINGS

RANDOM_RUNS = 12
FEWEST = {
    "pipeline": 7,
    "numbers of one tag": 7,
    "no rows of messages": 7,
    "an odd turn": 4,
    "two threads each": 7,
    "iterations": 8,
    "congestion control": 15,
    "a slow GPU": 7,
    "scattered": 7,
    "a fault that ends": 0,
    "telemetry": 15,
    "telemetry, scattered": 15,
}
"""Periods of each case of tests/parallel/periods_on_ranks.py at least."""


@pytest.fixture(scope="module")
def on_ranks(python, tmp_path_factory):
    """What two ranks bring."""
    done = python(2, "-m", "tests.parallel.periods_on_ranks", RANDOM_RUNS, tmp_path_factory.mktemp("cut"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEWEST)
def test_periods_of_two_ranks(on_ranks, name):
    found = on_ranks["cases"][name]
    assert set(found["differs"]) <= IGNORED
    assert found["periods"] >= FEWEST[name]
    assert found["periods"] == 0 or FEWEST[name]
    assert FEWEST[name] == 0 or found["hops"] > 0.3


@pytest.mark.slow
def test_random_periods(on_ranks):
    for found in on_ranks["random"]:
        assert set(found["differs"]) <= IGNORED
    assert len(on_ranks["random"]) == RANDOM_RUNS
    assert sum(found["periods"] > 0 for found in on_ranks["random"]) >= 1


@pytest.mark.slow
def test_ranks_that_stop_and_continue(on_ranks):
    found = on_ranks["cut"]
    assert set(found["differs"]) <= IGNORED
    assert found["stops"] == 2
    assert found["periods"] >= 4


def test_a_process_that_fails_where_others_wait_for_its_state_ends_them(monkeypatch):
    look = recurrence.Recurrence._look

    def failing(self):
        if self._together.number == 1:
            raise ValueError("on purpose")
        return look(self)

    monkeypatch.setattr(recurrence, "HOPS_OF_MOMENT", 0)
    monkeypatch.setattr(recurrence, "HOPS_OF_NPU", 0)
    monkeypatch.setattr(recurrence.Recurrence, "_look", failing)
    graph, program = on_leaves(pipeline(domain=""), "switch:npus=16")
    chosen = replace(SETTINGS, nvlink_framing=False, reuse=True)
    layout = Layout(graph, chosen, np.arange(graph.nodes) % 2)
    with pytest.raises(RunError, match=r"worker 1: ValueError: on purpose"):
        run_divided(layout, program, chosen, Processes(2))
