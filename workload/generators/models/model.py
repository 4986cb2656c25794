"""What a transformer is made of: the architecture of a model, without how it is trained or served.

A file of `workload/generators/models` is one model in TOML; its keys are the fields here.
`workload.generators.models.huggingface` makes the
same from a config.json.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_LAYERS = 10**4
_MOST = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=_MOST, strict=True)]
CountFromZero = Annotated[int, Field(ge=0, le=_MOST, strict=True)]


class ModelPart(BaseModel):
    """A part of a model: immutable, unknown keys rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LatentAttention(ModelPart):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Attributes:
        query_rank: of the compressed queries, 0 = queries are not compressed.
        key_value_rank: of the compressed keys and values, which the KV cache holds.
        nope_dim: of each head's queries and keys without position.
        rope_dim: of those with rotary position; keys share one over all heads.
        value_dim: of each head's values.
    """

    query_rank: CountFromZero = 0
    key_value_rank: Count
    nope_dim: Count
    rope_dim: Count
    value_dim: Count


class Experts(ModelPart):
    """A mixture of experts in place of layers' MLPs.

    Attributes:
        count: routed experts of a layer.
        top_k: experts that a token goes to.
        ffn: width of an expert's MLP.
        shared: experts that every token goes to.
        shared_ffn: width of all shared experts together, 0 = shared * ffn.
        shared_gate: what the shared experts give is weighted by a gate of one row (Qwen2-MoE).
        first_dense: layers at the beginning that have a plain MLP.
        every: of the layers after these, every how-manieth has experts.
    """

    count: Annotated[int, Field(ge=2, le=_MOST, strict=True)]
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
        """Width of what every token goes through, 0 = nothing."""
        return self.shared_ffn or self.shared * self.ffn


class Model(ModelPart):
    """A decoder-only transformer.

    Attributes:
        name: as in the library, or of the file that it was read from.
        source: where the numbers are from.
        layers: l.
        hidden: h.
        heads: a, query heads.
        kv_heads: heads of keys and values; fewer than heads is grouped-query attention. 0 = heads.
        head_dim: of queries, keys and values; 0 = hidden / heads. Not used with latent attention.
        ffn: width of the MLP; 0 = 4 hidden.
        vocab: V, rows of the embedding, as published (frameworks pad it to a multiple of 128 times the tensor-parallel
            size).
        sequence: s, tokens of a training sequence.
        global_batch: sequences of a published training step, 0 = not known.
        norm: kind of the norms. LayerNorm has two vectors of parameters, RMSNorm one.
        activation: gelu and relu have two matrices in the MLP, swiglu and geglu three.
        positions: learned positions are parameters, sequence x hidden; rotary ones are not.
        bias: linear layers have biases.
        qkv_bias: those of queries, keys and values have them in any case.
        qk_norm: queries and keys of each head are normalised.
        tied_embeddings: the output layer uses the word embedding.
        latent: latent attention in place of heads' own keys and values.
        experts: a mixture of experts in place of MLPs.
        dropout: trained with dropout after softmax, attention and MLP, whose masks are kept for the backward pass.
        mtp_layers: layers that predict further tokens (DeepSeek-V3's multi-token prediction), after the last.
        plans: parallel plans that runs of it were published with, as a user writes them.
        left_out: what of the file that it was read from is not modelled, for the user to know; "" = nothing.
    """

    name: str
    source: str = ""
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS, strict=True)]
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
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def query_dim(self) -> int:
        """Of each head's queries and keys."""
        if self.latent is not None:
            return self.latent.nope_dim + self.latent.rope_dim
        return self.head_dim or self.hidden // self.heads

    @property
    def value_dim(self) -> int:
        """Of each head's values."""
        return self.latent.value_dim if self.latent is not None else self.query_dim

    @property
    def ffn_width(self) -> int:
        """Width of a plain MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a third matrix, whose product with the first is element by element."""
        return self.activation in {"swiglu", "geglu"}

    def has_experts(self, layer: int) -> bool:
        """Whether a layer, counted from 0, is one with experts."""
        experts = self.experts
        return (
            experts is not None and layer >= experts.first_dense and (layer - experts.first_dense) % experts.every == 0
        )
