"""Tensor-parallel matrices and plain MLPs with their communication, as in Megatron-LM.

Collectives before a matrix that is split by columns and after a matrix that is split by rows (Shoeybi et al., arXiv
1909.08053; with sequence parallelism, sp, Korthikanti et al., arXiv 2205.05198):

| | forward | backward |
| --- | --- | --- |
| columns | nothing; sp: all-gather of the input | all-reduce; sp: reduce-scatter, and all-gather of the input again |
| rows | all-reduce; sp: reduce-scatter | nothing; sp: all-gather |

As in Megatron-LM (core/tensor_parallel/layers.py), the second gather overlaps the product for the input gradient, and
the reduction of the input gradient overlaps the product for the weight gradient; before Megatron-LM 3.0 (`async_tp`
false) neither does.

With FP8 all three gathers of sequence parallelism carry one byte per value, because Transformer Engine quantises before
it gathers (pytorch/module/layernorm_linear.py, linear.py, layernorm_mlp.py: the input of a matrix split by columns is
quantised, gathered, and gathered again from its FP8 copy in the backward pass; pytorch/module/base.py,
grad_output_preprocess: the gradient of the output of a matrix split by rows is quantised, then gathered). All sums stay
in BF16: the reduce-scatters carry results of products, whose data type is that of activations. (Userbuffers can send
the forward pass' reduce-scatter in FP8, too, where its configuration says `fp8_buf`; that is not modelled.)

Quantisation takes passes over the operands that are not part of other operators. `weights_product` contains those of
the forward pass, too. What the plan's `scaling` needs (Transformer Engine, common/recipe, pytorch/tensor), for an input
and for a gradient:

| | passes |
| --- | --- |
| delayed | the input's cast is part of the operator before; a gradient is read once |
| current | both are read twice, for the maximum of the tensor and for the cast |
| mxfp8 | both are read once and written by rows and by columns, as scales of 32 values differ between the two |
| NVFP4 | both are read twice, for maxima and casts, and written by rows and by columns |

NVFP4's copy by columns has a maximum of its own, after the Hadamard transform, which is computed in the same two
passes; stochastic rounding of gradients costs no pass.

Products for gradients of weights sum over tokens. With a scale per tensor (delayed, current) this needs a transposed
copy of both operands on GPUs whose tensor cores accept one layout in FP8 (Hopper; `Gpu.any_layout`): of a gradient that
is not gathered, the cast writes it (cast_transpose), otherwise a pass reads and writes one byte per value
(fp8_transpose). With sequence parallelism, values are quantised before they are gathered, each GPU its share. Weights
are quantised before the first micro-batch's products (`is_first_microbatch`), which also writes the transposed copy for
the gradient of the input; of weights that are gathered in FP8, only that copy is written then.
"""

import math
from typing import Literal, NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import DTYPE_BYTES, Operator
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.parameters import Tensors
from nadi.workload.generators.training.stages import Operators, Shard


def all_gather(
    shard: Shard, part: str, value_count: int, *, key: str = "", for_weights: bool = False, quantised: bool = False
) -> Items:
    """Return an all-gather over the tensor-parallel group; empty for a group of one.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        part: The first part of the item's name.
        value_count: The number of values of the whole group.
        key: The key that later items need to wait for it; "" = all later items wait for it.
        for_weights: Whether it belongs to the gradients of weights.
        quantised: Whether the values are operands of products in the plan's data type, quantised before they are
            gathered.
    """
    if shard.plan.tp == 1:
        return []
    # The size of an all-gather is one member's contribution, that of a reduction the whole buffer
    size = -(-value_count * (shard.operand_bytes if quantised else shard.value_bytes) // shard.plan.tp)
    name = f"{part}/tp:all-gather"
    return [GroupCollective(name, CollectiveCommType.ALL_GATHER, size, "tp", key, weights=for_weights)]


def reduction(shard: Shard, name: str, value_count: int, *, key: str = "") -> Items:
    """Return the sum of values over the group: a reduce-scatter with sequence parallelism, else an all-reduce.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the item's name.
        value_count: The number of values of each member.
        key: The key that later items need to wait for it; "" = all later items wait for it.
    """
    if shard.plan.tp == 1:
        return []
    if shard.plan.sequence_parallel:
        kind, word = CollectiveCommType.REDUCE_SCATTER, "reduce-scatter"
    else:
        kind, word = CollectiveCommType.ALL_REDUCE, "all-reduce"
    return [GroupCollective(f"{name}/tp:{word}", kind, value_count * shard.value_bytes, "tp", key)]


def enter(shard: Shard, name: str, width: int, *, quantised: bool = True) -> Items:
    """Return the gather of values before a matrix split by columns; in the backward pass, of one split by rows.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the items' names.
        width: The number of values per token.
        quantised: Whether the values are operands of products in the plan's data type, quantised before they are
            gathered.
    """
    return all_gather(shard, name, shard.tokens * width, quantised=quantised) if shard.plan.sequence_parallel else []


def leave(shard: Shard, part: str, width: int) -> Items:
    """Return the reduction of values after a matrix split by rows.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        part: The first part of the item's name.
        width: The number of values per token.
    """
    return reduction(shard, part, shard.tokens * width)


def enter_backward(
    shard: Shard, name: str, width: int, data: Operators, weights: Operators, *, quantised: bool = True
) -> tuple[Items, str]:
    """Return the backward pass of matrices split by columns, and the key that users of the input gradient wait for.

    The key is "" if the items end with the input gradient.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the items' names.
        width: The number of input values per token, summed over the matrices' different inputs.
        data: The operators for the gradient of the input.
        weights: The products for the gradients of weights.
        quantised: Whether the values are operands of products in the plan's data type, quantised before they are
            gathered.
    """
    if shard.plan.tp == 1:
        return [Compute(name, data), weights_product(shard, name, weights)], ""
    is_hidden = (
        shard.plan.async_tp and not shard.plan.lora
    )  # frozen matrices have no product for weights to hide behind
    gathered, reduced = (f"{name} input", f"{name} gradient") if is_hidden else ("", "")
    needs: tuple[str, ...] = ()
    # The order hides communication: the gather begins first and is needed last, by the product for weights; beside it
    # runs the product for the input gradient, whose reduction runs beside the product for weights
    items: Items = []
    if shard.plan.sequence_parallel:
        items += all_gather(shard, name, shard.tokens * width, key=gathered, for_weights=True, quantised=quantised)
        needs = waiting(gathered)
    items.append(Compute(name, data))
    items += reduction(shard, name, shard.tokens * width, key=reduced)
    items.append(weights_product(shard, name, weights, needs, gathered="input"))
    return items, reduced


def weights_product(
    shard: Shard,
    name: str,
    products: Operators,
    needs: tuple[str, ...] = (),
    *,
    gathered: Literal["", "input", "gradient"] = "",
    casts: Operators | None = None,
) -> Compute:
    """Return the products for gradients of weights, and their sums over micro-batches where these are not fused.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the item's name.
        products: The products for the gradients of weights.
        needs: The keys of items that they wait for.
        gathered: The operand that comes from an all-gather if the plan has sequence parallelism: the input, or the
            gradient of the result; "" = none does.
        casts: The casts and transpositions of the products' operands; None = those of both operands of each product.
    """
    if casts is None:
        parts = shard.plan.tp if shard.plan.sequence_parallel else 1
        casts = tuple(
            cast
            for each in products
            for cast in _casts(each, shard, parts if gathered == "input" else 1, parts if gathered == "gradient" else 1)
        )
    sums: Operators = ()
    if not shard.plan.fused_accumulation:
        values = sum(_weights_of(product) for product in products)
        sums = (Operator("elementwise", (values, 2, 1), shard.plan.grad_dtype),)
    return Compute(f"{name}-weights", (*casts, *products, *sums), needs, weights=True)


def _casts(product: Operator, shard: Shard, input_parts: int, gradient_parts: int) -> Operators:
    """Return the quantisation of both operands of a product for a gradient of weights in 8 or 4 bits."""
    # input_parts, gradient_parts: number of GPUs that each quantise a part of the operand.
    # Products in 16 bits take the operands in any layout.
    if DTYPE_BYTES[product.dtype] >= shard.value_bytes:
        return ()
    plan, scaling = shard.plan, scaling_of(shard.plan)
    columns, inputs, tokens = product.shape
    gradients, values = tokens * columns, tokens * inputs
    if scaling in BLOCK_SCALINGS:
        return quantise(plan, scaling, gradients, gradient_parts), quantise(plan, scaling, values, input_parts)
    own = [quantise(plan, scaling, values, input_parts)] if scaling == "current" else []
    own.append(Operator("transpose", (values,), product.dtype))
    if gradient_parts == 1:
        return (quantise(plan, scaling, gradients, transposes=1), *own)
    # In the delayed recipe, the cast before the gather is part of the operator before
    cast = [quantise(plan, scaling, gradients, gradient_parts)] if scaling == "current" else []
    return (*cast, Operator("transpose", (gradients,), product.dtype), *own)


BLOCK_SCALINGS = frozenset({"mxfp8", "nvfp4"})
"""Recipes with a scale per block of values, whose blocks by rows and by columns differ."""


def scaling_of(plan: ParallelPlan) -> str:
    """Return the recipe by which the plan's products scale their operands: that of `scaling`, or nvfp4.

    Args:
        plan: The settled parallel plan.
    """
    return "nvfp4" if plan.dtype == "fp4" else plan.scaling


def quantise(plan: ParallelPlan, scaling: str, value_count: int, parts: int = 1, *, transposes: int = 0) -> Operator:
    """Return the cast of an operand; see the table above.

    Args:
        plan: The settled parallel plan.
        scaling: The recipe, as of `scaling_of`.
        value_count: The number of values of the whole operand.
        parts: The number of GPUs that each quantise a part of the operand.
        transposes: The number of transposed copies that recipes with a scale per tensor write, too.
    """
    reads = 2 if scaling in {"current", "nvfp4"} else 1
    copies = 2 if scaling in BLOCK_SCALINGS else 1
    return Operator("quantise", (-(-value_count // parts), reads, copies, transposes), plan.dtype)


def weights_casts(shard: Shard, tensors: Tensors) -> Items:
    """Return the quantisation of a unit's matrices before its first products of a step, in 8 or 4 bits.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        tensors: The parameter tensors of the unit.
    """
    plan, values = shard.plan, sum(tensor.size for tensor in tensors if tensor.is_operand)
    if not values or plan.dtype not in {"fp8", "fp4"}:
        return []
    if plan.fp8_gather and plan.dtype == "fp8":
        return [Compute("weights-cast", (Operator("transpose", (values,), plan.dtype),))]
    scaling = scaling_of(plan)
    return [Compute("weights-cast", (quantise(plan, scaling, values, transposes=int(scaling not in BLOCK_SCALINGS)),))]


def _weights_of(product: Operator) -> int:
    """Return the number of weights whose gradients a product computes."""
    return (
        math.prod(product.shape[:-1])
        if product.kind in {"gemm", "batched-gemm", "expert-gemm", "fused-expert-gemm"}
        else 0
    )


def waiting(key: str) -> tuple[str, ...]:
    """Return the `needs` of an item that waits for one key.

    Args:
        key: The key; "" = the item waits for nothing.
    """
    return (key,) if key else ()


# Plain MLPs, forward and backward.


def forward(shard: Shard) -> Items:
    """Return the forward pass of an MLP with norm and residual for one micro-batch.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    h = shard.model.hidden
    return [
        Compute("mlp-norm", (shard.operator("norm", shard.rows, h),)),
        *matrices(shard, "mlp", shard.model.ffn_width // shard.plan.tp),
        Compute("mlp-residual", (shard.residual(),)),
    ]


def backward(shard: Shard) -> Items:
    """Return the backward pass of an MLP with norm and residual for one micro-batch.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    h = shard.model.hidden
    items, key = matrices_backward(shard, "mlp", shard.model.ffn_width // shard.plan.tp)
    norm = (shard.operator("norm-backward", shard.rows, h), shard.residual_backward())
    return [Compute("mlp-residual", shard.leave_backward()), *items, Compute("mlp-norm", norm, waiting(key))]


def matrices(shard: Shard, name: str, width: int) -> Items:
    """Return the products with an MLP's two or three matrices.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the items' names.
        width: The GPU's part of the MLP's inner width.
    """
    h, m, both = shard.model.hidden, shard.tokens, shard.first_width(width)
    operators = (shard.gemm(m, both, h), shard.activation(m, width), shard.gemm(m, h, width))
    return [*enter(shard, name, h), Compute(name, operators), *leave(shard, name, h)]


def matrices_backward(shard: Shard, name: str, width: int) -> tuple[Items, str]:
    """Return the backward pass of `matrices`, and the key of the input gradient's reduction.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the items' names.
        width: The GPU's part of the MLP's inner width.
    """
    h, m, both = shard.model.hidden, shard.tokens, shard.first_width(width)
    second: Operators = (shard.gemm(m, width, h),)
    second_weights: Operators = (shard.gemm(h, width, m),)
    items, key = enter_backward(shard, name, h, (shard.gemm(m, h, both),), (shard.gemm(both, h, m),))
    return [
        *enter(shard, name, h),
        Compute(name, second),
        weights_product(shard, name, second_weights, gathered="gradient"),
        Compute(name, (shard.activation_backward(m, width), *shard.bias_gradient(m * both))),
        *items,
    ], key


# LoRA: low-rank adapters beside attention's projections, the only weights that a plan with `lora` trains.
#
# An adapter adds B A x to the output of a frozen matrix; A and B have the plan's rank (Hu et al., arXiv 2106.09685).
# The frozen matrices have no gradients: the backward pass has the products for the gradients of activations only.
# Targets and order are those of MLPerf's reference (qkv_proj, o_proj) and of NVIDIA's submissions (NeMo, target_modules
# "attention"): dropout, A, B, scaling and addition are separate kernels in BF16 (ParallelLinearAdapter of NeMo and
# Megatron-Bridge).
#
# With tensor parallelism:
#
# | adapter of | A is split by | between A and B, T r values | B is split by | after B |
# | --- | --- | --- | --- | --- |
# | queries, keys, values | its rank | all-gather; backward all-reduce | columns | |
# | output | its inputs | all-reduce; backward all-reduce | columns | all-gather; sp: all-to-all, backward as well |
#
# The all-to-all moves T h / t values from the split by heads to that by tokens (a2a_experimental, LORA_A2A=1). The
# first adapter reads the input that the frozen projection gathers, and its gradient joins that projection's reduction:
# the gather is in BF16 then, and neither is cut into pieces (return_layernorm_output_gathered of Transformer Engine,
# tp_comm_overlap_disable_qkv of Megatron-Core). All these collectives are NCCL's, so they have their own group family.


FAMILY = "adapters"  # Group family: the groups of tensor parallelism, by NCCL even where userbuffers replace it
_NAME, _GATHER, _SUM = "attention-adapter", CollectiveCommType.ALL_GATHER, CollectiveCommType.ALL_REDUCE


class Adapter(NamedTuple):
    """A GPU's share of one adapter."""

    inputs: int  # Rows of A on the GPU
    rank: int  # Columns of A on the GPU; B has the plan's rank
    outputs: int  # Columns of B on the GPU


def adapter_forward(shard: Shard, adapter: Adapter) -> Items:
    """Return the forward pass of an adapter up to its addition; empty if the plan trains all weights.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        adapter: The GPU's share of the adapter.
    """
    m, outputs, rank = shard.tokens, adapter.outputs, shard.plan.lora
    if not rank:
        return []
    first = (_dropout(shard, adapter), shard.operator("gemm", m, adapter.rank, adapter.inputs))
    second = (shard.operator("gemm", m, outputs, rank), shard.operator("elementwise", m * outputs, 1, 1))
    if adapter.rank < rank:  # of queries, keys and values
        return [Compute(_NAME, first), *_exchange(shard, _GATHER, m * adapter.rank), Compute(_NAME, second)]
    last = CollectiveCommType.ALL_TO_ALL if shard.plan.sequence_parallel else _GATHER
    return [
        Compute(_NAME, first),
        *_exchange(shard, _SUM, m * rank),
        Compute(_NAME, second),
        *_exchange(shard, last, m * outputs),
    ]


def adapter_backward(shard: Shard, adapter: Adapter) -> Items:
    """Return the backward pass of `forward`, and the sum of the input's gradients of adapter and frozen matrix.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        adapter: The GPU's share of the adapter.
    """
    m, inputs, outputs, rank = shard.tokens, adapter.inputs, adapter.outputs, shard.plan.lora
    if not rank:
        return []
    second = (shard.operator("gemm", m, rank, outputs), shard.operator("gemm", outputs, rank, m))
    first = (shard.operator("gemm", m, inputs, adapter.rank), shard.operator("gemm", adapter.rank, inputs, m))
    # Only the output's adapter has the whole rank on each GPU; its result is split by tokens with sequence parallelism
    is_split_by_tokens = adapter.rank == rank and shard.plan.sequence_parallel
    return [
        *(_exchange(shard, CollectiveCommType.ALL_TO_ALL, m * outputs) if is_split_by_tokens else []),
        Compute(_NAME, (shard.operator("elementwise", m * outputs, 1, 1), *second)),
        *_exchange(shard, _SUM, m * rank),
        Compute(_NAME, (*first, _dropout(shard, adapter), *added(shard, m * inputs))),
    ]


def added(shard: Shard, values: int) -> Operators:
    """Return the addition of an adapter's output to that of the frozen matrix; empty without adapters.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        values: The number of values that are added.
    """
    return (shard.operator("elementwise", values, 2, 1),) if shard.plan.lora else ()


def shared(shard: Shard, items: Items) -> Items:
    """Return items of the frozen projection, whose collectives an adapter shares.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        items: The items of a part of a pass, in order.
    """
    is_shared = bool(shard.plan.lora)
    return [each._replace(family=FAMILY) if is_shared and isinstance(each, GroupCollective) else each for each in items]


def _dropout(shard: Shard, adapter: Adapter) -> Operator:
    return shard.operator("dropout", shard.tokens * adapter.inputs, 1, 1)


def _exchange(shard: Shard, kind: CollectiveCommType, values: int) -> Items:
    """Return a collective of the tensor-parallel group; values: number of values of one member."""
    if shard.plan.tp == 1:
        return []
    name = f"attention/tp:{kind.name.lower().replace('_', '-')}"
    return [GroupCollective(name, kind, values * shard.value_bytes, FAMILY)]
