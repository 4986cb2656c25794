"""`nadi net slowdown`: percentiles by size class over several runs, with confidence intervals."""

import json
import re
import statistics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.insight.metrics import confidence_interval
from tests.cli.conftest import nadi, write_run  # noqa: F401 - fixtures
from tests.headings import unexplained

RATES = {"a": [1.0, 3.0, 2.0], "b": [5.0]}


@pytest.fixture
def folders(nadi, write_run, tmp_path):  # noqa: F811
    """Runs of two groups: 100 messages of 2 kB slowed down by a rate, and one of 50 kB whose slow-down is not known."""
    whole = tmp_path / "run"
    nodes = [[et.send_node(1, "s", 0, 1, 2000)], [et.recv_node(1, "r", 0, 1, 2000)]]
    assert nadi("run", write_run(nodes, "", 'spec = "switch:npus=2"'), "--out", whole, "-q").code == 0
    summary = json.loads((whole / "summary.json").read_text())
    made = []
    for group, rates in RATES.items():
        summary["config"]["network"]["congestion_control"] = group
        for number, rate in enumerate(rates):
            folder = tmp_path / f"{group}{number}"
            folder.mkdir()
            (folder / "summary.json").write_text(json.dumps(summary))
            slowdown = pa.array([*(rate * np.arange(1, 101)), None], pa.float64())
            pq.write_table(pa.table({"bytes": [2000] * 100 + [50_000], "slowdown": slowdown}), folder / "flows.parquet")
            made.append(folder)
    return made


def test_means_and_intervals_are_those_of_the_runs(nadi, folders):  # noqa: F811
    outcome = nadi("net", "slowdown", *folders, "--by", "network.congestion_control", "--json")
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)
    assert [(row["group"], row["from_bytes"]) for row in rows] == [("a", None), ("a", 1000), ("b", None), ("b", 1000)]
    several, single = rows[1], rows[3]
    assert (several["runs"], several["messages"]) == (3, 300)
    assert several["slowdown"] == {"p50": 100.0, "p95": 190.0, "p99": 198.0, "p99.9": None}  # 100 messages in each run
    of_runs = [50 * rate for rate in RATES["a"]]
    half = 4.303 * statistics.stdev(of_runs) / 3**0.5
    assert half > 100
    assert several["interval"]["p50"] == pytest.approx([1, 100 + half])
    assert several["interval"]["p99.9"] is None
    assert single["slowdown"]["p50"] == 250.0
    assert single["interval"] == dict.fromkeys(single["slowdown"])


def test_all_runs_are_one_group_without_a_key(nadi, folders, tmp_path):  # noqa: F811
    outcome = nadi("net", "slowdown", *folders, "-o", tmp_path / "page.html")
    assert outcome.code == 0
    assert re.search(r"137\.50 \([0-9.]+ to [0-9,.]+\)", outcome.out)
    assert "too few messages in every run; needed are 1 / (1 - p): p95 20, p99 100, p99.9 1,000" in outcome.out
    assert unexplained((tmp_path / "page.html").read_text()) == []
    assert "slow-down, p99" in (tmp_path / "page.html").read_text()


def test_other_settings_than_seeds_within_a_group_are_named(nadi, folders):  # noqa: F811
    """The means over both controls say nothing about chance; with a key for each, the groups differ in nothing else."""
    mixed = nadi("net", "slowdown", *folders)
    assert "runs of one group differ in network.congestion_control, not only in seeds; --by KEY" in mixed.err
    assert nadi("net", "slowdown", *folders, "--by", "network.congestion_control").err == ""


def test_intervals_end_at_the_minimum():
    assert confidence_interval([1.0], 1) is None
    assert confidence_interval([1.0, 1.0, 1.0], 1) == (1.0, 1.0)
    half = 4.303 * statistics.stdev([1, 2, 3]) / 3**0.5
    assert confidence_interval([1, 2, 3], 1) == pytest.approx((1, 2 + half))
    assert confidence_interval([11, 12, 13], 1) == pytest.approx((12 - half, 12 + half))


def test_intervals_cover_the_mean_as_often_as_they_say():
    """Skewed slow-downs near 1, of which a symmetric interval would often begin below 1."""
    rng = np.random.default_rng(5)
    samples = 1 + rng.gamma(4.0, 0.05, size=(4000, 5))
    covers = [low <= 1.2 <= high for low, high in (confidence_interval(own, 1) for own in samples)]
    assert 0.92 < np.mean(covers) < 0.97


def test_a_run_without_the_key_or_messages_is_refused(nadi, folders):  # noqa: F811
    outcome = nadi("net", "slowdown", *folders, "--by", "network.colour")
    assert outcome.code == 2
    assert f"--by network.colour: {folders[0]} has no such key" in outcome.err
    (folders[1] / "flows.parquet").unlink()
    outcome = nadi("net", "slowdown", *folders)
    assert outcome.code == 2
    assert f"{folders[1]}: no flows.parquet" in outcome.err
