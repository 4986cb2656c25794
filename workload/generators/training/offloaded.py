"""Transfers of a pass to and from the host's memory, and the optimizer's step on the host.

ZeRO-Offload (arXiv 2101.06840) sends gradients to the host, which runs the optimizer's step and sends weights back.
ZeRO-Infinity (arXiv 2104.07857) loads a GPU's share of a layer's weights before the layer is gathered. Activations move
to the host after a layer's forward pass, overlapping the next layers, and return one layer ahead of the backward pass.
"""

from collections.abc import Sequence

from nadi.workload.compute.operators import DTYPE_BYTES
from nadi.workload.generators.memory.states import weight_bytes
from nadi.workload.generators.training.items import Compute, Items, Memory
from nadi.workload.generators.training.shard import Shard
from nadi.workload.generators.training.units import ModelUnit

_HOST_BYTES_PER_MICRO = 51_200
"""Host memory bandwidth per GPU in bytes per microsecond: a DGX A100 has 409.6 GB/s for 8 GPUs (two sockets with 8
channels of DDR4-3200 each)."""


def after_forward(shard: Shard, unit: ModelUnit) -> Items:
    """Return the store of a layer's activations to the host after the layer's last unit."""
    is_offloaded = unit.kept and "activations" in shard.plan.offload
    return [Memory("memory:store", unit.kept, loads=False)] if is_offloaded else []


def before_backward(shard: Shard, units: Sequence[ModelUnit], unit_number: int) -> tuple[Items, list[str]]:
    """Return the loads of activations that start before a unit's backward pass, and the keys that the unit waits for.

    A layer's activations start to load before the backward pass of the layer above; those of the last layer at once.
    """
    if not units[unit_number].kept or "activations" not in shard.plan.offload:
        return [], []
    layers = [i for i in reversed(range(len(units))) if units[i].kept]
    at = layers.index(unit_number)
    begun = layers[at : at + 2] if at == 0 else layers[at + 1 : at + 2]
    items: Items = [
        Memory(f"{units[i].layer}/memory:load", units[i].kept, loads=True, key=_key(units[i])) for i in begun
    ]
    return items, [_key(units[unit_number])]


def step(shard: Shard, parameters: int, update: Compute) -> Items:
    """Return the optimizer's step (`update`) for some parameters, on the host with its transfers if it is offloaded."""
    # With ZeRO, a GPU updates its share of dense parameters and of experts; the GPUs gather the weights later.
    if "optimizer" not in shard.plan.offload:
        return [update]
    micros = -(-sum(operator.bytes for operator in update.operators) // _HOST_BYTES_PER_MICRO)
    sent = "optimizer gradients"
    return [
        Memory("memory:store", parameters * int(DTYPE_BYTES[shard.plan.grad_dtype]), loads=False, key=sent),
        update._replace(needs=(sent,), on_host_micros=micros),
        Memory("memory:load", parameters * weight_bytes(shard.plan), loads=True),
    ]


def _key(unit: ModelUnit) -> str:
    return f"activations {unit.layer}"
