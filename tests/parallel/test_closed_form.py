"""Runs at closed forms are done by one worker: whoever is asked to run them, the files are the same."""

import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.reports.run_folder import TABLES
from tests.nonempty import nonempty
from tests.parallel.test_fidelity import NPUS, WAYS, step, summary, written
from tests.parallel.waiting import add_a_knot, check_said_once

CLOSED = ("--set", "network.fidelity=closed-form")


@pytest.fixture(scope="module")
def alone(nadi, tmp_path_factory):
    """The run file and its results."""
    folder = tmp_path_factory.mktemp("alone")
    run = written(folder, [step(npu) for npu in range(NPUS)])
    done = nadi(None, "run", run, "-q", "--out", folder / "out", *CLOSED)
    assert done.returncode == 0, done.stderr
    return run, folder / "out"


@pytest.mark.parametrize("way", ["two threads", "plain Python", "two ranks"])
def test_results_are_the_same(nadi, alone, tmp_path, way):
    run, expected = alone
    ranks, environment, *options = WAYS[way]
    done = nadi(ranks, "run", run, "-q", "--out", tmp_path / "out", *CLOSED, *options, **environment)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "out") == summary(expected)
    for table in nonempty(TABLES):
        found, wanted = (pq.read_table(path / f"{table}.parquet") for path in (tmp_path / "out", expected))
        assert found.to_pydict() == wanted.to_pydict(), table


def test_a_run_that_cannot_finish_says_once_who_waits(nadi, tmp_path):
    nodes = [[et.comp_node(1, "c", duration_micros=3)] for _ in range(NPUS)]
    add_a_knot(nodes, 0, 5)
    done = nadi(2, "run", written(tmp_path, nodes), "--out", tmp_path / "new", "-q", *CLOSED)
    check_said_once(done, tmp_path / "new", 0, 5)
