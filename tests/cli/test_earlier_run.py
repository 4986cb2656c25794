"""Folders of results that somebody has changed: one line and exit code 2."""

import json
import os
import shutil

import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder of results, and the run file."""
    from nadi import et
    from nadi.cli.main import main

    folder = tmp_path_factory.mktemp("run")
    for npu in range(4):
        nodes = [et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 16)]
        et.write_trace(folder / f"t.{npu}.et", et.metadata(), nodes)
    run = folder / "run.toml"
    run.write_text('[workload]\ntraces = "t"\n[topology]\nspec = "ring:npus=4"\n')
    assert main(["run", str(run), "--out", str(folder / "out"), "-q", "--json"]) == 0
    return folder / "out", run


def spoil_table(change):
    def spoil(out):
        table = pq.read_table(out / "links.parquet")
        pq.write_table(change(table), out / "links.parquet")

    return spoil


def swapped(table):
    """Numbers for names, and names for numbers."""
    rest = table.drop_columns(["src", "tx_packets"])
    return rest.append_column("src", table["tx_packets"]).append_column("tx_packets", table["dst"])


def deep(out):
    (out / "summary.json").write_text("[" * 100_000)


def long_number(out):
    (out / "summary.json").write_text('{"finish_time_ps": ' + "9" * 5000 + "}")


def fifo(out):
    (out / "summary.json").unlink()
    os.mkfifo(out / "summary.json")


def says(**values):
    """Another value of summary.json."""

    def spoil(out):
        found = json.loads((out / "summary.json").read_text())
        (out / "summary.json").write_text(json.dumps(found | values))

    return spoil


SPOILT = {
    "deep JSON": (deep, "lists are nested too deeply"),
    "5,000 digits": (long_number, "summary.json: no JSON"),
    "a FIFO": (fifo, "a FIFO, not a file"),
    "text for a number": (says(finish_time_ps="9"), "finish_time_ps: found '9'"),
    "nothing for a section": (says(config=None), "config: found None"),
    "a list for a number": (says(step={"dp_ps": []}), "step.dp_ps: found []"),
    "no column": (spoil_table(lambda t: t.drop_columns(["tx_packets", "src"])), "no column"),
    "column of text": (spoil_table(swapped), "; expected text"),
    "no Parquet": (lambda out: (out / "links.parquet").write_bytes(b"PAR1 and no more"), ""),
    "cut Parquet": (lambda out: os.truncate(out / "links.parquet", 500), ""),
}


@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_results(nadi, results, tmp_path, case):
    spoil, words = SPOILT[case]
    out, run = tmp_path / "out", results[1]
    shutil.copytree(results[0], out)
    spoil(out)
    for arguments in (("net", out), ("partition", run, "--parts", "2", "--weights", out)):
        outcome = nadi(*arguments)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome
        assert str(out) in outcome.err
        assert words in outcome.err


def test_a_table_that_claims_more_rows_than_memory_holds(nadi, results, tmp_path, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(results[0], out)
    monkeypatch.setattr("nadi.simulation.earlier_run.os.sysconf", lambda _: 10)
    for arguments in (("net", out), ("partition", results[1], "--parts", "2", "--weights", out)):
        outcome = nadi(*arguments)
        assert outcome.code == 2
        assert "more than this machine's memory holds" in outcome.err
