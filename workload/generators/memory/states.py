"""Weights, gradients and optimizer states of a GPU, as far as ZeRO leaves them to it.

Adam with mixed precision has 2 bytes of weight, 4 of gradient (2 with grad_dtype=bf16) and 12 of master weight,
momentum and variance for each parameter: Megatron's 18, with the distributed optimizer 6 + 12/d; with gradients of 2
bytes the 16 of Rajbhandari et al., "ZeRO" (arXiv 1910.02054, section 3.1).
"""

from typing import NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.training.held import HeldParameters
from workload.generators.training.parallel_plan import ParallelPlan

MASTER_BYTES = 4
MOMENTS_BYTES = 8
FP8_COPIES_BYTES = 2
"""A weight in fp8, as it stands and transposed: Hopper's products in fp8 take both (Transformer Engine)."""


class States(NamedTuple):
    """Bytes on one GPU.

    Attributes:
        weights: that forward and backward pass use.
        gradients: as they are summed up over micro-batches.
        optimizer: master weights and moments.
    """

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def weight_bytes(plan: ParallelPlan) -> int:
    """Bytes of a parameter in forward and backward pass; fp8 is bf16 with copies."""
    return 2 + FP8_COPIES_BYTES if plan.dtype == "fp8" else int(DTYPE_BYTES[plan.dtype])


def optimizer_bytes(plan: ParallelPlan) -> int:
    """Bytes of optimizer state of a parameter; where weights are fp32 they are their own masters."""
    return MOMENTS_BYTES + (0 if plan.dtype == "fp32" else MASTER_BYTES)


def states(held: HeldParameters, plan: ParallelPlan) -> States:
    """Of a GPU that holds so many parameters before ZeRO."""
    dense = states_of(held.dense, plan.dp * plan.cp, plan)
    experts = states_of(held.experts, plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp), plan)
    return States(*(one + other for one, other in zip(dense, experts, strict=True)))


def states_of(parameters: int, replicas: int, plan: ParallelPlan) -> States:
    """Of parameters that so many GPUs hold."""
    share = -(-parameters // replicas)
    return States(
        weights=(share if plan.zero >= 3 else parameters) * weight_bytes(plan),
        gradients=(share if plan.zero >= 2 else parameters) * int(DTYPE_BYTES[plan.grad_dtype]),
        optimizer=(share if plan.zero >= 1 else parameters) * optimizer_bytes(plan),
    )
