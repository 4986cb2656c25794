"""Numbers of parameters of a model's parts, and how tensor and expert parallelism split each part.

All other counts derive from these lists: totals, parameters per token, tensors on each GPU of a parallel plan
(`workload.generators.training.parameters`), and operations of the matrices (`workload.generators.models.operations`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from nadi.workload.generators.models.model import Model

# Names of the parts for which parameters are counted
PARTS = ("embedding", "positions", "attention", "mlp", "experts", "shared experts", "router", "norms", "mtp", "output")


class Weights(NamedTuple):
    """A matrix or vectors of parameters, as training frameworks create them."""

    part: str  # Name of the part of the model, one of PARTS
    size: int  # Number of parameters
    # Distribution over GPUs: "whole" = each GPU holds all; "tp" = split over the tensor-parallel group; "qkv" = the
    # same for queries, keys and values, but each GPU holds at least one head of each; "experts" = split over the
    # expert-parallel group, and each expert over its tensor-parallel group
    split: Literal["whole", "tp", "qkv", "experts"] = "whole"
    is_matrix: bool = True  # Whether tokens are multiplied by it, with two operations per parameter and token
    pieces: int = 1  # Number of the framework's equal tensors that it represents


def embedding(model: Model, vocab: int = 0) -> tuple[Weights, ...]:
    """Return the word embedding and learned positions; vocab: padded vocabulary size, 0 = the model's."""
    words = Weights("embedding", (vocab or model.vocab) * model.hidden, "tp", is_matrix=False)
    if model.positions == "learned":
        return words, Weights("positions", model.sequence * model.hidden, is_matrix=False)
    return (words,)


def layer(model: Model, number: int) -> tuple[Weights, ...]:
    """Return the weights of a layer, counted from 0."""
    return layer_of_kind(model, has_experts=model.has_experts(number))


def layer_of_kind(model: Model, *, has_experts: bool) -> tuple[Weights, ...]:
    """Return the weights of a layer with experts, or with a plain MLP."""
    return (*attention(model), *mlp(model, has_experts=has_experts))


@lru_cache(maxsize=256)
def attention(model: Model) -> tuple[Weights, ...]:
    """Return the weights of an attention in the order of the forward pass: norm, projections, output matrix."""
    projections = _projections(model) if model.latent is None else _latent_projections(model)
    output = Weights("attention", model.heads * model.value_dim * model.hidden, "tp")
    bias = (Weights("attention", model.hidden, is_matrix=False),) if model.bias else ()
    return (norm(model), *projections, output, *bias)


def adapters(model: Model, rank: int) -> tuple[Weights, ...]:
    """Return the weights of a layer's LoRA adapters: A and B of queries, keys and values, A and B of the output."""
    columns, values = (model.heads + 2 * model.key_value_heads) * model.query_dim, model.heads * model.value_dim
    return (
        Weights("attention", rank * model.hidden, "tp"),
        Weights("attention", rank * columns, "qkv"),
        *(Weights("attention", rank * width, "tp") for width in (values, model.hidden)),
    )


@lru_cache(maxsize=256)
def mlp(model: Model, *, has_experts: bool) -> tuple[Weights, ...]:
    """Return the norm and the matrices of an MLP, or its norm, router and experts."""
    if has_experts:
        return (norm(model), *_experts(model))
    return (norm(model), *_matrices(model, "mlp", model.ffn_width, has_bias=model.bias))


def norm(model: Model, width: int = 0) -> Weights:
    """Return a norm of `width` values, 0 = the hidden size: a LayerNorm has two vectors, an RMSNorm one."""
    vectors = 2 if model.norm == "layernorm" else 1
    return Weights("norms", (width or model.hidden) * vectors, is_matrix=False, pieces=vectors)


def output_matrix(model: Model, vocab: int = 0) -> Weights:
    """Return the matrix of the output layer, tied to the word embedding or not."""
    return Weights("output", (vocab or model.vocab) * model.hidden, "tp")


def mtp_projection(model: Model) -> tuple[Weights, ...]:
    """Return the weights before a multi-token prediction layer: two norms, and a projection that is not split."""
    return norm(model), norm(model), Weights("mtp", 2 * model.hidden * model.hidden)


def mtp_layer(model: Model) -> tuple[Weights, ...]:
    """Return the weights of a multi-token prediction layer, which shares embedding and output layer with the model."""
    # DeepSeek-V3 (arXiv 2412.19437, section 2.2): two norms, a projection from twice the hidden size to the hidden
    # size, a layer, and the norm of its head.
    return (*mtp_projection(model), *layer(model, model.layers - 1), norm(model))


def all_weights(model: Model) -> Iterator[Weights]:
    """Yield the weights of the whole model without multi-token prediction."""
    yield from embedding(model)
    for number in range(model.layers):
        yield from layer(model, number)
    yield norm(model)
    if not model.tied_embeddings:
        yield output_matrix(model)


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


def _projections(model: Model) -> Iterator[Weights]:
    """Yield the joint matrix of queries, keys and values, with its bias, and the norms of queries and keys."""
    columns = (model.heads + 2 * model.key_value_heads) * model.query_dim
    yield Weights("attention", columns * model.hidden, "qkv")
    if model.bias or model.qkv_bias:
        yield Weights("attention", columns, "qkv", is_matrix=False)
    if model.qk_norm:
        yield from [norm(model, model.query_dim)] * 2


def _latent_projections(model: Model) -> Iterator[Weights]:
    """Yield the projections of latent attention; as in Megatron, only those up to heads are split over GPUs."""
    latent = model.latent
    assert latent is not None  # noqa: S101 - for the type checker: the caller checks it
    for rank in filter(None, (latent.query_rank, latent.key_value_rank)):
        yield norm(model, rank)
    if latent.query_rank:
        yield Weights("attention", latent.query_rank * model.hidden)
    yield Weights("attention", model.heads * model.query_dim * (latent.query_rank or model.hidden), "tp")
    yield Weights("attention", (latent.key_value_rank + latent.rope_dim) * model.hidden)
    yield Weights("attention", model.heads * (latent.nope_dim + latent.value_dim) * latent.key_value_rank, "tp")


def _matrices(model: Model, part: str, width: int, *, has_bias: bool) -> Iterator[Weights]:
    """Yield the two matrices of an MLP of an inner width; the first one includes the gate of a gated MLP."""
    inner = (2 if model.is_gated else 1) * width
    yield Weights(part, inner * model.hidden, "tp")
    if has_bias:
        yield Weights(part, inner, "tp", is_matrix=False)
    yield Weights(part, width * model.hidden, "tp")
    if has_bias:
        yield Weights(part, model.hidden, is_matrix=False)


def _experts(model: Model) -> Iterator[Weights]:
    """Yield router, shared and routed experts; they have no biases, as in Megatron and in all published models."""
    experts = model.experts
    assert experts is not None  # noqa: S101 - for the type checker: the caller checks it
    yield Weights("router", model.hidden * experts.count)
    if experts.shared_gate:
        yield Weights("shared experts", model.hidden)
    if experts.shared_width:
        yield from _matrices(model, "shared experts", experts.shared_width, has_bias=False)
    for matrix in _matrices(model, "experts", experts.ffn, has_bias=False):
        yield matrix._replace(size=matrix.size * experts.count, split="experts", pieces=experts.count)
