"""LoRA: parameters, operations, bytes and memory of plans whose weights are frozen but for adapters."""

import pytest

from nadi.workload.generators.memory import estimate
from nadi.workload.generators.models import architecture, find, parameters
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.interference import copied_groups
from nadi.workload.generators.training.parameters import held, trained
from nadi.workload.generators.training.stages import padded_vocab
from tests.workload.training.counted import flops, sent
from tests.workload.training.small import DEEPSEEK, GPT, LLAMA, MIXTRAL

LLAMA_2_70B_ADAPTERS = 80 * 16 * (8192 + 10240 + 8192 + 8192)  # layers, rank, A and B of qkv, A and B of the output


@pytest.mark.parametrize("plan", ["tp1", "tp2,sp", "tp4,pp2,sp", "tp8,pp4,vpp2,gb4"])
def test_adapters_of_llama_2_70b_have_the_published_number_of_parameters(plan):
    """44,564,480 trainable parameters with rank 16 and targets qkv_proj and o_proj."""
    assert LLAMA_2_70B_ADAPTERS == 44_564_480
    model, settled = find("llama2-70b"), parallel_plan(f"{plan},lora=16")
    assert sum(trained(model, settled, stage).total for stage in range(settled.pp)) * settled.tp == LLAMA_2_70B_ADAPTERS
    assert trained(model, parallel_plan("tp4"), 0) == held(model, parallel_plan("tp4"), 0)


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", ["dp2,mb2", "tp4,overlap_tp=true", "tp2,pp2,vpp2,cp2,gb8", "tp2,fp8,pp4"])
def test_the_backward_pass_of_frozen_matrices_has_the_operations_of_their_forward_pass(model, plan):
    """6 operations per parameter of adapters and token, 4 per frozen one, and attention's core three times."""
    settled = rules.settle(model, parallel_plan(f"{plan},lora=8,attention=unfused,sp"))
    tokens = settled.global_batch * settled.sequence
    padded = model.model_copy(update={"vocab": padded_vocab(model, settled)})
    core = settled.global_batch * model.layers * architecture.core_flops(model, settled.sequence)
    matrices = architecture.training_flops(padded, settled.global_batch, settled.sequence) // 3 - core
    columns = (model.heads + 2 * model.key_value_heads) * model.query_dim
    adapters = model.layers * 8 * (2 * model.hidden + columns + model.heads * model.value_dim)
    assert flops(generate(model, settled)) == 2 * matrices + 3 * core + 6 * adapters * tokens


def test_operations_of_a_sample_are_those_of_nvidias_configuration():
    """MODEL_TFLOP_PER_SAMPLE=2598 of NVIDIA's config_common.sh: within the 5 % that depend on how attention counts."""
    counted = architecture.training_flops(find("llama2-70b"), 1, 8192, causal=True, lora=16)
    assert counted / 1e12 == pytest.approx(2598, rel=0.05)


def test_nothing_is_computed_or_reduced_for_frozen_weights():
    settled = rules.settle(LLAMA, parallel_plan("tp2,sp,dp4,gb8,zero1,lora=8"))
    traces = generate(LLAMA, settled)
    names = {name for trace in traces.traces for name in trace.names}
    assert not any("-weights" in name or name.endswith("backward/mb0/embedding") for name in names)
    count = trained(LLAMA, settled, 0).total * settled.gpus
    found = sent(traces)
    assert sum(size for (name, _), size in found.items() if name == "dp:reduce-scatter") == 4 * count
    assert sum(size for (name, _), size in found.items() if name == "dp:all-gather") == 2 * count // settled.dp


@pytest.mark.parametrize(("sp", "exchanged"), [(",sp", "tp:all-to-all"), ("", "tp:all-gather")])
def test_adapters_exchange_what_their_splits_need(sp, exchanged):
    """Between A and B the rank's values; after the output's B the hidden values. The frozen ones' remain."""
    plan = rules.settle(LLAMA, parallel_plan(f"tp4,dp2,gb8{sp},lora=8"))
    plain, found = (sent(generate(LLAMA, each)) for each in (plan.model_copy(update={"lora": 0}), plan))
    tokens = plan.global_batch * plan.sequence * LLAMA.layers * 2  # bytes of a value of each token and layer
    rank, hidden = tokens * 8, tokens * LLAMA.hidden
    gathered = rank + (hidden if exchanged == "tp:all-gather" else 0)
    assert found["tp:all-gather", "forward"] - plain["tp:all-gather", "forward"] == gathered
    assert found["tp:all-reduce", "forward"] - plain["tp:all-reduce", "forward"] == rank * plan.tp
    assert found["tp:all-reduce", "backward"] - plain["tp:all-reduce", "backward"] == 2 * rank * plan.tp
    assert found["tp:all-to-all", "forward"] == found["tp:all-to-all", "backward"] == (hidden if sp else 0)
    assert found["tp:reduce-scatter", "backward"] == plain["tp:reduce-scatter", "backward"]
    # gradients of outputs are gathered, inputs are not gathered again for the gradients of weights
    assert found["tp:all-gather", "backward"] == (2 * hidden if sp else 0)


def test_collectives_of_adapters_are_nccls_even_with_userbuffers():
    traces = generate(LLAMA, parallel_plan("tp4,sp,lora=8,overlap_tp=true"))
    assert traces.copied == {"tp"}
    assert traces.families["adapters"] == traces.families["tp"]


def test_memory_holds_frozen_weights_once_and_states_of_adapters_only():
    model, plan = find("llama2-70b"), "tp4,dp2,gb8,seq8192,sp,zero1"
    (bf16,), (fp8,) = (estimate(model, parallel_plan(f"{plan},lora=16{dtype}")) for dtype in ("", ",fp8"))
    frozen, adapters = held(model, parallel_plan(plan), 0).total, LLAMA_2_70B_ADAPTERS // 4
    assert frozen == pytest.approx(parameters(model) / 4, rel=1e-3)
    assert (bf16.weights, fp8.weights) == (2 * (frozen + adapters), frozen + 2 * adapters)
    assert bf16.gradients == fp8.gradients == 4 * adapters
    assert bf16.optimizer == fp8.optimizer == 12 * adapters // 2
    (full,) = estimate(model, parallel_plan(f"{plan},fp8"))
    assert fp8.total < full.total / 2
    # a layer keeps neither the outputs of its norms nor the input of the MLP's last matrix, but inputs of adapters
    tokens = 8192 * 80
    kept = tokens * (2 * 8192 // 4 + 28672 // 4) - 2 * tokens * (8192 + 8192 // 4)
    assert full.activations - fp8.activations == kept


@pytest.mark.parametrize(
    ("model", "text", "framework", "expected"),
    [
        (LLAMA, "lora=8", "fsdp", "with fsdp, expected 0 (only megatron has it)"),
        (LLAMA, "lora=6,tp4", "megatron", "lora is 6, expected a multiple of tp; nearest 4 and 8"),
        (LLAMA, "lora=8,pp2,zero-bubble,gb8", "megatron", "with schedule zero-bubble, expected 1f1b, gpipe"),
        (LLAMA, "lora=8,pp2,gb8,defer_embedding_wgrad=2", "megatron", "frozen weights have no gradients"),
        (DEEPSEEK, "lora=8", "megatron", "with latent attention or multi-token prediction"),
    ],
)
def test_plans_that_are_not_modelled_are_refused(model, text, framework, expected):
    assert expected in rules.first_broken(model, parallel_plan(text), framework)


@pytest.mark.parametrize(
    ("framework", "plan"), [("megatron", "zero1"), ("megatron", ""), ("fsdp", ""), ("deepspeed", "zero3")]
)
def test_parts_of_a_step_are_left_out(framework, plan):
    def named(without):
        text = f"dp4,gb8,{plan}{without}"
        names = [name for trace in generate(LLAMA, parallel_plan(text), framework).traces for name in trace.names]
        return {name for name in names if "/dp:" in name}, {name for name in names if "/optimizer/" in name}

    replicas, ends = named("")
    assert replicas
    assert "step0/optimizer/step" in ends
    assert named(",without=dp") == (set(), {name for name in ends if "/dp:" not in name})
    assert {name for name in named(",without=optimizer")[1] if "/dp:" not in name} == set()
    assert named(",without=dp+optimizer") == (set(), set())


def test_userbuffers_are_left_out():
    plan = parallel_plan("tp2,sp,overlap_tp=true")
    assert copied_groups("megatron", plan) == {"tp"}
    assert copied_groups("megatron", parallel_plan(f"{plan},without=userbuffers")) == set()
