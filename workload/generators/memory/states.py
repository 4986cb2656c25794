"""Memory of a GPU's parameters, gradients and optimizer states, and of the activations that it keeps."""

from functools import lru_cache
from typing import NamedTuple

from nadi.workload.compute.operators import DTYPE_BYTES
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.models.operations import CORE, FULL, NONE, PER_OP, modules_of, recomputed_matrices
from nadi.workload.generators.training import recomputation
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.parameters import HeldParameters
from nadi.workload.generators.training.stages import Shard

# Weights, gradients and optimizer states of a GPU after ZeRO, and what offloading keeps in the host's memory.
#
# Adam with mixed precision needs, per parameter, 2 bytes for the weight, 4 for the gradient (2 with grad_dtype=bf16)
# and 12 for master weight, momentum and variance. These are Megatron's 18 bytes, or 6 + 12/d with the distributed
# optimizer; with gradients of 2 bytes, they are the 16 bytes of Rajbhandari et al., "ZeRO" (arXiv 1910.02054, section
# 3.1).
#
# ZeRO-Offload (Ren et al., arXiv 2101.06840) keeps the optimizer's states in the host's memory. ZeRO-Infinity
# (Rajbhandari et al., arXiv 2104.07857) also keeps the shards of weights there and loads them for every forward and
# backward pass. Offloaded activations move to the host after a layer's forward pass and return before its backward
# pass.

MASTER_BYTES = 4  # Bytes of an FP32 master weight
MOMENTS_BYTES = 8  # Bytes of Adam's two FP32 moments per parameter
FP8_COPIES_BYTES = 2
"""Bytes of a weight's two FP8 copies, plain and transposed: Hopper's FP8 products need both (Transformer Engine)."""
ACTIVATIONS_AT_A_TIME = 2  # Layers whose offloaded activations are on the GPU: one runs, one is in transfer


class States(NamedTuple):
    """Bytes of a model's states on one GPU."""

    weights: int  # Bytes of the weights for forward and backward passes
    gradients: int  # Bytes of the gradients that micro-batches accumulate
    optimizer: int  # Bytes of master weights and moments

    @property
    def total(self) -> int:
        """Bytes of all states."""
        return sum(self)


def weight_bytes(plan: ParallelPlan) -> int:
    """Return the bytes per trained parameter for forward and backward passes; fp8 and fp4 are bf16 with copies.

    Args:
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
    """
    if plan.lora:  # adapters are in the data type of activations
        return int(DTYPE_BYTES[plan.activation_dtype])
    return 2 + FP8_COPIES_BYTES if plan.dtype in {"fp8", "fp4"} else int(DTYPE_BYTES[plan.dtype])


def frozen_bytes(parameters: int, plan: ParallelPlan) -> int:
    """Return the bytes of frozen weights (of LoRA): a byte each in fp8 and fp4, as nothing updates them.

    Args:
        parameters: The number of frozen parameters that the GPU holds.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
    """
    # NeMo's fp8_params with disable_parameter_transpose_cache, as in NVIDIA's MLPerf submissions of Llama 2 70B LoRA
    return parameters * max(1, int(DTYPE_BYTES[plan.dtype])) if plan.lora else 0


def states(held: HeldParameters, plan: ParallelPlan) -> States:
    """Return the bytes of weights, gradients and optimizer states of a GPU.

    Args:
        held: The numbers of parameters that the GPU holds before ZeRO.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
    """
    dense = states_of(held.dense, plan.dp * plan.cp // plan.shard_copies, plan)
    replicas = plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp)
    experts = states_of(held.experts, replicas // plan.shard_copies, plan)
    return States(*(sum(parts) for parts in zip(dense, experts, strict=True)))


def states_of(parameters: int, replicas: int, plan: ParallelPlan) -> States:
    """Return the bytes of states of one GPU for some of its parameters.

    Args:
        parameters: The number of parameters.
        replicas: The number of GPUs that hold these parameters and share their states under ZeRO.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
    """
    share = -(-parameters // replicas)
    optimizer_bytes = MOMENTS_BYTES + (0 if plan.dtype == "fp32" else MASTER_BYTES)
    return States(
        weights=(share if plan.zero >= 3 else parameters) * weight_bytes(plan),
        gradients=(share if plan.zero >= 2 else parameters) * int(DTYPE_BYTES[plan.grad_dtype]),
        optimizer=(share if plan.zero >= 1 else parameters) * optimizer_bytes,
    )


def divided(states: States, plan: ParallelPlan) -> tuple[States, States]:
    """Return the parts of a GPU's states in its memory and in the host's.

    Args:
        states: The bytes of all states of a GPU.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
    """
    optimizer = states.optimizer if "optimizer" in plan.offload else 0
    weights = states.weights if "parameters" in plan.offload else 0
    on_host = States(weights, 0, optimizer)
    return States(*(total - host for total, host in zip(states, on_host, strict=True))), on_host


def divided_activations(kept_bytes: int, layer_bytes: int, plan: ParallelPlan) -> tuple[int, int]:
    """Return the bytes of activations in the GPU's memory and in the host's, to which the plan may offload them.

    Args:
        kept_bytes: The bytes of all layers and micro-batches in flight.
        layer_bytes: The bytes of the largest layer for one micro-batch.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
    """
    if "activations" not in plan.offload:
        return kept_bytes, 0
    return min(kept_bytes, ACTIVATIONS_AT_A_TIME * layer_bytes), kept_bytes


# Activations that a layer keeps for its backward pass, for one micro-batch on one GPU.
#
# The count follows Korthikanti et al., "Reducing activation recomputation in large transformer models" (arXiv
# 2205.05198, section 4), tensor by tensor, but for any attention, MLP and experts. For a GPT with dropout and unfused
# attention, the sum is that paper's s b h (10 + 24/t + 5 a s / h t), or s b h / t (34 + 5 a s / h) with sequence
# parallelism; the term with 5 a s / h disappears if the core of attention is recomputed. Flash attention keeps one
# number of 4 bytes per row of scores instead of the scores.


_MASK_BYTES = 1  # Bytes per element of a dropout mask
FP32_BYTES = 4


class LayerActivations(NamedTuple):
    """Bytes of one layer and one micro-batch on one GPU."""

    input: int  # Bytes of the layer's input, the only tensor that full recomputation keeps
    # Bytes of its other tensors, each with the modules whose recomputation drops it (models.operations)
    tensors: tuple[tuple[int, frozenset[str]], ...]
    core: int  # Bytes that attention's core keeps, its output included
    saved: int  # Bytes that "per-op" keeps in addition to the layer's input and to attention's core
    working: int  # Bytes of gradients and copies that exist only during the layer's backward pass

    def kept(self, recompute: str) -> int:
        """Return the bytes that the layer keeps from the forward to the backward pass.

        Args:
            recompute: The value of a plan's key `recompute`.
        """
        if recompute == FULL:
            return self.input
        if recompute == PER_OP:
            return self.input + self.core + self.saved
        modules = modules_of(recompute)
        return self.input + sum(size for size, dropped_by in self.tensors if not dropped_by & modules)

    def again(self, recompute: str) -> int:
        """Return the bytes of the tensors that the layer's backward pass recomputes.

        Args:
            recompute: The value of a plan's key `recompute`.
        """
        if recompute == PER_OP:  # some saved tensors are needed as they are, others only lead to them: an upper bound
            return self.kept(NONE) - self.input - self.core
        return self.kept(NONE) - self.kept(recompute)


@lru_cache(maxsize=1024)
def layer_activations(model: Model, plan: ParallelPlan, *, has_experts: bool) -> LayerActivations:
    """Return the activations of a layer in a settled plan.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        has_experts: Whether the layer has experts instead of a plain MLP.
    """
    # With FP8, inputs of matrices and of gated activations take a byte per value, because DeepSeek-V3 keeps both in
    # this type (arXiv 2412.19437, section 3.3.2).
    shard = Shard(model, plan)
    hidden = shard.rows * model.hidden
    mask = hidden * _MASK_BYTES * model.dropout
    norm = shard.operand_bytes * hidden  # the output of one norm
    core_output = shard.operand_bytes * shard.tokens * shard.heads * model.value_dim  # input of the projection after it
    core, core_working = _core(shard)
    latent, is_trained = model.latent, not plan.lora
    up_projections = {"mla_up_proj"} if latent is not None else set()
    tensors: list[tuple[int, set[str]]] = [
        (shard.value_bytes * hidden + 2 * mask + core_output, set()),  # the input of the MLP's norm is the first one
        (core, {CORE}),
        (_projected(shard), up_projections),
        # Frozen matrices do not need their inputs
        (norm * is_trained, {"layernorm"} if latent is not None else set()),
        (norm * is_trained, {"layernorm"} if has_experts else {"mlp"}),
    ]
    if plan.lora:
        # Adapters keep their inputs after dropout, but no masks: the submissions' dropout draws them again
        # (NEMO_LORA_USE_THUNDER_DROPOUT).
        tensors.append((shard.value_bytes * shard.tokens * (model.hidden + shard.heads * model.value_dim), set()))
    if latent is not None:
        # Compressed queries, keys and values before and after their norm, and the uncompressed keys
        compressed = shard.value_bytes * shard.rows * (latent.query_rank + latent.key_value_rank)
        keys = shard.value_bytes * shard.rows * latent.rope_dim
        tensors += [(compressed + keys, set()), (compressed, up_projections)]
    mlps = _experts(shard) if has_experts else {"mlp": _mlp(shard, model.ffn_width)}
    for name, mlp in mlps.items():
        around = {"mlp"} if name == "mlp" else {"moe", name}
        tensors += [
            (mlp.inner, around),
            (mlp.outer * is_trained, around | ({"moe_act"} if name == "experts" else set())),
        ]
    return LayerActivations(
        input=shard.value_bytes * hidden,
        tensors=tuple((size, frozenset(dropped_by)) for size, dropped_by in tensors),
        core=core + core_output,
        saved=_saved_per_operator(shard, has_experts=has_experts),
        working=max(core_working, *(mlp.working for mlp in mlps.values())),
    )


def _saved_per_operator(shard: Shard, *, has_experts: bool) -> int:
    """Return the bytes of the results of products and collectives that "per-op" saves, needed or not."""
    # Without attention's core. torchtitan also saves topk's choice of experts, which is small.
    again = recomputed_matrices(shard.model, shard.plan.dtype, has_experts=has_experts)
    joined = recomputation.products(shard, has_experts=has_experts)
    saved = [product.shape for each in joined for name, product in each.items() if name not in again]
    values = sum(rows * columns for rows, columns, _ in saved)
    if shard.plan.sequence_parallel:  # reduce-scatters after attention, and after the MLP or shared experts
        has_dense = not has_experts or shard.experts.shared_width > 0
        values += (1 + has_dense) * shard.rows * shard.model.hidden
    if has_experts and shard.plan.ep > 1:  # the all-to-alls to and from experts
        values += 2 * expert_rows(shard) // shard.plan.etp * shard.model.hidden
    return shard.value_bytes * values


def _projected(shard: Shard) -> int:
    """Return the bytes of queries, keys and values of a micro-batch; normalised queries and keys count twice."""
    values = shard.heads * shard.model.query_dim + shard.kv_heads * (shard.model.query_dim + shard.model.value_dim)
    if shard.model.qk_norm:
        values += (shard.heads + shard.kv_heads) * shard.model.query_dim
    return shard.value_bytes * shard.tokens * values


def _core(shard: Shard) -> tuple[int, int]:
    """Return the bytes that attention's core keeps, and those that exist only during its backward pass."""
    if shard.plan.attention != "unfused":
        return FP32_BYTES * shard.heads * shard.tokens, 0
    values = shard.heads * shard.tokens * shard.sequence
    softmax = shard.value_bytes * values
    return softmax + (_MASK_BYTES * values + softmax) * shard.model.dropout, 2 * softmax


class _Mlp(NamedTuple):
    """Bytes of an MLP: outputs of its first matrix (or matrices), input of its last one, gradients of both."""

    inner: int  # outputs of the first matrix or matrices
    outer: int  # input of the last matrix
    working: int  # gradients of both


def _mlp(shard: Shard, ffn_width: int) -> _Mlp:
    """Return the bytes of a plain MLP, or of shared experts, with an inner width."""
    inner = (2 if shard.model.is_gated else 1) * ffn_width // shard.plan.tp
    return _Mlp(
        inner=shard.tokens * _inner_bytes(shard) * inner,
        outer=shard.tokens * shard.operand_bytes * ffn_width // shard.plan.tp,
        working=shard.value_bytes * shard.tokens * (inner + shard.model.hidden),
    )


def _inner_bytes(shard: Shard) -> int:
    """Return the bytes per output of an MLP's first matrix."""
    return shard.operand_bytes if shard.model.is_gated else shard.value_bytes


def expert_rows(shard: Shard) -> int:
    """Return the number of rows that the experts of one GPU receive per micro-batch.

    Args:
        shard: A GPU's share of the model.
    """
    # This is the even share or, with `capacity`, the maximum that the capacity allows. Without a capacity, imbalanced
    # routing can exceed the even share on some GPUs, which the estimate ignores.
    rows = shard.rows * shard.experts.top_k * shard.plan.etp
    return round(rows * shard.plan.capacity) if shard.plan.capacity else rows


def _experts(shard: Shard) -> dict[str, _Mlp]:
    """Return the bytes of routed experts with the router's scores and the received rows, and of shared experts."""
    # As in Megatron-Core, the router's weights multiply the activation and not the experts' outputs, so that the
    # outputs are not kept.
    experts, hidden, rows = shard.experts, shard.model.hidden, expert_rows(shard)
    inner = (2 if shard.model.is_gated else 1) * experts.ffn // shard.plan.etp
    scores = FP32_BYTES * shard.rows * experts.count * (1 + experts.auxiliary_loss)
    # What the clamp of the activation's inputs returns is a copy of them, which recomputing `moe_act` repeats
    clamped = shard.value_bytes * inner if shard.model.clamped_activation and not shard.plan.fused_experts else 0
    routed = _Mlp(
        inner=scores + rows * (shard.operand_bytes * hidden + _inner_bytes(shard) * inner),
        outer=rows * (shard.operand_bytes * experts.ffn // shard.plan.etp + clamped),
        working=shard.value_bytes * rows * (inner + hidden),
    )
    shared = {"shared_experts": _mlp(shard, experts.shared_width)} if experts.shared_width else {}
    return {"experts": routed, **shared}
