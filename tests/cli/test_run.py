"""`nadi run`: the report, the files, replayed collectives, traffic, and what a failed run leaves."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.insight.runs import Run
from nadi.reports.pages.report import engine_section
from nadi.reports.run_folder import TABLES
from nadi.simulation import run as simulation
from nadi.simulation.assembly import resource_checks


def files(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else None


def test_report_and_files(nadi, write_run, step, tmp_path):
    run = write_run([step] * 4)
    outcome = nadi.ok("run", run, "--out", tmp_path / "out")
    for text in ("time of each NPU", "collectives: mean time", "busiest links", "npu 0 → npu 1", "all-reduce"):
        assert text in outcome.out
    assert outcome.out.endswith(f"results: {tmp_path / 'out'}\n")
    assert files(tmp_path / "out") == sorted(["summary.json", *(f"{table}.parquet" for table in (*TABLES, "workers"))])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())

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
    assert [(n["start_ps"], n["finish_ps"]) for n in nodes[:2]] == [(0, 10**7), (10**7, 10**7 + 6 * ring_step_ps)]
    flows = pq.read_table(tmp_path / "out" / "flows.parquet")
    assert flows.num_rows == 2 * 6 * 4
    links = pq.read_table(tmp_path / "out" / "links.parquet").to_pydict()
    assert sum(links["tx_bytes"]) == 2 * 6 * 4 * 4 * (4096 + 82 + 86)


def test_output_of_the_run_file_and_left_out_tables(nadi, write_run, step, tmp_path):
    run = write_run([step] * 4, '[output]\ndir = "out"\n')
    nadi.ok("run", run)
    assert files(tmp_path / "out") == sorted(["summary.json", *(f"{table}.parquet" for table in (*TABLES, "workers"))])
    (tmp_path / "out" / "notes.txt").touch()
    nadi.ok("run", run, "--set", "output.nodes=none", "--set", "output.flows=none")
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
        outcome = nadi.ok("run", write_run([step] * 4, topology=topology), "--json", "-q", *given)
        assert "rate=400Gbps" in outcome.document["topology"]
        found.append((outcome.document["digest"], outcome.document["finish_time_ps"]))
    assert len(set(found)) == 1
    wrong = nadi.refuse("run", write_run([step] * 4), "-q", "--set", "topology.params.rat=1Gbps")
    assert "rat: unknown key; nearest known key: rate" in wrong.err


def test_roofline_and_memory(nadi, write_run, tmp_path):
    nodes = [
        et.comp_node(1, "matmul", num_ops=10**9, tensor_size=10),
        et.mem_node(2, "load", et.NodeType.MEM_LOAD_NODE, 10**6, deps=[1]),
    ]
    text = '[compute]\npeak_flops = "1TFLOPS"\n[memory]\nbandwidth = "1GB/s"\nlatency = "5ns"\n[output]\ndir = "out"\n'
    nadi.ok("run", write_run([nodes], text))
    npus = pq.read_table(tmp_path / "out" / "npus.parquet").to_pydict()
    assert npus["compute_ps"] == [10**9, 0, 0, 0]
    assert npus["memory_ps"] == [10**9 + 5000, 0, 0, 0]
    assert npus["idle_ps"] == [0] + [2 * 10**9 + 5000] * 3


def test_groups_and_messages(nadi, write_run, tmp_path):
    (tmp_path / "groups.json").write_text('{"7": [0, 2], "8": [1, 3]}')
    names = ["7", "8", "7", "8"]
    all_gather = et.CollectiveCommType.ALL_GATHER
    nodes = [[et.coll_node(1, "gather", all_gather, 4096, pg_name=name)] for name in names]
    nodes[0].append(et.send_node(2, "to 3", 0, 3, 100, 5))
    nodes[3].append(et.recv_node(2, "from 0", 0, 3, 100, 5))
    run = write_run(nodes, '[output]\ndir = "out"\n').read_text().replace('"trace"', '"trace"\ngroups = "groups.json"')
    (tmp_path / "run.toml").write_text(run)
    nadi.ok("run", tmp_path / "run.toml")
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
    nadi.ok("run", run)
    before = files(tmp_path / "out")
    assert nadi("run", run, "--set", "topology.spec=ring:npus=2").code == 2
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["gpt_fsdp8", "dense_dp2tp2pp2"])
def test_symbolic_traces_of_others(nadi, tmp_path, shared_data, name):
    folder = shared_data / "chakra" / name
    run = tmp_path / "run.toml"
    run.write_text(
        f'[workload]\ntraces = "{folder / "workload"}"\ngroups = "{folder / "workload.json"}"\n'
        '[topology]\nspec = "switch:npus=8,rate=400Gbps"\n'
        '[compute]\npeak_flops = "312TFLOPS"\n[memory]\nbandwidth = "2.04TB/s"\n'
    )
    nadi.ok("run", run, "--out", tmp_path / "out", "-q")
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


STEP = (
    *("run", "--model", "gpt3-350m", "--plan", "tp8,dp2,gb4,seq512", "--cluster", "dgx-b200-superpod"),
    *("--gpus", 16, "--set", 'output.flows="none"'),
)


def test_a_step_is_the_same_with_exact(nadi, tmp_path):
    shown = nadi(*STEP, "--out", tmp_path / "replayed").out
    nadi(*STEP, "--exact", "--out", tmp_path / "exact")
    found, wanted = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("replayed", "exact"))
    assert found["digest"] == wanted["digest"]
    assert found["packet_hops"] == wanted["packet_hops"]
    assert "reuse" not in wanted
    counts = found["reuse"]
    assert counts["episodes_replayed"] > 20 * counts["episodes_simulated"] > 0
    assert 0.5 * found["packet_hops"] < counts["replayed_hops"] < found["packet_hops"]
    assert f"{counts['replayed_hops']:,} of them replayed" in shown
    facts = str(engine_section(Run(tmp_path / "replayed")))
    assert f"{counts['replayed_hops']:,}" in facts


@pytest.mark.slow
def test_large_runs_keep_no_rows_of_replayed_messages(nadi, tmp_path, monkeypatch):
    step = [word for word in STEP if word not in {"--set", 'output.flows="none"'}]
    monkeypatch.setattr(resource_checks, "MAX_ROWS_OF_MESSAGES", 1000)
    rows = {}
    for flows in ("auto", "all"):
        nadi(*step, "--set", f"output.flows={flows}", "--out", tmp_path / flows)
        rows[flows] = pq.read_table(tmp_path / flows / "flows.parquet")
    auto, whole = (json.loads((tmp_path / name / "summary.json").read_text()) for name in rows)
    assert auto["digest"] == whole["digest"]
    assert len(rows["all"]) == whole["flows"]
    assert len(rows["auto"]) == whole["flows"] - auto["reuse"]["replayed_messages"] > 0
    host_of_src, host_of_dst = (rows["all"][end].to_numpy() // 8 for end in ("src", "dst"))
    assert rows["auto"] == rows["all"].filter(host_of_src != host_of_dst)


PACKET, HEADER = 4096, 82


def run(nadi, folder, topology, *arguments):
    file = folder / "run.toml"
    file.write_text(f'[workload]\ntraces = "traffic"\n[topology]\nspec = "{topology}"\n')
    return nadi("run", file, "--quiet", "--json", *arguments).document


def test_incast_takes_what_the_receivers_link_needs(nadi, tmp_path):
    """The first packet goes over two links, all packets over the last one, which is never idle."""
    senders, size = 8, 1_000_000
    outcome = nadi("workload", "traffic", "incast", "--npus", senders + 1, "--size", f"{size}B", "-o", tmp_path)
    assert outcome.out == f"{tmp_path}/traffic.<npu>.et: 9 traces, 8 messages, 8.00 MB\n"
    done = run(nadi, tmp_path, "switch:npus=9,rate=100Gbps,delay=1us")
    wire = size + -(-size // PACKET) * HEADER
    assert done["finish_time_ps"] == (senders * wire + PACKET + HEADER) * 80 + 2 * 10**6


@pytest.mark.parametrize(
    "arguments",
    [
        ("incast", "--fan-in", 3),
        ("permutation", "--messages", 2),
        ("pairs", "--stride", 1),
        ("poisson", "--size", "hadoop", "--duration", "100us"),
        ("bursty", "--size", "hadoop", "--duration", "100us", "--sigma", 1.5),
        ("all-to-all", "--size", "uniform:1KiB-64KiB"),
    ],
)
def test_every_pattern_runs_at_every_fidelity(nadi, tmp_path, arguments):
    nadi.ok("workload", "traffic", *arguments, "-o", tmp_path)
    for fidelity in ("packet", "analytical"):
        fabric = "leaf-spine:npus=8,hosts_per_leaf=4,spines=2,rate=400Gbps,delay=500ns"
        assert run(nadi, tmp_path, fabric, "--fidelity", fidelity)["finish_time_ps"] > 0


def test_poisson_says_what_it_offers(nadi, tmp_path):
    outcome = nadi(
        "workload", "traffic", "poisson", "--load", 0.4, "--duration", "5ms", "--size", "64KiB", "-o", tmp_path
    )
    offered = float(outcome.out.split(", ")[-1].split()[0])
    assert offered == pytest.approx(0.4, rel=0.1)
    assert outcome.out.endswith(" of 8 x 400Gbps in 5ms\n")


def test_a_run_of_messages_alone_has_no_share_of_computation_and_no_energy(nadi, tmp_path):
    """The report on the terminal, the page, and comparisons; messages have their completion times there."""
    options = ("poisson", "--size", "hadoop", "--duration", "100us")
    nadi.ok("workload", "traffic", *options, "-o", tmp_path)
    file = tmp_path / "run.toml"
    file.write_text('[workload]\ntraces = "traffic"\n[topology]\nspec = "switch:npus=8,rate=400Gbps"\n')
    printed = nadi("run", file, "--out", tmp_path / "out", "--report")
    assert (printed.code, printed.out.count("busiest links")) == (0, 1)
    assert not re.search("exposed|compute|idle", printed.out)
    page = (tmp_path / "out" / "report.html").read_text().partition("<script>")[0]
    assert 'id="network-title"' in page
    assert 'id="energy-title"' not in page
    assert 'id="step-title"' not in page
    document = nadi("compare", tmp_path / "out", tmp_path / "out", "--json").document
    names = {row["name"] for row in document["figures"]}
    assert "median_completion_ps" in names
    assert not [name for name in names if "share" in name or "energy" in name or "cost" in name]
    assert document["times"]["rows"] == []
    nadi.ok("compare", tmp_path / "out", tmp_path / "out", "-o", tmp_path / "page.html")


@pytest.mark.parametrize(("ports", "parts"), [('"one"', 4), ('"all"\nentropy = "oblivious"', 1)])
def test_messages_stay_whole_where_their_packets_take_all_ports(nadi, write_run, tmp_path, ports, parts):
    sent = [[et.send_node(1, "s", 0, 1, 1 << 16)], [et.recv_node(1, "r", 0, 1, 1 << 16)]]
    run = write_run(sent, f"[network]\nnic_ports = {ports}\n", 'spec = "multi-plane:npus=2,planes=4,nics_per_leaf=1"')
    nadi.ok("run", run, "--out", tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "flows.parquet")["bytes"].to_pylist() == [(1 << 16) // parts] * parts
