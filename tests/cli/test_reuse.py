"""What a user sees of replayed collectives: summary, report, estimate, and --exact."""

import json

from nadi.insight.runs import Run
from nadi.reports.pages.report.engine import section

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
    facts = str(section(Run(tmp_path / "replayed")))
    assert f"{counts['replayed_hops']:,}" in facts
