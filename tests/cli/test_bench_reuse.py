"""`nadi bench reuse`."""

import pytest

from nadi.launching.progress import NoProgress
from nadi.studies.benchmarks import bench

SMALL = {"model": "gpt3-350m", "plan": "tp8,pp2,mb1,gb2", "runs": 1}


@pytest.mark.slow
def test_figures_are_those_of_both_runs():
    found = bench.run_reuse_bench(NoProgress(), **SMALL)
    assert found["same_digest"]
    assert found["digest"] == found["digest_off"]
    assert 0 < found["episodes_simulated"] < found["episodes_replayed"]
    assert 0 < found["episode_hops"] < found["replayed_hops"] < found["packet_hops"]
    assert found["ratio"] == pytest.approx(found["off_s"] / found["exact_s"])
    assert found["record_bytes"] > 0


@pytest.mark.parametrize(("other", "code", "text"), [("a1", 0, "a1, equal"), ("b2", 1, "a1, but b2 by all packets")])
def test_digests_that_differ_end_with_code_1(nadi, monkeypatch, other, code, text):
    figures = {
        "model": "m",
        "plan": "p",
        "cluster": "c",
        "runs": 1,
        "packet_hops": 10,
        "exact_s": 1.0,
        "off_s": 2.0,
        "ratio": 2.0,
        "episodes_simulated": 1,
        "episodes_replayed": 2,
        "episode_hops": 3,
        "replayed_hops": 6,
        "record_bytes": 7,
        "digest": "a1",
        "digest_off": other,
        "same_digest": other == "a1",
    }
    monkeypatch.setattr(bench, "run_reuse_bench", lambda *_, **__: figures)
    outcome = nadi("bench", "reuse", "-q")
    assert outcome.code == code
    assert text in outcome.out


@pytest.mark.parametrize("option", [("--size", "4KiB"), ("--topology", "ring:npus=4")])
def test_fabric_and_size_are_those_of_the_step(nadi, option):
    outcome = nadi("bench", "reuse", *option)
    assert outcome.code == 2
    assert f"found {option[0]}; expected neither" in outcome.err
