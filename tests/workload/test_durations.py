import re

import numpy as np
import pytest

from et import NodeType, coll_node, comp_node, mem_node, metadata, table_of
from workload import ComputeModel, WorkloadError
from workload.durations import durations_ps
from workload.view import TraceView

RATES = {"peak_flops": 1e12, "memory_bandwidth_Bps": 1e9, "memory_latency_ps": 500}


def load(node_id, size, micros=0):
    node = mem_node(node_id, "m", NodeType.MEM_STORE_NODE, size)
    node.duration_micros = micros
    return node


def picoseconds(model, *nodes):
    return durations_ps(TraceView(table_of(metadata(), nodes, "t.et")), model).tolist()


NODES = (
    comp_node(0, "recorded", duration_micros=3, num_ops=10**9, tensor_size=1),
    comp_node(1, "by compute", num_ops=10**9, tensor_size=999),
    comp_node(2, "by memory", num_ops=10**3, tensor_size=10**4),
    comp_node(3, "ops only", num_ops=5),
    comp_node(4, "bytes only", tensor_size=5),
    comp_node(5, "host", num_ops=10**9, duration_micros=2, is_cpu_op=True),
    comp_node(6, "host, quick", num_ops=10**9, is_cpu_op=True),
    load(7, 100, micros=1),
    load(8, 100),
    coll_node(9, "network", 0, 100),
)


def test_auto_takes_what_is_there():
    found = picoseconds(ComputeModel(**RATES), *NODES, comp_node(10, "nothing"))
    by_node = [3e6, 1e9, 1e7, 5, 5000, 2e6, 0, 1e6, 500 + 100_000, 0, 0]
    assert found == by_node


def test_trace_takes_what_was_recorded():
    assert picoseconds(ComputeModel("trace"), *NODES) == [3e6, 0, 0, 0, 0, 2e6, 0, 1e6, 0, 0]


def test_roofline_models_all_but_the_host():
    assert picoseconds(ComputeModel("roofline", **RATES), *NODES) == [
        1e9, 1e9, 1e7, 5, 5000, 2e6, 0, 100_500, 100_500, 0,
    ]  # fmt: skip


def test_recorded_times_are_exact():
    micros = 2**53 // 10**6 + 1_234_567
    assert picoseconds(ComputeModel(), comp_node(0, "c", duration_micros=micros)) == [micros * 10**6]


def test_a_roofline_is_rounded_to_the_nearest():
    model = ComputeModel(peak_flops=3e12)
    assert picoseconds(model, comp_node(0, "", num_ops=4), comp_node(1, "", num_ops=5)) == [1, 2]
    random = np.random.default_rng(0).integers(1, 2**50, 20).tolist()
    found = picoseconds(ComputeModel(peak_flops=312e12), *(comp_node(i, "", num_ops=w) for i, w in enumerate(random)))
    assert found == [round(w / 312) for w in random]


@pytest.mark.parametrize(
    ("model", "node", "text"),
    [
        (
            ComputeModel(),
            comp_node(3, "", num_ops=1),
            'num_ops is given but no rate to divide it by, expected [compute] peak_flops, as "312TFLOPS"',
        ),
        (
            ComputeModel(),
            load(3, 1),
            'tensor_size is given but no rate to divide it by, expected [memory] bandwidth, as "2TB/s"',
        ),
        (
            ComputeModel("roofline", **RATES),
            comp_node(3, ""),
            'neither num_ops nor tensor_size, expected one, or [compute] model = "auto" in the run file',
        ),
        (
            ComputeModel(),
            comp_node(3, "", duration_micros=2**43),
            "duration_micros is beyond 1000000000000, expected less",
        ),
        (
            ComputeModel(peak_flops=1e-6),
            comp_node(3, "", num_ops=10),
            "takes longer than 11 days, expected less",
        ),
    ],
)
def test_what_cannot_be_known_is_an_error(model, node, text):
    with pytest.raises(WorkloadError, match=f"^t.et: node 3: {re.escape(text)}$"):
        picoseconds(model, node)


def test_a_node_that_needs_no_rate_needs_none():
    assert picoseconds(ComputeModel(), comp_node(0, "", num_ops=0, tensor_size=0), load(1, 0)) == [0, 0]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"mode": "fast"}, "compute mode 'fast': expected one of auto, trace, roofline"),
        ({"peak_flops": 0}, "peak_flops is 0: expected a positive number"),
        ({"memory_bandwidth_Bps": float("inf")}, "memory_bandwidth_Bps is inf: expected a positive number"),
        ({"memory_latency_ps": -1}, "memory_latency_ps is -1: expected 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, text):
    with pytest.raises(WorkloadError) as error:
        ComputeModel(**values)
    assert str(error.value) == text
