"""Figures of pages as SVG, PDF and CSV: their texts, lines and numbers, and that a second run writes the same bytes."""

import csv
import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import nadi as package
from nadi.reports.figures import can_draw, draw, write_figures
from nadi.reports.pages import Page, PageSection, Plot, band_lines, bar_chart, empty_figure, heat_map, panel_figure
from nadi.terminal import in_page
from tests.cli.conftest import nadi  # noqa: F401 - a fixture
from tests.nonempty import nonempty

HEIGHT_PIXELS = 400
SVG = "{http://www.w3.org/2000/svg}"
FABRIC = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us"


@pytest.fixture(scope="module")
def runs():
    """Two seeds of messages on a fabric with queues and pauses, and a step of a model."""
    traffic = {"sizes": "web-search", "load": 0.7, "duration": "500us"}
    buffers = {"switch": "shared-buffer", "buffer": "500kB"}
    return [
        package.simulate(workload={"traffic": traffic | {"seed": seed}}, topology=FABRIC, network=buffers)
        for seed in (1, 2)
    ]


def texts(svg):
    return ["".join(text.itertext()) for text in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own file


def lines(svg, style):
    """The points of each path whose style has these words, float64[points, 2], y downwards."""
    paths = [path for path in ET.fromstring(svg).iter(f"{SVG}path") if style in path.get("style", "")]  # noqa: S314
    return [np.array(re.findall(r"[ML] (\S+) (\S+)", path.get("d")), float) for path in paths]


def drawn(figure):
    svg, pdf = draw(figure, HEIGHT_PIXELS)
    assert pdf.startswith(b"%PDF-")
    assert pdf.rstrip().endswith(b"%%EOF")
    assert b"/FontFile2" in pdf, "fonts are embedded"
    return svg


def names_of(folder):
    """The names of the figures in a folder, each of which is there as SVG, PDF and CSV."""
    names = {path.stem for path in folder.iterdir()}
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{end}" for name in names for end in ("svg", "pdf", "csv")
    }
    for name in nonempty(names):
        assert texts((folder / f"{name}.svg").read_bytes())
        assert b"/FontFile2" in (folder / f"{name}.pdf").read_bytes()
    return names


def test_lines_have_axes_a_legend_and_the_style_of_the_page():
    figure = empty_figure("time, s", "rate")
    figure.add_scatter(x=[0, 2, 4, 8], y=[1, 10, None, 1000], mode="lines", name="a", line={"color": "#102030"})
    dashed = {"color": "#405060", "shape": "hv", "dash": "5px,15px"}
    figure.add_scatter(x=[4, 8], y=[10, 100], mode="lines", name=in_page("b < $1$ & 字"), line=dashed)
    figure.add_hline(y=100, line_dash="dot", line_color="#708090")
    figure.update_yaxes(type="log")
    svg = drawn(figure)
    assert {"time, s", "rate", "a", "b < $1$ & 字", "0", "2", "8", "1", "10", "1,000"} <= set(texts(svg))
    solid, _ = lines(svg, "stroke: #102030")  # and that of the legend
    stepped, _ = lines(svg, "stroke: #405060")
    (level,) = lines(svg, "stroke: #708090")
    (left, bottom), (second, middle), (right, top) = solid
    assert (right - left) == pytest.approx(4 * (second - left))
    assert (bottom - top) == pytest.approx(3 * (bottom - middle))  # decades
    half = left + 2 * (second - left)
    assert stepped == pytest.approx(np.array([[half, middle], [right, middle], [right, level[0][1]]]))
    assert b"stroke-dasharray: 3.75,11.25" in svg  # 5 and 15 pixels of 1/96 inch


def test_marks_bars_of_errors_and_areas():
    figure = empty_figure("size", "s")
    for line in band_lines(np.arange(3.0), np.zeros(3), np.ones(3), "#102030"):
        figure.add_trace(line)
    errors = {"array": [1, 1], "arrayminus": [2, 1]}
    mark = {"color": "#405060", "symbol": "star-open", "size": 16}
    figure.add_scatter(x=[1, 2], y=[5, 5], error_y=errors, mode="markers+text", marker=mark, text=["one", "two"])
    figure.add_vline(x=2, line_color="#708090")
    figure.add_vrect(x0=0, x1=1, fillcolor="#a0b0c0", opacity=0.5, line_width=0)
    svg = drawn(figure)
    assert {"one", "two"} <= set(texts(svg))
    (first, second) = (line for line in lines(svg, "stroke: #405060") if np.ptp(line[:, 1]) > 5 and len(line) == 2)
    assert np.ptp(first[:, 1]) == pytest.approx(1.5 * np.ptp(second[:, 1]))
    assert svg.count(b'style="fill: #102030; fill-opacity: 0.25"') == 1
    assert len(lines(svg, "fill: #a0b0c0; opacity: 0.5")) == 1
    assert [np.ptp(line[:, 0]) for line in lines(svg, "stroke: #708090")] == [0]


@pytest.mark.parametrize("mode", ["stack", "group"])
def test_bars_are_as_long_as_their_values(mode):
    figure = bar_chart(["first", "second"], {"a": [1, 2], "b": [3, 1]}, ["#102030", "#405060"], "s", mode)
    svg = drawn(figure)
    a, b = ([bar for bar in lines(svg, f"fill: {colour}") if len(bar) > 3][:2] for colour in ("#102030", "#405060"))
    lengths = np.array([np.ptp(bar[:, 0]) for bar in (*a, *b)])
    assert lengths / lengths[0] == pytest.approx(np.array([1, 2, 3, 1]))
    ends = a[0][:, 0].max() if mode == "stack" else a[0][:, 0].min()
    assert b[0][:, 0].min() == pytest.approx(ends)
    assert (a[0][:, 1].max() <= b[0][:, 1].min() + 1e-3) == (mode == "group"), "grouped bars are below each other"
    assert a[0][:, 1].max() < a[1][:, 1].min(), "the first row is at the top"
    assert [text for text in texts(svg) if text in {"first", "second", "a", "b"}] == ["first", "second", "a", "b"]


def test_heat_maps_have_cells_and_a_scale():
    look = {"colorscale": [(0, "#000000"), (1, "#ff0000")], "colorbar": {"title": "share", "tickformat": ".0%"}}
    small = heat_map(["x", "y"], ["first", "second"], [[0, 0.5], [None, 1]], "", "", **look)
    svg = drawn(small)
    assert {"x", "y", "first", "second", "share", "0%", "100%"} <= set(texts(svg))
    assert [len(lines(svg, f"fill: {colour}")) for colour in ("#ff0000", "#800000")] == [1, 1]
    large = heat_map(np.arange(2000), ["first", "second"], np.eye(2, 2000), "s", "", **look)
    assert len(list(ET.fromstring(drawn(large)).iter(f"{SVG}image"))) == 2, "cells and scale"  # noqa: S314


def test_boxes_have_a_mark_per_value():
    figure = empty_figure("share")
    figure.add_box(x=[0.1, 0.2, 0.3, 0.4, 0.9], name="links", orientation="h", marker={"color": "#102030"})
    svg = drawn(figure)
    assert {"share", "links"} <= set(texts(svg))
    (box,) = lines(svg, "fill: #102030; fill-opacity: 0.35")
    upright = [line for line in lines(svg, "fill: none; stroke: #102030") if np.ptp(line[:, 1])]
    left, median, right = sorted(float(line[0, 0]) for line in upright)  # lower whisker, median, upper whisker
    assert median == pytest.approx((box[:, 0].min() + box[:, 0].max()) / 2)
    assert (left, right) == pytest.approx((box[:, 0].min() - np.ptp(box[:, 0]) / 2, box[:, 0].max()))
    assert svg.count(b'style="fill: #102030; fill-opacity: 0.6"') == 5


@pytest.mark.parametrize("count", [1, 3])
def test_panels_have_titles_and_one_scale(count):
    figure = panel_figure([f"link <{number}>" for number in range(count)], "ms", "B")
    for row in range(1, count + 1):
        figure.add_scatter(x=[0, 1], y=[0, row * 2000], mode="lines", line={"color": "#102030"}, row=row, col=1)
    svg = drawn(figure)
    assert [text for text in texts(svg) if text.startswith("link")] == [f"link <{number}>" for number in range(count)]
    assert texts(svg).count("0B") == count
    assert texts(svg).count("ms") == 1
    heights = np.array([np.ptp(line[:, 1]) for line in lines(svg, "stroke: #102030")])
    assert heights / heights[0] == pytest.approx(np.arange(1, count + 1))


@pytest.mark.parametrize("values", [[], [None, None], [0, 0], [7, 7]])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_axes_of_few_values(values, scale):
    figure = empty_figure("size", "s")
    figure.add_scatter(x=values, y=values, name="a", showlegend=True)
    figure.update_xaxes(type=scale, rangemode="tozero")
    figure.update_yaxes(type=scale)
    assert {"size", "s", "a"} <= set(texts(drawn(figure)))


@pytest.mark.full
def test_figures_have_the_same_bytes_in_every_process(tmp_path):
    """Neither the seed of hashes nor the settings of the user's matplotlib change a figure."""
    code = "import sys; from nadi.reports import pages; from nadi.reports.figures import draw\n"
    code += "figure = pages.bar_chart(['a', 'b'], {'c': [1, 2], 'd': [3, 4]}, pages.COLOURS[:2], 's')\n"
    code += "sys.stdout.buffer.write(b''.join(draw(figure, 400)))"
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.linewidth: 5\n")
    more = {"1": {}, "2": {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}}
    files = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | own | {"PYTHONHASHSEED": seed}, capture_output=True
        )
        for seed, own in more.items()
    ]
    assert [file.stderr for file in files] == [b"", b""]
    assert files[0].stdout == files[1].stdout
    assert b"<dc:date>" not in files[0].stdout
    assert b"CreationDate" not in files[0].stdout


@pytest.mark.slow
def test_the_charts_of_pages_are_files(nadi, runs, tmp_path):  # noqa: F811
    command = nadi.ok("report", runs[0].folder, "-o", tmp_path / "page.html", "--figures", tmp_path / "a", "-q")
    names = names_of(tmp_path / "a")
    for name in ("network-utilisation-by-tier", "network-completion-times-of-messages-by-size"):
        assert name in names
    assert any("fullest-ports-over-time" in name for name in names)
    assert any("paused-by-pfc" in name for name in names)
    assert f"figures: {tmp_path / 'a'}, {len(names)} as SVG, PDF and CSV" in command.out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a" / "network-utilisation-by-tier.csv").read_text())))
    busy = [float(row["x"]) for row in rows if row["series"] == "npu → leaf"]
    links = runs[0].links.filter(np.char.startswith(np.array(runs[0].links["src"].to_pylist()), "npu"))
    assert sorted(busy) == pytest.approx(sorted(links["utilisation"].to_pylist()))
    svg = (tmp_path / "a" / "network-utilisation-by-tier.svg").read_bytes()
    assert {"npu → leaf", "leaf → spine", "share of the run in which a link sent", "20%"} <= set(texts(svg))


def test_slowdowns_have_their_intervals_as_csv(nadi, runs, tmp_path):  # noqa: F811
    folders = [run.folder for run in runs]
    nadi.ok("net", "slowdown", *folders, "--figures", tmp_path / "b")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "b" / "slowdown-slow-down-p50.csv").read_text())))
    expected = [row for row in package.slowdown(*runs) if row["from_bytes"]]
    assert [float(row["y"]) for row in rows] == pytest.approx([row["slowdown"]["p50"] for row in expected])
    ends = [row["interval"]["p50"] or (row["slowdown"]["p50"],) * 2 for row in expected]
    assert np.array([(float(row["low"]), float(row["high"])) for row in rows]) == pytest.approx(np.array(ends))
    assert names_of(tmp_path / "b") == {"slowdown-slow-down-p50"}


@pytest.mark.slow
@pytest.mark.usefixtures("points_here")
def test_comparisons_and_studies_have_figures(nadi, runs, tmp_path):  # noqa: F811
    """Every command that writes a page of charts writes their figures too."""
    (tmp_path / "model.toml").write_text(
        "layers = 4\nhidden = 512\nheads = 8\nkv_heads = 4\nffn = 1024\nvocab = 1024\nsequence = 512\n"
        "global_batch = 8\n"
    )
    sweep = f'[values]\n"topology.spec" = ["{FABRIC}"]\n"workload.traffic.sizes" = ["web-search"]\n'
    sweep += '"workload.traffic.duration" = ["50us"]\n"workload.traffic.load" = [0.3, 0.6]\n'
    (tmp_path / "sweep.toml").write_text(sweep)
    commands = {
        "network": ("net", runs[0].folder),
        "links-busiest-link-by-tier": ("compare", *(run.folder for run in runs)),
        "keys-finish-time-by-workload-traffic-load": ("sweep", tmp_path / "sweep.toml", "-o", tmp_path / "sweep", "-q"),
        "fastest-bus-bandwidth-and-time-over-size": ("collective", "all-reduce", "-t", FABRIC, "-q"),
        "memory-step-time-over-memory": (
            *("plan", "--model", tmp_path / "model.toml", "--gpus", "4", "--cluster", "small-a100"),
            *("--confirm", "0", "--plan", "pp1,mb1", "-q"),
        ),
    }
    for name, command in commands.items():
        assert f"figures: {tmp_path / name}, " in nadi.ok(*command, "--figures", tmp_path / name).out
        assert any(found.startswith(name) for found in names_of(tmp_path / name)), name


def test_figures_of_one_title_have_names_of_their_own(tmp_path):
    figure = bar_chart(["a"], {"b": [1]}, ["#102030"], "s")
    plots = [Plot("../Time (s)", figure, "") for _ in range(3)]
    names = write_figures(tmp_path / "c", Page("", "", [PageSection("s", "", "", plots)]))
    assert names == ["s-time-s", "s-time-s-2", "s-time-s-3"]
    assert len(list((tmp_path / "c").iterdir())) == 9


def test_charts_of_other_kinds_have_no_file():
    figure = empty_figure()
    assert not can_draw(figure)
    figure.add_histogram(x=[1])
    assert not can_draw(figure)


def test_figures_need_matplotlib(nadi, runs, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else object())
    for command in (("net", runs[0].folder), ("report", runs[0].folder, "-o", tmp_path / "page.html", "-q")):
        outcome = nadi.refuse(*command, "--figures", tmp_path / "d")
        error = "--figures: matplotlib is not installed; expected pip install matplotlib"
        assert outcome.err == f"nadi: error: {error}\n"
    assert not (tmp_path / "page.html").exists()


def test_figures_need_a_folder(nadi, runs, tmp_path):  # noqa: F811
    (tmp_path / "file").write_text("")
    outcome = nadi("net", runs[0].folder, "--figures", tmp_path / "file")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


def test_figures_of_shards_come_with_their_merge(nadi, tmp_path):  # noqa: F811
    arguments = ("plan", "--model", "llama2-13b", "--gpus", "4", "--cluster", "small-a100", "--slurm", "2")
    outcome = nadi.refuse(*arguments, "-o", tmp_path / "out", "--figures", tmp_path / "e")
    assert "--figures: found with --slurm; expected it with --merge" in outcome.err
