"""Activations that a layer keeps for its backward pass, for one micro-batch on one GPU.

The count follows Korthikanti et al., "Reducing activation recomputation in large transformer models" (arXiv 2205.05198,
section 4), tensor by tensor, but for any attention, MLP and experts. For a GPT with dropout and unfused attention, the
sum is that paper's s b h (10 + 24/t + 5 a s / h t), or s b h / t (34 + 5 a s / h) with sequence parallelism; the term
with 5 a s / h disappears if the core of attention is recomputed. Flash attention keeps one number of 4 bytes per row of
scores instead of the scores.
"""

from functools import lru_cache
from typing import NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.models.model import Model
from workload.generators.training.parallel_plan import ParallelPlan

_MASK_BYTES = 1  # Bytes per element of a dropout mask
FP32_BYTES = 4


class LayerActivations(NamedTuple):
    """Bytes of one layer and one micro-batch on one GPU."""

    input: int  # Bytes of the layer's input, the only tensor that full recomputation keeps
    other: int  # Bytes of the other tensors that selective recomputation keeps
    # Bytes of the tensors that selective recomputation recomputes: those of attention's core; with latent attention
    # also those that DeepSeek-V3 recomputes (arXiv 2412.19437, sections 3.2.3 and 3.3.2): the outputs of norms, of the
    # projections up from compressed queries, keys and values, and of the MLP's activation
    light: int
    working: int  # Bytes of gradients and copies that exist only during the layer's backward pass

    def kept(self, recompute: str) -> int:
        """Return the bytes that the layer keeps from the forward pass to the backward pass."""
        if recompute == "full":
            return self.input
        return self.input + self.other + (self.light if recompute == "none" else 0)

    def again(self, recompute: str) -> int:
        """Return the bytes of the tensors that the layer's backward pass recomputes."""
        return self.kept("none") - self.kept(recompute)


class ActivationWidths(NamedTuple):
    """One GPU's share of a micro-batch."""

    tokens: int  # Number of tokens per micro-batch and GPU, after context parallelism
    # Number of GPUs that share tensors of the hidden size: with sequence parallelism the tensor-parallel group, else 1
    shards: int
    value_bytes: int  # Bytes per activation
    # Bytes per input of a matrix or of a gated activation: 1 with fp8, because DeepSeek-V3 keeps both in this type
    # (arXiv 2412.19437, section 3.3.2)
    input_bytes: int


def widths(plan: ParallelPlan) -> ActivationWidths:
    """Return one GPU's share of a micro-batch in a settled plan."""
    return ActivationWidths(
        tokens=plan.micro_batch * plan.sequence // plan.cp,
        shards=plan.tp if plan.sequence_parallel else 1,
        value_bytes=value_bytes(plan),
        input_bytes=1 if plan.dtype == "fp8" else value_bytes(plan),
    )


def value_bytes(plan: ParallelPlan) -> int:
    """Return the bytes per activation: 2 with fp8, because activations between products are bf16."""
    return 2 if plan.dtype == "fp8" else int(DTYPE_BYTES[plan.dtype])


@lru_cache(maxsize=1024)
def layer_activations(model: Model, plan: ParallelPlan, *, has_experts: bool) -> LayerActivations:
    """Return the activations of a layer in a settled plan."""
    width = widths(plan)
    hidden = width.tokens * model.hidden // width.shards
    mask = hidden * _MASK_BYTES * model.dropout
    norms = 2 * width.input_bytes * hidden  # their outputs
    core, core_working = _core(model, plan, width)
    mlp = _experts(model, plan, width) if has_experts else _mlp(model, plan, width, model.ffn_width)
    up = _projected(model, plan, width)
    other = width.value_bytes * hidden + 2 * mask + _output(model, plan, width) + mlp.inner
    recomputable = norms + up + mlp.outer  # selective recomputation applies to them with latent attention only
    if model.latent is not None:
        other += _compressed(model, width)
        recomputable += (
            _compressed(model, width) - width.value_bytes * width.tokens * model.latent.rope_dim // width.shards
        )
    return LayerActivations(
        input=width.value_bytes * hidden,
        other=other + (0 if model.latent is not None else recomputable),
        light=core + (recomputable if model.latent is not None else 0),
        working=max(core_working, mlp.working),
    )


def key_value_heads(model: Model, plan: ParallelPlan) -> int:
    """Return the number of key and value heads per GPU, which equals that of query heads with latent attention."""
    if model.latent is not None:
        return model.heads // plan.tp
    return max(1, model.key_value_heads // plan.tp)


def _projected(model: Model, plan: ParallelPlan, width: ActivationWidths) -> int:
    """Return the bytes of queries, keys and values; normalised queries and keys count twice."""
    queries = model.heads // plan.tp * model.query_dim
    kv_heads = key_value_heads(model, plan)
    values = queries + kv_heads * (model.query_dim + model.value_dim)
    if model.qk_norm:
        values += queries + kv_heads * model.query_dim
    return width.value_bytes * width.tokens * values


def _compressed(model: Model, width: ActivationWidths) -> int:
    """Return the bytes of compressed queries, keys and values before their norm, and of the uncompressed keys."""
    assert model.latent is not None  # noqa: S101 - for the type checker: the caller checks it
    ranks = model.latent.query_rank + model.latent.key_value_rank + model.latent.rope_dim
    return width.value_bytes * width.tokens * ranks // width.shards


def _output(model: Model, plan: ParallelPlan, width: ActivationWidths) -> int:
    """Return the bytes of the output of attention's core, the input of the projection after it."""
    return width.input_bytes * width.tokens * (model.heads // plan.tp) * model.value_dim


def _core(model: Model, plan: ParallelPlan, width: ActivationWidths) -> tuple[int, int]:
    """Return the bytes that attention's core keeps, and those that exist only during its backward pass."""
    heads = model.heads // plan.tp
    if plan.attention == "flash":
        return FP32_BYTES * heads * width.tokens, 0
    values = heads * width.tokens * plan.sequence
    softmax = width.value_bytes * values
    return softmax + (_MASK_BYTES * values + softmax) * model.dropout, 2 * softmax


class _Mlp(NamedTuple):
    """Bytes of an MLP: outputs of its first matrix (or matrices), input of its last one, gradients of both."""

    inner: int
    outer: int
    working: int


def _mlp(model: Model, plan: ParallelPlan, width: ActivationWidths, ffn: int) -> _Mlp:
    inner = (2 if model.is_gated else 1) * ffn // plan.tp
    inner_bytes = width.input_bytes if model.is_gated else width.value_bytes
    return _Mlp(
        inner=width.tokens * inner_bytes * inner,
        outer=width.tokens * width.input_bytes * ffn // plan.tp,
        working=width.value_bytes * width.tokens * (inner + model.hidden),
    )


def expert_rows(model: Model, plan: ParallelPlan) -> int:
    """Return the number of rows that the experts of one GPU receive per micro-batch.

    This is the even share or, with `capacity`, the maximum that the capacity allows. Without a capacity, imbalanced
    routing can exceed the even share on some GPUs, which the estimate ignores.
    """
    experts = model.experts
    if experts is None:
        return 0
    width = widths(plan)
    rows = width.tokens // width.shards * experts.top_k * plan.etp
    return round(rows * plan.capacity) if plan.capacity else rows


def _experts(model: Model, plan: ParallelPlan, width: ActivationWidths) -> _Mlp:
    """Return the bytes of the router's scores, of the received rows, and of the values between the matrices.

    As in Megatron-Core, the router's weights multiply the activation and not the experts' outputs, so that the outputs
    are not kept.
    """
    experts = model.experts
    assert experts is not None  # noqa: S101 - for the type checker: the caller checks it
    rows = expert_rows(model, plan)
    inner = (2 if model.is_gated else 1) * experts.ffn // plan.etp
    inner_bytes = width.input_bytes if model.is_gated else width.value_bytes
    scores = FP32_BYTES * width.tokens // width.shards * experts.count
    routed = _Mlp(
        inner=scores + rows * (width.input_bytes * model.hidden + inner_bytes * inner),
        outer=rows * width.input_bytes * experts.ffn // plan.etp,
        working=width.value_bytes * rows * (inner + model.hidden),
    )
    if not experts.shared_width:
        return routed
    shared = _mlp(model, plan, width, experts.shared_width)
    return _Mlp(routed.inner + shared.inner, routed.outer + shared.outer, max(routed.working, shared.working))
