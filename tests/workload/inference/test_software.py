"""Serving software: what its host adds to traces, graphs that pad, eager passes, quantised inputs, sampling."""

import numpy as np
import pytest

from nadi.workload.compute import find_gpu
from nadi.workload.compute.gpu import ALONE, IN_SERVING, IN_STEPS
from nadi.workload.compute.operators import Operator, format_operators, parse_operators
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.inference import Request, Serving, engines, serving_software, settle, software_names
from nadi.workload.generators.inference.deployment import cache_tokens
from nadi.workload.generators.inference.scheduler import Batch, Prompts
from nadi.workload.generators.memory.estimate import kv_cache_bytes_per_token
from nadi.workload.generators.training import parallel_plan
from tests.et.parents import names_of_parents
from tests.nonempty import nonempty
from tests.workload.inference.served import LATENT, MIXED, SMALL, check, fixed, operators, served

_H100 = find_gpu("h100")


def decoding(count):
    """A batch of sequences that decode."""
    return Batch((), count, 100, count)


def host_nodes(made, ending):
    """Microseconds of the nodes of the only trace whose names have an end, by the number of the iteration."""
    (trace,) = made.traces
    return {
        int(name.split("/")[0].removeprefix("iteration")): int(trace.duration_micros[row])
        for row, name in enumerate(trace.names)
        if name.endswith(f"/{ending}") and trace.is_cpu_op[row]
    }


@pytest.mark.parametrize("name", software_names())
def test_profiles_name_their_sources(name):
    profile = serving_software(name)
    assert profile.summary
    assert profile.source.strip()
    assert profile.is_eager(decoding(100_000)) == (name != "none")


def test_a_pass_takes_the_next_larger_graph():
    vllm = serving_software("vllm-v1")
    sizes = {1: 1, 2: 2, 3: 4, 5: 8, 9: 16, 250: 256, 505: 512, 513: 513}
    assert {count: vllm.rows(decoding(count)) for count in sizes} == sizes
    assert [vllm.is_eager(decoding(count)) for count in (512, 513)] == [False, True]
    prompts = Batch((Prompts(1, 100, 0),), 0, 0, 1)
    assert (vllm.rows(prompts), vllm.is_eager(prompts)) == (104, False)
    v0 = serving_software("vllm-v0")
    assert (v0.rows(prompts), v0.is_eager(prompts), v0.rows(decoding(9))) == (100, True, 16)


def test_graphs_pad_matrices_and_nothing_else():
    made = served(SMALL, "tp2", fixed(5, 40, 3), batch=5, software="none:graph_tokens=64")
    found = operators(made, "decode")
    assert {each.shape[0] for each in found if each.kind == "gemm" and each.shape[1] != 512} == {8}
    assert {each.shape[0] for each in found if each.kind == "attention"} == {5}
    assert {each.shape for each in found if each.kind == "gemm" and each.shape[1] == 512} == {(5, 512, SMALL.hidden)}
    check(made)


def test_the_host_works_before_each_pass():
    software = "none:iteration_us=100,sequence_us=7,prompt_us=30"
    made = served(SMALL, "tp1", fixed(3, 40, 4), batch=3, software=software)
    assert host_nodes(made, "host") == {0: 151, 1: 121, 2: 121, 3: 121}
    assert not host_nodes(made, "launches")


def test_an_eager_pass_has_as_many_launches_as_operators_and_collectives():
    made = served(SMALL, "tp2", fixed(3, 40, 2), batch=3, software="none:launch_ns=1000,graph_tokens=8")
    (trace,) = made.traces
    names = list(trace.names)
    passes = {
        number: [
            row for row, name in enumerate(names) if name.startswith(f"iteration{number}/") and "/head/" not in name
        ]
        for number in (0, 1)
    }
    lists = {
        number: [parse_operators(trace.operator_lists[trace.operators[row]]) for row in rows if trace.operators[row]]
        for number, rows in passes.items()
    }
    launched = [each for own in lists[0] for each in own if each.kind == "launches"]
    kernels = [each for own in lists[0] for each in own if each.kind != "launches"]
    assert sum(each.shape[0] for each in launched) == len(kernels)
    assert not any(each.kind == "launches" for own in nonempty(lists[1]) for each in own)  # a graph
    collectives = sum("all-reduce" in names[row] for row in passes[0])
    assert host_nodes(made, "launches") == {0: len(kernels) + collectives}


def test_eager_operators_have_the_pace_of_steps():
    product, norm = Operator("gemm", (4096, 4096, 4096)), Operator("norm", (4096, 4096))
    eager = format_operators((Operator("launches", (2,)), product, norm))
    serving, steps, alone = (ComputeTimes(_H100, pace=pace) for pace in (IN_SERVING, IN_STEPS, ALONE))
    plain = format_operators((product, norm))
    assert serving.text_ps(eager) == steps.text_ps(plain) > serving.text_ps(plain)
    assert steps.text_ps(eager) == steps.text_ps(plain)
    assert alone.text_ps(eager) == alone.text_ps(plain)
    assert not any(each.kind == "launches" for each in serving.sources())


@pytest.mark.parametrize("model", [SMALL, MIXED, LATENT], ids=lambda model: model.name)
def test_inputs_of_products_in_fp8_are_quantised_once(model):
    """The reads of a product's input in 16 bits and its writes in 8: as often as there are different inputs."""
    in_fp8, in_bf16 = (
        operators(served(model, f"tp1,{dtype}", fixed(2, 40, 1), batch=2), "prefill") for dtype in ("fp8", "dtype=bf16")
    )
    casts = {each: count for each, count in in_fp8.items() if each.dtype == "fp8" and each.kind == "elementwise"}
    inputs = {
        each.shape[-3] * each.shape[-1]
        for each in in_fp8
        if each.dtype == "fp8" and each.kind in {"gemm", "grouped-gemm"}
    }
    assert {each.shape[0] for each in nonempty(casts)} == inputs
    assert all(each.bytes == 3 * each.shape[0] for each in casts)
    assert not any(each.dtype == "fp8" for each in in_bf16)
    if model is SMALL:
        assert sum(casts.values()) == 4 * model.layers


def test_sampling_reads_and_writes_logits_in_fp32():
    made = served(SMALL, "tp1", fixed(3, 40, 2), batch=3, software="none:logits_kernels=4")
    found = operators(made, "decode")
    assert found[Operator("elementwise", (3 * 1024, 1, 1), "fp32")] == 4


def test_requests_go_through_a_front_end_one_by_one():
    requests = [Request(0, 0, 40, 2), Request(1, 100, 40, 2), Request(2, 5000, 40, 2)]
    serving = Serving(SMALL, parallel_plan("tp1"), batch=3, gpu=_H100, software="none:request_us=300")
    (engine,) = engines(serving, requests)
    assert engine.ready_us == {0: 300, 1: 600, 2: 5300}
    assert engine.requests == (tuple(requests),)
    made = served(SMALL, "tp1", requests, batch=3, gpu=_H100, software="none:request_us=300")
    (trace,) = made.traces
    waits = {name: int(trace.duration_micros[row]) for row, name in enumerate(trace.names) if "arrivals" in name}
    assert waits == {
        "arrivals/request0": 0, "arrivals/request1": 100, "arrivals/request0/ready": 200,
        "arrivals/request1/ready": 300, "arrivals/request2": 4400, "arrivals/request2/ready": 300,
    }  # fmt: skip
    assert np.sum(trace.is_cpu_op) == 0


def test_the_scheduler_works_beside_the_pass_before():
    """The node begins with the results of the pass before the last, when the last pass begins."""
    made = served(SMALL, "tp1", fixed(1, 40, 4), software="none:is_overlapped=true,iteration_us=50,gap_us=5")
    (trace,) = made.traces
    parents = {name: names_of_parents(trace, child) for child, name in enumerate(trace.names)}
    assert parents["iteration3/decode/host-ahead"] == {"iteration1/decode/head/head", "iteration2/decode/host"}
    assert "iteration2/decode/head/head" in parents["iteration3/decode/host"]
    assert host_nodes(made, "host-ahead") == dict.fromkeys(range(4), 50)
    assert host_nodes(made, "host") == dict.fromkeys(range(4), 5)


def test_the_cache_may_have_less_than_the_free_memory():
    requests, plan = fixed(1, 40, 4), settle(SMALL, parallel_plan("tp1"))
    tokens = {
        percent: cache_tokens(Serving(SMALL, plan, gpu=_H100, software=f"none:cache_percent={percent}"), plan, requests)
        for percent in (100, 99, 10)
    }
    assert tokens[100] == tokens[99]
    assert tokens[10] == _H100.memory_bytes // 10 // kv_cache_bytes_per_token(SMALL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm", "^serving software: 'vllm', expected one of .*vllm-v1"),
        ("vllm-v1:", "^serving software vllm-v1: '', expected one of request_us"),
        ("vllm-v1:source=1", "^serving software vllm-v1: 'source', expected one of request_us"),
        ("vllm-v1:chunk=1.5", "^serving software vllm-v1: chunk is '1.5', expected a whole number"),
        ("vllm-v1:cache_percent=101", "cache_percent: found 101; expected 1 to 100"),
    ],
)
def test_wrong_software_is_one_line(text, message):
    with pytest.raises(WorkloadError, match=message) as error:
        serving_software(text)
    assert "\n" not in str(error.value)
