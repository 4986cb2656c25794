"""Both ends of the model: the word embedding, and the output layer with its loss, split along the vocabulary.

Neither uses FP8: Megatron-LM's output layer is not a layer of Transformer Engine (core/models/gpt/gpt_model.py:
tensor_parallel.ColumnParallelLinear), and DeepSeek-V3 keeps both in BF16 (arXiv 2412.19437, section 3.3.1). Therefore
their products and gathers use the data type of activations.
"""

from nadi.et import CollectiveCommType
from nadi.workload.generators.training.items import Compute, GroupCollective, Items
from nadi.workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from nadi.workload.generators.training.shard import Shard

_LOSS_BYTES = 4  # Bytes per logit in the loss (FP32)


def embedding(shard: Shard) -> Items:
    """Return the items of the lookup in the GPU's part of the embedding, and the sum over the tensor-parallel group."""
    h = shard.model.hidden
    operators = [shard.operator("embedding", shard.tokens, h)]
    if shard.model.positions == "learned":
        operators.append(shard.operator("elementwise", shard.tokens * h, 2, 1))
    return [Compute("embedding", tuple(operators)), *leave(shard, "embedding", h)]


def embedding_backward(shard: Shard) -> Items:
    """Return the addition of gradients to the GPU's part of the table."""
    h = shard.model.hidden
    gradient = enter(shard, "embedding", h, quantised=False)
    return [*gradient, Compute("embedding", (shard.operator("embedding-backward", shard.tokens, h),))]


def head(shard: Shard) -> Items:
    """Return the last norm, the logits of the GPU's part of the vocabulary, and the loss."""
    # The loss needs three all-reduces of one number per token: the largest logit, the target's logit, and the sum of
    # exponentials (Megatron-LM, core/tensor_parallel/cross_entropy.py).
    h = shard.model.hidden
    kind = CollectiveCommType.ALL_REDUCE
    sums = [] if shard.plan.tp == 1 else [GroupCollective("loss/tp:all-reduce", kind, shard.tokens * _LOSS_BYTES, "tp")]
    return [
        Compute("head-norm", (shard.operator("norm", shard.rows, h),)),
        *enter(shard, "head", h, quantised=False),
        Compute("head", (shard.operator("gemm", shard.tokens, shard.vocabulary, h),)),
        *sums,
        Compute("loss", (shard.operator("cross-entropy", shard.tokens, shard.vocabulary),)),
        *sums,
        *sums,
    ]


def head_backward(shard: Shard) -> Items:
    """Return the gradients of the output matrix and of the last norm; `head` includes the gradient of the loss."""
    h, m, v = shard.model.hidden, shard.tokens, shard.vocabulary
    data, weights = shard.operator("gemm", m, h, v), shard.operator("gemm", v, h, m)
    items, key = enter_backward(shard, "head", h, (data,), (weights,), quantised=False)
    return [*items, Compute("head-norm", (shard.operator("norm-backward", shard.rows, h),), waiting(key))]


def prediction(shard: Shard) -> Items:
    """Return the items before a multi-token prediction layer."""
    # The embedding of the next tokens and the output of the previous layer are normalised, and one projection merges
    # them (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    h, rows = shard.model.hidden, shard.rows
    operators = (shard.operator("norm", 2 * rows, h), shard.gemm(rows, h, 2 * h))
    return [*embedding(shard), Compute("projection", operators)]


def prediction_backward(shard: Shard) -> Items:
    """Return the backward pass of `prediction`."""
    h, rows = shard.model.hidden, shard.rows
    return [
        Compute("projection", (shard.gemm(rows, 2 * h, h),)),
        weights_product(shard, "projection", (shard.gemm(h, 2 * h, rows),)),
        Compute("projection-norm", (shard.operator("norm-backward", 2 * rows, h),)),
        *embedding_backward(shard),
    ]
