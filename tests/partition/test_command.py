"""`nadi partition`: its documents and plots; tests/records has its tables and what it refuses."""

import json
import re

import numpy as np
import pytest

from nadi import partition, topologies
from nadi.cli.main import main
from nadi.reports.pages.partition import figure, write_plot
from nadi.reports.pages.places import MAX_LINES, MAX_MARKS, lay_out
from tests.cli.conftest import nadi, step, write_run  # noqa: F401 - fixtures
from tests.refusals import refused

FABRIC = 'spec = "fat-tree:k=4,rate=100Gbps,delay=1us"'


@pytest.fixture
def run_file(write_run, step):  # noqa: F811 - a fixture
    return write_run([step] * 16, topology=FABRIC)


def test_json_is_one_document_that_agrees_with_the_library(nadi, run_file):  # noqa: F811
    document = nadi("partition", run_file, "--parts", 4, "--method", "by-pod", "--json").document
    graph = topologies.build("fat-tree:k=4,rate=100Gbps,delay=1us")
    assert (document["npus"], document["nodes"], document["links"], document["weights"]) == (16, 36, 96, "expected")
    (said,) = document["reports"]
    owner = np.array(document["owner"])
    assert owner.tolist() == partition.partition(graph, 4, method="by-pod").owner.tolist()
    assert said["cut_links"] == int((owner[graph.link_src] != owner[graph.link_dst]).sum())
    # two ring all-reduces of 64 KiB: 30 steps each of one packet of 4 KiB, and as many acknowledgements
    assert sum(said["events"]) == pytest.approx(2 * 2 * 30 * (8 * 2 + 4 * 4 + 4 * 6), abs=36)


def test_what_metis_prints_is_not_in_the_document(write_run, step, capfd):  # noqa: F811
    """METIS prints a line for each part without a vertex, past Python's streams."""
    run = write_run([step] * 64, topology='spec = "leaf-spine:npus=64,hosts_per_leaf=1,spines=2,rate=100Gbps"')
    assert main(["partition", str(run), "--parts", "64", "--method", "metis", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["npus"] == 64


def test_what_is_expected_is_what_a_run_measures(nadi, run_file, tmp_path):  # noqa: F811
    assert nadi("run", run_file, "--out", tmp_path / "out", "-q").code == 0
    before = nadi("partition", run_file, "--parts", 4, "--json").document["reports"][0]
    after = nadi("partition", run_file, "--parts", 4, "--json", "--weights", tmp_path / "out").document["reports"][0]
    hops = json.loads((tmp_path / "out" / "summary.json").read_text())["packet_hops"]
    assert sum(after["events"]) == hops
    assert sum(before["events"]) == pytest.approx(hops, abs=36)
    assert not before["duration_is_given"]
    assert after["duration_is_given"]
    assert before["duration_ps"] < after["duration_ps"]


def test_the_plot_stands_alone(nadi, run_file, tmp_path):  # noqa: F811
    path = tmp_path / "parts.html"
    outcome = nadi("partition", run_file, "--parts", 2, "--plot", path)
    assert outcome.code == 0
    assert outcome.out.endswith(f"plot: {path}\n")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<script[^>]+src=", text)
    assert "npu 3, part 0" in text
    quiet = nadi("partition", run_file, "--parts", 2, "--plot", path, "--json")
    assert quiet.document["npus"] == 16
    assert quiet.err == f"plot: {path}\n"


def test_png_needs_more_than_plotly(tmp_path, monkeypatch):
    graph = topologies.build("ring:npus=4")
    found, weights = partition.partition(graph, 2), partition.uniform(graph)

    def fail(*_arguments, **_options):
        raise ValueError("no kaleido\nsecond line")

    monkeypatch.setattr("plotly.graph_objects.Figure.to_image", fail)
    line = refused(ValueError, write_plot, tmp_path / "x.png", graph, found, weights)
    assert "no kaleido; expected pip install kaleido and a browser, or" in line


@pytest.mark.parametrize(
    "spec",
    [
        "ring:npus=8",
        "torus:sizes=4x3x2",
        "fat-tree:k=4",
        "rail-optimised:npus=16,gpus_per_host=4",
        "stack:dims=Switch(4)_Ring(4)_Ring(4)",
    ],
)
def test_small_fabrics_are_drawn_node_by_node(spec):
    graph = topologies.build(spec)
    found, weights = partition.partition(graph, 2), partition.uniform(graph)
    marks = lay_out(graph, found.owner, weights.link)
    assert marks.of_node.tolist() == list(range(graph.nodes))
    assert len({(x, y) for x, y in zip(marks.x.round(9), marks.y.round(9), strict=True)}) == graph.nodes
    pairs = {tuple(sorted(ends)) for ends in zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True)}
    assert {tuple(ends) for ends in marks.line.T.tolist()} == pairs
    cut = [found.owner[a] != found.owner[b] for a, b in marks.line.T.tolist()]
    assert cut == [True] * marks.cut_lines + [False] * (len(cut) - marks.cut_lines)
    drawn = figure(graph, found, weights)
    assert sum(len(trace.x) for trace in drawn.data[2:]) == graph.nodes


@pytest.mark.parametrize("spec", ["fat-tree:npus=8192", "torus:sizes=32x16x16", "rail-optimised:npus=8192"])
def test_large_fabrics_are_drawn_with_some_thousand_marks(spec):
    graph = topologies.build(spec)
    found = partition.partition(graph, 8)
    marks = lay_out(graph, found.owner, partition.uniform(graph).link)
    assert len(marks.part) <= MAX_MARKS * 1.1
    assert marks.line.shape[1] <= MAX_LINES
    assert marks.nodes.sum() == graph.nodes
    assert (found.owner == marks.part[marks.of_node]).all()
    if spec.startswith("fat-tree"):
        assert marks.is_switch.sum() == graph.nodes - graph.npus  # every switch, and a mark for the NPUs of each leaf
