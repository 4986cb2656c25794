"""The results of a run until a checkpoint: those of the whole run until then, and the same on any workers."""

import json
import shutil

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.cli.main import main
from nadi.inputs.units import format_time
from nadi.launching.checkpoints import PARTIAL
from tests.features.restarting import STOPPED, differences, tables
from tests.nonempty import nonempty
from tests.parallel.cut_at import cut_at

NPUS = 8
STEPS = 6
WAYS = {
    "threads": ("engine.workers=2",),
    "processes": ("engine.workers=2", "engine.backend=processes"),
    "3 parts": ("engine.lps_per_worker=3", "engine.partitioner=scatter"),
}
"""Options of runs in two parts or more, whose windows are equally long."""
FIDELITIES = ("packet", "flow", "analytical")
RUN = """
[workload]
traces = "trace"
[topology]
spec = "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us"
[engine]
checkpoint = "1h"
reuse = "off"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of some steps, in which NPUs compute and add gradients, each at a pace of its own."""
    folder = tmp_path_factory.mktemp("partial")
    for npu in range(NPUS):
        nodes = []
        for step in range(STEPS):
            name, number = f"step{step}/forward/mb0", 2 * step + 1
            nodes.append(et.comp_node(number, f"{name}/layer", duration_micros=5 + npu, deps=[number - 1] * (step > 0)))
            kind = et.CollectiveCommType.ALL_REDUCE
            nodes.append(et.coll_node(number + 1, f"{name}/dp:all-reduce", kind, 1 << 18, deps=[number]))
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes)
    (folder / "run.toml").write_text(RUN)
    return folder


def command(folder, out, *keys):
    return ["run", str(folder / "run.toml"), "--quiet", "--out", str(out), *(f"--set={key}" for key in keys)]


def whole(folder, *keys):
    out = folder / "-".join(("whole", *keys))
    if not out.exists():
        assert main(command(folder, out, *keys)) == 0
    return out


def middle_ps(folder, *keys):
    return json.loads((whole(folder, *keys) / "summary.json").read_text())["finish_time_ps"] * 2 // 5


def summary_of(partial):
    return json.loads((partial / "summary.json").read_text())


def check_times(partial, results):
    """Check times in partial results against those of the whole run until then; return the number of collectives."""
    summary = summary_of(partial)
    snapshot_ps = summary["finish_time_ps"]
    collectives = pq.read_table(results / "collectives.parquet")
    done = collectives.filter(pc.less(collectives["finish_ps"], snapshot_ps))
    assert pq.read_table(partial / "collectives.parquet").equals(done)
    nodes = pq.read_table(results / "nodes.parquet")
    npu, start_ps, finish_ps = (np.asarray(nodes[name]) for name in ("npu", "start_ps", "finish_ps"))
    is_compute = np.asarray(pc.equal(nodes["kind"].cast("string"), "compute"))
    length_ps = np.minimum(finish_ps, snapshot_ps) - np.minimum(start_ps, snapshot_ps)
    found = pq.read_table(partial / "npus.parquet")
    for column, kept in nonempty([("compute_ps", is_compute), ("exposed_ps", ~is_compute)]):
        assert found[column].to_pylist() == np.bincount(npu[kept], length_ps[kept], len(found)).tolist()
    numbers = np.array([int(name.as_py()[4 : name.as_py().index("/")]) for name in nodes["name"]])
    assert summary["partial"]["steps_done"] == numbers[finish_ps >= snapshot_ps].min()
    return len(done)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_they_are_those_of_the_whole_run_until_then(folder, tmp_path, fidelity):
    keys = (f"network.fidelity={fidelity}",)
    results = whole(folder, *keys)
    with cut_at(middle_ps(folder, *keys)):
        assert main(command(folder, tmp_path / "out", *keys)) == STOPPED
    partial = tmp_path / "out" / PARTIAL
    summary = summary_of(partial)
    snapshot_ps = summary["partial"]["simulated_ps"]
    assert summary["finish_time_ps"] == snapshot_ps
    assert summary["warnings"][0] == f"partial results, of the first {format_time(snapshot_ps)}: the run is not over"
    assert 0 < check_times(partial, results) < len(pq.read_table(results / "collectives.parquet"))
    steps = pq.read_table(partial / "steps.parquet")
    total_ps = sum(np.asarray(steps[name]) for name in steps.column_names if name.endswith("_ps"))
    assert total_ps.tolist() == [snapshot_ps] * NPUS
    assert summary["partial"]["steps"] == STEPS
    sent, all_sent = (np.asarray(pq.read_table(each / "links.parquet")["tx_bytes"]) for each in (partial, results))
    assert (sent <= all_sent).all()
    assert 0 < sent.sum() < all_sent.sum()
    assert not [*partial.glob("nodes.*"), *partial.glob("flows.*")]


@pytest.mark.full
def test_they_are_the_same_on_any_workers(folder, tmp_path, python):
    time_ps = middle_ps(folder)
    found = {}
    for way, keys in WAYS.items():
        with cut_at(time_ps):
            assert main(command(folder, tmp_path / way, *keys)) == STOPPED
        found[way] = tables(tmp_path / way / PARTIAL)
    for way, more in {"ranks": (), "ranks of two nodes": ("engine.share_memory=false",)}.items():
        done = python(2, "tests/parallel/cut_at.py", time_ps, *command(folder, tmp_path / way, *more))
        assert done.returncode == STOPPED, done.stderr
        found[way] = tables(tmp_path / way / PARTIAL)
    for way in nonempty(found):
        assert differences(found[way], found["threads"]) == [], way


def test_a_run_that_continues_removes_them(folder, tmp_path):
    out = tmp_path / "out"
    with cut_at(middle_ps(folder)):
        assert main(command(folder, out)) == STOPPED
    assert (out / PARTIAL).is_dir()
    assert main(["run", "--quiet", "--resume", str(out)]) == 0
    assert not (out / PARTIAL).exists()
    assert differences(tables(out), tables(whole(folder))) == []


def test_commands_that_read_them(folder, tmp_path, capsys):
    out = tmp_path / "out"
    with cut_at(middle_ps(folder)):
        assert main(command(folder, out)) == STOPPED
    partial = shutil.copytree(out / PARTIAL, tmp_path / "partial")
    capsys.readouterr()
    assert main(["watch", str(out), "--once", "--json"]) == 1
    seen = json.loads(capsys.readouterr().out)
    assert (seen["state"], seen["partial"]) == ("ended", summary_of(partial)["partial"])
    assert main(["watch", str(out)]) == 1
    assert f"tables in {out / PARTIAL}; steps 2 of 6 done; compute " in capsys.readouterr().out
    assert main(["report", str(partial), "--quiet"]) == 0
    assert "the run is not over" in (partial / "report.html").read_text()
    assert main(["compare", str(partial), str(partial)]) == 0
    capsys.readouterr()
    assert main(["explain", str(partial), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the run was not over, and has no nodes.parquet" in line


def test_a_failure_does_not_end_the_run(folder, tmp_path, monkeypatch, capsys):
    def failing(*_):
        raise OSError(28, "No space left on device")

    command_line = [word for word in command(folder, tmp_path / "out") if word != "--quiet"]
    with cut_at(middle_ps(folder)), monkeypatch.context() as patch:
        patch.setattr("nadi.reports.run_folder.write_results", failing)
        assert main(command_line) == STOPPED
    assert "no partial results could be written: [Errno 28] No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "out" / PARTIAL).exists()
    assert main(["run", "--quiet", "--resume", str(tmp_path / "out")]) == 0
