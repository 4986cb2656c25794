"""Both ends of the model: the word embedding, and the output layer with its loss, split along the vocabulary.

Neither uses FP8: Megatron-LM's output layer is not a layer of Transformer Engine (core/models/gpt/gpt_model.py:
tensor_parallel.ColumnParallelLinear), and DeepSeek-V3 keeps both in BF16 (arXiv 2412.19437, section 3.3.1). Therefore
their products and gathers use the data type of activations.
"""

from et import CollectiveCommType
from workload.generators.training.items import Compute, GroupCollective, Items
from workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from workload.generators.training.shard import Shard

_LOSS_BYTES = 4  # Bytes per logit in the loss (FP32)


def embedding(s: Shard) -> Items:
    """Return the lookup in the GPU's part of the table, and the sum over the tensor-parallel group."""
    h = s.model.hidden
    operators = [s.operator("embedding", s.tokens, h)]
    if s.model.positions == "learned":
        operators.append(s.operator("elementwise", s.tokens * h, 2, 1))
    return [Compute("embedding", tuple(operators)), *leave(s, "embedding", h)]


def embedding_backward(s: Shard) -> Items:
    """Return the addition of gradients to the GPU's part of the table."""
    h = s.model.hidden
    gradient = enter(s, "embedding", h, quantised=False)
    return [*gradient, Compute("embedding", (s.operator("embedding-backward", s.tokens, h),))]


def head(s: Shard) -> Items:
    """Return the last norm, the logits of the GPU's part of the vocabulary, and the loss.

    The loss needs three all-reduces of one number per token: the largest logit, the target's logit, and the sum of
    exponentials (Megatron-LM, core/tensor_parallel/cross_entropy.py).
    """
    h = s.model.hidden
    kind = CollectiveCommType.ALL_REDUCE
    sums = [] if s.plan.tp == 1 else [GroupCollective("loss/tp:all-reduce", kind, s.tokens * _LOSS_BYTES, "tp")]
    return [
        Compute("head-norm", (s.operator("norm", s.rows, h),)),
        *enter(s, "head", h, quantised=False),
        Compute("head", (s.operator("gemm", s.tokens, s.vocabulary, h),)),
        *sums,
        Compute("loss", (s.operator("cross-entropy", s.tokens, s.vocabulary),)),
        *sums,
        *sums,
    ]


def head_backward(s: Shard) -> Items:
    """Return the gradients of the output matrix and of the last norm; `head` includes the gradient of the loss."""
    h, m, v = s.model.hidden, s.tokens, s.vocabulary
    data, weights = s.operator("gemm", m, h, v), s.operator("gemm", v, h, m)
    items, key = enter_backward(s, "head", h, (data,), (weights,), quantised=False)
    return [*items, Compute("head-norm", (s.operator("norm-backward", s.rows, h),), waiting(key))]


def prediction(s: Shard) -> Items:
    """Return the items before a multi-token prediction layer.

    The embedding of the next tokens and the output of the previous layer are normalised, and one projection merges
    them (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    h, rows = s.model.hidden, s.rows
    operators = (s.operator("norm", 2 * rows, h), s.gemm(rows, h, 2 * h))
    return [*embedding(s), Compute("projection", operators)]


def prediction_backward(s: Shard) -> Items:
    """Return the backward pass of `prediction`."""
    h, rows = s.model.hidden, s.rows
    return [
        Compute("projection", (s.gemm(rows, 2 * h, h),)),
        weights_product(s, "projection", (s.gemm(h, 2 * h, rows),)),
        Compute("projection-norm", (s.operator("norm-backward", 2 * rows, h),)),
        *embedding_backward(s),
    ]
