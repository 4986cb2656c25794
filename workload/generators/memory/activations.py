"""Activations that a layer keeps for its backward pass, of one micro-batch on one GPU.

Tensor by tensor as Korthikanti et al., "Reducing activation recomputation in large transformer models"
(arXiv 2205.05198, section 4), for any attention, MLP and experts. Of a GPT with dropout and unfused attention they sum
up to that paper's s b h (10 + 24/t + 5 a s / h t), with sequence parallelism s b h / t (34 + 5 a s / h), without the
term of 5 a s / h where attention's core is worked out again. Flash attention keeps a number of 4 bytes for each row of
scores in place of the scores.
"""

from functools import lru_cache
from typing import NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.models.model import Model
from workload.generators.training.parallel_plan import ParallelPlan

_MASK_BYTES = 1
FP32_BYTES = 4


class LayerActivations(NamedTuple):
    """Bytes of one layer and one micro-batch on one GPU.

    Attributes:
        input: of the layer, all that full recomputation keeps.
        other: what selective recomputation keeps too.
        light: what selective recomputation makes anew: what attention's core keeps; with latent attention also what
            DeepSeek-V3 (arXiv 2412.19437, sections 3.2.3 and 3.3.2) works out again: the output of norms, of the
            projections up from compressed queries, keys and values, and of the MLP's activation.
        working: gradients and copies that live while the layer's backward pass runs.
    """

    input: int
    other: int
    light: int
    working: int

    def kept(self, recompute: str) -> int:
        """What stays from the forward pass to the backward pass."""
        if recompute == "full":
            return self.input
        return self.input + self.other + (self.light if recompute == "none" else 0)

    def again(self, recompute: str) -> int:
        """What the backward pass makes anew for one layer."""
        return self.kept("none") - self.kept(recompute)


class ActivationWidths(NamedTuple):
    """What one GPU has of a micro-batch.

    Attributes:
        tokens: of the micro-batch; context parallelism shares them.
        whole: GPUs that share what is as wide as the model: with sequence parallelism the tensor-parallel group.
        value_bytes: of an activation.
        input_bytes: of a value that a matrix is multiplied by, or that a gated activation takes: one in fp8, where
            DeepSeek-V3 keeps both in that type (arXiv 2412.19437, section 3.3.2).
    """

    tokens: int
    whole: int
    value_bytes: int
    input_bytes: int


def widths(plan: ParallelPlan) -> ActivationWidths:
    """Of a settled plan."""
    return ActivationWidths(
        tokens=plan.micro_batch * plan.sequence // plan.cp,
        whole=plan.tp if plan.sequence_parallel else 1,
        value_bytes=value_bytes(plan),
        input_bytes=1 if plan.dtype == "fp8" else value_bytes(plan),
    )


def value_bytes(plan: ParallelPlan) -> int:
    """Bytes of an activation: those of products in fp8 are 2, as what stands between the products is bf16."""
    return 2 if plan.dtype == "fp8" else int(DTYPE_BYTES[plan.dtype])


@lru_cache(maxsize=1024)
def layer_activations(model: Model, plan: ParallelPlan, *, has_experts: bool) -> LayerActivations:
    """Of a settled plan."""
    width = widths(plan)
    hidden = width.tokens * model.hidden // width.whole
    mask = hidden * _MASK_BYTES * model.dropout
    norms = 2 * width.input_bytes * hidden  # their outputs
    core, core_working = _core(model, plan, width)
    mlp = _experts(model, plan, width) if has_experts else _mlp(model, plan, width, model.ffn_width)
    up = _projected(model, plan, width)
    other = width.value_bytes * hidden + 2 * mask + _output(model, plan, width) + mlp.inner
    again = norms + up + mlp.outer  # where attention is latent
    if model.latent is not None:
        other += _compressed(model, width)
        again += _compressed(model, width) - width.value_bytes * width.tokens * model.latent.rope_dim // width.whole
    return LayerActivations(
        input=width.value_bytes * hidden,
        other=other + (0 if model.latent is not None else again),
        light=core + (again if model.latent is not None else 0),
        working=max(core_working, mlp.working),
    )


def key_value_heads(model: Model, plan: ParallelPlan) -> int:
    """Heads of keys and values on one GPU; with latent attention these are as many as queries."""
    if model.latent is not None:
        return model.heads // plan.tp
    return max(1, model.key_value_heads // plan.tp)


def _projected(model: Model, plan: ParallelPlan, width: ActivationWidths) -> int:
    """Queries, keys and values; queries and keys twice where they are normalised."""
    queries = model.heads // plan.tp * model.query_dim
    kv_heads = key_value_heads(model, plan)
    values = queries + kv_heads * (model.query_dim + model.value_dim)
    if model.qk_norm:
        values += queries + kv_heads * model.query_dim
    return width.value_bytes * width.tokens * values


def _compressed(model: Model, width: ActivationWidths) -> int:
    """Compressed queries, keys and values before their norm, with the keys that are not; after it they are as many."""
    assert model.latent is not None  # noqa: S101 - for the type checker: the caller checks it
    ranks = model.latent.query_rank + model.latent.key_value_rank + model.latent.rope_dim
    return width.value_bytes * width.tokens * ranks // width.whole


def _output(model: Model, plan: ParallelPlan, width: ActivationWidths) -> int:
    """Of attention, which the projection after it takes."""
    return width.input_bytes * width.tokens * (model.heads // plan.tp) * model.value_dim


def _core(model: Model, plan: ParallelPlan, width: ActivationWidths) -> tuple[int, int]:
    """What attention's core keeps, and what its backward pass works with."""
    heads = model.heads // plan.tp
    if plan.attention == "flash":
        return FP32_BYTES * heads * width.tokens, 0
    values = heads * width.tokens * plan.sequence
    softmax = width.value_bytes * values
    return softmax + (_MASK_BYTES * values + softmax) * model.dropout, 2 * softmax


class _Mlp(NamedTuple):
    """Bytes of an MLP: what its first matrix (or matrices) gives, what its second takes, gradients of both."""

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
    """Rows that the experts of one GPU get for a micro-batch: the even share, or as many as their capacity is.

    Uneven routing makes them more on some GPUs: `capacity` bounds that, without it the even share is assumed.
    """
    experts = model.experts
    if experts is None:
        return 0
    width = widths(plan)
    rows = width.tokens // width.whole * experts.top_k * plan.etp
    return round(rows * plan.capacity) if plan.capacity else rows


def _experts(model: Model, plan: ParallelPlan, width: ActivationWidths) -> _Mlp:
    """Scores of the router, rows that came, and what stands between the matrices.

    What the router weighs is the activation and not what the experts give, as in Megatron-Core, so that this is not
    kept.
    """
    experts = model.experts
    assert experts is not None  # noqa: S101 - for the type checker: the caller checks it
    rows = expert_rows(model, plan)
    inner = (2 if model.is_gated else 1) * experts.ffn // plan.etp
    inner_bytes = width.input_bytes if model.is_gated else width.value_bytes
    scores = FP32_BYTES * width.tokens // width.whole * experts.count
    routed = _Mlp(
        inner=scores + rows * (width.input_bytes * model.hidden + inner_bytes * inner),
        outer=rows * width.input_bytes * experts.ffn // plan.etp,
        working=width.value_bytes * rows * (inner + model.hidden),
    )
    if not experts.shared_width:
        return routed
    shared = _mlp(model, plan, width, experts.shared_width)
    return _Mlp(routed.inner + shared.inner, routed.outer + shared.outer, max(routed.working, shared.working))
