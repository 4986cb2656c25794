"""What of a training step lies in the host's memory, and what moves because of that.

ZeRO-Offload (Ren et al., arXiv 2101.06840): the optimizer's states stay with the CPU, which does the optimizer's step;
gradients go there, weights come back. ZeRO-Infinity (Rajbhandari et al., arXiv 2104.07857): the shards of the weights
lie there too, and come for every forward and backward pass. Activations go out when a layer's forward pass has made
them and come back before its backward pass.
"""

from typing import Literal, NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.memory.states import States, weight_bytes
from workload.generators.training.held import HeldParameters
from workload.generators.training.parallel_plan import ParallelPlan

ACTIVATIONS_AT_A_TIME = 2
"""Layers whose activations are on the GPU: of the one at work and the one on its way."""


class Move(NamedTuple):
    """What one GPU moves between its memory and the host's, each time that it happens.

    Attributes:
        what: is moved.
        when: in which pass; of the optimizer's step once in a step, of others once for a micro-batch and layer.
        load_bytes: from the host (MEM_LOAD with tensor_loc 1).
        store_bytes: to the host (MEM_STORE with tensor_loc 1).
    """

    what: Literal["optimizer", "parameters", "activations"]
    when: Literal["forward", "backward", "optimizer"]
    load_bytes: int
    store_bytes: int


def divided(all_states: States, plan: ParallelPlan) -> tuple[States, States]:
    """States on the GPU, and in the host's memory."""
    optimizer = all_states.optimizer if "optimizer" in plan.offload else 0
    weights = all_states.weights if "parameters" in plan.offload else 0
    on_host = States(weights, 0, optimizer)
    return States(*(one - other for one, other in zip(all_states, on_host, strict=True))), on_host


def divided_activations(kept: int, layer: int, plan: ParallelPlan) -> tuple[int, int]:
    """Activations on the GPU, and in the host's memory; layer: what the largest keeps of one micro-batch."""
    if "activations" not in plan.offload:
        return kept, 0
    return min(kept, ACTIVATIONS_AT_A_TIME * layer), kept


def moves_of_layer(parameters_share: int, kept: int, plan: ParallelPlan) -> tuple[Move, ...]:
    """What moves for each micro-batch and layer.

    Args:
        parameters_share: of the layer, that ZeRO-3 leaves to one GPU.
        kept: bytes of activations that the layer keeps.
        plan: whose `offload` says what moves.
    """
    found = []
    if "parameters" in plan.offload:
        share = parameters_share * weight_bytes(plan)
        found += [Move("parameters", "forward", share, 0), Move("parameters", "backward", share, 0)]
    if "activations" in plan.offload:
        found += [Move("activations", "forward", 0, kept), Move("activations", "backward", kept, 0)]
    return tuple(found)


def moves_of_step(held: HeldParameters, plan: ParallelPlan) -> tuple[Move, ...]:
    """What moves for the optimizer's step: gradients of what the GPU updates, and its weights back.

    With ZeRO a GPU updates its share, of dense parameters and of experts; the weights are then gathered by GPUs.

    Args:
        held: of the GPU before ZeRO.
        plan: whose `offload` says what moves.
    """
    if "optimizer" not in plan.offload:
        return ()
    replicas = (plan.dp * plan.cp, plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp)) if plan.zero else (1, 1)
    updated = -(-held.dense // replicas[0]) - (-held.experts // replicas[1])
    gradient = int(DTYPE_BYTES[plan.grad_dtype])
    return (Move("optimizer", "optimizer", updated * weight_bytes(plan), updated * gradient),)
