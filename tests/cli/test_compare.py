"""`nadi compare A B ...`: differences of runs that are known from how they were made."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from nadi.insight.comparison import compare, difference, differing_settings, relative, run_names, size
from nadi.insight.runs import Run
from nadi.reports.pages import Plot, Table
from nadi.reports.pages.comparison import comparison_page
from tests.headings import unexplained
from tests.nonempty import nonempty

RING = 'spec = "ring:npus=4,rate={rate},delay=1us"'


@pytest.fixture
def finished(nadi, write_run, step, tmp_path):
    """The step of four NPUs on a ring, with further settings, in a folder of that name."""

    def run(name, text="", rate="100Gbps", topology=None):
        file = write_run([step] * 4, text, topology or RING.format(rate=rate))
        nadi.ok("run", file, "--out", tmp_path / name, "-q")
        return tmp_path / name

    return run


def row_of(rows, **wanted):
    (found,) = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return found


def test_changes_are_to_the_first():
    assert relative([4.0, 5.0, None, 4.0]) == [0.0, 0.25, None, 0.0]
    assert relative([0.0, 0.0, 1.0]) == [0.0, 0.0, None]
    assert difference([1.0, 3.0, None]) == [0.0, 2.0, None]
    assert size([3.0, None, 4.0]) == 3.0


def test_a_run_and_itself_differ_in_nothing(nadi, finished):
    run = finished("a")
    found = nadi("compare", run, run, "--json").document
    assert [each["name"] for each in found["runs"]] == ["a (1)", "a (2)"]
    assert found["settings"] == []
    assert found["notes"] == ["All runs have the same digest: they are the same run."]
    assert all(row["change"] in ([0.0, 0.0], [0, 0]) for row in nonempty(found["figures"]))
    assert found["links"]["matched"] == 8
    assert found["links"]["rows"] == found["npus"] == []


def test_a_slower_link(nadi, finished):
    fast, slow = finished("fast"), finished("slow", rate="50Gbps")
    found = nadi("compare", fast, slow, "--json").document
    assert [row["key"] for row in found["settings"] if row["key"].startswith(("topology", "network"))] == [
        "topology.spec"
    ]
    tier = row_of(found["tiers"], tier="npu → npu")
    assert tier["rate_bps"] == [100e9, 50e9]
    assert tier["tx_bytes"][0] == tier["tx_bytes"][1] == float(np.sum(Run(fast).links["tx_bytes"]))
    assert found["links"]["matched"] == 8
    assert {tuple(row["rate_bps"]) for row in found["links"]["rows"]} == {(100e9, 50e9)}
    (grads,) = found["collectives"]
    assert (grads["group"], grads["kind"], grads["members"], grads["size_bytes"]) == ("", "all-reduce", 4, 1 << 16)
    assert grads["count"] == [2, 2]
    times = [np.asarray(Run(run).collectives["time_ps"], float) for run in (fast, slow)]
    assert grads["time_ps"] == [float(time.sum()) for time in times]
    assert grads["change"][1] == pytest.approx(times[1].sum() / times[0].sum() - 1)
    # a ring of 4 sends 6 messages of 16 KiB one after another: at half the rate 6 * 131,072 bits / 100 Gb/s longer
    assert times[1][0] - times[0][0] == pytest.approx(6 * (1 << 14) * 8 / 100e9 * 1e12, rel=0.05)
    finish = row_of(found["figures"], name="finish_time_ps")
    assert finish["change"][1] == finish["values"][1] / finish["values"][0] - 1 > 0


def test_kinds_of_time_add_up_to_the_runs(finished):
    runs = [Run(finished("fast")), Run(finished("slow", rate="50Gbps"))]
    found = compare(runs)["times"]
    assert found["by"] == "kinds"
    for number, run in enumerate(runs):
        assert sum(row["time_ps"][number] for row in found["rows"]) == pytest.approx(run.finish_time_ps)
        assert sum(row["share"][number] for row in found["rows"]) == pytest.approx(1)
    longer = runs[1].finish_time_ps - runs[0].finish_time_ps
    assert sum(row["change_ps"][1] for row in found["rows"]) == pytest.approx(longer)
    assert row_of(found["rows"], what="compute")["change_ps"][1] == 0


def test_another_algorithm(nadi, finished):
    ring, halving = finished("ring"), finished("halving", '[system]\ncollectives = {all-reduce = "halving-doubling"}\n')
    found = nadi("compare", ring, halving, "--json").document
    assert "system.collectives.all-reduce" in {row["key"] for row in found["settings"]}
    (grads,) = found["collectives"]
    assert grads["algorithm"] == ["ring", "halving-doubling"]
    assert grads["change"][1] != 0


def test_other_plans_and_numbers_of_npus():
    import nadi as package

    model = {"model": "gpt3-125m"}
    settings = {"network": {"mtu": "16KiB", "fidelity": "closed-form"}}
    plans = ("tp2,pp2,dp2,gb4", "tp4,dp2,gb4", "tp4,dp4,gb4")
    runs = [
        package.simulate(workload=model | {"plan": plan}, topology={"cluster": "selene", "gpus": gpus}, **settings)
        for plan, gpus in zip(plans, (8, 8, 16), strict=True)
    ]
    found = compare(runs)
    assert found["times"]["by"] == "axes"
    bubble = row_of(found["times"]["rows"], what="bubble")
    assert bubble["time_ps"][0] > 0 == bubble["time_ps"][1]
    tp = row_of(found["groups"], group="tp", kind="all-reduce")
    assert tp["count"] == [int(np.sum(np.asarray(run.collectives["group_name"].to_pylist()) == "tp")) for run in runs]
    assert {row["members"] for row in found["collectives"] if row["group"] == "tp"} == {2, 4}
    pairs = [row for row in found["collectives"] if row["group"] == "tp" and row["members"] == 2]
    assert all(None in row["count"] for row in nonempty(pairs))
    assert found["npus"] == []
    assert any("8, 8, 16 NPUs" in note for note in found["notes"])
    assert any("closed forms do not model links" in note for note in found["notes"])
    assert found["tiers"] == []
    assert compare(runs[:2])["npus"]


def test_links_of_other_fabrics_are_matched_by_their_ends(nadi, finished):
    ring = finished("ring")
    switch = finished("switch", topology='spec = "switch:npus=4,rate=100Gbps,delay=1us"')
    found = nadi("compare", ring, switch, "--json").document
    assert found["links"] == {"matched": 0, "of": [8, 8], "rows": [], "left_out": 0}
    assert any("0 links have the same ends in all runs, of 8, 8" in note for note in found["notes"])
    assert row_of(found["tiers"], tier="npu → npu")["links"] == [8, None]


def test_workers_are_compared(nadi, finished):
    alone, two = finished("alone"), finished("two", "[engine]\nworkers = 2\n")
    figures = {row["name"]: row["values"] for row in nadi("compare", alone, two, "--json").document["figures"]}
    assert figures["imbalance"][0] == 1.0
    assert 1.0 <= figures["imbalance"][1] <= 2.0
    assert figures["waiting_share"][1] > figures["waiting_share"][0]


def test_tables_and_page(nadi, finished, tmp_path):
    fast, slow = finished("fast"), finished("slow", rate="50Gbps")
    outcome = nadi.ok("compare", fast, slow, "-o", tmp_path / "page.html")
    for words in ("settings that differ", "topology.spec", "finish time", "to fast", "npu → npu", "all-reduce"):
        assert words in outcome.out
    text = (tmp_path / "page.html").read_text()
    assert unexplained(text) == []
    ids = re.findall(r'\sid="([^"]+)"', text.partition("<script>")[0])
    assert len(ids) == len(set(ids)) > 5
    parts = [part for section in comparison_page(compare([Run(fast), Run(slow)])).sections for part in section.parts]
    assert sum(isinstance(part, Plot) for part in parts) == 3
    for table in nonempty(part for part in parts if isinstance(part, Table)):
        assert all(len(row) == len(table.headings) for row in nonempty(table.rows))
    bars = next(part for part in parts if isinstance(part, Plot)).figure.data
    finish = [Run(run).finish_time_ps for run in (fast, slow)]
    assert np.sum([bar.x for bar in bars], axis=0) == pytest.approx(np.array(finish) / 1e6)


def test_names_tell_runs_apart(finished, tmp_path):
    run = finished("x/out")
    other = tmp_path / "y" / "out"
    other.parent.mkdir()
    run.rename(other)
    again = finished("x/out")
    assert run_names([Run(again), Run(other)]) == ["x/out", "y/out"]


def test_what_is_wrong_is_one_line(nadi, finished, tmp_path):
    run = finished("a")

    def complaint(*arguments):
        return nadi.refuse("compare", *arguments).err

    assert "found 1 runs; expected 2 to 20" in complaint(run)
    assert "expected results of `nadi run --out`" in complaint(run, tmp_path / "none")
    assert "expected a file .html" in complaint(run, run, "-o", tmp_path / "page.txt")
    (run / "npus.parquet").unlink()
    assert "npus.parquet" in complaint(run, run)
    summary = run / "summary.json"
    summary.write_text(re.sub(r'("dropped_packets": )\d+', r'\1""', summary.read_text()))
    assert "dropped_packets" in complaint(run, run)


def test_settings_that_follow_from_named_ones_are_left_out_of_the_table(nadi, finished):
    """The window is settled from the delay of the fabric."""
    near, far = finished("near"), finished("far", topology='spec = "ring:npus=4,rate=100Gbps,delay=9us"')
    settings = {row["key"]: row["is_derived"] for row in nadi("compare", near, far, "--json").document["settings"]}
    assert not settings["topology.spec"]
    assert settings["settled.window_packets"]
    shown = nadi("compare", near, far).out
    assert "more settings follow from these: settled." in " ".join(shown.split())
    assert not re.search(r"^ settled\.window_packets", shown, re.MULTILINE)


def shown_and_derived(outcome):
    rows = outcome.document["settings"]
    return ({row["key"] for row in rows if row["is_derived"] is derived} for derived in (False, True))


def test_a_fault_is_a_setting_of_its_own(nadi, finished):
    fault = '[[faults]]\nat = "0ns"\nnpu = 3\nslowdown = 1.15\n'
    near, far = finished("near"), finished("far", fault, topology='spec = "ring:npus=4,rate=100Gbps,delay=9us"')
    shown, derived = shown_and_derived(nadi("compare", near, far, "--json"))
    assert shown == {"topology.spec", "faults.0.at", "faults.0.npu", "faults.0.slowdown"}
    assert all(key.startswith("settled.") for key in nonempty(derived))
    assert re.search(r"^ faults\.0\.slowdown +- +1\.15", nadi("compare", near, far).out, re.MULTILINE)
    notes = nadi("compare", near, far, "--json").document["notes"]
    assert "The faults differ: the differences include what the faults cost." in notes


def test_traces_that_changed_under_their_name_are_a_setting(nadi, finished, step):
    run = finished("a")
    step[0] = et.comp_node(1, "forward", duration_micros=12)
    other = finished("b", rate="50Gbps")
    shown, _ = shown_and_derived(nadi("compare", run, other, "--json"))
    assert shown == {"topology.spec", f"sha256 of {run.parent / 'trace'}"}


def test_models_and_plans_of_jobs_are_settings(tmp_path):
    def settings(name, *jobs):
        path = tmp_path / f"{name}.toml"
        texts = [
            f'[[jobs]]\nname = "{number}"\nmodel = "{job[0]}"\nplan = "{job[1]}"\n' for number, job in enumerate(jobs)
        ]
        path.write_text("".join(texts) + '[topology]\ncluster = "dgx-h100-superpod"\ngpus = 16\n')
        config = load_config(path)
        return SimpleNamespace(summary={"config": config.settled(), "named": config.not_derived})

    other = settings("b", ("gpt3-1.3b", "tp4,dp2,gb2,mb1"), ("llama3-8b", "tp8,dp1,gb2,mb1"))
    rows = differing_settings(
        [settings("a", ("gpt3-1.3b", "tp8,dp1,gb2,mb1"), ("gpt3-1.3b", "tp8,dp1,gb2,mb1")), other]
    )
    found = {row["key"] for row in nonempty(rows) if not row["is_derived"]}
    assert {"jobs.0.plan", "jobs.1.plan", "jobs.1.model"} <= found
