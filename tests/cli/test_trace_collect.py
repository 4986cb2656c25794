"""`nadi trace collect`: a training script on CPUs, recorded, converted and simulated."""

import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import et
from et.pytorch import convert

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


def test_a_step_of_data_parallel_training_takes_as_long_simulated(nadi, tmp_path):
    recorded = collected(nadi, tmp_path / "recorded", "--batch", "16", "--steps", "7", steps="3-5")
    events = [json.loads((recorded / f"kineto.rank{rank}.json").read_text())["traceEvents"] for rank in (0, 1)]
    errors = []
    for step in (3, 4, 5):
        traces = tmp_path / f"traces{step}"
        arguments = ("--from", f"pytorch:step={step}", "--json")
        said = nadi("trace", "convert", recorded, "-o", traces, *arguments).document
        assert [rank["collectives"] for rank in said["report"]["ranks"]] == [{"all-reduce": 2}] * 2
        assert [rank["lost"] for rank in said["report"]["ranks"]] == [{}, {}]
        run = tmp_path / "run.toml"
        fabric = "fully-connected:npus=2,rate=10Gbps,delay=50us"
        run.write_text(f'[workload]\ntraces = "traces{step}/trace"\n[topology]\nspec = "{fabric}"\n')
        assert nadi("run", run, "--out", tmp_path / f"out{step}", "-q").code == 0
        rows = pq.read_table(tmp_path / f"out{step}" / "nodes.parquet", columns=["npu", "name", "finish_ps"])
        for rank in (0, 1):
            (measured,) = [event["dur"] for event in events[rank] if event.get("name") == f"ProfilerStep#{step}"]
            own = [row for row in rows.to_pylist() if row["npu"] == rank]
            begin = max((row["finish_ps"] for row in own if row["name"].startswith("(ranks")), default=0)
            simulated = (max(row["finish_ps"] for row in own) - begin) / 1e6
            errors.append(abs(simulated / measured - 1))
    assert statistics.median(errors) < 0.1


def test_sharded_training_keeps_its_collectives(nadi, tmp_path):
    made = convert([collected(nadi, tmp_path / "recorded", "--parallel", "fsdp")])
    for rank, table in made.tables.items():
        # four parts gathered forward, three of them once more backward; gloo reduces as it can
        found = counts(table)
        assert found[KINDS.ALL_GATHER] >= 7
        assert found.get(KINDS.ALL_REDUCE, 0) + found.get(KINDS.REDUCE_SCATTER, 0) == 4
        assert made.report["ranks"][rank]["lost"] == {}
    assert counts(made.tables[0]) == counts(made.tables[1])


def test_tensor_parallel_training_waits_for_its_all_reduces(nadi, tmp_path):
    made = convert([collected(nadi, tmp_path / "recorded", "--parallel", "tp")])
    for table in made.tables.values():
        rows = np.flatnonzero(table.comm_type == KINDS.ALL_REDUCE)
        assert table.comm_size[rows].tolist() == [4 * 64 * 128 * 4] * 4  # two layers, forward and backward
        waited_for = {int(parent) for parent in table.dep}
        assert waited_for >= set(rows.tolist())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--steps", "1", "--", "python"], 2, "--steps 1: expected a step from 2 on"),
        (["--steps", "5-3", "--", "python"], 2, "--steps 5-3: expected a step from 2 on"),
        (["--", "/no/such/program"], 2, "/no/such/program: No such file or directory"),
        (["--", sys.executable, "-c", "raise SystemExit(3)"], 1, "has ended with code 3"),
        (["--", sys.executable, "-c", "pass"], 1, "no step was recorded"),
    ],
)
def test_what_cannot_be_collected_is_one_line(nadi, tmp_path, arguments, code, says):
    outcome = nadi("trace", "collect", "-o", tmp_path / "out", *arguments)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert says in outcome.err


def test_the_api_records_the_steps_that_it_is_told(tmp_path):
    torch = pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    from et.pytorch import collect

    with collect(tmp_path, steps=[1, 2]) as steps:
        for _ in range(4):
            torch.ones(8).sum()
            steps.step()
    made = convert([tmp_path], "1")
    assert "aten::ones" in list(made.tables[0].names)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["host.rank0.json", "kineto.rank0.json"]
    with pytest.raises(ValueError, match="expected numbers in a row, from 1 on"), collect(tmp_path, steps=[0]):
        pass


def test_a_run_that_ends_before_its_step_leaves_nothing(tmp_path):
    pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    from et.pytorch import collect

    with collect(tmp_path, steps=[2]) as steps:
        steps.step()
    assert list(tmp_path.iterdir()) == []
