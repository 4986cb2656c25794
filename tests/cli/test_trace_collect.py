"""`nadi trace collect`: a training script on CPUs, recorded, converted and simulated."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.et.pytorch import convert
from tests.nonempty import nonempty

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_example.py"
KINDS = et.CollectiveCommType


def collected(nadi, folder, *options, steps="3"):
    pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    command = [sys.executable, SCRIPT, "--ranks", "2", *options]
    outcome = nadi("trace", "collect", "-o", folder, "--steps", steps, "--", *command)
    assert (outcome.code, outcome.err) == (0, "")
    assert {file.name for file in folder.iterdir()} == {
        f"{kind}.rank{rank}.json" for kind in ("host", "kineto") for rank in (0, 1)
    }
    return folder


def counts(table):
    kinds, many = np.unique(table.comm_type[table.comm_type >= 0], return_counts=True)
    return dict(zip(kinds.tolist(), many.tolist(), strict=True))


def measured_us(recorded, step):
    """How long each rank's step took, as Kineto has it."""
    found = []
    for rank in (0, 1):
        events = json.loads((recorded / f"kineto.rank{rank}.json").read_text())["traceEvents"]
        found += [event["dur"] for event in events if event.get("name") == f"ProfilerStep#{step}"]
    return found


def simulated_us(nadi, traces, fabric="fully-connected:npus=2,rate=10Gbps,delay=50us"):
    """How long each rank takes from when it begins."""
    run = traces.parent / "run.toml"
    run.write_text(f'[workload]\ntraces = "{traces.name}/trace"\n[topology]\nspec = "{fabric}"\n')
    assert nadi("run", run, "--out", traces / "results", "-q").code == 0
    rows = pq.read_table(traces / "results" / "nodes.parquet", columns=["npu", "name", "finish_ps"]).to_pylist()
    took = []
    for rank in (0, 1):
        own = [row for row in rows if row["npu"] == rank]
        begin = max((row["finish_ps"] for row in own if row["name"].startswith("(ranks")), default=0)
        took.append((max(row["finish_ps"] for row in own) - begin) / 1e6)
    return took


def reproduced(nadi, tmp_path, *options, steps=(3, 4)):
    """Record steps 3 and 4, convert, check and simulate them; every rank must take as long as it did, within 10 %."""
    recorded = collected(nadi, tmp_path / "recorded", "--steps", "6", *options, steps="3-4")
    for step in nonempty(steps):
        traces = tmp_path / f"traces{step}"
        said = nadi("trace", "convert", recorded, "-o", traces, "--from", f"pytorch:step={step}", "--json").document
        assert [rank["lost"] for rank in said["report"]["ranks"]] == [{}, {}]
        found = nadi("trace", "check", traces, "--json").document
        wrong = [sort for sort in found["findings"] if sort["severity"] != "note" and sort["check"] != "clocks"]
        assert wrong == []
        assert found["warnings"] <= 1  # each process of a busy machine may set Kineto's clock a little differently
        assert simulated_us(nadi, traces) == pytest.approx(measured_us(recorded, step), rel=0.1)
    return [et.read_trace(tmp_path / f"traces{steps[-1]}" / f"trace.{rank}.et") for rank in (0, 1)]


@pytest.mark.slow
def test_a_step_of_data_parallel_training_takes_as_long_simulated(nadi, tmp_path):
    tables = reproduced(nadi, tmp_path, "--batch", "4")
    assert [counts(table) for table in tables] == [{KINDS.ALL_REDUCE: 2}] * 2
    assert tables[0].comm_size[tables[0].comm_type >= 0].sum() == 2_112_512  # a float for each weight
    slow = "fully-connected:npus=2,rate=50Mbps,delay=50us"  # 338 ms for them
    assert min(simulated_us(nadi, tmp_path / "traces4", slow)) > 300_000


@pytest.mark.slow
def test_a_step_of_sharded_training_takes_as_long_simulated(nadi, tmp_path):
    tables = reproduced(nadi, tmp_path, "--parallel", "fsdp", "--batch", "4")
    for table in nonempty(tables):
        # four parts gathered forward, three of them once more backward; gloo reduces as it can
        found = counts(table)
        assert found[KINDS.ALL_GATHER] >= 7
        assert found.get(KINDS.ALL_REDUCE, 0) + found.get(KINDS.REDUCE_SCATTER, 0) == 4
    assert counts(tables[0]) == counts(tables[1])


@pytest.mark.slow
def test_a_step_of_tensor_parallel_training_takes_as_long_simulated(nadi, tmp_path):
    for table in nonempty(reproduced(nadi, tmp_path, "--parallel", "tp", "--batch", "4", steps=(4,))):
        rows = np.flatnonzero(table.comm_type == KINDS.ALL_REDUCE)
        assert table.comm_size[rows].tolist() == [4 * 64 * 128 * 4] * 4  # two layers, forward and backward
        waited_for = {int(parent) for parent in table.dep}
        assert waited_for >= set(rows.tolist())


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("raise SystemExit(3)", "has ended with code 3"),
        ("pass", "no step was recorded"),
    ],
)
def test_what_cannot_be_collected_is_one_line(nadi, tmp_path, script, says):
    outcome = nadi("trace", "collect", "-o", tmp_path / "out", "--", sys.executable, "-c", script)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert says in outcome.err


def test_the_api_records_the_steps_that_it_is_told(tmp_path):
    torch = pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    from nadi.et.pytorch import collect

    with collect(tmp_path, steps=[1, 2]) as steps:
        for _ in range(4):
            torch.ones(8).sum()
            steps.step()
    made = convert([tmp_path], "1")
    assert "aten::ones" in list(made.tables[0].names)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["host.rank0.json", "kineto.rank0.json"]
    with pytest.raises(ValueError, match="expected consecutive numbers from 1 on"), collect(tmp_path, steps=[0]):
        pass


def test_a_run_that_ends_before_its_step_leaves_nothing(tmp_path):
    pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    from nadi.et.pytorch import collect

    with collect(tmp_path, steps=[2]) as steps:
        steps.step()
    assert list(tmp_path.iterdir()) == []
