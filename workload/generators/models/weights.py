"""Numbers of parameters of a model's parts, and how tensor and expert parallelism split each part.

All other counts derive from these lists: totals, parameters per token, parameters per GPU of a parallel plan
(`workload.generators.training.parameter_counts`), and operations of the matrices
(`workload.generators.models.operations`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from workload.generators.models.model import Model

PARTS = ("embedding", "positions", "attention", "mlp", "experts", "shared experts", "router", "norms", "mtp", "output")
"""Names of the parts for which parameters are counted."""


class Weights(NamedTuple):
    """A matrix or vectors of parameters."""

    part: str  # Name of the part of the model, one of PARTS
    size: int  # Number of parameters
    # Distribution over GPUs: "whole" = each GPU holds all; "tp" = split over the tensor-parallel group; "kv" = the
    # same, but each GPU holds at least one head; "experts" = split over the expert-parallel group, and each expert over
    # its tensor-parallel group
    split: Literal["whole", "tp", "kv", "experts"] = "whole"
    is_matrix: bool = True  # Whether tokens are multiplied by it, with two operations per parameter and token


def embedding(model: Model, vocab: int = 0) -> tuple[Weights, ...]:
    """Return the word embedding and learned positions; vocab: padded vocabulary size, 0 = the model's."""
    words = Weights("embedding", (vocab or model.vocab) * model.hidden, "tp", is_matrix=False)
    if model.positions == "learned":
        return words, Weights("positions", model.sequence * model.hidden, is_matrix=False)
    return (words,)


def layer(model: Model, number: int) -> tuple[Weights, ...]:
    """Return the weights of a layer, counted from 0."""
    return layer_of_kind(model, has_experts=model.has_experts(number))


@lru_cache(maxsize=256)
def layer_of_kind(model: Model, *, has_experts: bool) -> tuple[Weights, ...]:
    """Return the weights of a layer with experts, or with a plain MLP."""
    return tuple(_layer(model, has_experts=has_experts))


def final_norm(model: Model) -> tuple[Weights, ...]:
    """Return the norm before the output layer."""
    return (_norm(model, model.hidden),)


def output(model: Model, vocab: int = 0) -> tuple[Weights, ...]:
    """Return the output layer, empty if tied to the word embedding; vocab: padded size, 0 = the model's."""
    return () if model.tied_embeddings else (output_matrix(model, vocab),)


def output_matrix(model: Model, vocab: int = 0) -> Weights:
    """Return the matrix of the output layer, tied to the word embedding or not."""
    return Weights("output", (vocab or model.vocab) * model.hidden, "tp")


def mtp_layer(model: Model) -> tuple[Weights, ...]:
    """Return the weights of a multi-token prediction layer, which shares embedding and output layer with the model.

    DeepSeek-V3 (arXiv 2412.19437, section 2.2): two norms, a projection from twice the hidden size to the hidden size,
    a layer, and the norm of its head.
    """
    own = [_norm(model, model.hidden)] * 3 + [Weights("mtp", 2 * model.hidden * model.hidden)]
    return (*own, *layer(model, model.layers - 1))


def all_weights(model: Model) -> Iterator[Weights]:
    """Yield the weights of the whole model without multi-token prediction."""
    yield from embedding(model)
    for number in range(model.layers):
        yield from layer(model, number)
    yield from final_norm(model)
    yield from output(model)


def total(weights: Iterable[Weights]) -> int:
    """Return the total number of parameters of weights."""
    return sum(each.size for each in weights)


def parameters(model: Model) -> int:
    """Return the number of parameters as models' authors count them: without multi-token prediction."""
    return total(all_weights(model))


def mtp_parameters(model: Model) -> int:
    """Return the number of parameters that multi-token prediction adds to the model."""
    return model.mtp_layers * total(mtp_layer(model)) if model.mtp_layers else 0


def active_parameters(model: Model) -> int:
    """Return the number of parameters per token: top_k routed experts, the whole embedding, and all other parts."""
    return sum(active(model, each) for each in all_weights(model))


def active(model: Model, weights: Weights) -> int:
    """Return how many parameters of the weights one token uses."""
    if weights.part != "experts" or model.experts is None:
        return weights.size
    return weights.size // model.experts.count * model.experts.top_k


def by_part(model: Model) -> dict[str, int]:
    """Return the number of parameters by part, multi-token prediction included, in the order of PARTS without zeros."""
    counts: Counter[str] = Counter()
    for each in all_weights(model):
        counts[each.part] += each.size
    counts["mtp"] += mtp_parameters(model)
    return {part: counts[part] for part in PARTS if counts[part]}


def _layer(model: Model, *, has_experts: bool) -> Iterator[Weights]:
    yield _norm(model, model.hidden)
    yield from _attention(model) if model.latent is None else _latent_attention(model)
    yield _norm(model, model.hidden)
    if has_experts:
        yield from _experts(model)
    else:
        yield from _mlp(model, "mlp", model.ffn_width)


def _attention(model: Model) -> Iterator[Weights]:
    queries = model.heads * model.query_dim
    keys_and_values = 2 * model.key_value_heads * model.query_dim
    yield Weights("attention", model.hidden * queries, "tp")
    yield Weights("attention", model.hidden * keys_and_values, "kv")
    yield Weights("attention", queries * model.hidden, "tp")
    if model.bias or model.qkv_bias:
        yield Weights("attention", queries, "tp", is_matrix=False)
        yield Weights("attention", keys_and_values, "kv", is_matrix=False)
    if model.bias:
        yield Weights("attention", model.hidden, is_matrix=False)
    if model.qk_norm:
        yield _norm(model, 2 * model.query_dim)


def _latent_attention(model: Model) -> Iterator[Weights]:
    """Yield the weights of latent attention; as in Megatron, only the projections up to heads are split over GPUs."""
    latent = model.latent
    assert latent is not None  # noqa: S101 - for the type checker: the caller checks it
    queries = model.heads * model.query_dim
    if latent.query_rank:
        yield Weights("attention", model.hidden * latent.query_rank)
        yield _norm(model, latent.query_rank)
    yield Weights("attention", (latent.query_rank or model.hidden) * queries, "tp")
    yield Weights("attention", model.hidden * (latent.key_value_rank + latent.rope_dim))
    yield _norm(model, latent.key_value_rank)
    yield Weights("attention", latent.key_value_rank * model.heads * (latent.nope_dim + latent.value_dim), "tp")
    yield Weights("attention", model.heads * latent.value_dim * model.hidden, "tp")


def _mlp(model: Model, part: str, width: int) -> Iterator[Weights]:
    inner = (2 if model.is_gated else 1) * width
    yield Weights(part, model.hidden * inner, "tp")
    yield Weights(part, width * model.hidden, "tp")
    if model.bias:
        yield Weights(part, inner, "tp", is_matrix=False)
        yield Weights(part, model.hidden, is_matrix=False)


def _experts(model: Model) -> Iterator[Weights]:
    """Yield router and experts; experts have no biases, as in Megatron and in all published models."""
    experts = model.experts
    assert experts is not None  # noqa: S101 - for the type checker: the caller checks it
    matrices = 3 if model.is_gated else 2
    yield Weights("router", model.hidden * experts.count)
    yield Weights("experts", experts.count * matrices * model.hidden * experts.ffn, "experts")
    if experts.shared_width:
        yield Weights("shared experts", matrices * model.hidden * experts.shared_width, "tp")
    if experts.shared_gate:
        yield Weights("shared experts", model.hidden)


def _norm(model: Model, size: int) -> Weights:
    return Weights("norms", (2 if model.norm == "layernorm" else 1) * size, is_matrix=False)
