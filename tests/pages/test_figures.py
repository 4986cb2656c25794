"""Figures of pages as SVG, PDF and CSV: their numbers, and that the files are well formed."""

import csv
import io
import re
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest

import nadi as package
from nadi.reports.figures import write_figures
from nadi.reports.figures.drawing import WIDTH, draw
from nadi.reports.figures.shapes import Path, Text, pdf, svg, width_of
from nadi.reports.pages import charts
from nadi.reports.pages.page import Page, PageSection, Plot
from tests.cli.conftest import nadi  # noqa: F401 - a fixture
from tests.nonempty import nonempty

HEIGHT_PIXELS = 400
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs():
    """Two seeds of messages on a fabric with queues and pauses, and a step of a model."""
    traffic = {"sizes": "web-search", "load": 0.7, "duration": "500us"}
    fabric = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us"
    buffers = {"switch": "shared-buffer", "buffer": "500kB"}
    return [
        package.simulate(workload={"traffic": traffic | {"seed": seed}}, topology=fabric, network=buffers)
        for seed in (1, 2)
    ]


def texts(shapes):
    return [shape.text for shape in shapes if isinstance(shape, Text)]


def lines(shapes, colour):
    wanted = tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return [np.array(shape.points) for shape in shapes if isinstance(shape, Path) and shape.stroke == wanted]


def test_points_are_where_their_ticks_are():
    """A line through the values of ticks goes through the places of their texts."""
    figure = charts.figure("time, s", "rate")
    figure.add_scatter(x=[0, 2, 4, 8], y=[1, 10, None, 1000], mode="lines", name="a", line={"color": "#102030"})
    figure.add_scatter(x=[4, 8], y=[10, 100], mode="lines", name="b", line={"color": "#405060", "shape": "hv"})
    figure.update_yaxes(type="log")
    shapes, height = draw(figure, HEIGHT_PIXELS)
    places = {shape.text: shape.at for shape in shapes if isinstance(shape, Text)}
    assert {"time, s", "rate", "a", "b", "0", "2", "8", "10", "1000"} <= set(places)
    (line,) = [
        own for own in lines(shapes, "#102030") if len(own) == 2 and own[0][0] != own[1][0] and own[0][1] < height - 20
    ]
    assert line[0][0] == pytest.approx(places["0"][0])
    assert line[1] == pytest.approx((places["2"][0], places["10"][1] - 3))
    stepped = max(lines(shapes, "#405060"), key=len)
    assert stepped[1] == pytest.approx((places["8"][0], places["10"][1] - 3))
    assert all(
        0 <= x <= WIDTH and 0 <= y <= height for shape in shapes if isinstance(shape, Path) for x, y in shape.points
    )


def test_bars_end_at_their_sums():
    figure = charts.bars(["first", "second"], {"a": [1, 2], "b": [3, 0]}, ["#102030", "#405060"], "s")
    shapes, _ = draw(figure, HEIGHT_PIXELS)
    ends = {shape.text: shape.at[0] for shape in shapes if isinstance(shape, Text) and shape.anchor == "middle"}
    right = [max(x for x, _ in shape.points) for shape in shapes if isinstance(shape, Path) and shape.fill is not None]
    assert right == pytest.approx([ends["1"], ends["2"], ends["4"]])
    assert {"first", "second", "a", "b"} <= set(texts(shapes))


def test_formats_have_the_same_shapes():
    area = [(0.0, 0.0), (50.0, 0.0), (50.0, 20.0)]
    shapes = [Path(area, fill=(1.0, 0.0, 0.0), opacity=0.5), Text((10.0, 40.0), "leaf 0 → npu (1)", 9.0, "end")]
    root = ET.fromstring(svg(shapes, 100, 50))  # noqa: S314 - our own file
    assert root.find(f"{SVG}polygon").get("points") == "0.00,0.00 50.00,0.00 50.00,20.00"
    assert root.find(f"{SVG}text").text == "leaf 0 → npu (1)"
    file = pdf(shapes, 100, 50)
    assert file.startswith(b"%PDF-1.4\n")
    assert file.endswith(b"%%EOF\n")
    start = int(re.search(rb"startxref\n(\d+)", file)[1])
    assert file[start:].startswith(b"xref\n")
    for number, place in enumerate(nonempty(re.findall(rb"^(\d{10}) 00000 n", file[start:], re.MULTILINE)), 1):
        assert file[int(place) :].startswith(f"{number} 0 obj".encode())
    content = zlib.decompress(re.search(rb"stream\n(.*)\nendstream", file, re.DOTALL)[1]).decode("cp1252")
    assert "1.000 0.000 0.000 rg 0.00 50.00 m 50.00 50.00 l 50.00 30.00 l f" in content
    shown = r"(leaf 0 -> npu \(1\)) Tj"
    assert shown in content
    assert f"1 0 0 1 {10 - width_of('leaf 0 -> npu (1)', 9):.2f} 10.00 Tm" in content


def test_the_charts_of_pages_are_files(nadi, runs, tmp_path):  # noqa: F811
    command = nadi("report", runs[0].folder, "--figures", tmp_path / "a", "-q")
    assert command.code == 0, command.err
    names = {path.stem for path in (tmp_path / "a").iterdir()}
    for name in ("network-utilisation-by-tier", "network-completion-times-of-messages-by-size"):
        assert name in names
    assert any("fullest-ports-over-time" in name for name in names)
    assert any("paused-by-pfc" in name for name in names)
    assert f"figures: {tmp_path / 'a'}, {len(names)} as SVG, PDF and CSV" in command.out
    for name in names:
        ET.fromstring((tmp_path / "a" / f"{name}.svg").read_bytes())  # noqa: S314 - our own file
        assert (tmp_path / "a" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a" / "network-utilisation-by-tier.csv").read_text())))
    busy = [float(row["x"]) for row in rows if row["series"] == "npu → leaf"]
    links = runs[0].links.filter(np.char.startswith(np.array(runs[0].links["src"].to_pylist()), "npu"))
    assert sorted(busy) == pytest.approx(sorted(links["utilisation"].to_pylist()))


def test_slowdowns_have_their_intervals_as_csv(nadi, runs, tmp_path):  # noqa: F811
    folders = [run.folder for run in runs]
    assert nadi("net", "slowdown", *folders, "--figures", tmp_path / "b").code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "b" / "slowdown-slow-down-p50.csv").read_text())))
    expected = [row for row in package.slowdown(*runs) if row["from_bytes"]]
    assert [float(row["y"]) for row in rows] == pytest.approx([row["slowdown"]["p50"] for row in expected])
    ends = [row["interval"]["p50"] or (row["slowdown"]["p50"],) * 2 for row in expected]
    assert np.array([(float(row["low"]), float(row["high"])) for row in rows]) == pytest.approx(np.array(ends))


def test_figures_of_one_title_have_names_of_their_own(tmp_path):
    figure = charts.bars(["a"], {"b": [1]}, ["#102030"], "s")
    plots = [Plot("../Time (s)", figure, "") for _ in range(3)]
    names = write_figures(tmp_path / "c", Page("", "", [PageSection("s", "", "", plots)]))
    assert names == ["s-time-s", "s-time-s-2", "s-time-s-3"]
    assert len(list((tmp_path / "c").iterdir())) == 9


def test_figures_need_plotly_and_a_folder(nadi, runs, monkeypatch, tmp_path):  # noqa: F811
    (tmp_path / "file").write_text("")
    outcome = nadi("net", runs[0].folder, "--figures", tmp_path / "file")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    monkeypatch.setattr("nadi.reports.figures.has_plotly", lambda: False)
    outcome = nadi("net", runs[0].folder, "--figures", tmp_path / "d")
    assert outcome.code == 2
    assert "--figures: plotly is not installed; expected pip install 'nadi[plot]'" in outcome.err
