"""Bad input: each is one line on standard error and exit code 2, and nothing is written."""

import pytest

from nadi import et
from nadi.et import CollectiveCommType

ALL_REDUCE = CollectiveCommType.ALL_REDUCE


def reduce(size=1024, **more):
    return [et.coll_node(1, "grads", ALL_REDUCE, size, **more)]


def listing(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def refused(nadi, folder, *arguments):
    """Run, and check that the input is refused as it should be; gives the line."""
    before = listing(folder)
    outcome = nadi(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("nadi: error: ")
    assert outcome.err.count("\n") == 1
    assert listing(folder) == before
    return outcome.err


@pytest.mark.parametrize(("keep", "word"), [(0, "empty"), (-3, "expected at most"), (1, "byte 0")])
def test_truncated_traces(nadi, write_run, tmp_path, keep, word):
    run = write_run([reduce()] * 4)
    trace = tmp_path / "trace.2.et"
    trace.write_bytes(trace.read_bytes()[:keep])
    line = refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")
    assert "trace.2.et" in line
    assert word in line


def test_corrupt_length(nadi, write_run, tmp_path):
    run = write_run([reduce()] * 4)
    trace = tmp_path / "trace.1.et"
    trace.write_bytes(trace.read_bytes() + b"\xff" * 12)
    assert "corrupt message length" in refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")


@pytest.mark.parametrize("where", ["file", "file/deeper", "/dev/null/out", "/proc/nadi-out"])
def test_unwritable_output_is_found_before_simulating(nadi, write_run, step, tmp_path, monkeypatch, where):
    (tmp_path / "file").touch()
    monkeypatch.setattr("nadi.simulation.run.run_program", None)
    out = where if where.startswith("/") else tmp_path / where
    line = refused(nadi, tmp_path, "run", write_run([step] * 4), "--out", out, "-q")
    assert str(out) in line
