"""What a user sees of replayed collectives: summary, report, estimate, and --exact."""

import json

import pyarrow.parquet as pq
import pytest

from nadi.insight.runs import Run
from nadi.reports.pages.report import engine_section
from nadi.simulation.wiring import resource_checks

STEP = (
    *("run", "--model", "gpt3-350m", "--plan", "tp8,dp2,gb4,seq512", "--cluster", "dgx-b200-superpod"),
    *("--gpus", 16, "--set", 'output.flows="none"'),
)


def test_a_step_is_the_same_with_exact(nadi, tmp_path):
    shown = nadi(*STEP, "--out", tmp_path / "replayed").out
    nadi(*STEP, "--exact", "--out", tmp_path / "exact")
    found, wanted = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("replayed", "exact"))
    assert found["digest"] == wanted["digest"]
    assert found["packet_hops"] == wanted["packet_hops"]
    assert "reuse" not in wanted
    counts = found["reuse"]
    assert counts["episodes_replayed"] > 20 * counts["episodes_simulated"] > 0
    assert 0.5 * found["packet_hops"] < counts["replayed_hops"] < found["packet_hops"]
    assert f"{counts['replayed_hops']:,} of them replayed" in shown
    facts = str(engine_section(Run(tmp_path / "replayed")))
    assert f"{counts['replayed_hops']:,}" in facts


@pytest.mark.slow
def test_large_runs_keep_no_rows_of_replayed_messages(nadi, tmp_path, monkeypatch):
    step = [word for word in STEP if word not in {"--set", 'output.flows="none"'}]
    monkeypatch.setattr(resource_checks, "MAX_ROWS_OF_MESSAGES", 1000)
    rows = {}
    for flows in ("auto", "all"):
        nadi(*step, "--set", f"output.flows={flows}", "--out", tmp_path / flows)
        rows[flows] = pq.read_table(tmp_path / flows / "flows.parquet")
    auto, whole = (json.loads((tmp_path / name / "summary.json").read_text()) for name in rows)
    assert auto["digest"] == whole["digest"]
    assert len(rows["all"]) == whole["flows"]
    assert len(rows["auto"]) == whole["flows"] - auto["reuse"]["replayed_messages"] > 0
    host_of_src, host_of_dst = (rows["all"][end].to_numpy() // 8 for end in ("src", "dst"))
    assert rows["auto"] == rows["all"].filter(host_of_src != host_of_dst)
