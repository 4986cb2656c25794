"""What a pass moves to and from the host's memory, and the optimizer's step there.

ZeRO-Offload (arXiv 2101.06840): gradients go to the host, which does the step, and weights come back. ZeRO-Infinity
(arXiv 2104.07857): a GPU's share of a layer's weights comes before the layer is gathered. Activations go after a
layer's forward pass, beside the next layers, and come back one layer ahead of the backward pass.
"""

from collections.abc import Sequence

from workload.generators.memory.offload import moves_of_step
from workload.generators.training.held import held
from workload.generators.training.items import Compute, Items, Memory
from workload.generators.training.shard import Shard
from workload.generators.training.units import ModelUnit

_HOST_BYTES_PER_MICRO = 51_200
"""Of memory bandwidth that a host has for each GPU: a DGX A100 has 409.6 GB/s for 8 (two sockets of 8 channels of
DDR4-3200 each)."""


def after_forward(s: Shard, unit: ModelUnit) -> Items:
    """A layer's activations go."""
    goes = unit.kept and "activations" in s.plan.offload
    return [Memory("memory:store", unit.kept, loads=False)] if goes else []


def before_backward(s: Shard, units: Sequence[ModelUnit], number: int) -> tuple[Items, list[str]]:
    """Those of the layer below begin to come; those of the unit's own, which it waits for, have begun above it."""
    if not units[number].kept or "activations" not in s.plan.offload:
        return [], []
    layers = [i for i in reversed(range(len(units))) if units[i].kept]
    at = layers.index(number)
    begun = layers[at : at + 2] if at == 0 else layers[at + 1 : at + 2]
    items: Items = [
        Memory(f"{units[i].layer}/memory:load", units[i].kept, loads=True, key=_key(units[i])) for i in begun
    ]
    return items, [_key(units[number])]


def step(s: Shard, stage: int, compute: Compute) -> Items:
    """The optimizer's step where the optimizer is."""
    moves = moves_of_step(held(s.model, s.plan, stage), s.plan)
    if not moves:
        return [compute]
    micros = -(-sum(operator.bytes for operator in compute.operators) // _HOST_BYTES_PER_MICRO)
    sent = "optimizer gradients"
    return [
        *(Memory("memory:store", move.store_bytes, loads=False, key=sent) for move in moves),
        compute._replace(needs=(sent,), on_host_micros=micros),
        *(Memory("memory:load", move.load_bytes, loads=True) for move in moves),
    ]


def _key(unit: ModelUnit) -> str:
    return f"activations {unit.layer}"
