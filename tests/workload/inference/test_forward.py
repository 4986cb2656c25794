"""Operations and bytes of passes are those of closed forms."""

import pytest

from nadi.workload.compute import find_gpu
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.generators.memory.estimate import kv_cache_bytes_per_token
from nadi.workload.generators.models import architecture, find
from nadi.workload.generators.models.architecture import output_flops, training_flops
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.parameters import stage_weights
from tests.workload.inference.served import LATENT, MIXED, SMALL, fixed, flops, operators, served

_PROMPT, _ANSWER = 48, 5


def forward_flops(model, tokens, *, causal=False):
    """Operations of a forward pass: a third of a training step's."""
    return training_flops(model, 1, tokens, causal=causal) // 3


def matrices(model):
    """Parameters that a token is multiplied by, without the output layer's."""
    return sum(
        architecture.active(model, part)
        for number in range(model.layers)
        for part in architecture.layer(model, number)
        if part.is_matrix
    )


def copied(model, plan):
    """Parameters whose products every GPU of a tensor-parallel group does, beside the first.

    These are the matrices that compress (latent attention), and without expert parallelism the router.
    """
    own = parallel_plan(plan)
    return (own.tp - 1) * sum(
        part.size
        for number in range(model.layers)
        for part in architecture.layer(model, number)
        if part.is_matrix and part.split == "whole" and (part.part != "router" or own.ep == 1)
    )


@pytest.mark.parametrize("model", [SMALL, MIXED, LATENT], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", ["tp1", "tp4", "tp2,pp2", "tp2,dp2"])
def test_a_prefill_is_the_forward_pass_with_one_row_of_logits(model, plan):
    made = served(model, plan, fixed(4, _PROMPT, 1), batch=4)
    logits = output_flops(model, _PROMPT) - output_flops(model, 1)
    again = 2 * _PROMPT * copied(model, plan)
    assert flops(made, "prefill") == 4 * (forward_flops(model, _PROMPT, causal=True) - logits + again)


def test_nothing_is_dropped_out_in_serving():
    trained = SMALL.model_copy(update={"dropout": True})
    found, plain = (
        operators(served(model, "tp2", fixed(4, _PROMPT, 1), batch=4), "prefill") for model in (trained, SMALL)
    )
    assert found == plain


@pytest.mark.parametrize("plan", ["tp2,ep2", "dp4,ep4", "tp2,dp2,ep4", "tp2,dp2,ep4,imbalance=1.2", "dp4,ep2,pp2"])
@pytest.mark.parametrize("model", [MIXED, LATENT], ids=lambda model: model.name)
def test_experts_do_each_token_once(model, plan):
    """Router, experts and all else, however tokens fall on GPUs: 47 tokens are odd."""
    made = served(model, plan, fixed(5, 47, 1), batch=2)
    logits = output_flops(model, 47) - output_flops(model, 1)
    again = 2 * 47 * copied(model, plan)
    assert flops(made, "prefill") == 5 * (forward_flops(model, 47, causal=True) - logits + again)


@pytest.mark.parametrize("plan", ["tp1", "tp4", "pp2", "tp2,ep2", "dp4,ep4"])
@pytest.mark.parametrize("model", [SMALL, MIXED, LATENT], ids=lambda model: model.name)
def test_decoding_is_two_operations_a_parameter_and_the_cache(model, plan):
    """With latent attention both products of a head and a cached token are as wide as the cache (absorbed form)."""
    if "ep" in plan and model.experts is None:
        return
    made = served(model, plan, fixed(3, _PROMPT, _ANSWER), batch=3)
    if model.latent is None:
        width = model.query_dim + model.value_dim
    else:
        width = 2 * model.latent.key_value_rank + model.latent.rope_dim
    keys = sum(range(_PROMPT + 1, _PROMPT + _ANSWER))
    attention = model.layers * model.heads * 2 * width * keys
    products = 2 * (matrices(model) + copied(model, plan)) + output_flops(model, 1)
    expected = (_ANSWER - 1) * products + attention
    assert flops(made, "decode") == 3 * expected


@pytest.mark.parametrize("plan", ["tp1", "tp2", "tp8"])
@pytest.mark.parametrize("model", [SMALL, LATENT], ids=lambda model: model.name)
def test_a_step_of_decoding_reads_its_weights_and_its_cache_once(model, plan):
    """Weights are what the GPUs hold, without what is looked up and the norms; with 16 sequences all experts work."""
    made = served(model, plan, fixed(16, _PROMPT, 2), batch=16)
    own = parallel_plan(plan)
    own = own.model_copy(update={"etp": own.tp}) if model.experts else own
    whole = sum(
        {"tp": part.size, "experts": part.size, "whole": part.size * own.tp,
         "qkv": part.size * (model.heads + 2 * max(own.tp, model.key_value_heads))
                // (model.heads + 2 * model.key_value_heads)}[part.split]
        for part in stage_weights(model, own, 0) if part.is_matrix
    )  # fmt: skip
    read, cache = 0, 0
    for each, count in operators(made, "decode").items():
        if each.kind in {"gemm", "batched-gemm", "grouped-gemm"}:
            *groups, _, n, k = each.shape
            read += count * n * k * (groups[0] if groups else 1)
        elif each.kind == "attention":
            batch, _, heads, _, keys, d, dv, _ = each.shape
            cache += count * batch * heads * keys * (d + dv)
        elif each.kind == "latent-attention":
            batch, _, _, keys, rank, rope = each.shape
            cache += count * batch * keys * (rank + rope)
    assert read == whole
    assert 2 * cache == own.tp * 16 * (_PROMPT + 1) * kv_cache_bytes_per_token(model, own)


def test_decoding_on_one_gpu_takes_as_long_as_reading():
    """Batch 1: weights and cache over the bandwidth that memory reaches, and the launches, which add a fifth."""
    model, gpu, prompt = find("llama3-8b"), find_gpu("h100"), 1024
    made = served(model, "tp1", fixed(1, prompt, 2))
    times = ComputeTimes(gpu)
    counts = operators(made, "decode")
    took_ps = sum(count * times.time_ps(each) for each, count in counts.items())
    launches_ps = sum(counts.values()) * (gpu.launch_overhead_ps + gpu.memory_latency_ps)
    held = 2 * (matrices(model) + architecture.output_matrix(model).size)
    cache = kv_cache_bytes_per_token(model) * (prompt + 1)
    least_ps = (held + cache) / (gpu.memory_bandwidth_Bps * times.efficiencies.memory) * 1e12
    assert least_ps + launches_ps <= took_ps <= 1.05 * (least_ps + launches_ps)
