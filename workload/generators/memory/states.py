"""Weights, gradients and optimizer states of a GPU after ZeRO, and what offloading keeps in the host's memory.

Adam with mixed precision needs, per parameter, 2 bytes for the weight, 4 for the gradient (2 with grad_dtype=bf16) and
12 for master weight, momentum and variance. These are Megatron's 18 bytes, or 6 + 12/d with the distributed optimizer;
with gradients of 2 bytes, they are the 16 bytes of Rajbhandari et al., "ZeRO" (arXiv 1910.02054, section 3.1).

ZeRO-Offload (Ren et al., arXiv 2101.06840) keeps the optimizer's states in the host's memory. ZeRO-Infinity
(Rajbhandari et al., arXiv 2104.07857) also keeps the shards of weights there and loads them for every forward and
backward pass. Offloaded activations move to the host after a layer's forward pass and return before its backward pass.
"""

from typing import NamedTuple

from nadi.workload.compute.operators import DTYPE_BYTES
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.parameters import HeldParameters

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
    dense = states_of(held.dense, plan.dp * plan.cp, plan)
    experts = states_of(held.experts, plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp), plan)
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
