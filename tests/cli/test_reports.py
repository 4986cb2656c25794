"""`nadi report`: what stands on the page of a run, and that the page of a large run stays small."""

import re
import shutil
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nadi as package
from nadi.insight.runs import Run
from nadi.reports.pages import Facts, Plot, Table, fabric, network as network_page, report, report_times
from nadi.reports.pages.report_times import _covered
from nadi.simulation import earlier_run
from nadi.simulation.schemas import WORKERS
from tests.headings import unexplained
from tests.nonempty import nonempty

MODEL = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4"}


@pytest.fixture(scope="module")
def run():
    return package.simulate(workload=MODEL, topology={"cluster": "selene"}, network={"mtu": "16KiB"})


@pytest.fixture(scope="module")
def sections(run):
    return {section.id: section for section in report.report(run).sections}


def test_the_page_stands_alone(run, nadi, tmp_path):
    page = tmp_path / "page.html"
    assert nadi("report", run.folder, "-o", page).out == f"page: {page}\n"
    text = page.read_text()
    assert not re.search(r'(src|href)="(http|//)', text.partition("<script>")[0])
    assert len(text) < 10 << 20
    assert 'lang="en"' in text
    ids = re.findall(r'\sid="([^"]+)"', text.partition("<script>")[0])
    assert len(ids) == len(set(ids))
    for link in nonempty(re.findall(r'href="#([^"]+)"', text)):
        assert link in ids


def test_bars_are_the_means_of_the_stages(run, sections):
    plot, table = sections["step"].parts
    bars = {trace.name: np.array(trace.x) for trace in plot.figure.data}
    compute_ms = run.steps["compute_ps"].to_numpy().reshape(2, 4).mean(axis=1) / 1e9
    assert np.allclose(bars["compute"], compute_ms)
    assert np.allclose(sum(bars.values()), run.finish_time_ps / 1e9)
    assert [row[0] for row in table.rows] == ["stage 0", "stage 1"]


def test_every_picture_says_what_it_shows(sections):
    plots = [part for section in sections.values() for part in section.parts if isinstance(part, Plot)]
    assert len(plots) >= 5
    assert all(plot.description for plot in plots)


def test_terms_are_explained(sections):
    parts = [part for section in sections.values() for part in section.parts]
    assert all(fact.why for part in parts if isinstance(part, Facts) for fact in nonempty(part.facts))
    for table in nonempty(part for part in parts if isinstance(part, Table)):
        assert all(len(row) == len(table.headings) for row in nonempty(table.rows))


def test_the_timeline_covers_what_the_nodes_cover():
    start, finish = np.array([0.0, 30.0, 95.0]), np.array([10.0, 50.0, 100.0])
    assert _covered(start, finish, np.linspace(0, 100, 11)) == pytest.approx([1, 0, 0, 1, 1, 0, 0, 0, 0, 0.5])


def test_a_run_without_nodes_says_so(nadi, write_run, step, tmp_path):
    nadi.ok("run", write_run([step] * 4, '[output]\nnodes = "none"\n'), "--out", tmp_path / "out", "-q")
    nadi.ok("report", tmp_path / "out")
    assert "kept no trace nodes" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("out", "expected"), [("page.txt", "expected a file .html"), ("no/page.html", "expected a file")]
)
def test_a_page_that_cannot_be_written(run, nadi, tmp_path, out, expected):
    assert expected in nadi.refuse("report", run.folder, "-q", "-o", tmp_path / out).err


def test_a_link_beside_the_page_is_not_followed(run, nadi, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".pp.html.part").symlink_to("precious")
    nadi.ok("report", run.folder, "-o", tmp_path / "pp.html")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "pp.html").read_text().startswith("<!")


def test_a_run_writes_its_page(nadi, write_run, step, tmp_path):
    out = tmp_path / "out"
    outcome = nadi.ok("run", write_run([step] * 4), "--out", out, "-q", "--report")
    assert outcome.out.endswith(f"page: {out / 'report.html'}\n")
    assert "critical path" in (out / "report.html").read_text()
    nadi.ok("run", write_run([step] * 4), "--out", out, "-q")
    assert not (out / "report.html").exists()


def test_a_run_file_asks_for_its_page(nadi, write_run, step, tmp_path):
    file = write_run([step] * 4, "[output]\nreport = true\n")
    outcome = nadi("run", file, "--out", tmp_path / "out", "-q")
    assert outcome.out.endswith(f"page: {tmp_path / 'out' / 'report.html'}\n")
    assert unexplained((tmp_path / "out" / "report.html").read_text()) == []
    assert (package.simulate(file, out=tmp_path / "python").folder / "report.html").is_file()


LARGE = {"model": "gpt3-125m", "plan": "tp2,dp8,gb16"}
FEW = 4
BLOCK_ROWS = 1 << 14
COPIES = 6
MOST_BYTES_OF_A_MESSAGE = 160
"""Of a report's memory: 8.7 million messages of 1,024 NPUs fit into 2 GiB beside what Python itself takes."""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """16 NPUs on two hosts, 40 thousand messages."""
    out = tmp_path_factory.mktemp("run") / "out"
    return package.simulate(workload=LARGE, topology={"cluster": "selene"}, network={"mtu": "32KiB"}, out=out)


@pytest.fixture(scope="module")
def whole(large):
    return report.report(large)


@pytest.fixture
def lowered(monkeypatch):
    """Every threshold from which on a report puts things together or leaves them out."""
    for module, names in (
        (report_times, ("MAX_GROUPS", "MAX_NPUS", "STRETCHES", "MAX_COLLECTIVES", "MAX_POINTS")),
        (fabric, ("MAX_MARKS", "MAX_LINES", "MAX_ROWS")),
        (network_page, ("MAX_LINKS", "MAX_POINTS", "MAX_PORTS")),
        (report, ("MAX_PIECES", "MAX_WORKERS")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, FEW)


def points_of(plot):
    """Values that a plot draws: of lines and points by their places, of heat maps all cells, of bars each."""
    cells = [len(trace.z) * len(trace.z[0]) if trace.z is not None else 0 for trace in plot.figure.data if "z" in trace]
    return sum(cells) + sum(len(trace.x) for trace in plot.figure.data if "z" not in trace and trace.x is not None)


def parts_of(page, kind):
    return [part for section in page.sections for part in section.parts if isinstance(part, kind)]


@pytest.mark.usefixtures("lowered")
def test_above_thresholds_things_are_put_together(large, whole):
    """No plot draws more than some multiple of the thresholds, no table has more rows, and what is left out is said."""
    page = report.report(large)
    tables = {table.caption: table for table in parts_of(page, Table)}
    assert len(tables["busiest links"].rows) == FEW
    assert len(tables["composition of the critical path"].rows) == FEW
    assert [row[0] for row in tables["time by category"].rows] != [f"npu {npu}" for npu in range(16)]
    assert any("more in collectives.parquet" in table.note for table in tables.values())
    plots = {plot.title: plot for plot in parts_of(page, Plot)}
    lanes = plots["lanes of some NPUs over time"].figure.data[0]
    assert len({row.split()[1] for row in lanes.y}) <= FEW
    assert {len(row) for row in lanes.z} == {FEW}
    (drawn,) = (plot for title, plot in plots.items() if "links by load" in title)
    lines = [trace for trace in drawn.figure.data if trace.mode == "lines"]
    assert sum(len(trace.x) for trace in lines) == 3 * FEW  # both ends of each, and a gap
    assert "Only the busiest lines are drawn." in drawn.description
    for title in ("utilisation by tier", "completion times of messages, by size", "bus bandwidth over size"):
        assert points_of(plots[title]) <= 12 * FEW, title
    assert size_of(page) < size_of(whole) / 2


def size_of(page):
    """Of its pictures, in characters."""
    return sum(len(plot.json()) for plot in parts_of(page, Plot))


def test_the_page_is_small_and_has_few_points(whole):
    """As it is made: the bounds do not depend on how large the run is."""
    assert len(whole.html()) < 10 << 20
    for plot in nonempty(parts_of(whole, Plot)):
        assert points_of(plot) <= 3 * fabric.MAX_LINES, plot.title
        assert len(plot.json()) < 2 << 20, plot.title


@pytest.fixture
def copied(large, tmp_path):
    folder = tmp_path / "many"
    shutil.copytree(large.folder, folder)
    pq.write_table(pa.concat_tables([large.flows] * COPIES), folder / "flows.parquet")
    return folder


def memory_of(section, folder):
    """Most bytes that NumPy, Python and Arrow held while a section was made."""
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        section(Run(folder))
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.full
def test_memory_by_message_is_bounded(large, copied, monkeypatch):
    """Of pictures of the network; of the critical path it does not grow at all, as messages are read block by block."""
    monkeypatch.setattr(earlier_run, "_BLOCK_ROWS", BLOCK_ROWS)
    more = (COPIES - 1) * len(large.flows)
    assert more > 150_000
    for section, most in ((network_page.network_section, MOST_BYTES_OF_A_MESSAGE), (report.explanation_section, 16)):
        section(Run(large.folder))  # what is imported and compiled once
        growth = memory_of(section, copied) - memory_of(section, large.folder)
        assert growth / more < most, section.__module__


def test_of_very_many_nodes_the_path_is_left_to_the_command(large, monkeypatch):
    monkeypatch.setattr(report, "MAX_NODES", 10)
    (words,) = report.explanation_section(Run(large.folder)).parts
    assert words.text.startswith(f"The critical path of a run of {len(large.nodes):,} trace nodes is not on this page")


def test_workers_by_hand(large, tmp_path):
    """Three workers that worked 1, 2 and 3 s of 4: half of the time was waited, and one did 1.5 times its share."""
    folder = tmp_path / "by_hand"
    shutil.copytree(large.folder, folder)
    counts = {name: np.array([10, 20, 30]) for name in ("packet_hops", "events", "windows")}
    times = {"working_s": np.array([1.0, 2.0, 3.0]), "waiting_s": np.array([3.0, 2.0, 1.0])}
    columns = {"worker": np.arange(3), "rank": np.zeros(3, np.int64), **counts, **times}
    pq.write_table(WORKERS.table(columns), folder / WORKERS.file)
    facts, plot, table = report.engine_section(Run(folder)).parts
    values = {fact.name: fact.value for fact in facts.facts}
    assert (values["imbalance"], values["share of waiting"]) == ("1.50", "50.0%")
    assert [list(trace.x) for trace in plot.figure.data] == [[1, 2, 3], [3, 2, 1]]
    assert [row[4] for row in table.rows] == ["75.0%", "50.0%", "25.0%"]


def test_a_run_writes_what_its_workers_did(large):
    """One that waited for nobody, and did everything but what was replayed."""
    (row,) = large.workers.to_pylist()
    assert row["packet_hops"] == large.summary["packet_hops"] - large.summary["reuse"]["replayed_hops"]
    assert row["events"] == large.summary["events"]
    assert 0 < row["working_s"] <= large.summary["wall_s"] * 1.1 + 0.1
