"""The units of a pipeline stage's chunk in both passes: the embedding, attention and MLP of each layer, the head."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from workload.generators.memory.activations import layer_activations
from workload.generators.models import weights
from workload.generators.models.weights import Weights
from workload.generators.training import attention, experts, mlp, vocabulary
from workload.generators.training.attention import renamed
from workload.generators.training.items import Item, Items
from workload.generators.training.overlap import overlapped
from workload.generators.training.parameters import Tensors, tensors
from workload.generators.training.shard import Shard
from workload.generators.training.stages import Chunk, padded_vocab

HEAD = "head"  # Name of the unit that holds the final norm, the output layer and the loss


class ModelUnit(NamedTuple):
    """A part of the model with its own parameters."""

    layer: str  # Prefix of its items' names, for example "layer17"; "" outside layers
    name: str  # Name of the unit: "embedding", "attention", "mlp", "projection" or HEAD
    forward: Items  # Items of its forward pass
    backward: Items  # Items of its backward pass, recomputation included
    tensors: Tensors  # Parameter tensors in the order in which the forward pass uses them
    kept: int = 0  # Bytes of activations that its layer keeps for the backward pass; 0 unless the layer's last unit


def units(s: Shard, chunk: Chunk, *, has_embedding: bool) -> list[ModelUnit]:
    """Return the units of a chunk in the order of the forward pass.

    `has_embedding`: the stage has the embedding, in this chunk or another.
    """
    chunk_units: list[ModelUnit] = []
    vocab = padded_vocab(s.model, s.plan)
    if chunk.is_first:
        parts = weights.embedding(s.model, vocab)
        chunk_units.append(_unit(s, "embedding", vocabulary.embedding(s), vocabulary.embedding_backward(s), parts))
    plain = _layer(s, 0, has_experts=False)
    routed: tuple[ModelUnit, ModelUnit] | None = None
    for number in chunk.layers:
        if not s.model.has_experts(number):
            pair = plain
        elif routed is None or s.plan.imbalance:
            pair = routed = _layer(s, number, has_experts=True)
        else:
            pair = routed
        chunk_units += [unit._replace(layer=f"layer{number}") for unit in pair]
    if chunk.is_last:
        parts = (weights.norm(s.model),)
        if not (s.model.tied_embeddings and has_embedding):
            parts += (weights.output_matrix(s.model, vocab),)
        chunk_units.append(_unit(s, HEAD, vocabulary.head(s), vocabulary.head_backward(s), parts))
        for number in range(s.model.mtp_layers):
            chunk_units += _prediction(s, number, has_embedding=has_embedding or number > 0)
    return chunk_units


def _prediction(s: Shard, number: int, *, has_embedding: bool) -> list[ModelUnit]:
    """Return the units of a multi-token prediction layer: a layer like the model's last one, with its own loss.

    The layer uses the model's embedding and output matrix; a stage without the embedding holds a copy of it.
    """
    parts = weights.mtp_projection(s.model)
    if not (has_embedding or s.model.tied_embeddings):
        parts = (weights.embedding(s.model, padded_vocab(s.model, s.plan))[0], *parts)
    last = s.model.layers - 1
    prediction_units = [
        _unit(s, "projection", vocabulary.prediction(s), vocabulary.prediction_backward(s), parts),
        *_layer(s, last, vocabulary.prediction(s), has_experts=s.model.has_experts(last)),
        _unit(s, HEAD, vocabulary.head(s), vocabulary.head_backward(s), [weights.norm(s.model)]),
    ]
    return [unit._replace(layer=f"prediction{number}") for unit in prediction_units]


def _layer(s: Shard, number: int, before: Sequence[Item] = (), *, has_experts: bool) -> tuple[ModelUnit, ModelUnit]:
    """Return the attention and the MLP of a layer; full recomputation repeats the items `before` it as well."""
    first = attention.forward(s)
    second = experts.forward(s, number) if has_experts else mlp.forward(s)
    first_back = attention.backward(s, again=s.plan.recompute == "selective")
    second_back = experts.backward(s, number) if has_experts else mlp.backward(s)
    if s.plan.recompute == "full":
        second_back = [*renamed([*before, *first, *second], "recompute/"), *second_back]
    kept = layer_activations(s.model, s.plan, has_experts=has_experts).kept(s.plan.recompute)
    return (
        _unit(s, "attention", first, first_back, weights.attention(s.model)),
        _unit(s, "mlp", second, second_back, weights.mlp(s.model, has_experts=has_experts))._replace(kept=kept),
    )


def _unit(s: Shard, name: str, forward: Items, backward: Items, parts: Iterable[Weights]) -> ModelUnit:
    """Return a unit with the given weights, whose layer the caller sets."""
    if s.plan.overlap_tp and s.plan.tp > 1:
        forward, backward = overlapped(forward), overlapped(backward)
    return ModelUnit("", name, forward, backward, tensors(s.model, s.plan, parts))
