"""`nadi trace select`: planted clusters are found, and what is said of them is so."""

import json

import numpy as np
import pytest

from nadi import et
from nadi.et.selection import FEATURES, choose, coverage, features
from tests.nonempty import nonempty

KINDS = (et.CollectiveCommType.ALL_REDUCE, et.CollectiveCommType.ALL_TO_ALL, et.CollectiveCommType.ALL_GATHER)


def write_trace(path, family, draw):
    """A chain of compute and collectives, by its family short and talkative, long and busy, or wide."""
    generator = np.random.default_rng((family, draw))
    steps, micros, size = ((20, 10, 1 << 24), (60, 900, 1 << 14), (30, 100, 1 << 19))[family]
    nodes, last = [], []
    for step in range(steps + int(generator.integers(3))):
        of_step = 2 * step
        time = micros + int(generator.integers(micros // 10 + 1))
        nodes.append(et.comp_node(of_step, "work", duration_micros=time, deps=last if family < 2 else []))
        nodes.append(
            et.coll_node(of_step + 1, "talk", KINDS[family], size + int(generator.integers(100)), deps=[of_step])
        )
        last = [of_step + 1]
    et.write_trace(path, et.metadata(), nodes)


@pytest.fixture
def planted(tmp_path):
    """30 traces of the first family, 20 of the second, 10 of the third, in no order."""
    numbers = np.random.default_rng(7).permutation(60)
    for number, family in zip(numbers.tolist(), [0] * 30 + [1] * 20 + [2] * 10, strict=True):
        write_trace(tmp_path / f"family{family}.{number}.et", family, number)
    return tmp_path


def test_planted_clusters_are_found(nadi, planted):
    found = nadi("trace", "select", planted, "-k", 3, "--json")
    assert found.code == 0, found.err
    said = found.document
    assert [(row["path"].split("family")[1][0], row["items"]) for row in said["chosen"]] == [
        ("0", 30),
        ("1", 20),
        ("2", 10),
    ]
    assert [row["weight"] for row in said["chosen"]] == pytest.approx([30 / 60, 20 / 60, 10 / 60])
    assert said["coverage"]["within"] == 1
    assert said["coverage"]["mean"] < 0.5 * said["coverage"]["random_mean"]
    for means in nonempty(said["means"].values()):
        assert means["chosen"] == pytest.approx(means["all"], rel=0.06)


def test_fewer_than_there_are_clusters_cover_less(nadi, planted):
    two, three = (nadi("trace", "select", planted, "-k", k, "--json").document["coverage"] for k in (2, 3))
    assert two["mean"] > 2 * three["mean"]
    assert two["within"] == pytest.approx(50 / 60)
    assert two["farthest"] > 1 > three["farthest"]


def test_it_is_said_in_words(nadi, planted):
    found = nadi("trace", "select", planted, "-k", 3)
    assert found.code == 0, found.err
    assert "3 of 60" in found.out
    assert "50.0%" in found.out
    assert "within 0.5" in found.out


def test_traces_of_a_set_count_for_their_npus(nadi, tmp_path):
    """Two distinct traces, of 6 and of 2 NPUs; and folders as wholes."""
    for name, families in (("one", (0, 1)), ("other", (2, 2))):
        folder = tmp_path / name
        folder.mkdir()
        for npu, family in zip((0, 6), families, strict=True):
            write_trace(folder / f"t.npu{npu}.et", family, npu)
        traces = [
            {"file": "t.npu0.et", "example": 0, "npus": [0, 1, 2, 3, 4, 5]},
            {"file": "t.npu6.et", "example": 6, "npus": [6, 7]},
        ]
        for trace in traces:
            trace["nodes"] = len(et.read_trace(folder / trace["file"]))
        said = {"version": 1, "npus": 8, "traces": traces, "families": {}}
        (folder / "traces.json").write_text(json.dumps(said))
    found = nadi("trace", "select", tmp_path / "one", "-k", 2, "--json").document
    assert [row["weight"] for row in found["chosen"]] == [0.75, 0.25]
    found = nadi(
        "trace", "select", tmp_path / "one", tmp_path / "other", "-k", 2, "--each", "folder", "--json"
    ).document
    assert {row["path"] for row in found["chosen"]} == {str(tmp_path / "one"), str(tmp_path / "other")}


def test_clusters_against_every_choice():
    """Of 9 points in three heaps no three stand for all better; a point that is there often is the middle."""
    rows = np.zeros((9, len(FEATURES)))
    rows[:, 0] = [0, 0.1, 0.2, 10, 10.1, 10.2, 20, 20.1, 20.2]
    many = np.array([1, 1, 1, 1, 1, 9, 1, 1, 1.0])
    choice = choose(rows, many, 3)
    assert sorted(choice.chosen.tolist()) == [1, 5, 7]
    places = choice.places[:, 0]
    best = min(
        np.average(np.abs(places[:, None] - places[[a, b, c]]).min(axis=1), weights=many)
        for a in range(9)
        for b in range(a)
        for c in range(b)
    )
    assert coverage(choice, 0.5).mean == pytest.approx(best)


def test_more_than_differ_are_not_chosen():
    rows = np.zeros((5, len(FEATURES)))
    rows[3:, 0] = 4
    choice = choose(rows, np.ones(5), 4)
    assert sorted(choice.chosen.tolist()) == [0, 3]
    assert choice.distance.tolist() == [0] * 5
    assert choice.weights.tolist() == [0.6, 0.4]


def test_features_say_what_a_trace_is(tmp_path):
    nodes = [et.comp_node(0, "a", duration_micros=7), et.coll_node(1, "b", KINDS[1], 1 << 20, deps=[0])]
    et.write_trace(tmp_path / "t.0.et", et.metadata(), [*nodes, et.comp_node(2, "c", duration_micros=7, deps=[0, 1])])
    found = dict(zip(FEATURES, features(et.read_trace(tmp_path / "t.0.et")).tolist(), strict=True))
    assert found["nodes"] == 2
    assert found["share of COMP_NODE"] == pytest.approx(2 / 3)
    assert found["bytes in all-to-all"] == 1
    assert found["microseconds at 50%"] == 3
    assert found["depth by nodes"] == 1
    assert found["fan-in"] == 1
    assert found["largest fan-in"] == pytest.approx(np.log2(3))
    assert found["bytes"] == pytest.approx(20, abs=1e-5)
