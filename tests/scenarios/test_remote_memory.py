"""Remote memory of each NPU: one access at a time, beside local memory and computing, in every model of the network."""

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
