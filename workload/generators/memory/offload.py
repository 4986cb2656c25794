"""Division of a training step's states and activations between GPU and host memory, and the optimizer's transfers.

ZeRO-Offload (Ren et al., arXiv 2101.06840) keeps the optimizer's states in the host's memory. The CPU runs the
optimizer's step, so gradients move to the host and weights move back. ZeRO-Infinity (Rajbhandari et al., arXiv
2104.07857) also keeps the shards of weights there and loads them for every forward and backward pass. Offloaded
activations move to the host after a layer's forward pass and return before its backward pass.
"""

from typing import NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.memory.states import States, weight_bytes
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.parameters import HeldParameters

ACTIVATIONS_AT_A_TIME = 2
"""Number of layers whose activations are on the GPU: the layer that runs, and the layer in transfer."""


class OptimizerTransfers(NamedTuple):
    """Transfers between a GPU's memory and the host's in an offloaded optimizer step."""

    load_bytes: int  # Bytes of weights from the host (MEM_LOAD with tensor_loc 1)
    store_bytes: int  # Bytes of gradients to the host (MEM_STORE with tensor_loc 1)


def divided(all_states: States, plan: ParallelPlan) -> tuple[States, States]:
    """Return the states in the GPU's memory and those in the host's."""
    optimizer = all_states.optimizer if "optimizer" in plan.offload else 0
    weights = all_states.weights if "parameters" in plan.offload else 0
    on_host = States(weights, 0, optimizer)
    return States(*(total - host for total, host in zip(all_states, on_host, strict=True))), on_host


def divided_activations(kept: int, layer: int, plan: ParallelPlan) -> tuple[int, int]:
    """Return the bytes of activations in the GPU's memory and in the host's.

    Args:
        kept: Bytes of activations of all layers and micro-batches.
        layer: Bytes of activations of the largest layer for one micro-batch.
        plan: Parallel plan with the states to offload.
    """
    if "activations" not in plan.offload:
        return kept, 0
    return min(kept, ACTIVATIONS_AT_A_TIME * layer), kept


def optimizer_transfers(held: HeldParameters, plan: ParallelPlan) -> OptimizerTransfers | None:
    """Return the transfers of an optimizer step, None if the optimizer is on the GPU.

    With ZeRO, a GPU updates its share of dense parameters and of experts; the GPUs gather the weights later.

    Args:
        held: Numbers of parameters of the GPU before ZeRO.
        plan: Parallel plan with the states to offload.
    """
    if "optimizer" not in plan.offload:
        return None
    replicas = (plan.dp * plan.cp, plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp)) if plan.zero else (1, 1)
    updated = -(-held.dense // replicas[0]) - (-held.experts // replicas[1])
    gradient = int(DTYPE_BYTES[plan.grad_dtype])
    return OptimizerTransfers(updated * weight_bytes(plan), updated * gradient)
