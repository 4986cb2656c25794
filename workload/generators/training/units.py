"""The units of a pipeline stage's chunk in both passes: the embedding, attention and MLP of each layer, the head."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nadi.workload.generators.memory.activations import layer_activations
from nadi.workload.generators.models import weights
from nadi.workload.generators.models.weights import Weights
from nadi.workload.generators.training import attention, experts, mlp, vocabulary
from nadi.workload.generators.training.attention import renamed
from nadi.workload.generators.training.items import Item, Items, only
from nadi.workload.generators.training.overlap import overlapped
from nadi.workload.generators.training.parameters import Tensors, tensors
from nadi.workload.generators.training.shard import Shard
from nadi.workload.generators.training.stages import Chunk, padded_vocab

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
    """Return a chunk's units in the order of the forward pass; has_embedding: whether its stage has the embedding."""
    chunk_units: list[ModelUnit] = []
    vocab = padded_vocab(shard.model, shard.plan)
    if chunk.is_first:
        parts = weights.embedding(shard.model, vocab)
        chunk_units.append(
            _unit(shard, "embedding", vocabulary.embedding(shard), vocabulary.embedding_backward(shard), parts)
        )
    plain = _layer(shard, 0, has_experts=False)
    routed: tuple[ModelUnit, ModelUnit] | None = None
    for number in chunk.layers:
        if not shard.model.has_experts(number):
            pair = plain
        elif routed is None or shard.plan.imbalance:
            pair = routed = _layer(shard, number, has_experts=True)
        else:
            pair = routed
        chunk_units += [unit._replace(layer=f"layer{number}") for unit in pair]
    if chunk.is_last:
        parts = (weights.norm(shard.model),)
        if not (shard.model.tied_embeddings and has_embedding):
            parts += (weights.output_matrix(shard.model, vocab),)
        chunk_units.append(_unit(shard, HEAD, vocabulary.head(shard), vocabulary.head_backward(shard), parts))
        for number in range(shard.model.mtp_layers):
            chunk_units += _prediction(shard, number, has_embedding=has_embedding or number > 0)
    return chunk_units


def _prediction(shard: Shard, layer_number: int, *, has_embedding: bool) -> list[ModelUnit]:
    """Return the units of a multi-token prediction layer: a layer like the model's last one, with its own loss."""
    # The layer uses the model's embedding and output matrix; a stage without the embedding holds a copy of it.
    parts = weights.mtp_projection(shard.model)
    if not (has_embedding or shard.model.tied_embeddings):
        parts = (weights.embedding(shard.model, padded_vocab(shard.model, shard.plan))[0], *parts)
    last = shard.model.layers - 1
    prediction_units = [
        _unit(shard, "projection", vocabulary.prediction(shard), vocabulary.prediction_backward(shard), parts),
        *_layer(shard, last, vocabulary.prediction(shard), has_experts=shard.model.has_experts(last)),
        _unit(shard, HEAD, vocabulary.head(shard), vocabulary.head_backward(shard), [weights.norm(shard.model)]),
    ]
    return [unit._replace(layer=f"prediction{layer_number}") for unit in prediction_units]


def _layer(
    shard: Shard, layer_number: int, items_before: Sequence[Item] = (), *, has_experts: bool
) -> tuple[ModelUnit, ModelUnit]:
    """Return attention and MLP of a layer as units; full recomputation repeats items_before as well."""
    first = attention.forward(shard)
    second = experts.forward(shard, layer_number) if has_experts else mlp.forward(shard)
    first_back = attention.backward(shard, recomputes_core=shard.plan.recompute == "selective")
    second_back = experts.backward(shard, layer_number) if has_experts else mlp.backward(shard)
    if shard.plan.recompute == "full":
        second_back = [*renamed([*items_before, *first, *second], "recompute/"), *second_back]
    kept = layer_activations(shard.model, shard.plan, has_experts=has_experts).kept(shard.plan.recompute)
    return (
        _unit(shard, "attention", first, first_back, weights.attention(shard.model)),
        _unit(shard, "mlp", second, second_back, weights.mlp(shard.model, has_experts=has_experts))._replace(kept=kept),
    )


def _unit(shard: Shard, name: str, forward: Items, backward: Items, weights_list: Iterable[Weights]) -> ModelUnit:
    """Return a unit with these passes and weights, whose layer the caller sets; with LoRA only adapters are trained."""
    if shard.plan.lora:
        backward = [] if name == "embedding" else only(backward, weights=False)
        weights_list = weights.adapters(shard.model, shard.plan.lora) if name == "attention" else ()
    if shard.plan.overlap_tp and shard.plan.tp > 1:
        forward, backward = overlapped(forward), overlapped(backward)
    return ModelUnit("", name, forward, backward, tensors(shard.model, shard.plan, weights_list))
