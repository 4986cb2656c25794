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

    @model_validator(mode="after")
    def _routed(self) -> Self:
        """Return the experts, once checked: a token is not sent to more of them than there are."""
        if self.top_k > self.count:
            raise ValueError(f"top_k is {self.top_k}; expected at most count ({self.count})")
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
    # Learned ones have sequence x hidden parameters, rotary and alibi none; alibi is part of fused attention
    positions: Literal["learned", "rotary", "alibi"] = "learned"
    bias: bool = True  # Whether linear layers have biases
    qkv_bias: bool = False  # Whether the projections to queries, keys and values have biases even without `bias`
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

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has experts."""
        experts = self.experts
        return (
            experts is not None and layer >= experts.first_dense and (layer - experts.first_dense) % experts.every == 0
        )
