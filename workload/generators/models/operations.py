"""Floating-point operations of a model: its matrices, its attention, and what the backward pass recomputes.

Only products count, as in Narayanan et al. (arXiv 2104.04473, appendix); norms, softmax and elementwise operations do
not. A matrix needs two operations per parameter and token, the core of attention 2 (query_dim + value_dim) per head
and pair of query and key, and a backward pass twice as many as the forward pass (as many for the matrices if they are
frozen). For a GPT with s tokens the sum is

    F = 72 B s l h^2 (1 + s / 6h + V / 12 l h)

or, with recomputation of all layers, 96 B s l h^2 (1 + s / 6h + V / 16 l h). These formulas count every key for every
query; with `causal`, only the keys that a query attends to count, (s + 1) / 2 on average.
"""

from collections.abc import Iterable

from nadi.workload.generators.models import architecture
from nadi.workload.generators.models.architecture import Model, Weights

# Recomputation: the value of a plan's key `recompute` is a word, or modules of a layer that are joined by "+".
#
# The modules are those of Megatron-Core's recompute_modules with recompute_granularity "selective"
# (megatron/core/transformer/transformer_config.py); "selective" alone is attention's core, its default. "per-op" is the
# policy of torchtitan's SelectiveAC (torchtitan/distributed/activation_checkpoint.py): of the products with a layer's
# matrices it saves the first, the third, and so on, and recomputes every second one, in the order of the forward pass.

NONE, SELECTIVE, FULL, PER_OP = "none", "selective", "full", "per-op"
CORE = "core_attn"
MODULES = (CORE, "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
WORDS = (NONE, SELECTIVE, FULL, PER_OP)


def modules_of(recompute: str) -> frozenset[str]:
    """Return the modules of a layer that the backward pass recomputes; empty for whole layers and for "per-op".

    Args:
        recompute: The value of a plan's key `recompute`.
    """
    if recompute == SELECTIVE:
        return frozenset({CORE})
    return frozenset() if recompute in WORDS else frozenset(recompute.split("+"))


def matrices_in_order(model: Model, *, has_experts: bool) -> list[tuple[str, int]]:
    """Return names and numbers of parameters of a layer's separate matrices in the order of torchtitan's forward pass.

    Routers and routed experts are left out: torchtitan's policy does not count their products.

    Args:
        model: The architecture of the model.
        has_experts: Whether the layer has experts instead of a plain MLP.
    """
    # QKVLinear and GQAttention of torchtitan/models/common/attention.py, FeedForward of feed_forward.py beside it, and
    # models/deepseek_v3/model.py for latent attention
    h, latent, experts = model.hidden, model.latent, model.experts
    output = model.heads * model.value_dim * h
    if latent is not None:
        queries, rank = model.heads * model.query_dim, latent.query_rank
        found = [("q_a", rank * h), ("q_b", queries * rank)] if rank else [("q_b", queries * h)]
        found.append(("kv_a", (latent.key_value_rank + latent.rope_dim) * h))
        found.append(("kv_b", model.heads * (latent.nope_dim + latent.value_dim) * latent.key_value_rank))
    else:
        keys, values = model.key_value_heads * model.query_dim, model.key_value_heads * model.value_dim
        found = [("q", model.heads * model.query_dim * h), ("k", keys * h), ("v", values * h)]
    width = (experts.shared_width if experts is not None else 0) if has_experts else model.ffn_width
    inner = ["w1", "w3", "w2"] if model.is_gated else ["w1", "w2"]
    return [*found, ("o", output), *((name, width * h) for name in inner if width)]


def recomputed_matrices(model: Model, dtype: str, *, has_experts: bool) -> frozenset[str]:
    """Return the names of the matrices whose products "per-op" recomputes: every second one.

    Args:
        model: The architecture of the model.
        dtype: The data type of products. The policy saves all products in 8 bits (aten._scaled_mm).
        has_experts: Whether the layer has experts instead of a plain MLP.
    """
    is_quantised = dtype in {"fp8", "fp4"}
    return (
        frozenset()
        if is_quantised
        else frozenset(name for name, _ in matrices_in_order(model, has_experts=has_experts)[1::2])
    )


def _recomputed_parameters(model: Model, number: int, recompute: str, dtype: str) -> int:
    """Return the parameters per token of the matrices of a layer with which a backward pass multiplies again."""
    has_experts = model.has_experts(number)
    parts = dict.fromkeys(("mlp", "router", "shared experts", "experts"), 0)
    for weights in architecture.layer(model, number):
        if weights.is_matrix and weights.part in parts:
            parts[weights.part] += architecture.active(model, weights)
    if recompute == PER_OP:
        again = recomputed_matrices(model, dtype, has_experts=has_experts)
        dense = sum(size for name, size in matrices_in_order(model, has_experts=has_experts) if name in again)
        return dense + parts["router"] + parts["experts"]
    names = {"mlp": ("mlp",), "moe": ("router", "shared experts", "experts"), "shared_experts": ("shared experts",)}
    modules = modules_of(recompute)
    total = sum(parts[part] for module in modules for part in names.get(module, ()))
    if model.latent is not None and "mla_up_proj" in modules:
        latent = model.latent
        total += model.heads * model.query_dim * (latent.query_rank or model.hidden)
        total += model.heads * (latent.nope_dim + latent.value_dim) * latent.key_value_rank
    return total


def layer_flops(model: Model, number: int, sequence: int, *, causal: bool = False) -> int:
    """Return the operations of a layer's forward pass over one sequence.

    Args:
        model: The architecture of the model.
        number: The number of the layer, from 0.
        sequence: The number of tokens of the sequence.
        causal: Whether only those pairs of query and key count that a causal mask leaves.
    """
    return sequence * _matrix_flops(model, architecture.layer(model, number)) + core_flops(
        model, sequence, causal=causal
    )


def core_flops(model: Model, sequence: int, *, causal: bool = False) -> int:
    """Return the operations of one layer's attention core (scores, weighted values) over one sequence, forward.

    Args:
        model: The architecture of the model.
        sequence: The number of tokens of the sequence.
        causal: Whether only those pairs of query and key count that a causal mask leaves.
    """
    pairs = sequence * (sequence + 1) // 2 if causal else sequence * sequence
    return 2 * model.heads * (model.query_dim + model.value_dim) * pairs


def output_flops(model: Model, sequence: int, vocab: int = 0) -> int:
    """Return the operations of the output layer's forward pass.

    Args:
        model: The architecture of the model.
        sequence: The number of tokens of the sequence.
        vocab: The padded vocabulary size; 0 = the model's own.
    """
    return 2 * sequence * architecture.output_matrix(model, vocab).size


def training_flops(
    model: Model,
    batch: int,
    sequence: int = 0,
    *,
    recompute: str = NONE,
    dtype: str = "bf16",
    causal: bool = False,
    lora: int = 0,
) -> int:
    """Return the operations of a training step, including those of multi-token prediction.

    With recompute "none", the result counts the necessary operations, the basis of model FLOP/s utilization (MFU).
    Frozen matrices have no gradients, so that their backward pass has as many operations as their forward pass.

    Args:
        model: The architecture of the model.
        batch: The number of sequences of the step.
        sequence: The number of tokens per sequence; 0 = the model's own.
        recompute: The value of a plan's key `recompute`.
        dtype: The data type of products, on which depends what "per-op" recomputes.
        causal: Whether only those pairs of query and key count that a causal mask leaves.
        lora: The rank of adapters beside attention's frozen matrices; 0 = all parameters are trained.
    """
    tokens = sequence or model.sequence
    core = core_flops(model, tokens, causal=causal)
    layers = sum(layer_flops(model, number, tokens, causal=causal) for number in range(model.layers))
    if model.mtp_layers:
        layers += model.mtp_layers * (tokens * _matrix_flops(model, architecture.mtp_layer(model)) + core)
    cores = (model.layers + model.mtp_layers) * core
    outputs = (1 + model.mtp_layers) * output_flops(model, tokens)
    frozen = 0
    if lora:
        # Frozen matrices have no gradients of weights: a third of their operations does not happen
        frozen = layers - cores + outputs
        layers += model.layers * tokens * _matrix_flops(model, architecture.adapters(model, lora))
    # Recomputation repeats part of the forward pass once
    if recompute == FULL:
        recomputed = layers
    else:
        numbers = [*range(model.layers), *[model.layers - 1] * model.mtp_layers]
        again = sum(_recomputed_parameters(model, number, recompute, dtype) for number in numbers)
        recomputed = 2 * tokens * again + (cores if CORE in modules_of(recompute) else 0)
    return batch * (3 * (layers + outputs) - frozen + recomputed)


def _matrix_flops(model: Model, parts: Iterable[Weights]) -> int:
    """Return the operations per token of the matrices among the given weights."""
    return sum(2 * architecture.active(model, part) for part in parts if part.is_matrix)
