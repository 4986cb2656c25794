"""Parameter tensors of one GPU, in the order in which the forward pass uses them."""

from typing import NamedTuple

from workload.generators.training.shard import Shard


class ParameterTensor(NamedTuple):
    """One or several parameter tensors on this GPU."""

    size: int  # Number of parameters on this GPU
    is_expert: bool = False  # Whether the parameters are those of experts, which have fewer replicas than others
    # Whether the tensor-parallel group must sum the gradients with sequence parallelism, because each of its GPUs
    # computes them for its own tokens
    is_summed: bool = False
    pieces: int = 1  # Number of the framework's equal tensors that this one represents


Tensors = list[ParameterTensor]


def embedding(s: Shard) -> Tensors:
    """Return the word embedding, and the learned position embedding if there is one."""
    h = s.model.hidden
    positions = [ParameterTensor(s.model.sequence * h)] if s.model.positions == "learned" else []
    return [ParameterTensor(s.vocabulary * h), *positions]


def head(s: Shard, *, has_embedding: bool) -> Tensors:
    """Return the last norm and the output matrix, without the matrix if it is tied to the stage's own embedding."""
    tied_here = s.model.tied_embeddings and has_embedding
    return [norm(s), *([] if tied_here else [ParameterTensor(s.vocabulary * s.model.hidden)])]


def norm(s: Shard, width: int = 0) -> ParameterTensor:
    """Return a norm: LayerNorm has two vectors, RMSNorm one."""
    vectors = 2 if s.model.norm == "layernorm" else 1
    return ParameterTensor((width or s.model.hidden) * vectors, is_summed=True, pieces=vectors)


def attention(s: Shard) -> Tensors:
    """Return the tensors of an attention: norm, projections, output matrix."""
    model, h = s.model, s.model.hidden
    tensors = [norm(s)]
    if model.latent is None:
        columns = s.heads * model.query_dim + s.kv_heads * (model.query_dim + model.value_dim)
        tensors.append(ParameterTensor(columns * h))
        if model.bias or model.qkv_bias:
            tensors.append(ParameterTensor(columns))
        if model.qk_norm:
            tensors += [norm(s, model.query_dim)] * 2
    else:
        latent = s.latent
        for rank in filter(None, (latent.query_rank, latent.key_value_rank)):
            tensors.append(norm(s, rank))
        if latent.query_rank:
            tensors.append(ParameterTensor(latent.query_rank * h, is_summed=True))
        tensors.append(ParameterTensor(s.heads * model.query_dim * (latent.query_rank or h)))
        tensors.append(ParameterTensor((latent.key_value_rank + latent.rope_dim) * h, is_summed=True))
        tensors.append(ParameterTensor(s.heads * (latent.nope_dim + latent.value_dim) * latent.key_value_rank))
    tensors.append(ParameterTensor(s.heads * model.value_dim * h))
    if model.bias:
        tensors.append(ParameterTensor(h, is_summed=True))
    return tensors


def mlp(s: Shard) -> Tensors:
    """Return the tensors of a plain MLP: norm and matrices."""
    return [norm(s), *_matrices(s, s.model.ffn_width, s.plan.tp, bias=s.model.bias)]


def experts(s: Shard) -> Tensors:
    """Return the tensors of a layer's experts: norm, router, shared experts, and the GPU's routed experts."""
    routed = s.experts
    local = routed.count // s.plan.ep
    matrices = _matrices(s, routed.ffn, s.plan.etp, bias=False)
    own = [ParameterTensor(tensor.size * local, is_expert=True, pieces=local) for tensor in matrices]
    shared = _matrices(s, routed.shared_width, s.plan.tp, bias=False) if routed.shared_width else []
    gate = [ParameterTensor(s.model.hidden, is_summed=True)] if routed.shared_gate else []
    return [norm(s), ParameterTensor(routed.count * s.model.hidden, is_summed=True), *gate, *shared, *own]


def prediction(s: Shard, *, has_embedding: bool) -> Tensors:
    """Return the tensors before a multi-token prediction layer: two norms, and a projection that is not split.

    The layer uses the model's embedding and output matrix; a stage without the embedding holds a copy of it.
    """
    h = s.model.hidden
    copied = [] if has_embedding or s.model.tied_embeddings else [ParameterTensor(s.vocabulary * h)]
    return [*copied, norm(s), norm(s), ParameterTensor(2 * h * h, is_summed=True)]


def _matrices(s: Shard, ffn: int, shards: int, *, bias: bool) -> Tensors:
    h, width = s.model.hidden, ffn // shards
    inner = 2 * width if s.model.is_gated else width
    biases = [ParameterTensor(inner), ParameterTensor(h, is_summed=True)] if bias else []
    return [ParameterTensor(inner * h), *biases[:1], ParameterTensor(width * h), *biases[1:]]
