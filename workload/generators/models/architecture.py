"""The architecture of a transformer, and its numbers of parameters.

A TOML file of `workload/generators/models` defines one model; its keys are the fields of `Model`.
`workload.generators.models.library` creates a `Model` from a config.json.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_LAYERS = 10**4
_MAX_COUNT = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=_MAX_COUNT, strict=True)]
CountFromZero = Annotated[int, Field(ge=0, le=_MAX_COUNT, strict=True)]


class ModelPart(BaseModel):
    """Base class of models and their parts: immutable, rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LatentAttention(ModelPart):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    query_rank: CountFromZero = 0  # Dimension of compressed queries, 0 = queries are not compressed
    key_value_rank: Count  # Dimension of compressed keys and values, which the KV cache holds
    nope_dim: Count  # Dimension per head of the part of queries and keys without positions
    rope_dim: Count  # Dimension of the part of queries and keys with rotary positions; all heads share one such key
    value_dim: Count  # Dimension per head of values


class Experts(ModelPart):
    """A mixture of experts, which replaces the MLP of layers."""

    count: Annotated[int, Field(ge=2, le=_MAX_COUNT, strict=True)]  # Number of routed experts per layer
    top_k: Count  # Number of routed experts per token
    ffn: Count  # Inner width of an expert's MLP
    shared: CountFromZero = 0  # Number of shared experts, which process every token
    shared_ffn: CountFromZero = 0  # Inner width of all shared experts together, 0 = shared * ffn
    shared_gate: bool = False  # Whether a gate with one row weights the output of the shared experts (Qwen2-MoE)
    first_dense: CountFromZero = 0  # Number of layers at the beginning that have a plain MLP
    every: Count = 1  # Period of the layers with experts after the first ones: 1 = all of them, 2 = every second one
    # Number of equal groups of consecutive experts, and maximum number of groups from which a token takes its experts;
    # 0 = no groups (DeepSeek-V2, arXiv 2405.04434, section 2.2.2; DeepSeek-V3, arXiv 2412.19437, section 2.1.2)
    groups: CountFromZero = 0
    group_top_k: CountFromZero = 0
    auxiliary_loss: bool = False  # Whether training adds a loss that balances the experts' loads (arXiv 2101.03961)
    z_loss: bool = False  # Whether training adds a loss that keeps the router's scores small (arXiv 2202.08906)
    # Whether a bias per expert balances the loads, updated once per step from the tokens of each (arXiv 2408.15664)
    expert_bias: bool = False

    @model_validator(mode="after")
    def _routed(self) -> Self:
        """Return the experts, once checked: they, and the groups of a token, suffice for its number of experts."""
        if self.top_k > self.count:
            raise ValueError(f"top_k is {self.top_k}; expected at most count ({self.count})")
        if bool(self.groups) != bool(self.group_top_k):
            raise ValueError(f"groups is {self.groups} and group_top_k {self.group_top_k}; expected both, or neither")
        if not self.groups:
            return self
        if self.count % self.groups:
            raise ValueError(f"groups is {self.groups}; expected a divisor of count ({self.count})")
        if self.group_top_k > min(self.groups, self.top_k):
            raise ValueError(
                f"group_top_k is {self.group_top_k}; expected at most groups ({self.groups}) and top_k ({self.top_k})"
            )
        chosen = self.count // self.groups * self.group_top_k
        if self.top_k > chosen:
            raise ValueError(f"top_k is {self.top_k}; expected at most the {chosen} experts of group_top_k groups")
        return self

    @property
    def shared_width(self) -> int:
        """Inner width of all shared experts together, 0 = no shared experts."""
        return self.shared_ffn or self.shared * self.ffn


class Model(ModelPart):
    """A decoder-only transformer."""

    name: str  # Name in the library, or name of the model's file
    source: str = ""  # Publication or file with the model's numbers
    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS, strict=True)]  # l, number of layers
    hidden: Count  # h, hidden size
    heads: Count  # a, number of query heads
    kv_heads: CountFromZero = 0  # Number of key and value heads; fewer than heads is grouped-query attention, 0 = heads
    head_dim: CountFromZero = 0  # Dimension per head; 0 = hidden / heads. Latent attention ignores it.
    ffn: CountFromZero = 0  # Inner width of the MLP; 0 = 4 hidden
    vocab: Count  # V, published number of embedding rows, which frameworks pad to a multiple of 128 tp
    sequence: Count = 2048  # s, number of tokens per training sequence
    global_batch: CountFromZero = 0  # Number of sequences per published training step, 0 = unknown
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # A LayerNorm has two vectors of parameters, an RMSNorm one
    activation: Literal["gelu", "relu", "swiglu", "geglu"] = "gelu"  # gelu and relu: MLP of two matrices, else three
    clamped_activation: bool = False  # Whether the inputs of the activation are clamped (`swiglu_limit` of config.json)
    # Learned ones have sequence x hidden parameters, rotary and alibi none; alibi is part of fused attention
    positions: Literal["learned", "rotary", "alibi"] = "learned"
    bias: bool = True  # Whether linear layers have biases
    qkv_bias: bool = False  # Whether the projections to queries, keys and values have biases even without `bias`
    window: CountFromZero = 0  # Number of last tokens that a token attends to, itself included; 0 = all
    full_every: CountFromZero = 0  # Period of layers that attend to all tokens in spite of `window`, 0 = no layer does
    qk_norm: bool = False  # Whether queries and keys are normalised per head
    tied_embeddings: bool = True  # Whether the output layer uses the word embedding
    latent: LatentAttention | None = None  # Latent attention, None = each head has its own keys and values
    experts: Experts | None = None  # Mixture of experts, None = all layers have a plain MLP
    dropout: bool = False  # Whether training drops out after softmax, attention and MLP; it keeps the masks
    mtp_layers: CountFromZero = 0  # Number of additional layers for multi-token prediction (DeepSeek-V3)
    plans: tuple[str, ...] = ()  # Parallel plans of published runs, as users write them
    left_out: str = ""  # Keys of the model's file that Nadi does not model, as a message for users; "" = none of them

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Return the model, once checked: heads divide its width, and groups of key and value heads the heads."""
        if self.head_dim == 0 and self.hidden % self.heads and self.latent is None:
            raise ValueError(f"hidden is {self.hidden}; expected a multiple of heads ({self.heads}), or head_dim")
        if self.heads % self.key_value_heads:
            raise ValueError(f"heads is {self.heads}; expected a multiple of kv_heads ({self.kv_heads})")
        return self

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads."""
        return self.kv_heads or self.heads

    @property
    def query_dim(self) -> int:
        """Dimension of queries and keys per head."""
        if self.latent is not None:
            return self.latent.nope_dim + self.latent.rope_dim
        return self.head_dim or self.hidden // self.heads

    @property
    def value_dim(self) -> int:
        """Dimension of values per head."""
        return self.latent.value_dim if self.latent is not None else self.query_dim

    @property
    def ffn_width(self) -> int:
        """Inner width of a plain MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a third matrix, a gate that multiplies the first product elementwise."""
        return self.activation in {"swiglu", "geglu"}

    def window_of(self, layer: int) -> int:
        """Return the number of last tokens that a token attends to, itself included; 0 = all.

        Args:
            layer: The number of the layer, from 0.
        """
        is_full = self.full_every and (layer + 1) % self.full_every == 0
        return 0 if is_full else self.window

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer has experts instead of a plain MLP.

        Args:
            layer: The number of the layer, from 0.
        """
        experts = self.experts
        return (
            experts is not None and layer >= experts.first_dense and (layer - experts.first_dense) % experts.every == 0
        )


# Numbers of parameters of a model's parts, and how tensor and expert parallelism split each part.
#
# All other counts derive from these lists: totals, parameters per token, tensors on each GPU of a parallel plan
# (`workload.generators.training.parameters`), and operations of the matrices
# (`workload.generators.models.architecture`).


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
    """Return the word embedding and learned positions.

    Args:
        model: The architecture of the model.
        vocab: The padded vocabulary size; 0 = the model's own.
    """
    words = Weights("embedding", (vocab or model.vocab) * model.hidden, "tp", is_matrix=False)
    if model.positions == "learned":
        return words, Weights("positions", model.sequence * model.hidden, is_matrix=False)
    return (words,)


def layer(model: Model, number: int) -> tuple[Weights, ...]:
    """Return the weights of a layer.

    Args:
        model: The architecture of the model.
        number: The number of the layer, from 0.
    """
    return layer_of_kind(model, has_experts=model.has_experts(number))


def layer_of_kind(model: Model, *, has_experts: bool) -> tuple[Weights, ...]:
    """Return the weights of a layer of a model that has_experts, or else a plain MLP."""
    return (*attention(model), *mlp(model, has_experts=has_experts))


@lru_cache(maxsize=256)
def attention(model: Model) -> tuple[Weights, ...]:
    """Return the weights of a model's attention in the order of the forward pass: norm, projections, output matrix."""
    projections = _projections(model) if model.latent is None else _latent_projections(model)
    output = Weights("attention", model.heads * model.value_dim * model.hidden, "tp")
    bias = (Weights("attention", model.hidden, is_matrix=False),) if model.bias else ()
    return (norm(model), *projections, output, *bias)


def adapters(model: Model, rank: int) -> tuple[Weights, ...]:
    """Return the weights of a layer's LoRA adapters: A and B of queries, keys and values, A and B of the output.

    Args:
        model: The architecture of the model.
        rank: The rank of the adapters.
    """
    columns, values = (model.heads + 2 * model.key_value_heads) * model.query_dim, model.heads * model.value_dim
    return (
        Weights("attention", rank * model.hidden, "tp"),
        Weights("attention", rank * columns, "qkv"),
        *(Weights("attention", rank * width, "tp") for width in (values, model.hidden)),
    )


@lru_cache(maxsize=256)
def mlp(model: Model, *, has_experts: bool) -> tuple[Weights, ...]:
    """Return a model's norm and MLP matrices, or, if it has_experts, its norm, router and experts."""
    if has_experts:
        return (norm(model), *_experts(model))
    return (norm(model), *_matrices(model, "mlp", model.ffn_width, has_bias=model.bias))


def norm(model: Model, width: int = 0) -> Weights:
    """Return the weights of a norm: a LayerNorm has two vectors, an RMSNorm one.

    Args:
        model: The architecture of the model.
        width: The number of values that it normalises; 0 = the hidden size.
    """
    vectors = 2 if model.norm == "layernorm" else 1
    return Weights("norms", (width or model.hidden) * vectors, is_matrix=False, pieces=vectors)


def output_matrix(model: Model, vocab: int = 0) -> Weights:
    """Return the matrix of the output layer, tied to the word embedding or not.

    Args:
        model: The architecture of the model.
        vocab: The padded vocabulary size; 0 = the model's own.
    """
    return Weights("output", (vocab or model.vocab) * model.hidden, "tp")


def mtp_projection(model: Model) -> tuple[Weights, ...]:
    """Return a model's weights before a multi-token prediction layer: two norms, and a projection that is not split."""
    return norm(model), norm(model), Weights("mtp", 2 * model.hidden * model.hidden)


def mtp_layer(model: Model) -> tuple[Weights, ...]:
    """Return the weights of a multi-token prediction layer, which shares a model's embedding and output layer."""
    # DeepSeek-V3 (arXiv 2412.19437, section 2.2): two norms, a projection from twice the hidden size to the hidden
    # size, a layer, and the norm of its head.
    return (*mtp_projection(model), *layer(model, model.layers - 1), norm(model))


def all_weights(model: Model) -> Iterator[Weights]:
    """Yield the weights of a whole model without multi-token prediction."""
    yield from embedding(model)
    for number in range(model.layers):
        yield from layer(model, number)
    yield norm(model)
    if not model.tied_embeddings:
        yield output_matrix(model)


def total(weights: Iterable[Weights]) -> int:
    """Return the total number of parameters of some weights."""
    return sum(each.size for each in weights)


def parameters(model: Model) -> int:
    """Return a model's number of parameters as its authors count them: without multi-token prediction."""
    return total(all_weights(model))


def mtp_parameters(model: Model) -> int:
    """Return the number of parameters that multi-token prediction adds to a model."""
    return model.mtp_layers * total(mtp_layer(model)) if model.mtp_layers else 0


def active_parameters(model: Model) -> int:
    """Return a model's parameters per token: top_k routed experts, the whole embedding, and all other parts."""
    return sum(active(model, each) for each in all_weights(model))


def active(model: Model, weights: Weights) -> int:
    """Return how many parameters of the weights one token uses.

    Args:
        model: The architecture of the model.
        weights: A matrix or vectors of the model.
    """
    if weights.part != "experts" or model.experts is None:
        return weights.size
    return weights.size // model.experts.count * model.experts.top_k


def by_part(model: Model) -> dict[str, int]:
    """Return a model's parameters by part, multi-token prediction included, in the order of PARTS without zeros."""
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
