"""Host traces that chakra_trace_link has merged with Kineto's become the traces that the two files become."""

import copy

import numpy as np
import pytest

from nadi import et
from nadi.et.pytorch import convert
from tests.et.pytorch.recorded import call, host, host_node, kernel, kineto, nccl_kernel, op, written

REDUCE = [[1, 1, 0, 500, 2, "cuda:0"]]
OF_COLLECTIVE = {
    "collective_name": "allreduce",
    "dtype": "Half",
    "in_msg_nelems": 500,
    "out_msg_nelems": 500,
    "pg_name": "0",
    "pg_size": 2,
}
HOST = [
    host_node(2, "[pytorch|profiler|execution_trace|thread]", 0, 1),
    host_node(3, "aten::mm", 11),
    host_node(4, "aten::add", 12),
    host_node(5, "record_param_comms", 13, inputs=REDUCE, types=["Tensor(c10::Half)"], **OF_COLLECTIVE),
    host_node(6, "nccl:all_reduce", 14, 5, scope=7),
]
EVENTS = [
    op("aten::mm", 10, 30, rf_id=11),
    call("cudaLaunchKernel", 15, 16, 1),
    kernel("gemm", 18, 48, 1),
    op("aten::add", 31, 38, rf_id=12),
    call("cudaLaunchKernel", 33, 34, 2),
    kernel("add", 48, 60, 2),
    op("record_param_comms", 40, 60, rf_id=13),
    op("nccl:all_reduce", 45, 58, rf_id=14, category="user_annotation"),
    call("cudaLaunchKernelExC", 50, 55, 3),
    nccl_kernel(52, 90, 3),
]
LAUNCHED_BY = {1: 3, 2: 4, 3: 6}
"""By correlation, the id of the host operator that has launched a kernel."""


def merged(with_record_ids):
    """What chakra_trace_link makes of HOST and EVENTS: the time of a kernel is that of its launch."""
    nodes = copy.deepcopy(HOST)
    timed = {event["args"].get("Record function id"): event for event in EVENTS}
    for node in nodes:
        event = timed.get(node["attrs"][0]["value"])
        if event:
            node |= {"ts": event["ts"], "inclusive_dur": event["dur"], "exclusive_dur": 1, "inter_thread_dep": None}
    launches = {event["args"]["correlation"]: event["ts"] for event in EVENTS if event["cat"] == "cuda_runtime"}
    for event in EVENTS:
        if event["cat"] == "kernel":
            correlation = event["args"]["correlation"]
            parent = next(node for node in nodes if node["id"] == LAUNCHED_BY[correlation])
            device = copy.deepcopy(parent) | {"id": 100 + correlation, "ctrl_deps": parent["id"], "name": event["name"]}
            device |= {"cat": "kernel", "ph": "X", "ts": launches[correlation], "inclusive_dur": event["dur"]}
            device["stream"] = event["args"]["stream"]
            if not with_record_ids:
                device["attrs"] = [entry for entry in device["attrs"] if entry["name"] not in {"rf_id", "tid"}]
            nodes.append(device)
    return host(sorted(nodes, key=lambda node: node["id"]))


def compute(table):
    """Names and durations of all kernels and collectives."""
    rows = np.flatnonzero(~table.is_cpu_op)
    return sorted((table.names[row], int(table.duration_micros[row]), int(table.comm_size[row])) for row in rows)


@pytest.mark.parametrize("with_record_ids", [True, False])
def test_a_merged_trace_becomes_what_its_two_parts_become(tmp_path, with_record_ids):
    parts = convert(written(tmp_path, host=host(HOST), kineto=kineto(EVENTS, world=2)))
    whole = convert(written(tmp_path, both=merged(with_record_ids)))
    assert compute(whole.tables[0]) == compute(parts.tables[0])
    (rank,) = whole.report["ranks"]
    assert (rank["linked_operators"], rank["kernels"], rank["linked_kernels"]) == (4, 3, 3)
    table = whole.tables[0]
    row = list(table.names).index("add")
    assert {table.names[parent] for parent in table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]]} == {
        "gemm",
        "(launch)",
    }
    begins = {name: int(start) for name, start in zip(table.names, table.start_time_micros, strict=True)}
    assert begins["gemm"] - begins["aten::mm"] == 5  # as it was launched
    assert begins["add"] - begins["gemm"] == 30  # as its stream was free
    assert any("waits between streams" in note for note in whole.notes)


def test_operators_without_a_record_function_id_are_linked_by_their_own_entry(tmp_path):
    document = merged(with_record_ids=True)
    for node in document["nodes"]:
        for entry in node["attrs"]:
            if entry["name"] == "rf_id":
                entry["value"] = 0
    (rank,) = convert(written(tmp_path, both=document)).report["ranks"]
    assert (rank["linked_operators"], rank["linked_kernels"]) == (4, 3)


@pytest.mark.parametrize(
    ("place", "change", "says"),
    [
        (1, {"id": "x"}, "entry 1 of nodes: expected a node with id and name"),
        (1, {"name": None}, "entry 1 of nodes: expected a node with id and name"),
        (5, {"ts": None}, "entry 5 of nodes: expected numbers as ts and inclusive_dur"),
        (5, {"inclusive_dur": "1"}, "entry 5 of nodes: expected numbers as ts and inclusive_dur"),
        (1, {"ts": float("inf")}, "entry 1 of nodes: expected numbers as ts and inclusive_dur"),
    ],
)
def test_wrong_entries_are_told(tmp_path, place, change, says):
    document = merged(with_record_ids=True)
    document["nodes"][place] |= change
    with pytest.raises(et.TraceError) as refused:
        convert(written(tmp_path, both=document))
    assert says in str(refused.value)
