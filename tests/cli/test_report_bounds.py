"""A report of a large run stays small: its bounds, with their thresholds brought down to a small run."""

import shutil
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nadi as package
from nadi.insight.runs import Run
from nadi.reports.pages import fabric, report, report_times
from nadi.reports.pages import network as network_page
from nadi.reports.pages.page import Plot, Table
from nadi.simulation.schemas import WORKERS
from nadi.simulation.wiring import earlier_run
from tests.nonempty import nonempty

MODEL = {"model": "gpt3-125m", "plan": "tp2,dp8,gb16"}
FEW = 4
BLOCK_ROWS = 1 << 14
COPIES = 6
MOST_BYTES_OF_A_MESSAGE = 160
"""Of a report's memory: 8.7 million messages of 1,024 NPUs fit into 2 GiB beside what Python itself takes."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """16 NPUs on two hosts, 40 thousand messages."""
    out = tmp_path_factory.mktemp("run") / "out"
    return package.simulate(workload=MODEL, topology={"cluster": "selene"}, network={"mtu": "32KiB"}, out=out)


@pytest.fixture(scope="module")
def whole(run):
    """Its report as it is made."""
    return report.report(run)


@pytest.fixture
def lowered(monkeypatch):
    """Every threshold from which on a report puts things together or leaves them out."""
    for module, names in (
        (report_times, ("MAX_GROUPS",)),
        (report_times, ("MAX_NPUS", "STRETCHES")),
        (report_times, ("MAX_COLLECTIVES", "MAX_POINTS")),
        (fabric, ("MAX_MARKS", "MAX_LINES")),
        (fabric, ("MAX_LINES", "MAX_ROWS")),
        (network_page, ("MAX_LINKS", "MAX_POINTS", "MAX_PORTS")),
        (report, ("MAX_PIECES",)),
        (report, ("MAX_WORKERS",)),
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
def test_above_thresholds_things_are_put_together(run, whole):
    """No plot draws more than some multiple of the thresholds, no table has more rows, and what is left out is said."""
    page = report.report(run)
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
def copied(run, tmp_path):
    """The run with each message many times."""
    folder = tmp_path / "many"
    shutil.copytree(run.folder, folder)
    pq.write_table(pa.concat_tables([run.flows] * COPIES), folder / "flows.parquet")
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
def test_memory_by_message_is_bounded(run, copied, monkeypatch):
    """Of pictures of the network; of the critical path it does not grow at all, as messages are read block by block."""
    monkeypatch.setattr(earlier_run, "_BLOCK_ROWS", BLOCK_ROWS)
    more = (COPIES - 1) * len(run.flows)
    assert more > 150_000
    for section, most in ((network_page.network_section, MOST_BYTES_OF_A_MESSAGE), (report.explanation_section, 16)):
        section(Run(run.folder))  # what is imported and compiled once
        growth = memory_of(section, copied) - memory_of(section, run.folder)
        assert growth / more < most, section.__module__


def test_of_very_many_nodes_the_path_is_left_to_the_command(run, monkeypatch):
    monkeypatch.setattr(report, "MAX_NODES", 10)
    (words,) = report.explanation_section(Run(run.folder)).parts
    assert words.text.startswith(f"The critical path of a run of {len(run.nodes):,} trace nodes is not on this page")


def test_workers_by_hand(run, tmp_path):
    """Three workers that worked 1, 2 and 3 s of 4: half of the time was waited, and one did 1.5 times its share."""
    folder = tmp_path / "by_hand"
    shutil.copytree(run.folder, folder)
    counts = {name: np.array([10, 20, 30]) for name in ("packet_hops", "events", "windows")}
    times = {"working_s": np.array([1.0, 2.0, 3.0]), "waiting_s": np.array([3.0, 2.0, 1.0])}
    columns = {"worker": np.arange(3), "rank": np.zeros(3, np.int64), **counts, **times}
    pq.write_table(WORKERS.table(columns), folder / WORKERS.file)
    facts, plot, table = report.engine_section(Run(folder)).parts
    values = {fact.name: fact.value for fact in facts.facts}
    assert (values["imbalance"], values["share of waiting"]) == ("1.50", "50.0%")
    assert [list(trace.x) for trace in plot.figure.data] == [[1, 2, 3], [3, 2, 1]]
    assert [row[4] for row in table.rows] == ["75.0%", "50.0%", "25.0%"]


def test_a_run_writes_what_its_workers_did(run):
    """One that waited for nobody, and did everything but what was replayed."""
    (row,) = run.workers.to_pylist()
    assert row["packet_hops"] == run.summary["packet_hops"] - run.summary["reuse"]["replayed_hops"]
    assert row["events"] == run.summary["events"]
    assert 0 < row["working_s"] <= run.summary["wall_s"] * 1.1 + 0.1
