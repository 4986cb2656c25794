"""How many parameters a model has: each part once, with what tensor and expert parallelism do to it.

All other counts come from these lists: totals, what a token uses, what a GPU of a parallel plan holds
(`workload.generators.training.held`), and the operations of the matrices (`workload.generators.models.operations`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from workload.generators.models.model import Model

PARTS = ("embedding", "positions", "attention", "mlp", "experts", "shared experts", "router", "norms", "mtp", "output")
"""What parameters are told apart by."""


class Weights(NamedTuple):
    """A matrix or some vectors.

    Attributes:
        part: one of PARTS.
        size: parameters.
        split: by what GPUs share it. "whole" is held by all; "tp" by the tensor-parallel group; "kv" too, but not
            below one head each; "experts" by the expert-parallel group and each expert by its own tensor-parallel one.
        is_matrix: whether tokens are multiplied by it: two operations for each parameter and token.
    """

    part: str
    size: int
    split: Literal["whole", "tp", "kv", "experts"] = "whole"
    is_matrix: bool = True


def embedding(model: Model, vocab: int = 0) -> tuple[Weights, ...]:
    """What turns tokens into rows of hidden values; vocab: rows if padded, 0 = the model's."""
    words = Weights("embedding", (vocab or model.vocab) * model.hidden, "tp", is_matrix=False)
    if model.positions == "learned":
        return words, Weights("positions", model.sequence * model.hidden, is_matrix=False)
    return (words,)


def layer(model: Model, number: int) -> tuple[Weights, ...]:
    """A layer, counted from 0."""
    return layer_of_kind(model, has_experts=model.has_experts(number))


@lru_cache(maxsize=256)
def layer_of_kind(model: Model, *, has_experts: bool) -> tuple[Weights, ...]:
    """A layer with experts, or with a plain MLP."""
    return tuple(_layer(model, has_experts=has_experts))


def final_norm(model: Model) -> tuple[Weights, ...]:
    """What stands before the output layer."""
    return (_norm(model, model.hidden),)


def output(model: Model, vocab: int = 0) -> tuple[Weights, ...]:
    """The output layer, where it is not the word embedding; vocab: rows if padded, 0 = the model's."""
    return () if model.tied_embeddings else (output_matrix(model, vocab),)


def output_matrix(model: Model, vocab: int = 0) -> Weights:
    """The matrix of the output layer, be it a matrix of its own or not."""
    return Weights("output", (vocab or model.vocab) * model.hidden, "tp")


def mtp_layer(model: Model) -> tuple[Weights, ...]:
    """One layer of multi-token prediction; its embedding and output layer are the model's.

    DeepSeek-V3 (arXiv 2412.19437, section 2.2): two norms, a projection of twice the hidden size to it, a layer, and
    the norm of its head.
    """
    own = [_norm(model, model.hidden)] * 3 + [Weights("mtp", 2 * model.hidden * model.hidden)]
    return (*own, *layer(model, model.layers - 1))


def all_weights(model: Model) -> Iterator[Weights]:
    """The whole model without multi-token prediction."""
    yield from embedding(model)
    for number in range(model.layers):
        yield from layer(model, number)
    yield from final_norm(model)
    yield from output(model)


def total(weights: Iterable[Weights]) -> int:
    """Parameters of some weights."""
    return sum(each.size for each in weights)


def parameters(model: Model) -> int:
    """Parameters of a model, without those of multi-token prediction, as its authors count them."""
    return total(all_weights(model))


def mtp_parameters(model: Model) -> int:
    """Parameters of multi-token prediction that the model does not have otherwise."""
    return model.mtp_layers * total(mtp_layer(model)) if model.mtp_layers else 0


def active_parameters(model: Model) -> int:
    """Parameters that a token uses: of the routed experts, those that it goes to; the whole embedding."""
    return sum(active(model, each) for each in all_weights(model))


def active(model: Model, weights: Weights) -> int:
    """Parameters of some weights that a token uses."""
    if weights.part != "experts" or model.experts is None:
        return weights.size
    return weights.size // model.experts.count * model.experts.top_k


def by_part(model: Model) -> dict[str, int]:
    """Parameters of each part, in the order of PARTS, parts without any left out; multi-token prediction is one."""
    found: Counter[str] = Counter()
    for each in all_weights(model):
        found[each.part] += each.size
    found["mtp"] += mtp_parameters(model)
    return {part: found[part] for part in PARTS if found[part]}


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
    """Projections down are whole on each GPU, as in Megatron; those up from there are shared by heads."""
    latent = model.latent
    assert latent is not None  # noqa: S101 - for the type checker: the caller has asked
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
    """Experts have no biases, as in Megatron and in all models that have been published."""
    experts = model.experts
    assert experts is not None  # noqa: S101 - for the type checker: the caller has asked
    matrices = 3 if model.is_gated else 2
    yield Weights("router", model.hidden * experts.count)
    yield Weights("experts", experts.count * matrices * model.hidden * experts.ffn, "experts")
    if experts.shared_width:
        yield Weights("shared experts", matrices * model.hidden * experts.shared_width, "tp")
    if experts.shared_gate:
        yield Weights("shared experts", model.hidden)


def _norm(model: Model, size: int) -> Weights:
    return Weights("norms", (2 if model.norm == "layernorm" else 1) * size, is_matrix=False)
