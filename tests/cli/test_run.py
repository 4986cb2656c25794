"""`nadi run`: the report, the files, and what a failed run leaves."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.et import CollectiveCommType
from nadi.reports.run_folder import TABLES
from nadi.simulation import run as simulation

SUMMARY_KEYS = {
    *(
        "finish_time_ps",
        "npus",
        "trace_nodes",
        "flows",
        "packets",
        "packet_hops",
        "events",
        "windows",
        "ranks",
        "threads",
    ),
    *("wall_s", "setup_s", "packet_hops_per_s", "peak_rss_bytes", "digest", "network", "version", "config"),
}


def files(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else None


def test_report_and_files(nadi, write_run, step, tmp_path):
    run = write_run([step] * 4)
    outcome = nadi("run", run, "--out", tmp_path / "out")
    assert outcome.code == 0
    for text in ("time of each NPU", "collectives: mean time", "busiest links", "npu 0 → npu 1", "all-reduce"):
        assert text in outcome.out
    assert outcome.out.endswith(f"results: {tmp_path / 'out'}\n")
    assert files(tmp_path / "out") == sorted(["summary.json", *(f"{table}.parquet" for table in (*TABLES, "workers"))])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary) >= SUMMARY_KEYS
    assert summary["trace_nodes"] == 16
    assert summary["bytes_sent"] == summary["bytes_received"] + summary["bytes_dropped"]
    assert summary["config"]["network"]["mtu"] == "4KiB"


def test_times_are_those_of_the_closed_form(nadi, write_run, step, tmp_path):
    """10 us forward; an all-reduce of 6 ring steps of 16 KiB, twice, the first beside 5 us backward."""
    nadi("run", write_run([step] * 4), "--out", tmp_path / "out")
    ring_step_ps = 4 * (4096 + 82) * 80 + 10**6
    finish_ps = 10 * 10**6 + 2 * 6 * ring_step_ps
    npus = pq.read_table(tmp_path / "out" / "npus.parquet").to_pydict()
    assert npus["compute_ps"] == [15 * 10**6] * 4
    assert npus["exposed_ps"] == [finish_ps - 15 * 10**6] * 4
    assert npus["idle_ps"] == npus["memory_ps"] == [0] * 4
    collectives = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert [c["time_ps"] for c in collectives] == [6 * ring_step_ps] * 2
    assert [c["ratio"] for c in collectives] == pytest.approx([1, 1])
    assert collectives[0]["algbw_Bps"] == pytest.approx(65536 / (6 * ring_step_ps) * 1e12)
    assert collectives[0]["busbw_Bps"] == pytest.approx(1.5 * collectives[0]["algbw_Bps"])
    nodes = pq.read_table(tmp_path / "out" / "nodes.parquet").to_pylist()
    assert [n["name"] for n in nodes[:4]] == ["forward", "grads 1", "backward", "grads 2"]
    assert [(n["start_ps"], n["finish_ps"]) for n in nodes[:2]] == [
        (0, 10**7),
        (10**7, 10**7 + 6 * ring_step_ps),
    ]
    flows = pq.read_table(tmp_path / "out" / "flows.parquet")
    assert flows.num_rows == 2 * 6 * 4
    links = pq.read_table(tmp_path / "out" / "links.parquet").to_pydict()
    assert sum(links["tx_bytes"]) == 2 * 6 * 4 * 4 * (4096 + 82 + 86)


def test_json_is_one_document_and_nothing_else(nadi, write_run, step):
    outcome = nadi("run", write_run([step] * 4), "--json")
    assert set(outcome.document) >= SUMMARY_KEYS
    assert "not kept" in outcome.err


def test_the_same_run_gives_the_same_answer(nadi, write_run, step):
    run = write_run([step] * 4)
    first, second = (nadi("run", run, "--json", "-q").document for _ in range(2))
    assert first["digest"] == second["digest"]
    assert nadi("run", run, "--json", "-q", "--set", "network.mtu=1KiB").document["digest"] != first["digest"]


def test_output_of_the_run_file_and_left_out_tables(nadi, write_run, step, tmp_path):
    run = write_run([step] * 4, '[output]\ndir = "out"\n')
    assert nadi("run", run).code == 0
    assert files(tmp_path / "out") == sorted(["summary.json", *(f"{table}.parquet" for table in (*TABLES, "workers"))])
    (tmp_path / "out" / "notes.txt").touch()
    assert nadi("run", run, "--set", "output.nodes=none", "--set", "output.flows=none").code == 0
    expected = ["collectives.parquet", "links.parquet", "notes.txt", "npus.parquet", "summary.json", "workers.parquet"]
    assert files(tmp_path / "out") == expected


def test_a_parameter_of_the_topology_is_set_on_top_of_a_spec_or_of_a_name(nadi, write_run, step):
    """As written in the spec, on top of it, and on top of params: one fabric; each answer names it."""
    found = []
    for topology, rate in (
        ('spec = "ring:npus=4,delay=1us,rate=400Gbps"', None),
        ('spec = "ring:npus=4,rate=100Gbps,delay=1us"', "400Gbps"),
        ('spec = "ring:npus=4,delay=1us"', "400Gbps"),
        ('name = "ring"\nparams = { npus = 4, rate = "100Gbps", delay = "1us" }', "400Gbps"),
    ):
        given = ["--set", f"topology.params.rate={rate}"] if rate else []
        outcome = nadi("run", write_run([step] * 4, topology=topology), "--json", "-q", *given)
        assert outcome.code == 0, outcome.err
        assert "rate=400Gbps" in outcome.document["topology"]
        found.append((outcome.document["digest"], outcome.document["finish_time_ps"]))
    assert len(set(found)) == 1
    wrong = nadi("run", write_run([step] * 4), "-q", "--set", "topology.params.rat=1Gbps")
    assert wrong.code == 2
    assert "rat: unknown key; nearest known key: rate" in wrong.err


def test_roofline_and_memory(nadi, write_run, tmp_path):
    nodes = [
        et.comp_node(1, "matmul", num_ops=10**9, tensor_size=10),
        et.mem_node(2, "load", et.NodeType.MEM_LOAD_NODE, 10**6, deps=[1]),
    ]
    text = '[compute]\npeak_flops = "1TFLOPS"\n[memory]\nbandwidth = "1GB/s"\nlatency = "5ns"\n[output]\ndir = "out"\n'
    assert nadi("run", write_run([nodes], text)).code == 0
    npus = pq.read_table(tmp_path / "out" / "npus.parquet").to_pydict()
    assert npus["compute_ps"] == [10**9, 0, 0, 0]
    assert npus["memory_ps"] == [10**9 + 5000, 0, 0, 0]
    assert npus["idle_ps"] == [0] + [2 * 10**9 + 5000] * 3


def test_groups_and_messages(nadi, write_run, tmp_path):
    (tmp_path / "groups.json").write_text('{"7": [0, 2], "8": [1, 3]}')
    names = ["7", "8", "7", "8"]
    all_gather = CollectiveCommType.ALL_GATHER
    nodes = [[et.coll_node(1, "gather", all_gather, 4096, pg_name=name)] for name in names]
    nodes[0].append(et.send_node(2, "to 3", 0, 3, 100, 5))
    nodes[3].append(et.recv_node(2, "from 0", 0, 3, 100, 5))
    run = write_run(nodes, '[output]\ndir = "out"\n').read_text().replace('"trace"', '"trace"\ngroups = "groups.json"')
    (tmp_path / "run.toml").write_text(run)
    assert nadi("run", tmp_path / "run.toml").code == 0
    collectives = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert [(c["group_name"], c["kind"], c["members"], c["bytes"]) for c in collectives] == [
        ("7", "all-gather", 2, 8192),
        ("8", "all-gather", 2, 8192),
    ]
    flows = pq.read_table(tmp_path / "out" / "flows.parquet").to_pylist()
    assert [(f["src"], f["dst"], f["bytes"], f["lane"]) for f in flows if f["group"] == -1] == [(0, 3, 100, 5)]


def test_a_run_that_cannot_finish_says_who_waits_and_leaves_nothing(nadi, write_run, tmp_path):
    """NPU 0 sends only after it has received, NPU 1 the same."""
    nodes = [
        [et.recv_node(1, "recv", 1 - npu, npu, 64), et.send_node(2, "send", npu, 1 - npu, 64, deps=[1])]
        for npu in range(2)
    ]
    outcome = nadi("run", write_run(nodes), "--out", tmp_path / "a" / "b")
    assert outcome.code == 1
    assert re.search(r"npu 0 .*waits for npu 1", outcome.err)
    assert re.search(r"npu 1 .*waits for npu 0", outcome.err)
    assert not (tmp_path / "a").exists()


def test_a_failure_keeps_the_results_of_an_earlier_run(nadi, write_run, step, tmp_path):
    run = write_run([step] * 4, '[output]\ndir = "out"\n')
    assert nadi("run", run).code == 0
    before = files(tmp_path / "out")
    assert nadi("run", run, "--set", "topology.spec=ring:npus=2").code == 2
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"])
@pytest.mark.parametrize("npus", [4, 8, 16])
def test_microbenchmarks_of_others(nadi, tmp_path, shared_data, kind, npus):
    traces = shared_data / "chakra" / "microbenchmarks" / kind / f"{npus}npus_1MB" / kind
    run = tmp_path / "run.toml"
    run.write_text(f'[workload]\ntraces = "{traces}"\n[topology]\nspec = "ring:npus={npus},rate=50GB/s"\n')
    summary = nadi("run", run, "--json", "-q").document
    assert summary["trace_nodes"] == npus
    assert summary["finish_time_ps"] > 0


@pytest.mark.parametrize("name", ["gpt_fsdp8", "dense_dp2tp2pp2"])
def test_symbolic_traces_of_others(nadi, tmp_path, shared_data, name):
    folder = shared_data / "chakra" / name
    run = tmp_path / "run.toml"
    run.write_text(
        f'[workload]\ntraces = "{folder / "workload"}"\ngroups = "{folder / "workload.json"}"\n'
        '[topology]\nspec = "switch:npus=8,rate=400Gbps"\n'
        '[compute]\npeak_flops = "312TFLOPS"\n[memory]\nbandwidth = "2.04TB/s"\n'
    )
    outcome = nadi("run", run, "--out", tmp_path / "out", "-q")
    assert outcome.code == 0, outcome.err
    npus = pq.read_table(tmp_path / "out" / "npus.parquet").to_pydict()
    assert np.min(npus["compute_ps"]) > 0


def test_custom_collectives_of_others(nadi, tmp_path, shared_data):
    name = "custom_ring_allreduce_8npus_1MB"
    traces = shared_data / "astra-sim" / "system" / "custom_collectives" / name / "custom_allreduce"
    run = tmp_path / "run.toml"
    run.write_text(f'[workload]\ntraces = "{traces}"\n[topology]\nspec = "ring:npus=8,rate=50GB/s"\n')
    assert nadi("run", run, "--json", "-q").document["trace_nodes"] == 8 * 35


def test_messages_are_kept_where_they_are_written(nadi, write_run, step, tmp_path, monkeypatch):
    kept = []
    run_program = simulation.run_program

    def look(*arguments):
        results = run_program(*arguments)
        kept.append(len(results.flows["src"]))
        return results

    monkeypatch.setattr(simulation, "run_program", look)
    run = write_run([step] * 4)
    found = [
        nadi("run", run, "--json", *more).document
        for more in ([], ["--out", tmp_path / "all"], ["--out", tmp_path / "none", "--set", "output.flows=none"])
    ]
    assert kept == [0, 2 * 6 * 4, 0]
    assert len({each["digest"] for each in found}) == 1
