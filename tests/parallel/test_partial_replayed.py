"""Partial results of runs that replay collectives and count periods: what is over counts, and counts once."""

import json
import os
import shutil
from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.cli.main import main
from nadi.launching.checkpoints import PARTIAL, CheckpointFolder
from nadi.pdes.parallel import SAVE
from nadi.pdes.reuse import recurrence
from nadi.reports import run_folder
from tests.features.restarting import STOPPED, differences, tables
from tests.nonempty import nonempty
from tests.parallel.cut_at import cut_at
from tests.parallel.test_partial import check_times, command, summary_of
from tests.samples import FULL

HOST, NPUS, TURNS, MESSAGE_BYTES = 8, 16, 12, 300_000
RUN = """
[workload]
traces = "trace"
groups = "groups.json"
[topology]
cluster = "dgx-h100-superpod"
gpus = 16
[engine]
checkpoint = "1h"
"""
WAYS = {
    "one": ("engine.workers=1", "engine.backend=threads"),
    "threads": ("engine.workers=2", "engine.backend=threads"),
    "processes": ("engine.workers=2", "engine.backend=processes"),
}
LATER_PS = 2_000_000  # maximum time from the end of a replayed collective until its last packets and ties are over
BEFORE_PERIODS = 0.28  # share of the run after which the periods that follow are counted
COUNTERS = ("tx_bytes", "tx_packets")


def write_pipeline(folder):
    """Write traces of two hosts that take turns: work, an all-reduce inside the host, messages to the other host."""
    (folder / "groups.json").write_text(json.dumps({"1": [*range(HOST)], "2": [*range(HOST, NPUS)]}))
    for npu in range(NPUS):
        host, peer = npu // HOST, (npu + HOST) % NPUS
        nodes = []

        def add(make, *arguments, nodes=nodes, **keywords):
            nodes.append(make(len(nodes), *arguments, deps=[len(nodes) - 1] if nodes else [], **keywords))

        for turn in range(TURNS):
            step = f"step{turn}/forward/mb0"
            if turn or host:
                add(et.recv_node, f"{step}/receive", peer, npu, MESSAGE_BYTES, 2 * turn + 1 - host)
            add(et.comp_node, f"{step}/layer", duration_micros=30)
            kind = et.CollectiveCommType.ALL_REDUCE
            add(et.coll_node, f"{step}/tp:all-reduce", kind, 3 << 20, pg_name=str(1 + host))
            if turn < TURNS - 1 or not host:
                add(et.send_node, f"{step}/send", npu, peer, MESSAGE_BYTES, 2 * (turn + host) + host)
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Look for periods at every quiescent moment, and write partial results after every checkpoint."""
    monkeypatch.setattr(recurrence, "HOPS_OF_MOMENT", 0)
    monkeypatch.setattr(recurrence, "HOPS_OF_NPU", 0)
    monkeypatch.setattr(run_folder, "MAX_SHARE", 1e9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run, and the results of the run that simulates every packet."""
    folder = tmp_path_factory.mktemp("replayed")
    write_pipeline(folder)
    (folder / "run.toml").write_text(RUN)
    assert main(command(folder, folder / "packets", "engine.reuse=off")) == 0
    return folder


def share_ps(folder, share):
    return int(summary_of(folder / "packets")["finish_time_ps"] * share)


@contextmanager
def kept(folder, monkeypatch):
    """Keep a copy of the partial results after each checkpoint, in the list that this gives."""
    copies = []
    keep_partial = CheckpointFolder.keep_partial

    def keep(checkpoints):
        keep_partial(checkpoints)
        copies.append(shutil.copytree(checkpoints._folder / "partial", folder / str(len(copies))))

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "keep_partial", keep)
        yield copies


def check(found, packets):
    """Check partial results against the run that simulates every packet: times, and traffic of replayed collectives."""
    check_times(found, packets)
    snapshot_ps = summary_of(found)["finish_time_ps"]
    collectives = pq.read_table(packets / "collectives.parquet")
    finish_ps = np.asarray(collectives["finish_ps"]).reshape(2, TURNS)  # by host
    links, all_links = (pq.read_table(each / "links.parquet").to_pylist() for each in (found, packets))
    over = []
    for host in range(2):
        name = f"nvswitch {host}"
        inside = [i for i, link in enumerate(all_links) if name in {link["src"], link["dst"]}]
        (turns,) = {links[i][column] * TURNS / all_links[i][column] for i in nonempty(inside) for column in COUNTERS}
        assert (finish_ps[host] < snapshot_ps - LATER_PS).sum() <= turns <= (finish_ps[host] < snapshot_ps).sum()
        over.append(int(turns))
    flows = pq.read_table(packets / "flows.parquet", columns=["src", "dst", "finish_ps"])
    src, dst, sent_ps = (np.asarray(column) for column in flows)
    sent_ps = sent_ps[np.maximum(src, dst) < summary_of(packets)["npus"]]  # NVSwitches' count when the turn is over
    of_each = (summary_of(packets)["flows"] - len(sent_ps)) // (2 * TURNS)
    assert summary_of(found)["flows"] == (sent_ps < snapshot_ps).sum() + sum(over) * of_each
    return tuple(over)


@pytest.mark.slow
@pytest.mark.parametrize(("last", "periods"), [(BEFORE_PERIODS, 1), (0.9, 0)])
def test_what_is_over_counts_once(folder, tmp_path, monkeypatch, last, periods):
    """Periods are counted only where no checkpoint ends their notes for long enough."""
    step = 0.002 if os.environ.get(FULL) else 0.014
    shares = [*np.arange(0.02, last, step), *np.arange(0.9, 1, step / 3)]
    with kept(tmp_path, monkeypatch) as copies, cut_at(*(share_ps(folder, share) for share in shares), last=SAVE):
        assert main(command(folder, tmp_path / "out")) == 0
    over = [check(copy, folder / "packets") for copy in copies]
    assert {(1, 0), (1, 1), (2, 1), (TURNS, TURNS - 1)} <= set(over)
    assert min(summary_of(tmp_path / "out")["reuse"]["repeated_periods"], 1) == periods
    assert differences(tables(tmp_path / "out"), tables(folder / "packets")) == ["events"]


@pytest.mark.slow
@pytest.mark.parametrize("ways", [("threads", "one"), ("processes", "one")], ids="-".join)
def test_resumed_runs_have_the_same(folder, tmp_path, ways):
    """It stops during a collective, during the notes of a period, and behind the periods that are counted."""
    given, over = command(folder, tmp_path / "out", *WAYS[ways[0]]), []
    for stop, share in enumerate((0.02, 0.11, 0.28, 0.95)):
        with cut_at(share_ps(folder, share)):
            assert main(given) == STOPPED
        over.append(check(tmp_path / "out" / PARTIAL, folder / "packets"))
        way = WAYS[ways[(stop + 1) % 2]]
        given = ["run", "--quiet", "--resume", str(tmp_path / "out"), *(f"--set={key}" for key in way)]
    assert main(given) == 0
    assert over == [(1, 0), (2, 1), (4, 3), (TURNS, TURNS - 1)]
    assert summary_of(tmp_path / "out")["reuse"]["repeated_periods"] > 0
    assert differences(tables(tmp_path / "out"), tables(folder / "packets")) == ["events"]


@pytest.mark.full
def test_they_are_the_same_on_any_workers(folder, tmp_path, python):
    time_ps, found = share_ps(folder, 0.2), {}
    for way in ("threads", "processes"):
        with cut_at(time_ps):
            assert main(command(folder, tmp_path / way, *WAYS[way])) == STOPPED
        found[way] = tables(tmp_path / way / PARTIAL)
    done = python(2, "tests/parallel/cut_at.py", time_ps, *command(folder, tmp_path / "ranks"))
    assert done.returncode == STOPPED, done.stderr
    found["ranks"] = tables(tmp_path / "ranks" / PARTIAL)
    for way in nonempty(found):
        assert differences(found[way], found["threads"]) == [], way
        check(tmp_path / way / PARTIAL, folder / "packets")
