"""Closed-form fidelity on the command line: report, files, folded results, and what it refuses."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.errors import ConfigError
from nadi.reports.run_folder import TABLES
from nadi.simulation.closed_forms import running
from nadi.simulation.wiring import resource_checks
from tests.parallel.waiting import add_a_knot

CLOSED = '[network]\nfidelity = "closed-form"\n'
NPUS = 8
LEAVES = 'spec = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us"'


def stages():
    """Two stages of four: a message from each NPU of the first to one of the second, an all-reduce in each stage."""
    grads = et.CollectiveCommType.ALL_REDUCE
    nodes = []
    for npu in range(NPUS):
        first = npu < NPUS // 2
        own = [et.comp_node(1, "forward", duration_micros=10)]
        if first:
            own.append(et.send_node(2, "send", npu, npu + 4, 100_000, 0, deps=[1]))
        else:
            own.insert(0, et.recv_node(2, "recv", npu - 4, npu, 100_000, 0))
            own[1] = et.comp_node(1, "forward", duration_micros=10, deps=[2])
        own.append(et.coll_node(3, "grads", grads, 1 << 20, pg_name="first" if first else "second", deps=[1]))
        nodes.append(own)
    return nodes


@pytest.fixture
def run(write_run, tmp_path):
    (tmp_path / "groups.json").write_text(json.dumps({"first": [0, 1, 2, 3], "second": [4, 5, 6, 7]}))
    file = write_run(stages(), CLOSED, LEAVES)
    file.write_text(file.read_text().replace('traces = "trace"\n', 'traces = "trace"\ngroups = "groups.json"\n'))
    return file


def tables(folder):
    return {name: pq.read_table(folder / f"{name}.parquet").to_pydict() for name in TABLES}


def test_report_and_files(nadi, run, tmp_path):
    outcome = nadi("run", run, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert (
        "24 trace nodes, closed-form: every collective and message as if alone on the network, no contention"
        in outcome.out
    )
    assert "busiest links" not in outcome.out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["network"], summary["switches"], summary["flows"]) == ("closed-form", "none", 4)
    found = tables(tmp_path / "out")
    assert found["collectives"]["ratio"] == [1.0, 1.0]
    assert found["flows"]["slowdown"] == pytest.approx([1.0] * 4, abs=1e-6)
    assert found["nodes"]["npu"] == np.repeat(range(NPUS), 3).tolist()


def test_of_many_npus_those_that_do_the_same_are_shown_once(nadi, run, tmp_path, monkeypatch):
    nadi("run", run, "--out", tmp_path / "whole")
    monkeypatch.setattr(running, "MAX_ROWS", 23)
    monkeypatch.setattr(running, "MAX_FLOWS", 3)
    outcome = nadi("run", run, "--out", tmp_path / "folded")
    assert "2 of 8 NPUs are shown" in outcome.out
    whole, folded = tables(tmp_path / "whole"), tables(tmp_path / "folded")
    assert folded["npus"].pop("represented_by") == [0] * 4 + [4] * 4
    assert folded["npus"] == whole["npus"]
    assert folded["collectives"] == whole["collectives"]
    assert sorted(set(folded["nodes"]["npu"])) == [0, 4]
    assert folded["flows"]["src"] == []
    digests = [json.loads((tmp_path / name / "summary.json").read_text())["digest"] for name in ("whole", "folded")]
    assert digests[0] == digests[1]


def test_keys_of_packets_stay(nadi, run):
    """A file for packets needs no other change; what needs contention has nothing to do."""
    given = ("network.congestion_control=dcqcn", "network.mtu=1024", "network.buffer=16MB")
    outcome = nadi("run", run, "--json", *(word for key in given for word in ("--set", key)))
    assert outcome.code == 0, outcome.err
    assert outcome.document["config"]["network"]["mtu"] == "1KiB"


def test_who_waits_is_said(nadi, write_run):
    nodes = [[et.comp_node(1, "c", duration_micros=3)] for _ in range(4)]
    add_a_knot(nodes, 0, 3)
    outcome = nadi("run", write_run(nodes, CLOSED), "-q")
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        "nadi: error: nothing is left to happen at 3000000 ps, but 4 trace nodes are not done:",
        "  npu 0 row 1: receive 0 of tag 0 waits for npu 3",
        "  npu 3 row 1: receive 0 of tag 0 waits for npu 0",
    ]


def test_a_collective_says_whom_it_waits_for(nadi, write_run):
    nodes = [[et.coll_node(1, "x", et.CollectiveCommType.ALL_REDUCE, 64)] for _ in range(4)]
    nodes[2] = [et.recv_node(2, "r", 3, 2, 64), et.coll_node(1, "x", et.CollectiveCommType.ALL_REDUCE, 64, deps=[2])]
    nodes[3].append(et.send_node(2, "s", 3, 2, 64, deps=[1]))
    outcome = nadi("run", write_run(nodes, CLOSED), "-q")
    assert outcome.code == 1
    waits = outcome.err.splitlines()[1:]
    assert waits[:2] == [
        "  npu 0 row 0: collective 0 of group 0 waits for npu 2",
        "  npu 2 row 0: receive 0 of tag 0 waits for npu 3",
    ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ('link = "npu 0 - leaf 0"\nstate = "down"\nat = "0s"', "[faults.0] state: closed forms model no losses"),
        ('link = "npu 0 - leaf 0"\nerror_rate = 0.1\nat = "0s"', "[faults.0] error_rate: closed forms model no losses"),
        ('switch = "leaf 0"\nrate = "1Gbps"\nat = "1us"', "[faults.0] at: at closed forms links are slow"),
        ('link = "npu 0 - leaf 0"\nrate = "1Gbps"\nat = "0s"\nuntil = "1s"', "[faults.0] until: at closed forms links"),
    ],
)
def test_faults_of_packets_only_are_refused(nadi, run, fault, said):
    run.write_text(f"{run.read_text()}[[faults]]\n{fault}\n")
    outcome = nadi("run", run)
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"nadi: error: {said}")
    assert '[network] fidelity = "packet"' in line


def test_whole_messages_know_no_faults(nadi, run):
    set_all = ("network.fidelity=analytical", "faults.0.npu=0", "faults.0.at=0s", "faults.0.slowdown=2")
    outcome = nadi("run", run, *(word for each in set_all for word in ("--set", each)))
    assert outcome.code == 2
    assert outcome.err == (
        "nadi: error: [[faults]]: found with a [network] fidelity without faults; "
        'expected "packet" or "flow" or "closed-form"\n'
    )


def test_nadi_collective_prints_it_alone(nadi):
    outcome = nadi("collective", "all-reduce", "-t", "ring:npus=4", "--set", "network.fidelity=closed-form")
    assert (outcome.code, outcome.err) == (0, "")
    heading = next(line for line in outcome.out.splitlines() if "algorithm" in line)
    assert heading.split()[:4] == ["size", "algorithm", "closed", "form"]
    assert "ratio" not in heading


def test_a_run_beyond_memory_is_refused(nadi, run, monkeypatch):
    monkeypatch.setattr(resource_checks, "available_bytes", lambda: 300)
    monkeypatch.setattr(resource_checks, "check_fabric", lambda *_args, **_more: None)
    assert nadi("run", run, "--force").code == 0
    outcome = nadi("run", run)
    assert outcome.code == 2
    assert "algorithm ring for all-reduce of 4 members: its 6 steps would take" in outcome.err


def test_trace_nodes_beyond_memory_are_refused(monkeypatch):
    monkeypatch.setattr(resource_checks, "available_bytes", lambda: 6 * resource_checks.ROW_BYTES - 1)
    resource_checks.check_rows(5)
    resource_checks.check_rows(6, force=True)
    with pytest.raises(ConfigError, match="6 trace nodes of distinct NPUs would take"):
        resource_checks.check_rows(6)
