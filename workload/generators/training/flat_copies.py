"""Copies between a layer's tensors and the flat buffers that PyTorch FSDP gathers into and reduces from.

PyTorch's `fully_shard` (FSDP2) shards each tensor along its first dimension, so that the result of a layer's all-gather
is ordered by GPU and not by tensor. Two copies of the whole layer run on the computation's stream, where they overlap
nothing (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py and _fsdp_param_group.py):

- `foreach_all_gather_copy_out` waits for the all-gather, then copies the flat buffer into the tensors. This happens
  before the forward pass of each layer, and before its backward pass if parameters are gathered again.
- `foreach_reduce_scatter_copy_in` copies the gradients into the flat buffer, in the data type of the reduction. Before
  it, `post_backward` makes the computation wait for the reduce-scatter of the previous layer and then frees its buffer.

The copies of a GPU's own share (copy-in of the all-gather, gradients after the reduce-scatter) run on other streams and
are smaller by the number of replicas, so Nadi leaves them out. FSDP1 (`FullyShardedDataParallel`) gathers into one flat
parameter whose views are the tensors, so it copies gradients only (`copies=gradients` of a plan).
"""

from collections.abc import Sequence

from nadi.workload.compute.operators import DTYPE_BYTES, Operator
from nadi.workload.generators.training.item_lists import Compute
from nadi.workload.generators.training.parallel_plan import ParallelPlan


def unpacked(layer: str, values: int, plan: ParallelPlan, gather_keys: Sequence[str]) -> Compute:
    """Return the copy of a layer's gathered parameters from a flat buffer into tensors.

    Args:
        layer: The prefix of the layer's names.
        values: The number of parameters, padding included.
        plan: The settled parallel plan.
        gather_keys: The keys of the all-gathers that the copy waits for.
    """
    size = _parameter_bytes(plan)
    return Compute(f"{layer}/copy-out", (_copy(values, size, size),), tuple(gather_keys))


def packed(layer: str, values: int, plan: ParallelPlan, reduction_keys: Sequence[str]) -> Compute:
    """Return the copy of a layer's gradients from tensors into a flat buffer.

    Args:
        layer: The prefix of the layer's names.
        values: The number of gradients, padding included.
        plan: The settled parallel plan.
        reduction_keys: The keys of the reduce-scatters that the copy waits for.
    """
    copy = _copy(values, _parameter_bytes(plan), int(DTYPE_BYTES[plan.grad_dtype]))
    return Compute(f"{layer}/copy-in", (copy,), tuple(reduction_keys), weights=True)


def _parameter_bytes(plan: ParallelPlan) -> int:
    """Return the bytes of a parameter, and of its gradient before the reduction; 2 with FP8."""
    return max(2, int(DTYPE_BYTES[plan.dtype]))


def _copy(values: int, read_bytes: int, written_bytes: int) -> Operator:
    """Return a copy between data types, counted in values of 2 bytes."""
    return Operator("elementwise", (values, read_bytes // 2, written_bytes // 2), "bf16")
