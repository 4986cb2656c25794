"""The units of a pipeline stage's chunk in both passes: embedding, attention and MLP of each layer, output layer."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.memory.states import layer_activations
from nadi.workload.generators.models import architecture
from nadi.workload.generators.models.architecture import Weights
from nadi.workload.generators.training import attention, experts, linear, recomputation
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Item, Items, only, overlapped
from nadi.workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from nadi.workload.generators.training.parameters import Tensors, tensors
from nadi.workload.generators.training.stages import Chunk, Shard, padded_vocab

HEAD = "head"  # Name of the unit that holds the final norm, the output layer and the loss


class ModelUnit(NamedTuple):
    """A part of the model with its own parameters."""

    layer: str  # Prefix of its items' names, for example "layer17"; "" outside layers
    name: str  # Name of the unit: "embedding", "attention", "mlp", "projection" or HEAD
    forward: Items  # Items of its forward pass
    backward: Items  # Items of its backward pass, recomputation included
    tensors: Tensors  # Parameter tensors in the order in which the forward pass uses them
    kept: int = 0  # Bytes of activations that its layer keeps for the backward pass; 0 unless the layer's last unit


def units(shard: Shard, chunk: Chunk, *, has_embedding: bool) -> list[ModelUnit]:
    """Return a chunk's units in the order of the forward pass.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        chunk: The layers of the chunk, and whether it has an end of the model.
        has_embedding: Whether the stage of the chunk has the embedding.
    """
    chunk_units: list[ModelUnit] = []
    vocab = padded_vocab(shard.model, shard.plan)
    if chunk.is_first:
        parts = architecture.embedding(shard.model, vocab)
        chunk_units.append(_unit(shard, "embedding", embedding(shard), embedding_backward(shard), parts))
    by_kind: dict[tuple[int, ...], tuple[ModelUnit, ModelUnit]] = {}
    for number in chunk.layers:
        has_experts = shard.model.has_experts(number)
        kind = has_experts, shard.model.window_of(number), number if has_experts and shard.plan.imbalance else -1
        if kind not in by_kind:
            by_kind[kind] = _layer(shard.in_layer(number), number, has_experts=has_experts)
        chunk_units += [unit._replace(layer=f"layer{number}") for unit in by_kind[kind]]
    if chunk.is_last:
        parts = (architecture.norm(shard.model),)
        if not (shard.model.tied_embeddings and has_embedding):
            parts += (architecture.output_matrix(shard.model, vocab),)
        chunk_units.append(_unit(shard, HEAD, head(shard), head_backward(shard), parts))
        for number in range(shard.model.mtp_layers):
            chunk_units += _prediction(shard, number, has_embedding=has_embedding or number > 0)
    return chunk_units


def _prediction(shard: Shard, layer_number: int, *, has_embedding: bool) -> list[ModelUnit]:
    """Return the units of a multi-token prediction layer: a layer like the model's last one, with its own loss."""
    # The layer uses the model's embedding and output matrix; a stage without the embedding holds a copy of it.
    parts = architecture.mtp_projection(shard.model)
    if not (has_embedding or shard.model.tied_embeddings):
        parts = (architecture.embedding(shard.model, padded_vocab(shard.model, shard.plan))[0], *parts)
    last = shard.model.layers - 1
    prediction_units = [
        _unit(shard, "projection", prediction(shard), prediction_backward(shard), parts),
        *_layer(shard.in_layer(last), last, prediction(shard), has_experts=shard.model.has_experts(last)),
        _unit(shard, HEAD, head(shard), head_backward(shard), [architecture.norm(shard.model)]),
    ]
    return [unit._replace(layer=f"prediction{layer_number}") for unit in prediction_units]


def _layer(
    shard: Shard, layer_number: int, items_before: Sequence[Item] = (), *, has_experts: bool
) -> tuple[ModelUnit, ModelUnit]:
    """Return attention and MLP of a layer as units; full recomputation repeats items_before as well."""
    first = attention.forward(shard)
    second = experts.forward(shard, layer_number) if has_experts else linear.forward(shard)
    first_back = recomputation.attention_backward(shard)
    repeated = recomputation.whole_layer(shard, items_before, first, second, has_experts=has_experts)
    second_back = [*repeated, *recomputation.mlp_backward(shard, layer_number, second, has_experts=has_experts)]
    kept = layer_activations(shard.model, shard.plan, has_experts=has_experts).kept(shard.plan.recompute)
    return (
        _unit(shard, "attention", first, first_back, architecture.attention(shard.model)),
        _unit(shard, "mlp", second, second_back, architecture.mlp(shard.model, has_experts=has_experts))._replace(
            kept=kept
        ),
    )


def _unit(shard: Shard, name: str, forward: Items, backward: Items, weights_list: Iterable[Weights]) -> ModelUnit:
    """Return a unit with these passes and weights, whose layer the caller sets; with LoRA only adapters are trained."""
    if shard.plan.lora:
        backward = [] if name == "embedding" else only(backward, weights=False)
        weights_list = architecture.adapters(shard.model, shard.plan.lora) if name == "attention" else ()
    if shard.plan.overlap_tp and shard.plan.tp > 1:
        forward, backward = overlapped(forward), overlapped(backward)
    return ModelUnit("", name, forward, backward, tensors(shard.model, shard.plan, weights_list))


# Both ends of the model: the word embedding, and the output layer with its loss, split along the vocabulary.
#
# Neither uses FP8: Megatron-LM's output layer is not a layer of Transformer Engine (core/models/gpt/gpt_model.py:
# tensor_parallel.ColumnParallelLinear), and DeepSeek-V3 keeps both in BF16 (arXiv 2412.19437, section 3.3.1). Therefore
# their products and gathers use the data type of activations. With `fp8_output` the output layer is one of Transformer
# Engine in FP8 (core/extensions/transformer_engine.py, TELMHeadColumnParallelLinear, since Megatron-Core 0.18).


_LOSS_BYTES = 4  # Bytes per logit in the loss (FP32)


def embedding(shard: Shard) -> Items:
    """Return the items of the lookup in the GPU's part of the embedding, and the sum over the tensor-parallel group.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    h = shard.model.hidden
    operators = [shard.operator("embedding", shard.tokens, h)]
    if shard.model.positions == "learned":
        operators.append(shard.operator("elementwise", shard.tokens * h, 2, 1))
    return [Compute("embedding", tuple(operators)), *leave(shard, "embedding", h)]


def embedding_backward(shard: Shard) -> Items:
    """Return the addition of gradients to the GPU's part of the table.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    h = shard.model.hidden
    gradient = enter(shard, "embedding", h, quantised=False)
    return [*gradient, Compute("embedding", (shard.operator("embedding-backward", shard.tokens, h),))]


def head(shard: Shard) -> Items:
    """Return the last norm, the logits of the GPU's part of the vocabulary, and the loss.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    # The loss needs three all-reduces of one number per token: the largest logit, the target's logit, and the sum of
    # exponentials (Megatron-LM, core/tensor_parallel/cross_entropy.py).
    h, is_fp8 = shard.model.hidden, shard.plan.fp8_output
    kind = CollectiveCommType.ALL_REDUCE
    sums = [] if shard.plan.tp == 1 else [GroupCollective("loss/tp:all-reduce", kind, shard.tokens * _LOSS_BYTES, "tp")]
    return [
        Compute("head-norm", (shard.operator("norm", shard.rows, h),)),
        *enter(shard, "head", h, quantised=is_fp8),
        Compute("head", (_output_product(shard, shard.tokens, shard.vocabulary, h),)),
        *sums,
        Compute("loss", (shard.operator("cross-entropy", shard.tokens, shard.vocabulary),)),
        *sums,
        *sums,
    ]


def head_backward(shard: Shard) -> Items:
    """Return the gradients of the output matrix and of the last norm; `head` includes the gradient of the loss.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    h, m, v = shard.model.hidden, shard.tokens, shard.vocabulary
    data, weights = _output_product(shard, m, h, v), _output_product(shard, v, h, m)
    items, key = enter_backward(shard, "head", h, (data,), (weights,), quantised=shard.plan.fp8_output)
    return [*items, Compute("head-norm", (shard.operator("norm-backward", shard.rows, h),), waiting(key))]


def _output_product(shard: Shard, *shape: int) -> Operator:
    """Return a product of the output layer, as of `Shard.gemm`."""
    return Operator("gemm", shape, shard.plan.dtype if shard.plan.fp8_output else shard.activation_dtype)


def prediction(shard: Shard) -> Items:
    """Return the items before a multi-token prediction layer.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    # The embedding of the next tokens and the output of the previous layer are normalised, and one projection merges
    # them (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    h, rows = shard.model.hidden, shard.rows
    operators = (shard.operator("norm", 2 * rows, h), shard.gemm(rows, h, 2 * h))
    return [*embedding(shard), Compute("projection", operators)]


def prediction_backward(shard: Shard) -> Items:
    """Return the backward pass of `prediction`.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    h, rows = shard.model.hidden, shard.rows
    return [
        Compute("projection", (shard.gemm(rows, 2 * h, h),)),
        weights_product(shard, "projection", (shard.gemm(h, 2 * h, rows),)),
        Compute("projection-norm", (shard.operator("norm-backward", 2 * rows, h),)),
        *embedding_backward(shard),
    ]
