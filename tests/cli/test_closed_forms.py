"""Closed forms: on idle networks by hand and beside the simulator, and as the fidelity of runs."""

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et, topologies, workload
from nadi.errors import ConfigError
from nadi.launching.progress import NoProgress
from nadi.pdes import Settings
from nadi.reports.run_folder import TABLES
from nadi.simulation.assembly import resource_checks
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.collective import closed_form
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.simulation.closed_forms.lone_message import train
from nadi.simulation.run import run_program
from tests.closed_forms import form_of_all
from tests.parallel.waiting import add_a_knot
from tests.samples import pairwise

WIRE_PS = 8 * 10**12


def test_a_train_over_three_links():
    graph = topologies.build(
        "leaf-spine:leaves=2,spines=1,hosts_per_leaf=1,rate=100Gbps,delay=1us,switch_latency=300ns"
    )
    links = topologies.route(graph, 0, 1)
    assert len(links) == 4
    settings = Settings()
    full, last = 4096 + 82, 100 + 82
    found = train(graph, links, 2 * 4096 + 100, settings)
    by_hand = (2 * full + last) * WIRE_PS / 100e9 + 3 * last * WIRE_PS / 100e9 + 4 * 1e6 + 3 * 3e5
    assert found.total_ps == pytest.approx(by_hand)
    assert found.serial_ps == pytest.approx((2 * full + last) * WIRE_PS / 100e9)


def test_a_ring_all_reduce_by_hand():
    graph = topologies.build("ring:npus=8,rate=400Gbps,delay=500ns")
    program = workload.collective_program("all-reduce", 8, 8 << 20, "ring")
    step_ps = 256 * (4096 + 82) * WIRE_PS / 400e9 + 500e3
    one = ("all-reduce", "ring")
    played, formula = (form_of_all(graph, program, *one, isolated=IsolatedCollectives(most)) for most in (None, 0))
    assert played == (14 * step_ps, True)
    assert formula == (pytest.approx(14 * step_ps), False)


def test_what_takes_long_gets_its_formula():
    graph = topologies.build("rail-optimised:npus=8")
    program = workload.collective_program("all-reduce", 8, 1 << 20, "nccl:algo=tree", fabric=graph)
    one = ("all-reduce", "nccl:algo=tree")
    played = [IsolatedCollectives(most) for most in (None, 10**5, 9)]
    exact, enough, estimate = (form_of_all(graph, program, *one, isolated=each) for each in played)
    assert exact == enough
    assert exact.is_simulated
    assert not estimate.is_simulated
    assert abs(estimate.time_ps / exact.time_ps - 1) > 1e-3


def test_it_is_played_once(monkeypatch):
    graph = topologies.build("rail-optimised:npus=8")
    program = workload.collective_program("all-reduce", 8, 1 << 20, "nccl:algo=tree", fabric=graph)
    one, played = ("all-reduce", "nccl:algo=tree"), IsolatedCollectives()
    first = form_of_all(graph, program, *one, isolated=played)
    monkeypatch.setattr("nadi.simulation.closed_forms.isolated.IdleFabric.time_ps", None)
    assert form_of_all(graph, program, *one, isolated=played) == first


EVEN = ["ring:npus=6", "switch:npus=8,rate=400Gbps"]
UNEVEN = ["fat-tree:k=4,rate=100Gbps,delay=1us", "leaf-spine:leaves=2,spines=2,hosts_per_leaf=4"]


@pytest.mark.parametrize(
    ("spec", "kind", "algorithm", "tolerance"),
    [
        *((spec, kind, "ring", 1e-3) for spec in EVEN for kind in ("all-reduce", "all-gather", "reduce-scatter")),
        *((spec, kind, "ring", 2e-2) for spec in UNEVEN for kind in ("all-reduce", "all-gather")),
        *((EVEN[1], kind, "direct", 2e-2) for kind in ("all-to-all", "all-reduce", "broadcast", "gather")),
        (EVEN[1], "barrier", "dissemination", 1e-2),
    ],
)
@pytest.mark.parametrize("size", [6 << 10, 3 << 20])
def test_the_simulator_agrees(spec, kind, algorithm, tolerance, size):
    graph = topologies.build(spec)
    program = workload.collective_program(kind, graph.npus, size, algorithm)
    results = run_program(graph, program, Settings(record_nodes=False), NoProgress())
    formula = form_of_all(graph, program, kind, algorithm, isolated=IsolatedCollectives(0))
    assert results.finish_time_ps == pytest.approx(formula.time_ps, rel=tolerance)


def test_a_group_of_one_takes_no_time():
    graph = topologies.build("ring:npus=4")
    program = workload.collective_program("all-reduce", 4, 1024)
    arguments = {"kind": "all-reduce", "algorithm": "ring", "schedule": -1, "members": np.array([2]), "size_bytes": 9}
    assert closed_form(graph, program, Settings(), **arguments).time_ps == 0


RAILS = "rail-optimised:npus={}"
LEAVES = "leaf-spine:npus={},hosts_per_leaf=16"
OF_MANY = [("all-reduce", "ring"), ("all-gather", "ring"), ("all-to-all", "direct"), ("reduce-scatter", "pairwise")]


def formula_ps(graph, kind, algorithm, size):
    program = workload.collective_program(kind, graph.npus, size, algorithm, graph)
    return form_of_all(graph, program, kind, algorithm, isolated=IsolatedCollectives(0)).time_ps


@pytest.mark.parametrize("spec", [RAILS, LEAVES])
@pytest.mark.parametrize("npus", [8, 64, 96])
@pytest.mark.parametrize(("kind", "algorithm"), OF_MANY[1:3])
def test_formulas_meet_every_kind_of_path(monkeypatch, spec, npus, kind, algorithm):
    graph = topologies.build(spec.format(npus))
    found = formula_ps(graph, kind, algorithm, npus << 13)
    monkeypatch.setattr("nadi.simulation.closed_forms.collective._MAX_SAMPLED_SENDS", npus**2)
    assert found == pytest.approx(formula_ps(graph, kind, algorithm, npus << 13), rel=1e-12)


@pytest.mark.parametrize(
    ("spec", "npus", "kind", "algorithm"),
    [
        (spec, npus, *one)
        for spec, npus, one in pairwise(itertools.product([RAILS, LEAVES], [8, 16, 40, 64, 192, 512], OF_MANY))
    ],
)
def test_formulas_are_no_less_than_the_links_of_the_npus_allow(spec, npus, kind, algorithm):
    """A member sends most of its share to other hosts, by its own link to the fabric."""
    graph = topologies.build(spec.format(npus))
    size = npus << 16
    hosts = len(set(graph.host.tolist()))
    to_others = (npus - npus // hosts) / npus * size if algorithm != "ring" else (npus - 1) / npus * size
    least_ps = 8e12 * to_others / 400e9 * (2 if kind == "all-reduce" else 1) * (hosts > 1)
    assert formula_ps(graph, kind, algorithm, size) > least_ps


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("npus", [32, 64])
def test_formulas_beside_packets_where_hosts_are_as_large_as_steps(npus, algorithm):
    graph = topologies.build(LEAVES.format(npus))
    program = workload.collective_program("all-reduce", npus, npus << 15, algorithm)
    time_ps = run_program(graph, program, Settings(record_nodes=False, record_flows=False), NoProgress()).finish_time_ps
    assert time_ps == pytest.approx(formula_ps(graph, "all-reduce", algorithm, npus << 15), rel=0.04)


CLOSED = '[network]\nfidelity = "closed-form"\n'
NPUS = 8
FABRIC = 'spec = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us"'


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
    file = write_run(stages(), CLOSED, FABRIC)
    file.write_text(file.read_text().replace('traces = "trace"\n', 'traces = "trace"\ngroups = "groups.json"\n'))
    return file


def tables(folder):
    return {name: pq.read_table(folder / f"{name}.parquet").to_pydict() for name in TABLES}


def test_report_and_files(nadi, run, tmp_path):
    outcome = nadi.ok("run", run, "--out", tmp_path / "out")
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
    assert "2 of 8 NPUs are shown" in nadi("run", run, "--out", tmp_path / "folded").out
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
    outcome = nadi.ok("run", run, "--json", *(word for key in given for word in ("--set", key)))
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


def test_a_run_beyond_memory_is_refused(nadi, run, monkeypatch):
    monkeypatch.setattr(resource_checks, "available_bytes", lambda: 300)
    monkeypatch.setattr(resource_checks, "check_fabric", lambda *_args, **_more: None)
    nadi.ok("run", run, "--force")
    assert "algorithm ring for all-reduce of 4 members: its 6 steps would take" in nadi.refuse("run", run).err


def test_trace_nodes_beyond_memory_are_refused(monkeypatch):
    monkeypatch.setattr(resource_checks, "available_bytes", lambda: 6 * resource_checks.ROW_BYTES - 1)
    resource_checks.check_rows(5)
    resource_checks.check_rows(6, force=True)
    with pytest.raises(ConfigError, match="6 trace nodes of distinct NPUs would take"):
        resource_checks.check_rows(6)
