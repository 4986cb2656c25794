"""`nadi sweep`: points, resuming, the table and the page."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.insight.metrics import METRICS, best_value
from nadi.studies.sweeps.page import distributions
from nadi.studies.sweeps.points import keys_of, read_sweep, settings_of
from tests.headings import unexplained
from tests.nonempty import nonempty

RUN = """
[workload]
model = "gpt3-125m"
plan = "dp4,gb4"
[topology]
name = "leaf-spine"
params = { leaves = 1, hosts_per_leaf = 4, spines = 1, rate = "100Gbps", delay = "1us" }
[compute]
gpu = "a100"
[network]
fidelity = "closed-form"
"""
GRID = """
run = "run.toml"
[values]
"topology.params.rate" = ["100Gbps", "200Gbps", "400Gbps"]
"workload.plan" = ["dp4,gb4", "tp2,dp2,gb4", "pp2,dp2,gb4", "pp4,gb4"]
"""
QUICK = """
run = "run.toml"
[values]
"topology.params.rate" = ["100Gbps", "200Gbps", "400Gbps"]
"topology.params.delay" = ["1us", "2us"]
"""
MACHINE = ["wall_s", "peak_rss_bytes"]


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)

    def write(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return path

    return write


def rows(folder):
    return pq.read_table(folder / "sweep.parquet").drop_columns(MACHINE).to_pylist()


def await_end_of_group(group):
    """Until no process of a killed group holds a lock: its runs end a little later than the one that is waited for."""

    def lives(stat):
        with contextlib.suppress(OSError):  # it has ended since the listing
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            return int(its_group) == group and state not in "ZX"
        return False

    end = time.monotonic() + 60
    while any(map(lives, Path("/proc").glob("[0-9]*/stat"))):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def quick(write_run):
    """A sweep of six runs of one message each, which take as little as a run of nadi can."""
    traces = [[et.send_node(1, "send", 0, 1, 1 << 16)], [et.recv_node(1, "recv", 0, 1, 1 << 16)]]
    topology = 'name = "switch"\nparams = { npus = 2, rate = "100Gbps", delay = "1us" }'
    run = write_run(traces, '[network]\nfidelity = "closed-form"\n[output]\nnodes = "none"\n', topology)
    path = run.with_name("sweep.toml")
    path.write_text(QUICK.replace("run.toml", run.name))
    return path


@pytest.mark.usefixtures("points_here")
def test_a_killed_sweep_goes_on_and_ends_with_the_same_table(nadi, quick, tmp_path):
    """Six points; SIGKILL when two are there, with whatever runs under way."""
    file, out = quick, tmp_path / "out"
    command = [sys.executable, "-m", "nadi", "sweep", file, "-o", out, "--jobs", "2", "-q"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while len(list(out.glob("runs/[!.]*/summary.json"))) < 2:  # hidden folders are those of runs under way
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        await_end_of_group(process.pid)
    there = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("runs/[!.]*/summary.json")}
    assert 2 <= len(there) < 6
    assert not (out / "sweep.parquet").exists()

    assert nadi.ok("sweep", file, "-o", out).err.count("already finished") == len(there)
    assert all((out / "runs" / name / "summary.json").stat().st_mtime_ns == when for name, when in there.items())
    made = rows(out)
    assert len(made) == 6
    assert len({row["finish_time_ps"] for row in made}) == 6
    assert all(row["error"] is None and row["finish_time_ps"] > 0 for row in made)

    (tmp_path / "again").mkdir()
    for path in out.glob("runs/*"):  # the table is made of the folders alone, in the order of the sweep file
        (tmp_path / "again" / "runs").mkdir(exist_ok=True)
        path.rename(tmp_path / "again" / "runs" / path.name)
    nadi.ok("sweep", file, "-o", tmp_path / "again", "-q")
    assert rows(tmp_path / "again") == made


def test_a_point_is_the_run_that_nadi_run_makes(nadi, sweep, tmp_path):
    file = sweep('run = "run.toml"\n[values]\n"topology.params.rate" = ["200Gbps"]\n')
    document = nadi("sweep", file, "-o", tmp_path / "out", "-q", "--json").document
    run = nadi("run", tmp_path / "run.toml", "--set", "topology.params.rate=200Gbps", "--json", "-q").document
    assert document[0]["finish_time_ps"] == run["finish_time_ps"]
    assert (tmp_path / "out" / document[0]["run"] / "nodes.parquet").is_file()
    page = (tmp_path / "out" / "sweep.html").read_text()
    assert "1 of 1 points are finished" in page
    assert unexplained(page) == []


@pytest.mark.usefixtures("points_here")
def test_points_that_fail_do_not_stop_the_others(nadi, sweep, tmp_path):
    """A plan for more GPUs than the fabric has is known when fabric and traces are there."""
    points = '[[points]]\n"workload.plan" = "dp8,gb8"\n[[points]]\n"engine.seed" = 2\n'
    file = sweep('method = "list"\nrun = "run.toml"\n' + points)
    outcome = nadi("sweep", file, "-o", tmp_path / "out", "-q")
    assert outcome.code == 2
    assert "1 of 2 points failed; point 0: " in outcome.err
    first, second = pq.read_table(tmp_path / "out" / "sweep.parquet").to_pylist()
    assert "8" in first["error"]
    assert second["error"] is None


def test_a_sweep_whose_points_all_fail_keeps_and_prints_the_reasons(sweep, tmp_path):
    """In a process of its own, which imports nothing but what the command needs."""
    file = sweep('run = "run.toml"\n[values]\n"workload.plan" = ["dp8,gb8", "dp16,gb16"]\n')
    command = [sys.executable, "-m", "nadi", "sweep", file, "-o", tmp_path / "out", "-q"]
    done = subprocess.run(command, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "2 of 2 points failed; point 0: [workload] plan: dp8" in done.stderr
    kept = [row["error"] for row in pq.read_table(tmp_path / "out" / "sweep.parquet").to_pylist()]
    for gpus, error in zip((8, 16), kept, strict=True):
        assert f"is of {gpus} GPUs" in error
        assert f"is of {gpus} GPUs" in done.stdout
    assert "none of them finished" in (tmp_path / "out" / "sweep.html").read_text()


@pytest.mark.usefixtures("points_here")
def test_errors_are_not_among_the_runs_and_go_when_the_points_succeed(nadi, quick, tmp_path):
    """`nadi net slowdown sweep/runs/*` takes every folder there. A repaired trace gives the points other names."""
    out, trace = tmp_path / "out", tmp_path / "trace.1.et"
    good = trace.read_bytes()
    trace.write_bytes(good[:-1])
    assert nadi("sweep", quick, "-o", out, "-q").code == 2
    assert len(nonempty(list((out / "failed").iterdir()))) == 6
    assert nadi("sweep", quick, "-o", out, "-q", "--merge").err.count("trace.1.et") == 1  # the reason is kept
    trace.write_bytes(good)
    nadi.ok("sweep", quick, "-o", out, "-q")
    assert all((run / "summary.json").is_file() for run in nonempty(list((out / "runs").iterdir())))
    assert sorted(path.name for path in out.iterdir()) == ["runs", "sweep.html", "sweep.parquet"]


def test_names_depend_on_what_the_run_depends_on(sweep, tmp_path):
    def names():
        return [point.name for point in read_sweep(sweep(GRID)).points]

    before = names()
    assert len(set(before)) == 12
    assert names() == before
    (tmp_path / "run.toml").write_text(RUN + "[engine]\nseed = 7\n")
    assert not set(names()) & set(before)


def test_a_latin_hypercube_uses_each_stratum_once(sweep):
    text = """
    run = "run.toml"
    method = "latin-hypercube"
    samples = 8
    [ranges]
    "topology.params.rate" = { least = "100Gbps", most = "900Gbps" }
    "engine.seed" = { least = 1, most = 1000, whole = true }
    [values]
    "workload.plan" = ["dp4,gb4", "pp4,gb4"]
    """
    found = read_sweep(sweep(text))
    assert len(found.points) == 16
    rates = [float(point.values["topology.params.rate"].removesuffix("Gbps")) for point in found.points[:8]]
    assert sorted(int((rate - 100) // 100) for rate in rates) == list(range(8))
    assert all(isinstance(point.values["engine.seed"], int) for point in found.points)


@pytest.mark.usefixtures("points_here")
def test_shards_share_the_points(nadi, sweep, tmp_path):
    file = sweep('run = "run.toml"\n[values]\n"engine.seed" = [1, 2, 3]\n')
    nadi.ok("sweep", file, "-o", tmp_path / "out", "-q", "--shard", "1/2")
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1
    assert not (tmp_path / "out" / "sweep.parquet").exists()
    script = nadi("sweep", file, "-o", tmp_path / "out", "--slurm", "2").out
    assert "--array=0-1" in script
    assert '--shard "$SLURM_ARRAY_TASK_ID/2"' in script


@pytest.mark.usefixtures("points_here")
def test_faults_are_keys_like_others(nadi, sweep, tmp_path):
    (tmp_path / "run.toml").write_text(RUN + '[[faults]]\nat = "0s"\nnpu = 0\nslowdown = 1.1\n')
    file = sweep('run = "run.toml"\n[values]\n"faults.0.slowdown" = [1.1, 1.5, 2.0]\n"faults.0.npu" = [0, 3]\n')
    nadi.ok("sweep", file, "-o", tmp_path / "out", "-q")
    times = {(row["faults.0.npu"], row["faults.0.slowdown"]): row["step_time_ps"] for row in rows(tmp_path / "out")}
    assert times[0, 1.1] < times[0, 1.5] < times[0, 2.0]
    assert times[3, 2.0] == times[0, 2.0]


@pytest.mark.usefixtures("points_here")
def test_the_page_overlays_points_and_ranks_them_by_the_named_figure(nadi, write_run, tmp_path):
    sends, receives = (
        [node(number, "m", 0, 1, 1 << 16) for number in range(100)] for node in (et.send_node, et.recv_node)
    )
    write_run([sends, receives], "", 'name = "switch"\nparams = { npus = 2, rate = "100Gbps", delay = "1us" }').rename(
        tmp_path / "run.toml"
    )
    file = tmp_path / "sweep.toml"
    values = '[values]\n"topology.params.delay" = ["1us", "9us"]\n"engine.seed" = [1, 2]\n"network.mtu" = ["4KiB"]\n'
    file.write_text(f'run = "run.toml"\nrank = "p99_completion_ps"\n{values}')
    found = nadi.ok("sweep", file, "-o", tmp_path / "out", "-q")
    assert "settings: means over seeds, with 95 % confidence intervals, ranked by p99 completion" in found.out
    (best, _) = re.findall(r"^ (\dus) +2 .* \(\S+ \S+ to ", found.out, re.MULTILINE)  # a row per delay, of two seeds
    assert best == "1us"
    assert "all points: network.mtu = 4KiB" in found.out
    assert found.out.count("network.mtu") == 1
    text = (tmp_path / "out" / "sweep.html").read_text()
    assert "message completion time, cumulative distribution" in text
    assert "message slow-down, cumulative distribution" in text
    assert "They are repetitions of 2 settings, with different seeds" in text
    assert "engine.seed = " not in text
    assert "engine.seed is best" not in text
    assert "topology.params.delay = 1us is best" in text
    assert unexplained(text) == []
    file.write_text(f'run = "run.toml"\nrank = "speed"\n{values}')
    refused = nadi.refuse("sweep", file, "-o", tmp_path / "out", "-q")
    assert "sweep.toml: rank: found 'speed'; expected one of finish_time_ps, step_time_ps" in refused.err


def test_values_within_a_percent_are_as_good_as_each_other():
    time, rate = (next(each for each in METRICS if each.name == name) for name in ("finish_time_ps", "tokens_per_s"))
    assert best_value({"a": [1.0], "b": [1.02]}, time) == "a"
    assert best_value({"a": [1.0], "b": [1.009]}, time) is None
    assert best_value({"a": [1.0], "b": [1.2]}, rate) == "b"
    assert best_value({"a": [0.9, 1.0, 1.1], "b": [1.0, 1.1, 1.2]}, time) is None  # their intervals overlap
    assert best_value({"a": [0.9, 1.0, 1.1], "b": [1.9, 2.0, 2.1]}, time) == "a"


def test_another_version_of_nvidias_tables_makes_other_points(sweep, monkeypatch):
    names = []
    for version in ("", "aiconfigurator-core 0.12.0", "aiconfigurator-core 0.12.1"):
        monkeypatch.setattr("nadi.workload.compute.nvidia.installed", lambda version=version: version)
        names.append(frozenset(point.name for point in read_sweep(sweep(GRID)).points))
    assert len(set(names)) == 3


class MadeUpRun:
    """A run of a hundred messages whose folder's number is their slow-down, and the longest queue in bytes."""

    finish_time_ps, summary = 1000, {}

    def __init__(self, folder):
        number = int(folder.name)
        flows = {"start_ps": [0] * 100, "finish_ps": range(1, 101), "slowdown": [float(number)] * 100}
        self.flows, self.queues = pa.table(flows), pa.table({"link": [0], "time_ps": [500], "bytes": [number]})

    def has(self, _table):
        return True


def test_lines_have_a_colour_per_value_and_queues_a_panel_per_setting(monkeypatch, tmp_path):
    """Three controls at two loads with two seeds: twelve runs, three colours, two dashes, six panels."""
    monkeypatch.setattr("nadi.studies.sweeps.page.Run", MadeUpRun)
    rows = [(control, load, seed) for control in ("hpcc", "swift", "dctcp") for load in (0.3, 0.6) for seed in (1, 2)]
    columns = dict(zip(("control", "load", "seed"), map(list, zip(*rows, strict=True)), strict=True))
    runs, none = [str(number) for number in range(1, len(rows) + 1)], [None] * len(rows)
    points = pa.table(
        {**columns, "run": runs, "error": pa.array(none, pa.string()), "finish_time_ps": [1e3] * len(rows)}
    )
    figure = METRICS[0]
    settings = settings_of(points, figure)
    assert settings["seeds"].to_pylist() == [2] * 6
    plots = distributions(settings, keys_of(settings), figure, tmp_path).parts
    slow, queues = (next(plot for plot in plots if name in plot.title) for name in ("slow-down", "queue"))
    looks = [(line.line.color, line.line.dash) for line in slow.figure.data]
    assert (len(looks), len({colour for colour, _ in looks}), len({dash for _, dash in looks})) == (6, 3, 2)
    assert looks[0][0] == looks[1][0] != looks[2][0]
    assert [panel.text for panel in queues.figure.layout.annotations][:2] == [
        "control = hpcc, load = 0.3",
        "control = hpcc, load = 0.6",
    ]
    bands = [max(line.y) for line in queues.figure.data[:3]]  # of the first setting: least, most and mean of two runs
    assert bands == [1.0, 2.0, 1.5]
