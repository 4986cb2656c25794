"""What a backward pass repeats, by the modules of Megatron-Core and torchtitan's per-op, counted by hand."""

from collections import Counter

import pytest

from nadi.workload import WorkloadError
from nadi.workload.compute.operators import parse_operators
from nadi.workload.generators.models import find
from nadi.workload.generators.models.operations import training_flops
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.rules import settle
from tests.refusals import refused
from tests.workload.training.small import DEEPSEEK, GPT, LLAMA, MIXTRAL, sent

TOKENS, HIDDEN, DENSE, ROUTED = 32, 64, 1, 7  # of DEEPSEEK and one sequence: tokens, values, layers of both kinds


def operators(model, text, framework="megatron"):
    """Times that a step of one GPU group runs each operator, and those that it repeats, by kind and shape."""
    trace = generate(model, settle(model, parallel_plan(text), framework), framework).traces[0]
    return Counter(
        (operator.kind, *operator.shape)
        for row in trace.operators.tolist()
        if trace.operator_lists[row]
        for operator in parse_operators(trace.operator_lists[row])
    )


def repeated(model, text, recompute, framework="megatron"):
    """Operators that a step has because of `recompute` alone."""
    more = operators(model, f"{text},recompute={recompute}", framework)
    less = operators(model, text, framework)
    assert not less - more
    return more - less


def test_latent_attention_repeats_its_projections_up_and_their_norms():
    found = repeated(DEEPSEEK, "dp2,gb2", "mla_up_proj")
    assert found == {
        ("norm", TOKENS, 24): 8,
        ("norm", TOKENS, 16): 8,
        ("gemm", TOKENS, 8 * 12, 24): 8,
        ("gemm", TOKENS, 8 * (8 + 8), 16): 8,
        ("elementwise", TOKENS * 16 * 4, 1, 1): 8,  # rotary positions of queries and keys
    }


def test_only_norms_that_stand_alone_are_repeated():
    """Before latent attention and before experts (megatron/core/models/gpt/gpt_layer_specs.py)."""
    assert repeated(DEEPSEEK, "dp2,gb2", "layernorm") == {("norm", TOKENS, HIDDEN): 8 + ROUTED}
    assert repeated(MIXTRAL, "dp2,gb2", "layernorm") == {("norm", TOKENS, HIDDEN): 8}


def test_the_activation_of_experts_is_repeated_for_all_rows_that_they_get():
    assert repeated(DEEPSEEK, "dp2,gb2", "moe_act") == {("elementwise", TOKENS * 3 * 32, 2, 1): ROUTED}
    assert repeated(MIXTRAL, "ep4,etp2,dp8,gb8", "moe_act") == {("elementwise", 2 * TOKENS * 2 * 48, 2, 1): 8}


def test_in_8_bits_the_activation_is_cast_again_unless_products_contain_both():
    """Values are read once, with current scaling for the maximum of each of 8 experts as well, and written twice."""
    values = TOKENS * 3 * 32
    for scaling, kind, reads, parts in (("delayed", "quantise", 1, 1), ("current", "expert-quantise", 2, 8)):
        casts = {(kind, values // parts, reads, 1, 1): ROUTED * parts}
        found = {("elementwise", values, 2, 1): ROUTED, **casts}
        assert repeated(DEEPSEEK, f"dp2,gb2,fp8,scaling={scaling}", "moe_act") == found
    assert repeated(DEEPSEEK, "dp2,gb2,fp8,fused_experts=true", "moe_act") == {}


def test_a_plain_mlp_is_repeated_with_its_norm_but_without_the_residual():
    found = repeated(LLAMA, "dp2,gb2", "mlp")
    assert found == {
        ("norm", TOKENS, HIDDEN): 8,
        ("gemm", TOKENS, 2 * 160, HIDDEN): 8,
        ("elementwise", TOKENS * 160, 2, 1): 8,
        ("gemm", TOKENS, HIDDEN, 160): 8,
    }
    assert repeated(DEEPSEEK, "dp2,gb2", "mlp")["norm", TOKENS, HIDDEN] == DENSE


def test_shared_experts_are_repeated_alone_or_once_more_inside_all_experts():
    alone = repeated(DEEPSEEK, "dp2,gb2", "shared_experts")
    assert alone["gemm", TOKENS, 2 * 32, HIDDEN] == alone["gemm", TOKENS, HIDDEN, 32] == ROUTED
    whole = repeated(DEEPSEEK, "dp2,gb2", "moe")
    assert whole["gemm", TOKENS, 2 * 32, HIDDEN] == ROUTED
    assert whole["routing", TOKENS, 8, 3] == ROUTED
    assert ("norm", TOKENS, HIDDEN) not in whole
    assert repeated(DEEPSEEK, "dp2,gb2", "moe+shared_experts") == whole + alone


@pytest.mark.parametrize(
    ("model", "recompute", "kinds"),
    [
        (MIXTRAL, "moe", {"ep:all-to-all": 1, "ep:all-gather": 1}),
        (LLAMA, "mlp", {"tp:all-gather": 1 / 2, "tp:reduce-scatter": 1 / 2}),
        (LLAMA, "full", {"tp:all-gather": 1, "tp:reduce-scatter": 1}),
        (MIXTRAL, "moe_act", {}),
        (MIXTRAL, "layernorm", {}),
    ],
)
def test_communication_of_a_module_is_repeated(model, recompute, kinds):
    """As a share of what the layers of the forward pass exchange."""
    text = "tp2,sp,dp4,ep4,gb4" if model is MIXTRAL else "tp2,sp,dp2,gb4"
    plain, again = (
        sent(generate(model, settle(model, parallel_plan(each)))) for each in (text, f"{text},recompute={recompute}")
    )
    ends = sent(generate(model.model_copy(update={"layers": 1}), settle(model, parallel_plan(text))))
    for kind, _ in plain:
        forward = (plain[kind, "forward"] - ends[kind, "forward"]) / (model.layers - 1) * model.layers
        assert again[kind, "backward"] - plain[kind, "backward"] == kinds.get(kind, 0) * forward
        assert again[kind, "forward"] == plain[kind, "forward"]


def test_latent_projections_gather_compressed_values_again():
    plain, again = (
        sent(generate(DEEPSEEK, settle(DEEPSEEK, parallel_plan(f"tp2,sp,dp2,gb4{more}"))))
        for more in ("", ",recompute=mla_up_proj")
    )
    more = again["tp:all-gather", "backward"] - plain["tp:all-gather", "backward"]
    assert more == 4 * TOKENS * (24 + 16 + 4) * 2 * 8


@pytest.mark.parametrize(("tp", "kept"), [(1, {}), (2, {"tp:all-gather": 1})])
def test_per_op_repeats_every_second_product(tp, kept):
    """Of wq, wk, wv, wo, w1, w3, w2 the second, fourth and sixth; neither attention nor what was reduced."""
    text = f"tp{tp},sp,dp2,gb2"
    found = repeated(LLAMA, text, "per-op", "fsdp")
    products = {key[1:]: count for key, count in found.items() if key[0] == "gemm"}
    wk, wo, w3 = (TOKENS, 4 * 8 // tp, HIDDEN), (TOKENS, HIDDEN, HIDDEN // tp), (TOKENS, 160 // tp, HIDDEN)
    assert products == {wk: 8, wo: 8, w3: 8}
    assert found["norm", TOKENS // tp, HIDDEN] == 16
    assert found["elementwise", TOKENS * 160 // tp, 2, 1] == 8
    assert not any("attention" in key[0] for key in found)
    plain, again = (
        sent(generate(LLAMA, settle(LLAMA, parallel_plan(each), "fsdp"), "fsdp"))
        for each in (text, f"{text},recompute=per-op")
    )
    layers = 2 * TOKENS * 8 * 2 * HIDDEN * 2  # of two replicas
    for kind, _ in plain:
        assert again[kind, "backward"] - plain[kind, "backward"] == (layers if kind in kept else 0)


def test_per_op_in_fp8_repeats_no_product_of_a_dense_layer():
    found = repeated(LLAMA, "dp2,gb2,fp8", "per-op", "fsdp")
    assert not any("gemm" in key[0] for key in found)
    assert found["norm", TOKENS, HIDDEN] == 16


def test_per_op_saves_alternate_matrices_of_latent_attention_and_repeats_routed_experts():
    """wq_a, wq_b, wkv_a, wkv_b, wo, then w1, w3, w2 of shared experts or of a dense layer."""
    found = repeated(DEEPSEEK, "ep2,dp2,gb2", "per-op", "fsdp")
    gemms = {key[1:]: count for key, count in found.items() if key[0] == "gemm"}
    up_queries, up_keys = (TOKENS, 8 * 12, 24), (TOKENS, 8 * 16, 16)
    w1, w2, dense_w1, dense_w2 = (
        (TOKENS, 32, HIDDEN),
        (TOKENS, HIDDEN, 32),
        (TOKENS, 160, HIDDEN),
        (TOKENS, HIDDEN, 160),
    )
    router = (TOKENS, 8, HIDDEN)
    assert gemms == {
        up_queries: 8,
        up_keys: 8,
        w1: ROUTED,
        w2: ROUTED,
        dense_w1: DENSE,
        dense_w2: DENSE,
        router: ROUTED,
    }
    assert any(key[0].endswith("gemm") and key[0] != "gemm" for key in found)  # routed experts


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
def test_torchtitans_own_example_of_operations(model):
    """Its test_activation_checkpoint.py: recomputing everything adds a forward pass, per-op less, none nothing."""
    none, per_op, full = (training_flops(model, 1, recompute=word) for word in ("none", "per-op", "full"))
    assert none < per_op < full


REFUSED = [
    ("llama3-8b", "recompute=moe_act", "megatron", "without moe_act, as the model has no experts"),
    ("llama3-8b", "recompute=moe", "megatron", "without moe, as the model has no experts"),
    (
        "mixtral-8x7b",
        "recompute=shared_experts",
        "megatron",
        "without shared_experts, as the model has no shared experts",
    ),
    ("llama3-8b", "recompute=mla_up_proj", "megatron", "without mla_up_proj, as the model has no latent attention"),
    (
        "llama3-8b",
        "recompute=layernorm",
        "megatron",
        "without layernorm, as norms of this model are fused with matrices",
    ),
    ("mixtral-8x7b", "recompute=mlp", "megatron", "without mlp, as the model has no plain MLP"),
    ("mixtral-8x7b", "dp8,recompute=moe", "fsdp", "recompute is moe with fsdp, expected none, selective or full"),
    (
        "llama3-8b",
        "recompute=per-op",
        "megatron",
        "recompute is per-op with megatron, expected none, selective or full",
    ),
    *(
        ("mixtral-8x7b", f"dp8,ep8,overlap_ep=true,recompute={word}", "megatron", f"overlap_ep with recompute {word}")
        for word in ("moe", "full")
    ),
]


@pytest.mark.parametrize(("model", "plan", "framework", "words"), REFUSED)
def test_what_a_model_or_framework_lacks_is_refused(model, plan, framework, words):
    assert words in refused(WorkloadError, rules.check, find(model), parallel_plan(plan), framework)


@pytest.mark.parametrize("word", ["some", "moe+some", "full+moe", ""])
def test_unknown_words_are_refused(word):
    assert "plan: recompute: found" in refused(WorkloadError, parallel_plan, f"recompute={word}")


def test_modules_have_one_order_and_the_core_alone_is_selective():
    assert str(parallel_plan("recompute=layernorm+moe_act+layernorm")) == "recompute=moe_act+layernorm"
    assert str(parallel_plan("recompute=core_attn")) == "recompute=selective"
    assert parallel_plan("recompute=core_attn") == parallel_plan("recompute=selective")


@pytest.mark.parametrize(("model", "plan"), [(DEEPSEEK, "tp2,dp4,gb16"), (LLAMA, "tp2,dp4,gb16,fp8")])
def test_sums_that_per_op_repeats_without_their_product_are_not_cut(model, plan):
    """The all-reduce after a product that is saved has nothing to overlap."""
    found = {}
    for overlaps in ("false", "true"):
        text = f"{plan},recompute=per-op,overlap_tp={overlaps}"
        found[overlaps] = sent(generate(model, parallel_plan(text), "fsdp"))["tp:all-reduce", "backward"]
    assert found["true"] == found["false"] > 0
