"""Operations, parameters and bytes of communication of a step over all GPUs, against closed forms."""

import itertools

import pytest
from hypothesis import given

from nadi.et import NodeType
from nadi.workload.compute.operators import PRODUCTS
from nadi.workload.generators.models import find, names, operations
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import experts, parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.item_lists import Compute
from nadi.workload.generators.training.parameters import held, trained
from nadi.workload.generators.training.stages import Shard, chunks, micro_batches, padded_vocab
from nadi.workload.generators.training.units import units
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.workload.training.small import BALANCED, DEEPSEEK, GPT, LLAMA, MIXTRAL, PREDICTING, cases, flops, moved, sent

_ACTIVATION, _GRADIENT = 2, 4


def volume(model, text, framework="megatron"):
    """The settled plan, and bytes by kind and pass, optimizer steps apart."""
    plan = rules.settle(model, parallel_plan(text), framework)
    return plan, sent(generate(model, plan, framework))


def total(found, kind):
    return sum(size for (name, _), size in found.items() if name == kind)


@pytest.mark.parametrize("plan", ["tp4,pp2,dp2,gb8", "tp2,pp4,mb2,gb16,vpp2", "tp8,gb4"])
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_tensor_parallelism_sums_four_times_per_layer(model, plan):
    """Two all-reduces of b s h forward and two backward (arXiv 1909.08053, section 3); ends have one each.

    The loss takes three of b s numbers of FP32.
    """
    plan, found = volume(model, plan)
    tokens = plan.global_batch * plan.sequence
    hidden, loss = tokens * model.hidden * _ACTIVATION * plan.tp, 3 * tokens * 4 * plan.tp
    assert found["tp:all-reduce", "forward"] == hidden * (2 * model.layers + 1) + loss
    assert found["tp:all-reduce", "backward"] == hidden * (2 * model.layers + 1)
    _, again = volume(model, f"{plan},recompute=full")
    assert again["tp:all-reduce", "backward"] == hidden * (4 * model.layers + 1)


@pytest.mark.parametrize("plan", ["tp4,pp2,dp2,gb8,sp", "tp2,cp2,pp4,mb2,gb16,vpp2,sp"])
def test_sequence_parallelism_gathers_once_more_backward(plan):
    """Forward an all-gather and a reduce-scatter of each half layer; backward the same and the input's gather again."""
    plan, found = volume(LLAMA, plan)
    hidden = plan.global_batch * plan.sequence * LLAMA.hidden * _ACTIVATION  # of all GPUs of a group together
    gathered, scattered = hidden, hidden * plan.tp  # a member's contribution; its whole buffer
    assert found["tp:all-gather", "forward"] == gathered * (2 * LLAMA.layers + 1)
    assert found["tp:all-gather", "backward"] == gathered * (4 * LLAMA.layers + 2)
    assert found["tp:reduce-scatter", "forward"] == scattered * (2 * LLAMA.layers + 1)
    assert found["tp:reduce-scatter", "backward"] == scattered * (2 * LLAMA.layers + 1)


@pytest.mark.parametrize("more", ["", ",overlap_tp=true", ",vpp2"])
def test_fp8_halves_the_gathers_of_layers_and_nothing_else(more):
    """Transformer Engine gathers what it has quantised: inputs, inputs again, gradients of outputs; sums stay BF16.

    Both ends of the model are not in FP8: the output layer's input, twice, and the gradient of the embedding.
    """
    plan, found = volume(LLAMA, f"tp4,pp2,dp2,gb8,sp,fp8{more}")
    _, plain = volume(LLAMA, f"{plan},dtype=bf16".replace("fp8,", ""))
    values = plan.global_batch * plan.sequence * LLAMA.hidden
    assert found["tp:all-gather", "forward"] == values * (2 * LLAMA.layers * 1 + 2)
    assert found["tp:all-gather", "backward"] == values * (4 * LLAMA.layers * 1 + 2 * 2)
    gathers = [key for key in found if key[0] == "tp:all-gather"]
    assert {key: size for key, size in found.items() if key not in gathers} == {
        key: size for key, size in plain.items() if key not in gathers
    }


@pytest.mark.parametrize(("more", "share"), [("", 1), (",sp", 2), (",scatter_gather=true", 2)])
@pytest.mark.parametrize("plan", ["pp4,gb8", "pp4,vpp2,gb8", "pp2,zero-bubble,gb8", "pp4,dualpipe,gb32", "pp2,cp2,gb8"])
def test_pipelines_send_activations_over_each_boundary_and_back(plan, more, share):
    """Each of a tensor-parallel group sends b s h values, or with scatter-gather its share (arXiv 2104.04473, 4.1)."""
    plan, found = volume(GPT, f"tp2,{plan}{more}")
    boundaries = plan.pp * plan.vpp - 1
    expected = plan.global_batch * plan.sequence * GPT.hidden * _ACTIVATION * boundaries * plan.tp // share
    for step, end in itertools.product(("forward", "backward"), ("send", "receive")):
        assert found[f"pp:{end}", step] == expected


@bounded(40)
@given(cases())
def test_gradients_are_reduced_and_parameters_gathered(case):
    """Data parallelism reduces each parameter's gradient once, or once a micro-batch; shards come back in 16 bits."""
    model, plan, framework = case
    found = sent(generate(model, plan, framework))
    own = [trained(model, plan, stage) for stage in range(plan.pp)]
    size, twice = plan.tp * plan.cp * plan.dp, 2 if plan.schedule == "dualpipe" else 1
    replicas = {"dense": plan.cp * plan.dp * twice, "experts": size * twice // (plan.ep * plan.etp)}
    copies = plan.cp * plan.dp // plan.shard if plan.shard else 1
    shares = {kind: count // copies for kind, count in replicas.items()}
    parameters = sum(getattr(stage, kind) for stage in own for kind, count in shares.items() if count > 1) * size
    gradient = 2 if framework == "deepspeed" else _GRADIENT
    is_layered = plan.zero == 3 or framework == "fsdp"
    is_each = is_layered or (framework == "deepspeed" and plan.zero == 2)
    times = plan.steps * (micro_batches(plan) // twice if is_each else 1)
    loss = 4 * size * twice * plan.steps if replicas["dense"] > 1 else 0
    scatters = is_layered or (framework == "megatron" and plan.zero == 1)
    reduced = total(found, "dp:reduce-scatter") if scatters else total(found, "dp:all-reduce") - loss
    assert reduced == pytest.approx(parameters * gradient * times, rel=0.02)  # padded to whole shares
    if copies > 1:  # each GPU's share, between those that hold the same one
        shards = sum(getattr(stage, kind) / shares[kind] for stage in own for kind in shares) * size
        assert total(found, "dp:all-reduce") - loss == pytest.approx(shards * gradient * times, rel=0.02)
    gathered = total(found, "dp:all-gather")
    if not plan.zero:
        assert gathered == 0
        return
    if is_layered:
        times *= 2 if plan.zero == 3 else 1
    shards = sum(getattr(stage, kind) / count for stage in own for kind, count in shares.items() if count > 1) * size
    if not is_layered or plan.gather == "list":  # these models' tensors are so small that all GPUs keep them
        times = plan.steps
    assert gathered == pytest.approx(shards * 2 * times, rel=0.02)


@pytest.mark.parametrize("more", ["", ",etp2", ",imbalance=1.5"])
@pytest.mark.parametrize("model", [MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
def test_experts_exchange_each_token_top_k_times(model, more):
    """Dispatch and combine, forward and backward, each with tokens x top_k x h (arXiv 2006.16668, section 2.2)."""
    plan, found = volume(model, f"tp2,sp,dp4,ep4,pp2,gb16{more}")
    layers = model.layers - model.experts.first_dense
    one = plan.global_batch * plan.sequence * model.experts.top_k * model.hidden * _ACTIVATION * layers
    assert found["ep:all-to-all", "forward"] == 2 * one
    assert found["ep:all-to-all", "backward"] == 2 * one
    assert found["etp:all-gather", "forward"] == (one if plan.etp > 1 else 0)
    assert found["etp:reduce-scatter", "forward"] == (one * plan.etp if plan.etp > 1 else 0)


@pytest.mark.parametrize("plan", ["dp4,gb8", "tp2,sp,dp2,gb8", "cp2,dp2,gb8", "tp2,sp,cp2,dp2,pp2,gb8"])
def test_an_auxiliary_loss_sums_counts_of_tokens_over_a_micro_batch(plan):
    """8 bytes per expert over the GPUs with the sequences of a micro-batch, once per layer with experts."""
    plan, found = volume(BALANCED, plan)
    _, alone = volume(PREDICTING, str(plan))
    sequences = plan.tp * plan.cp  # GPUs with the same sequences
    layers = BALANCED.layers - BALANCED.experts.first_dense + BALANCED.mtp_layers
    key = "tp:all-reduce" if plan.tp > 1 else "cp:all-reduce", "forward"
    counts = plan.global_batch * layers * sequences * 8 * BALANCED.experts.count if sequences > 1 else 0
    assert found[key] - alone[key] == counts


@pytest.mark.parametrize("plan", ["dp4,gb8", "tp2,sp,pp2,dp2,gb8", "pp2,vpp2,dp2,gb8", "pp2,dualpipe,dp2,gb16", "gb2"])
def test_biases_of_experts_follow_the_tokens_of_a_step(plan):
    """4 bytes per expert and layer over all GPUs that have the layer, once per step."""
    plan, found = volume(BALANCED, plan)
    _, alone = volume(PREDICTING, str(plan))
    twice = 2 if plan.is_mirrored else 1
    layers = BALANCED.layers - BALANCED.experts.first_dense + BALANCED.mtp_layers
    key = "world:all-reduce", "optimizer"
    expected = layers * BALANCED.experts.count * 4 * plan.tp * plan.cp * plan.dp * twice if plan.gpus > plan.pp else 0
    assert found[key] - alone[key] == expected


def test_losses_and_groups_pass_over_the_routers_scores():
    """Bytes of the router per score: each pass of Transformer Engine's kernels (common/fused_router), in FP32."""
    plan = rules.settle(BALANCED, parallel_plan("dp2,gb2"))
    scores = BALANCED.sequence * BALANCED.experts.count

    def router_bytes(**keys):
        parts = BALANCED.experts.model_copy(
            update={"auxiliary_loss": False, "z_loss": False, "expert_bias": False, **keys}
        )
        shard = Shard(BALANCED.model_copy(update={"experts": parts}), plan)
        return [
            sum(
                op.bytes
                for item in items
                if isinstance(item, Compute) and item.name == "router"
                for op in item.operators
            )
            for items in (experts.forward(shard, 1), experts.backward(shard, 1))
        ]

    plain = router_bytes()
    for keys, forward, backward in [
        ({"groups": 0, "group_top_k": 0}, -4, 0),
        ({"z_loss": True}, 4, 8 + 12),
        ({"expert_bias": True}, 1, 0),
        ({"auxiliary_loss": True}, 12 + 2 + 4, 4 + 12 + 12),
    ]:
        found = router_bytes(**keys)
        assert [after - before for before, after in zip(plain, found, strict=True)] == [
            forward * scores,
            backward * scores,
        ]


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_context_parallelism_moves_keys_and_values(model, cp):
    """A ring brings each GPU those of all others, and takes back gradients; a gather does it at once."""
    plan, ring = volume(model, f"tp2,cp{cp},gb4")
    _, gather = volume(model, f"tp2,cp{cp},gb4,context=all-gather")
    _, exchange = volume(model, f"tp2,cp{cp},gb4,context=a2a")
    tokens = plan.global_batch * plan.sequence * model.layers * _ACTIVATION
    keys_values = tokens * 2 * model.key_value_heads * model.query_dim
    assert ring["cp:send", "forward"] == ring["cp:receive", "forward"] == keys_values * (cp - 1)
    assert ring["cp:send", "backward"] == 2 * keys_values * (cp - 1)
    assert gather["cp:all-gather", "forward"] == gather["cp:all-gather", "backward"] == keys_values
    assert gather["cp:reduce-scatter", "backward"] == keys_values * cp
    queries_outputs = tokens * 2 * model.heads * model.query_dim
    assert (
        exchange["cp:all-to-all", "forward"] == exchange["cp:all-to-all", "backward"] == keys_values + queries_outputs
    )


def test_first_and_last_stage_sum_a_tied_embedding():
    plan, found = volume(GPT, "tp2,pp4,dp2,gb16")
    assert found["embedding:all-reduce", "optimizer"] == 2 * plan.dp * padded_vocab(GPT, plan) * GPT.hidden * _GRADIENT
    _, untied = volume(LLAMA, "tp2,pp4,dp2,gb16")
    assert ("embedding:all-reduce", "optimizer") not in untied


def test_buckets_are_cut_as_megatron_cuts_them():
    """On the first stage a bucket is closed once it has 40 M parameters; later stages have one (Megatron-LM's DDP)."""
    from nadi.workload.generators.models import find

    made = generate(find("gpt3-13b"), parallel_plan("tp2,pp2,dp2,gb4"))
    for stage, trace in nonempty(enumerate(made.traces)):
        sizes = [
            int(trace.comm_size[row]) // _GRADIENT
            for row, name in enumerate(trace.names)
            if name.endswith("dp:all-reduce") and "bucket" in name
        ]
        if stage:
            assert len(sizes) == 1
        else:
            assert len(sizes) > 50
            assert all(size >= 40_000_000 for size in nonempty(sizes[:-1]))


def test_what_is_offloaded_goes_and_comes_back():
    """Activations once for each layer and micro-batch; gradients out and weights in once a step."""
    plan = rules.settle(LLAMA, parallel_plan("tp2,pp2,dp2,gb16,offload=activations,recompute=full"))
    made = generate(LLAMA, plan)
    kept = plan.global_batch * plan.sequence * LLAMA.hidden * _ACTIVATION * LLAMA.layers * plan.tp  # a layer's input
    assert moved(made, NodeType.MEM_STORE_NODE) == moved(made, NodeType.MEM_LOAD_NODE) == kept
    plan = rules.settle(LLAMA, parallel_plan("dp4,gb16,offload=optimizer"))
    made = generate(LLAMA, plan)
    parameters = held(LLAMA, plan, 0).total * plan.dp
    assert moved(made, NodeType.MEM_STORE_NODE) == parameters * _GRADIENT
    assert moved(made, NodeType.MEM_LOAD_NODE) == parameters * 2
    plan = rules.settle(LLAMA, parallel_plan("dp4,gb16,offload=parameters,zero3"), "fsdp")
    made = generate(LLAMA, plan, "fsdp")
    gathered = total(sent(made), "dp:all-gather")
    assert moved(made, NodeType.MEM_LOAD_NODE) == gathered > 0


@pytest.mark.parametrize(
    ("recompute", "passes", "of_cores", "of_heads"),
    [("full", 96, 6, 16), ("none", 72, 6, 12), ("selective", 72, 4.5, 12)],
)
@pytest.mark.parametrize("plan", ["tp8,pp4,dp8,gb64", "tp8,pp4,dp8,gb64,vpp2,sp", "tp2,dp2,mb2,gb8"])
def test_megatron_models_have_the_published_operations(recompute, passes, of_cores, of_heads, plan):
    """F = 96 B s l h^2 (1 + s/6h + V/16lh) (arXiv 2104.04473, equation 3), which recomputes all layers."""
    model = find("megatron-18.4b")
    settled = rules.settle(model, parallel_plan(f"{plan},recompute={recompute},attention=unfused"))
    s, layers, h = model.sequence, model.layers, model.hidden
    expected = passes * settled.global_batch * s * layers * h**2
    expected *= 1 + s / (of_cores * h) + padded_vocab(model, settled) / (of_heads * layers * h)
    assert flops(generate(model, settled)) == pytest.approx(expected, rel=1e-12)


@bounded(80)
@given(cases())
def test_any_plan_has_the_operations_of_the_model(case):
    model, plan, framework = case
    if plan.attention != "unfused":
        return
    if plan.capacity or (model.latent is not None and plan.tp > 1 and not plan.sequence_parallel):
        return  # tokens that are dropped, and matrices that each of the group has whole
    padded = model.model_copy(update={"vocab": padded_vocab(model, plan)})
    batch = plan.global_batch
    expected = operations.training_flops(padded, batch, plan.sequence, recompute=plan.recompute, lora=plan.lora)
    assert flops(generate(model, plan, framework)) == expected * plan.steps


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
@pytest.mark.parametrize(
    "context", ["cp1", "cp2", "cp4", "cp2,context=all-gather", "cp4,context=all-gather", "cp2,context=a2a"]
)
def test_flash_attention_does_what_the_mask_leaves(model, context):
    """Forward the pairs that the mask leaves, backward two and a half times as many; matrices three times."""
    plan = rules.settle(model, parallel_plan(f"tp2,sp,dp2,{context},recompute=selective"))
    padded = model.model_copy(update={"vocab": padded_vocab(model, plan)})
    batch, s = plan.global_batch, plan.sequence
    all_three = operations.training_flops(padded, batch, s, causal=True)
    core = operations.training_flops(padded, batch, s, causal=True, recompute="selective") - all_three
    assert flops(generate(model, plan)) == all_three + core * 3 // 2


CASES = [
    ("gpt3-175b", "tp8,pp8,dp2,attention=unfused"),
    ("gpt3-175b", "tp8,pp8,dp2"),
    ("megatron-7.5b", "tp4,dp2,mb2"),
    ("llama3-8b", "tp4,pp2,vpp4,dp2,sp"),
    ("llama3-405b", "tp8,pp16,uneven,sp"),
    ("mixtral-8x7b", "tp2,ep4,dp8,pp2,sp"),
    ("qwen3-30b-a3b", "ep8,dp8"),
    ("deepseek-v2", "tp4,pp4,ep8,dp8,sp,uneven"),
    ("deepseek-v3", "pp4,ep8,dp8,uneven"),
]


def products(items):
    return sum(
        operator.flops
        for item in items
        if isinstance(item, Compute)
        for operator in item.operators
        if operator.kind in PRODUCTS
    )


@pytest.mark.parametrize(("name", "text"), CASES)
def test_products_of_all_gpus_are_the_models_operations(name, text):
    model = find(name)
    plan = rules.settle(model, parallel_plan(text))
    shard = Shard(model, plan)
    forward = backward = 0
    for own in chunks(model, plan):
        has_embedding = any(chunk.is_first for chunk in own)
        for chunk in own:
            for unit in units(shard, chunk, has_embedding=has_embedding):
                forward += plan.tp * products(unit.forward)
                backward += plan.tp * products(unit.backward)
    causal = plan.attention == "flash"  # unfused attention works out all pairs and masks some
    sequences, tokens = plan.micro_batch, plan.sequence
    padding = operations.output_flops(model, tokens, padded_vocab(model, plan)) - operations.output_flops(model, tokens)
    once = operations.training_flops(model, sequences, tokens, causal=causal) // 3
    expected = once + sequences * padding * (1 + model.mtp_layers)
    assert forward == pytest.approx(expected, rel=1e-12)
    core = sequences * (model.layers + model.mtp_layers) * operations.core_flops(model, tokens, causal=causal)
    scores_again = core / 2 if causal else 0  # flash attention's backward pass has five products in place of four
    assert backward == pytest.approx(2 * expected + scores_again, rel=1e-12)


def tensors(model, plan, stage):
    """Parameters of a stage's GPUs: of experts and others."""
    own = chunks(model, plan)[stage]
    has_embedding = any(chunk.is_first for chunk in own)
    found = [unit.tensors for chunk in own for unit in units(Shard(model, plan), chunk, has_embedding=has_embedding)]
    return tuple(sum(t.size for own in found for t in own if t.is_expert == is_expert) for is_expert in (False, True))


@bounded(40)
@given(cases())
def test_a_stage_has_the_parameters_of_its_layers(case):
    model, plan, _ = case
    for stage in range(plan.pp):
        expected = trained(model, plan, stage)
        assert tensors(model, plan, stage) == (expected.dense, expected.experts)


@pytest.mark.parametrize("name", names())
def test_of_all_models_of_the_library(name):
    model = find(name)
    plan = rules.settle(model, parallel_plan("tp1"))
    expected = trained(model, plan, 0)
    assert tensors(model, plan, 0) == (expected.dense, expected.experts)


def of_units(model: Model, text: str):
    """Name of the unit, pass, name of the computation and operator, of all units of the first stage."""
    plan = rules.settle(model, parallel_plan(text))
    (chunk,) = chunks(model, plan)[0]
    return [
        (unit.name, direction, item.name, operator)
        for unit in units(Shard(model, plan), chunk, has_embedding=True)
        for direction, items in (("forward", unit.forward), ("backward", unit.backward))
        for item in items
        if isinstance(item, Compute)
        for operator in item.operators
    ]


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL], ids=lambda model: model.name)
def test_neither_the_output_layer_nor_a_router_is_multiplied_in_fp8(model):
    """Transformer Engine's layers are; Megatron-LM's output layer and router are no layers of it."""
    found = {
        (direction, name, operator.dtype)
        for _, direction, name, operator in of_units(model, "tp2,dp2,gb4,sp,fp8")
        if operator.kind.endswith("gemm")
    }
    plain = {(direction, name) for direction, name, dtype in found if dtype == "bf16"}
    ends = {"head", "head-weights", *(("router", "router-weights") if model.experts else ())}
    assert {name for _, name in plain} == ends
    assert ("forward", "attention", "fp8") in found
    assert {dtype for _, name, dtype in found if name not in ends} == {"fp8"}


def test_the_output_layer_in_fp8_has_the_same_products_and_casts_of_both_operands():
    plain, in_fp8 = (
        [(way, op) for _, way, name, op in of_units(LLAMA, f"dp4,gb4,fp8,scaling=mxfp8{extra}") if "head" in name]
        for extra in ("", ",fp8_output=true")
    )
    shapes = [[(way, op.shape) for way, op in found if op.kind == "gemm"] for found in (plain, in_fp8)]
    assert len(shapes[0]) == 3
    assert shapes[0] == shapes[1]
    assert {op.dtype for _, op in in_fp8 if op.kind == "gemm"} == {"fp8"}
    tokens, vocabulary = LLAMA.sequence, padded_vocab(LLAMA, parallel_plan("dp4"))
    casts = [op.shape for _, op in in_fp8 if op.kind == "quantise"]
    assert casts == [(tokens * vocabulary, 1, 2, 0), (tokens * LLAMA.hidden, 1, 2, 0)]
    assert not [op for _, op in plain if op.kind == "quantise"]


@pytest.mark.parametrize("sp", ["", ",sp"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_dropout_reads_and_writes_masks_and_biases_are_summed(attention, sp):
    """Beside what a model without them does, in bytes of 16-bit values and masks of one byte (Megatron-LM)."""
    bare = GPT.model_copy(update={"bias": False, "dropout": False})
    both = GPT.model_copy(update={"bias": True, "dropout": True})
    plan = f"tp2,mb2,gb2,attention={attention}{sp}"

    def moved(model, direction):
        return sum(
            operator.bytes
            for unit, way, _, operator in of_units(model, plan)
            if unit in {"attention", "mlp"} and way == direction
        )

    tokens, h, tp, layers = 2 * GPT.sequence, GPT.hidden, 2, GPT.layers
    rows = tokens // tp if sp else tokens
    scores = 2 * (GPT.heads // tp) * GPT.sequence**2 if attention == "unfused" else 0
    qkv = 3 * tokens * h // tp if attention == "unfused" else 0  # else its products add and sum the bias
    masks = 2 * rows * h  # of attention and MLP
    forward = masks + 4 * qkv + 5 * scores
    sums = 2 * (2 * rows * h + qkv + tokens * 4 * h // tp)
    backward = 5 * masks + sums + 5 * scores
    assert moved(both, "forward") - moved(bare, "forward") == layers * forward
    assert moved(both, "backward") - moved(bare, "backward") == layers * backward
