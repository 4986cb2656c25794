"""The architecture of a transformer, independent of its training and serving.

A TOML file of `workload/generators/models` defines one model; its keys are the fields of `Model`.
`workload.generators.models.huggingface` creates a `Model` from a config.json.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_LAYERS = 10**4
_MAX_COUNT = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=_MAX_COUNT, strict=True)]
CountFromZero = Annotated[int, Field(ge=0, le=_MAX_COUNT, strict=True)]


class ModelPart(BaseModel):
    """Base class of models and their parts: immutable, rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LatentAttention(ModelPart):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Attributes:
        query_rank: Dimension of compressed queries, 0 = queries are not compressed.
        key_value_rank: Dimension of compressed keys and values, which the KV cache holds.
        nope_dim: Dimension per head of the part of queries and keys without positions.
        rope_dim: Dimension of the part of queries and keys with rotary positions; all heads share one such key.
        value_dim: Dimension per head of values.
    """

    query_rank: CountFromZero = 0
    key_value_rank: Count
    nope_dim: Count
    rope_dim: Count
    value_dim: Count


class Experts(ModelPart):
    """A mixture of experts, which replaces the MLP of layers.

    Attributes:
        count: Number of routed experts per layer.
        top_k: Number of routed experts per token.
        ffn: Inner width of an expert's MLP.
        shared: Number of shared experts, which process every token.
        shared_ffn: Inner width of all shared experts together, 0 = shared * ffn.
        shared_gate: Whether a gate with one row weights the output of the shared experts (Qwen2-MoE).
        first_dense: Number of layers at the beginning that have a plain MLP.
        every: Period of the layers with experts after the first ones: 1 = all of them, 2 = every second one.
    """

    count: Annotated[int, Field(ge=2, le=_MAX_COUNT, strict=True)]
    top_k: Count
    ffn: Count
    shared: CountFromZero = 0
    shared_ffn: CountFromZero = 0
    shared_gate: bool = False
    first_dense: CountFromZero = 0
    every: Count = 1

    @model_validator(mode="after")
    def _routed(self) -> Self:
        if self.top_k > self.count:
            raise ValueError(f"top_k is {self.top_k}; expected at most count ({self.count})")
        return self

    @property
    def shared_width(self) -> int:
        """Inner width of all shared experts together, 0 = no shared experts."""
        return self.shared_ffn or self.shared * self.ffn


class Model(ModelPart):
    """A decoder-only transformer.

    Attributes:
        name: Name in the library, or name of the model's file.
        source: Publication or file with the model's numbers.
        layers: l, number of layers.
        hidden: h, hidden size.
        heads: a, number of query heads.
        kv_heads: Number of key and value heads; fewer than heads is grouped-query attention, 0 = heads.
        head_dim: Dimension of queries, keys and values per head; 0 = hidden / heads. Latent attention ignores it.
        ffn: Inner width of the MLP; 0 = 4 hidden.
        vocab: V, published number of embedding rows (frameworks pad it to a multiple of 128 times the tensor-parallel
            size).
        sequence: s, number of tokens per training sequence.
        global_batch: Number of sequences per published training step, 0 = unknown.
        norm: Type of the norms: a LayerNorm has two vectors of parameters, an RMSNorm one.
        activation: Activation function of the MLP: gelu and relu imply two matrices, swiglu and geglu three.
        positions: Type of positions: learned ones are sequence x hidden parameters, rotary ones have no parameters.
        bias: Whether linear layers have biases.
        qkv_bias: Whether the projections to queries, keys and values have biases even without `bias`.
        qk_norm: Whether queries and keys are normalised per head.
        tied_embeddings: Whether the output layer uses the word embedding.
        latent: Latent attention, None = each head has its own keys and values.
        experts: Mixture of experts, None = all layers have a plain MLP.
        dropout: Whether training uses dropout after softmax, attention and MLP; the backward pass needs the masks.
        mtp_layers: Number of additional layers for multi-token prediction (DeepSeek-V3).
        plans: Parallel plans of published runs, as users write them.
        left_out: Keys of the model's file that Nadi does not model, as a message for users; "" = none of them.
    """

    name: str
    source: str = ""
    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS, strict=True)]
    hidden: Count
    heads: Count
    kv_heads: CountFromZero = 0
    head_dim: CountFromZero = 0
    ffn: CountFromZero = 0
    vocab: Count
    sequence: Count = 2048
    global_batch: CountFromZero = 0
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    activation: Literal["gelu", "relu", "swiglu", "geglu"] = "gelu"
    positions: Literal["learned", "rotary"] = "learned"
    bias: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = True
    latent: LatentAttention | None = None
    experts: Experts | None = None
    dropout: bool = False
    mtp_layers: CountFromZero = 0
    plans: tuple[str, ...] = ()
    left_out: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has experts."""
        experts = self.experts
        return (
            experts is not None and layer >= experts.first_dense and (layer - experts.first_dense) % experts.every == 0
        )
