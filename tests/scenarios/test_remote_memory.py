"""Remote memory of each NPU: one access at a time, beside local memory and computing, in every model of the network."""

import itertools
import json

import pyarrow.parquet as pq
import pytest

import et
from nadi.cli import main

LATENCY_PS, BYTES_PER_S = 2_000_000, 10**9
LOAD, STORE = et.NodeType.MEM_LOAD_NODE, et.NodeType.MEM_STORE_NODE
RUN = """
[workload]
traces = "trace"
[topology]
spec = "ring:npus=2,rate=100Gbps,delay=1us"
[memory]
bandwidth = "100GB/s"
remote = "npu"
remote_latency = "2us"
remote_bandwidth = "1GB/s"
"""


def access_ps(size):
    return LATENCY_PS + size * 10**12 // BYTES_PER_S


@pytest.mark.parametrize("fidelity", ["packet", "analytical", "closed-form"])
def test_accesses_follow_each_other_and_nothing_else_waits_for_them(tmp_path, fidelity):
    sizes = 1000, 500, 250
    nodes = [
        et.mem_node(1, "in", LOAD, sizes[0], tensor_loc=1),
        et.mem_node(2, "local", LOAD, 10**6),
        et.comp_node(3, "compute", duration_micros=1),
        et.mem_node(4, "out", STORE, sizes[1], tensor_loc=1),
        et.mem_node(5, "after compute", LOAD, sizes[2], tensor_loc=1, deps=[3]),
        et.comp_node(6, "end", duration_micros=1, deps=[1]),
    ]
    other = [et.mem_node(1, "of another NPU", LOAD, 4000, tensor_loc=1)]
    for npu, trace in enumerate((nodes, other)):
        et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), trace)
    more = "" if fidelity == "packet" else f'[network]\nfidelity = "{fidelity}"\n'
    more += "congestion_aware = true\n" if fidelity == "analytical" else ""
    (tmp_path / "run.toml").write_text(RUN + more)
    assert main(["run", str(tmp_path / "run.toml"), "-q", "--out", str(tmp_path / "out")]) == 0
    rows = pq.read_table(tmp_path / "out" / "nodes.parquet").to_pylist()
    finish = {(row["npu"], row["name"]): row["finish_ps"] for row in rows}
    first = access_ps(sizes[0])
    assert finish[0, "in"] == first
    assert finish[0, "out"] == first + access_ps(sizes[1])
    assert finish[0, "after compute"] == first + access_ps(sizes[1]) + access_ps(sizes[2])
    assert finish[0, "local"] == 10_000_000
    assert finish[0, "compute"] == 1_000_000
    assert finish[0, "end"] == first + 1_000_000
    assert finish[1, "of another NPU"] == access_ps(4000)
    assert {row["lane"] for row in rows if row["name"] in {"in", "out", "after compute"}} == {"remote"}


POOL = """
[workload]
traces = "trace"
[topology]
spec = "ring:npus=4,rate=80Gbps,delay=1us"
[network]
fidelity = "analytical"
congestion_aware = true
[memory]
remote = "pool"
remote_npus = [3]
remote_latency = "2us"
remote_bandwidth = "1GB/s"
"""
WIRE_PS_PER_BYTE, HOP_PS, REQUEST_BYTES = 100, 1_000_000, 64


def message_ps(size, hops):
    """Store and forward of a whole message."""
    return hops * (size * WIRE_PS_PER_BYTE + HOP_PS)


def run_pool(folder, traces, *more):
    for npu, trace in enumerate(traces):
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), trace)
    (folder / "run.toml").write_text(POOL)
    code = main(["run", str(folder / "run.toml"), "-q", "--out", str(folder / "out"), "--force", *more])
    return code, pq.read_table(folder / "out" / "nodes.parquet").to_pylist() if code == 0 else []


def test_a_pool_serves_one_access_at_a_time_over_the_network(tmp_path):
    near = [et.mem_node(1, "in", LOAD, 10_000, tensor_loc=1), et.comp_node(2, "end", duration_micros=1, deps=[1])]
    far = [et.mem_node(1, "out", STORE, 1000, tensor_loc=1)]  # NPU 1 is two hops from 3, NPU 2 one
    code, rows = run_pool(tmp_path, [[], far, near])
    assert code == 0
    finish = {(row["npu"], row["name"]): row["finish_ps"] for row in rows}
    asked = message_ps(REQUEST_BYTES, 1)
    read = asked + access_ps(10_000)
    assert finish[3, "load 0 of npu 2"] == read
    assert finish[2, "in"] == read + message_ps(10_000, 1)
    assert finish[2, "end"] == finish[2, "in"] + 1_000_000
    assert message_ps(1000, 2) < read  # the store has come and waits
    written = read + access_ps(1000)
    assert finish[3, "store 0 of npu 1"] == written
    answered = max(written, read) + message_ps(REQUEST_BYTES, 2)
    assert answered <= finish[1, "out"] <= answered + message_ps(10_000, 1)  # behind the data where they share a link


def test_a_pool_gives_the_same_answer_on_two_workers_packet_by_packet(tmp_path):
    def trace():
        kinds = STORE, LOAD
        return [
            et.mem_node(n, f"{n}", kinds[n % 2], 5000 * n, tensor_loc=1, deps=[n - 2] if n > 2 else [])
            for n in range(1, 7)
        ]

    text = POOL.replace('fidelity = "analytical"\ncongestion_aware = true\n', "")
    answers = []
    for workers in ("1", "2"):
        for npu in range(3):
            et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), trace())
        (tmp_path / "run.toml").write_text(text)
        out = tmp_path / workers
        assert main(["run", str(tmp_path / "run.toml"), "-q", "--out", str(out), "--workers", workers]) == 0
        rows = pq.read_table(out / "nodes.parquet").to_pylist()
        answers.append((json.loads((out / "summary.json").read_text())["digest"], rows))
    assert answers[0] == answers[1]
    served = sorted((row["start_ps"], row["finish_ps"]) for row in rows if row["npu"] == 3 and row["kind"] == "memory")
    assert len(served) == 18
    assert sum(finish - start for start, finish in served) == sum(3 * access_ps(5000 * n) for n in range(1, 7))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(served))


@pytest.mark.parametrize(
    ("npus", "words"),
    [("[7]", "memory node 7: expected an NPU of the fabric"), ("[0]", "trace of NPU 0, which is a memory node")],
)
def test_a_memory_node_is_an_idle_npu_of_the_fabric(tmp_path, capsys, npus, words):
    code, _ = run_pool(tmp_path, [[et.mem_node(1, "in", LOAD, 1, tensor_loc=1)]], "--set", f"memory.remote_npus={npus}")
    assert code == 2
    assert words in capsys.readouterr().err
