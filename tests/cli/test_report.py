"""`nadi report`: what stands on the page of a run."""

import re

import numpy as np
import pytest

import nadi as package
from nadi.reports.pages.page import Facts, Plot, Table
from nadi.reports.pages.report import report
from nadi.reports.pages.report_times import _covered
from tests.headings import unexplained
from tests.nonempty import nonempty

MODEL = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4"}


@pytest.fixture(scope="module")
def run():
    return package.simulate(workload=MODEL, topology={"cluster": "selene"}, network={"mtu": "16KiB"})


@pytest.fixture(scope="module")
def sections(run):
    return {section.id: section for section in report(run).sections}


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
    facts = [
        fact
        for section in sections.values()
        for part in section.parts
        if isinstance(part, Facts)
        for fact in part.facts
    ]
    assert all(fact.why for fact in nonempty(facts))
    tables = [part for section in sections.values() for part in section.parts if isinstance(part, Table)]
    for table in nonempty(tables):
        assert all(len(row) == len(table.headings) for row in nonempty(table.rows))


def test_the_timeline_covers_what_the_nodes_cover():
    start, finish = np.array([0.0, 30.0, 95.0]), np.array([10.0, 50.0, 100.0])
    assert _covered(start, finish, np.linspace(0, 100, 11)) == pytest.approx([1, 0, 0, 1, 1, 0, 0, 0, 0, 0.5])


def test_a_run_without_nodes_says_so(nadi, write_run, step, tmp_path):
    assert nadi("run", write_run([step] * 4, '[output]\nnodes = "none"\n'), "--out", tmp_path / "out", "-q").code == 0
    assert nadi("report", tmp_path / "out").code == 0
    assert "kept no trace nodes" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("out", "expected"), [("page.txt", "expected a file .html"), ("no/page.html", "expected a file")]
)
def test_a_page_that_cannot_be_written(run, nadi, tmp_path, out, expected):
    outcome = nadi("report", run.folder, "-q", "-o", tmp_path / out)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert expected in outcome.err


def test_a_link_beside_the_page_is_not_followed(run, nadi, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".pp.html.part").symlink_to("precious")
    assert nadi("report", run.folder, "-o", tmp_path / "pp.html").code == 0
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "pp.html").read_text().startswith("<!")


def test_a_run_writes_its_page(nadi, write_run, step, tmp_path):
    out = tmp_path / "out"
    outcome = nadi("run", write_run([step] * 4), "--out", out, "-q", "--report")
    assert outcome.code == 0
    assert outcome.out.endswith(f"page: {out / 'report.html'}\n")
    assert "critical path" in (out / "report.html").read_text()
    assert nadi("run", write_run([step] * 4), "--out", out, "-q").code == 0
    assert not (out / "report.html").exists()


def test_a_run_file_asks_for_its_page(nadi, write_run, step, tmp_path):
    file = write_run([step] * 4, "[output]\nreport = true\n")
    outcome = nadi("run", file, "--out", tmp_path / "out", "-q")
    assert outcome.out.endswith(f"page: {tmp_path / 'out' / 'report.html'}\n")
    assert unexplained((tmp_path / "out" / "report.html").read_text()) == []
    assert (package.simulate(file, out=tmp_path / "python").folder / "report.html").is_file()


@pytest.mark.parametrize(("text", "arguments"), [("", ["--report"]), ("[output]\nreport = true\n", [])])
def test_a_page_needs_a_folder(nadi, write_run, step, text, arguments):
    outcome = nadi("run", write_run([step] * 4, text), "-q", *arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "--out DIR" in outcome.err
    assert ("--report" if arguments else "report in [output]") in outcome.err
