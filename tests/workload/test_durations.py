import re

import numpy as np
import pytest

from nadi.et import NodeType, attribute, coll_node, comp_node, mem_node, metadata, table_of
from nadi.workload import ComputeModel, WorkloadError
from nadi.workload.compute import ComputeTimes, find_gpu, parse_operators
from nadi.workload.node_kinds import MEMORY_LANE, REMOTE_LANE
from nadi.workload.program.durations import RemoteMemory, durations_ps, lanes
from nadi.workload.trace_sets.trace_set import TraceView
from tests.refusals import refused

GPU = '[compute] gpu, as "h100"'
NO_RATE = "is given but no rate to divide it by, expected"
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
        (ComputeModel(), comp_node(3, "", num_ops=1), f'num_ops {NO_RATE} {GPU}, or peak_flops, as "312TFLOPS"'),
        (ComputeModel(), load(3, 1), f'tensor_size {NO_RATE} {GPU}, or [memory] bandwidth, as "2TB/s"'),
        (
            ComputeModel("roofline", **RATES),
            comp_node(3, ""),
            'no operators, num_ops or tensor_size, expected one, or [compute] model = "auto" in the run file',
        ),
        (
            ComputeModel(),
            comp_node(3, "", duration_micros=2**43),
            "duration_micros is beyond 1000000000000, expected less",
        ),
        (ComputeModel(peak_flops=1e-6), comp_node(3, "", num_ops=10), "takes longer than 11 days, expected less"),
    ],
)
def test_what_cannot_be_known_is_an_error(model, node, text):
    assert refused(WorkloadError, picoseconds, model, node) == f"t.et: node 3: {text}"


def test_a_node_that_needs_no_rate_needs_none():
    assert picoseconds(ComputeModel(), comp_node(0, "", num_ops=0, tensor_size=0), load(1, 0)) == [0, 0]


ON_A100 = ComputeTimes(find_gpu("a100"))
HUGE = "x".join(["1000000000"] * 3)
KNOWN = "bf16, fp16, tf32, fp32, int8"
PRODUCT, NORM = "gemm 2048x4608x12288 bf16", "norm 2048x12288 bf16"


def doing(node_id, text, **facts):
    return comp_node(node_id, "op", attrs=[attribute("operators", "string", text)], **facts)


def test_operators_take_as_long_as_each_after_the_other():
    product, norm = (ON_A100.time_ps(parse_operators(text)[0]) for text in (PRODUCT, NORM))
    both, recorded = doing(0, f"{PRODUCT}; {NORM}", num_ops=1), doing(2, PRODUCT, duration_micros=7)
    nodes = [both, doing(1, NORM), recorded, load(3, 0)]
    assert picoseconds(ComputeModel(times=ON_A100), *nodes) == [product + norm, norm, 7_000_000, 0]
    assert picoseconds(ComputeModel("roofline", times=ON_A100), *nodes) == [product + norm, norm, product, 0]
    assert picoseconds(ComputeModel("trace", times=ON_A100), *nodes) == [0, 0, 7_000_000, 0]


def test_work_without_operators_goes_at_the_rates_of_the_gpu_unless_others_are_given():
    nodes = [comp_node(0, "", num_ops=10**12), comp_node(1, "", tensor_size=10**9), load(2, 10**9)]
    at_its_rates = [round(1e24 / (312e12 * 0.88)), round(1e21 / (2.039e12 * 0.87)), round(1e21 / (2.039e12 * 0.87))]
    assert picoseconds(ComputeModel(times=ON_A100), *nodes) == at_its_rates
    assert picoseconds(ComputeModel(times=ON_A100, peak_flops=1e15), *nodes)[0] == 10**9
    assert picoseconds(ComputeModel(times=ON_A100, memory_bandwidth_Bps=1e12), *nodes)[1:] == [10**9, 10**9]


def test_without_a_gpu_operators_are_what_num_ops_says():
    assert picoseconds(ComputeModel(peak_flops=1e12), doing(0, PRODUCT, num_ops=10**6)) == [10**6]
    with pytest.raises(WorkloadError, match=r"^t\.et: node 4: operators are given but no GPU that does them, expected"):
        picoseconds(ComputeModel(peak_flops=1e12), doing(4, PRODUCT))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gemm 2x3 bf16", "operator 'gemm 2x3 bf16': shape '2x3', expected mxnxk"),
        ("gemm 2x3x4 fp8", f"GPU a100: no rate for fp8; expected one of {KNOWN}, or fp8 in its peak_flops"),
        (f"gemm {HUGE} bf16", f"operator 'gemm {HUGE} bf16' takes longer than 11 days, expected less"),
    ],
)
def test_operators_that_cannot_be_timed_are_told_with_their_node(text, said):
    assert (
        refused(WorkloadError, picoseconds, ComputeModel(times=ON_A100), doing(1, NORM), doing(3, text))
        == f"t.et: node 3: {said}"
    )


REMOTE = RemoteMemory(latency_ps=700, bandwidth_Bps=5e8)


def away(node_id, size, micros=0, loc=1):
    node = mem_node(node_id, "m", NodeType.MEM_LOAD_NODE, size, tensor_loc=loc)
    node.duration_micros = micros
    return node


def test_remote_memory_takes_its_own_latency_and_bandwidth():
    nodes = load(0, 100), away(1, 100), away(2, 100, loc=2), away(3, 100, micros=1), comp_node(4, "c", tensor_size=100)
    local, remote = 500 + 100_000, 700 + 200_000
    assert picoseconds(ComputeModel(**RATES), *nodes) == [local, local, local, 1e6, 1e5]
    assert picoseconds(ComputeModel(**RATES, remote=REMOTE), *nodes) == [local, remote, remote, 1e6, 1e5]
    assert picoseconds(ComputeModel("trace", remote=REMOTE), *nodes) == [0, remote, remote, 1e6, 0]
    assert picoseconds(ComputeModel("trace"), *nodes) == [0, 0, 0, 1e6, 0]
    only = ComputeModel(remote=REMOTE)
    assert picoseconds(only, away(1, 100)) == [remote]
    with pytest.raises(WorkloadError, match="node 0: tensor_size is given but no rate to divide it by, expected"):
        picoseconds(only, *nodes)
    with pytest.raises(WorkloadError, match=re.escape("[memory] remote_bandwidth")):
        picoseconds(ComputeModel(remote=RemoteMemory()), away(1, 100))


def test_nodes_that_want_remote_memory_are_refused_where_there_is_none():
    view = TraceView(table_of(metadata(), [load(0, 1), away(7, 1)], "t.et"))
    assert lanes(view, None).tolist() == [MEMORY_LANE] * 2
    assert lanes(view, REMOTE).tolist() == [MEMORY_LANE, REMOTE_LANE]
    with pytest.raises(WorkloadError, match=re.escape("t.et: node 7: tensor_loc is 1, expected 0 (local)")):
        lanes(view, RemoteMemory(is_there=False))
