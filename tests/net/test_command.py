"""`nadi net` on runs whose switches share buffers."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.insight.network import network_document, read_net_run
from nadi.reports.pages import Paragraph, Plot, Table
from nadi.reports.pages.network import network_parts
from tests.cli.conftest import nadi, write_run  # noqa: F401 - fixtures

FABRIC = 'spec = "leaf-spine:npus=12,hosts_per_leaf=4,spines=1,rate=100Gbps,uplink_rate=100Gbps,delay=1us"'
US = 10**6


def incast():
    nodes = [[] for _ in range(12)]
    pairs = [(src, 0, 600_000) for src in (4, 5, 6, 8, 9, 10)] + [(7, 11, 100_000), (2, 3, 5000)]
    for src, dst, size in pairs:
        nodes[src].append(et.send_node(len(nodes[src]) + 1, "s", src, dst, size))
        nodes[dst].append(et.recv_node(len(nodes[dst]) + 1, "r", src, dst, size))
    return nodes


@pytest.fixture
def folder(nadi, write_run, tmp_path):  # noqa: F811
    run = write_run(incast(), "[network]\nbuffer = '500kB'\ncongestion_control = 'dctcp'\n", FABRIC)
    outcome = nadi("run", run, "--out", tmp_path / "out", "-q")
    assert outcome.code == 0, outcome.err
    return tmp_path / "out"


def links_of(folder):
    table = pq.read_table(folder / "links.parquet")
    return {pair: i for i, pair in enumerate(zip(*(table[c].to_pylist() for c in ("src", "dst")), strict=True))}


def write_pauses(folder, *events):
    links = links_of(folder)
    time_us, link, paused = zip(*events, strict=True)
    columns = {
        "time_ps": np.array(time_us) * US,
        "link": [links[ends] for ends in link],
        "data_class": np.zeros(len(link), np.int64),
        "paused": [bool(each) for each in paused],
    }
    pq.write_table(pa.table(columns), folder / "pauses.parquet")


def test_what_a_run_writes(folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["switches"] == "shared buffers"
    network = summary["config"]["network"]
    assert (network["switch"], network["buffer"], network["pfc_headroom"]) == ("shared-buffer", "500kB", "auto")
    assert summary["settled"]["congestion"]["g"] == 1 / 16
    assert summary["pause_frames"] > 0
    flows = pq.read_table(folder / "flows.parquet")
    slow = dict(zip(flows["src"].to_pylist(), flows["slowdown"].to_pylist(), strict=True))
    assert slow[2] == 1.0
    assert slow[4] > 2
    assert flows["ideal_ps"].null_count == 0


def test_the_report_tells_of_the_fabric_where_something_happened(nadi, write_run):  # noqa: F811
    run = write_run(incast(), "", FABRIC)
    assert "fabric" not in nadi("run", run, "-q").out
    shown = nadi("run", run, "-q", "--set", "network.buffer=500kB").out
    assert "pauses" in shown
    assert "links paused" in shown
    lossy = nadi("run", run, "-q", "--set", "network.pfc=false", "--set", "network.buffer=100kB").out
    assert "packets dropped" in lossy
    assert "packets retransmitted" in lossy


def test_links_and_messages(nadi, folder):  # noqa: F811
    document = nadi("net", folder, "--json").document
    busiest = document["links"]["utilisation"][0]["name"]
    assert busiest in {"spine 0 → leaf 0", "leaf 0 → npu 0"}
    assert document["links"]["paused_ps"][0]["paused_ps"] > 0
    assert [(row["from_bytes"], row["messages"]) for row in document["messages"]] == [
        (None, 8),
        (1000, 1),
        (100_000, 7),
    ]
    assert document["messages"][1]["slowdown"]["p50"] == 1.0


def test_trees_and_victims(nadi, folder):  # noqa: F811
    up, in4, in7 = ("leaf 1", "spine 0"), ("npu 4", "leaf 1"), ("npu 7", "leaf 1")
    write_pauses(folder, (5, up, 1), (7, in4, 1), (8, in7, 1), (30, up, 0), (32, in4, 0), (33, in7, 0))
    document = nadi("net", folder, "--json").document
    (tree,) = document["trees"]
    assert (tree["switch"], tree["links"], document["pauses"]) == ("spine 0", 3, 3)
    assert [branch["link"] for branch in tree["spread"][0]["spread"]] == ["npu 4 → leaf 1", "npu 7 → leaf 1"]
    assert document["congested_links"] == ["spine 0 → leaf 0"]
    (victim,) = document["victims"]
    assert (victim["src"], victim["dst"], victim["sure"]) == (7, 11, True)
    shown = nadi("net", folder).out
    assert "spine 0, congested at spine 0 → leaf 0: 3 links, paused for 75 µs in all\n" in shown
    assert "  leaf 1 → spine 0: 1 pauses, first at 5 µs, 25 µs in all\n    npu 4 → leaf 1" in shown
    assert "head-of-line victims: 1 messages" in shown


@pytest.mark.parametrize(
    ("pauses", "spec", "said"),
    [
        # all that crosses the paused link goes to where the congestion is
        ([(5, ("spine 0", "leaf 0"), 1), (30, ("spine 0", "leaf 0"), 0)], None, "head-of-line victims: none"),
        ([(5, ("leaf 1", "spine 0"), 1)], "gone.toml", "messages delayed by pauses are not known: gone.toml"),
    ],
)
def test_pauses_without_victims_and_a_fabric_that_is_gone_are_said(nadi, folder, pauses, spec, said):  # noqa: F811
    write_pauses(folder, *pauses)
    summary = json.loads((folder / "summary.json").read_text())
    summary["config"]["topology"]["spec"] = spec or summary["config"]["topology"]["spec"]
    (folder / "summary.json").write_text(json.dumps(summary))
    shown = nadi("net", folder)
    assert shown.code == 0, shown.err
    assert said in shown.out
    assert "sure" not in shown.out
    if not spec:
        document = nadi("net", folder, "--json").document
        assert (document["congested_links"], document["victims"]) == (["leaf 0 → npu 0"], [])


def test_the_page_stands_alone(nadi, folder, tmp_path):  # noqa: F811
    queues = {"link": [28, 28, 27], "time_ps": [0, US, US], "bytes": [10, 20, 30]}
    pq.write_table(pa.table(queues), folder / "queues.parquet")
    marks = {"link": [28, 28], "time_ps": [0, US], "packets": [3, 4]}
    pq.write_table(pa.table(marks), folder / "marks.parquet")
    page = tmp_path / "page.html"
    outcome = nadi("net", folder, "-o", page)
    assert outcome.out.endswith(f"page: {page}\n")
    text = page.read_text()
    assert "utilisation by tier" in text
    assert "packets marked by ECN over time" in text
    assert 'src="http' not in text
    assert nadi("net", folder, "-o", tmp_path / "no" / "page.html").code == 2


def test_the_page_has_the_tree_of_pauses_and_their_victims(folder):
    """NPUs 4 and 7 are held up because leaf 1's way up is, and that because of spine 0; 7 does not even go there."""
    up, in4, in7 = ("leaf 1", "spine 0"), ("npu 4", "leaf 1"), ("npu 7", "leaf 1")
    write_pauses(folder, (5, up, 1), (7, in4, 1), (8, in7, 1), (30, up, 0), (32, in4, 0), (33, in7, 0))
    run = read_net_run(folder)
    drawn = network_parts(run, network_document(run))
    traces = [trace for part in drawn if isinstance(part, Plot) for trace in part.figure.data]
    (tree,) = (trace for trace in traces if trace.type == "icicle")
    label = dict(zip(tree.ids, tree.labels, strict=True))
    ends = {(label.get(parent), of) for parent, of in zip(tree.parents, tree.labels, strict=True)}
    assert ends == {
        (None, "all pauses"),
        ("all pauses", "root: spine 0 → leaf 0"),
        ("root: spine 0 → leaf 0", "leaf 1 → spine 0"),
        ("leaf 1 → spine 0", "npu 4 → leaf 1"),
        ("leaf 1 → spine 0", "npu 7 → leaf 1"),
    }
    paused_us = {of: ps / US for of, ps in zip(tree.labels, tree.values, strict=True)}
    assert (paused_us["leaf 1 → spine 0"], paused_us["npu 4 → leaf 1"], paused_us["root: spine 0 → leaf 0"]) == (
        25,
        25,
        0,
    )
    (table,) = (part for part in drawn if isinstance(part, Table))
    cells = {
        heading.name: list(column)
        for heading, column in zip(table.headings, zip(*table.rows, strict=True), strict=True)
    }
    assert (cells["src"], cells["dst"]) == (["npu 7"], ["npu 11"])
    assert (cells["size"], cells["certain"]) == (["100.00 kB"], ["yes"])
    assert Paragraph("how pauses spread: 3 pauses, 1 root") in drawn
    assert table.caption.startswith("head-of-line victims: 1 messages")


def test_a_page_without_pauses_says_so(nadi, write_run, tmp_path):  # noqa: F811
    assert nadi("run", write_run(incast(), "", FABRIC), "--out", tmp_path / "out", "-q").code == 0
    run = read_net_run(tmp_path / "out")
    drawn = network_parts(run, network_document(run))
    traces = [trace for part in drawn if isinstance(part, Plot) for trace in part.figure.data]
    assert {trace.type for trace in traces} == {"scatter", "box"}
    assert Paragraph("Nothing was paused.") in drawn
    looks = [
        (t.line.color or t.marker.color, t.line.dash if t.type == "scatter" else None, t.marker.symbol) for t in traces
    ]
    assert len(set(looks)) == len(looks) > 5


def test_files_of_two_runs_do_not_go_together(nadi, folder):  # noqa: F811
    pq.write_table(pa.table({"link": [99], "time_ps": [0], "bytes": [10]}), folder / "queues.parquet")
    outcome = nadi("net", folder)
    assert outcome.code == 2
    assert "queues.parquet: column link: found 99; expected 0 to 29" in outcome.err


def test_tables_of_an_earlier_run_do_not_stay(nadi, folder):  # noqa: F811
    own = pq.read_table(folder / "pauses.parquet")
    write_pauses(folder, (5, ("leaf 1", "spine 0"), 1))
    assert nadi("run", folder.parent / "run.toml", "--out", folder, "-q").code == 0
    assert pq.read_table(folder / "pauses.parquet").equals(own)
    assert own.num_rows > 1


def test_parameters_by_names_of_other_simulators(nadi, write_run, tmp_path):  # noqa: F811
    run = write_run(incast(), "[network]\ncongestion_control = 'dcqcn'\n", FABRIC)
    assert nadi("run", run, "-q", "--out", tmp_path / "o", "--set", "network.congestion.RATE_AI=50").code == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert summary["settled"]["congestion"]["fixed_rate_ai_bps"] == 50e6
