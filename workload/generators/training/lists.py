"""ZeRO-3 of DeepSpeed in 2021, which gathered each tensor by itself into a list of one view per GPU (`gather=list`).

The steps for each tensor, from the sources of that time (DeepSpeed 0.3.13 to 0.5, partition_parameters.py and stage3.py
in runtime/zero; PyTorch 1.8, torch/lib/c10d/ProcessGroupNCCL.cpp):

- `_allgather_param` fills a flat tensor with zeros, waits until the device is idle, creates a view of it for each GPU
  in a Python loop, and calls all_gather with the list of views. PyTorch gathers into a separate tensor, then copies
  each GPU's share from there into its view with one kernel launch per share.
- `_reduce_scatter_gradient` creates such a list of the gradient; PyTorch first copies each view into a flat tensor.
  DeepSpeed fetches the next module's tensors when the device is idle again, so that no reduction overlaps computation.
- Tensors of fewer than PERSISTENT elements stay unsharded on all GPUs until the optimizer's step. After it, one
  all-gather brings all of them, and `_allgather_params` unpacks them in a loop over tensors and GPUs.
- DeepSpeed drops a tensor after its module unless the tensor is used again within MAX_REUSE elements of other tensors.
  If whole layers are recomputed, all but the last tensors of a large layer exceed this distance and are gathered a
  third time.

DeepSpeed's PR #1188 (June 2021) states that these copies and waits make ZeRO-3 slow and that PyTorch's
`_all_gather_base` avoids them; PR #1453 adopted it. Until PR #1170 (June 2021) the traced order of modules was off by
one, and without a trace nothing is prefetched: `prefetch=0`.
"""

from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.training.items import Compute, GroupCollective, Items

PERSISTENT = 100_000  # Minimum size of a sharded tensor in elements (stage3_param_persistence_threshold)
MAX_REUSE = 10**9  # Maximum distance between two uses of a tensor that is kept, in elements (stage3_max_reuse_distance)
VIEW_NANOS = 1_700
"""Host time in nanoseconds per entry of a list, `partitions.append(flat.narrow(0, i * size, size))`. Measured on
2026-11-22 with PyTorch 2.14 on one core of an AMD EPYC: the best of some 100 loops of 1,536."""
UNPACK_NANOS = 6_000
"""Host time in nanoseconds per GPU's share of a tensor in `_allgather_params`: three views and a comparison take 3.4 us
and the call of copy_ 0.65 us (both measured like VIEW_NANOS), its launch takes 2 us as in the GPUs' files."""


class ListedTensor(NamedTuple):
    """A tensor with its own all-gather and reduce-scatter."""

    name: str  # Prefix of its items' names, for example "layer17/tensor3"
    size: int  # Number of elements
    members: int  # Number of GPUs over which it is sharded
    family: str  # Name of the family of these GPUs' groups

    @property
    def share(self) -> int:
        """Number of elements per GPU, padding included."""
        return -(-self.size // self.members)


def gather(tensor: ListedTensor, value_bytes: int, key: str, needs: tuple[str, ...] = ()) -> Items:
    """Return the creation of a tensor's list of views, and its all-gather with a key, after the items `needs` names."""
    size = tensor.share * value_bytes
    kind = CollectiveCommType.ALL_GATHER
    return [
        _views(tensor, needs),
        GroupCollective(f"{tensor.name}/dp:all-gather", kind, size, tensor.family, key, needs),
    ]


def unpacked(tensor: ListedTensor, dtype: str, gather_key: str) -> Compute:
    """Return the zero fill of a flat tensor, and the copies into it after its all-gather."""
    zeros = Operator("elementwise", (tensor.share * tensor.members, 0, 1), dtype)
    return Compute(f"{tensor.name}/unpack", (zeros, _copies(tensor, dtype)), needs=(gather_key,))


def reduce(tensor: ListedTensor, value_bytes: int, dtype: str, key: str) -> Items:
    """Return the creation of a gradient's list, the copies of its entries, and the reduce-scatter with a key."""
    # value_bytes and dtype: of gradients.
    size = tensor.share * tensor.members * value_bytes
    return [
        _views(tensor),
        Compute(f"{tensor.name}/pack", (_copies(tensor, dtype),)),
        GroupCollective(
            f"{tensor.name}/dp:reduce-scatter", CollectiveCommType.REDUCE_SCATTER, size, tensor.family, key
        ),
    ]


def gather_persistent(tensors: list[ListedTensor], value_bytes: int, dtype: str) -> Items:
    """Return the gather of one family's unsharded tensors after a step."""
    # The copies of the last loop overlap its Python code, so that the host's time alone counts.
    if not tensors:
        return []
    flat = tensors[0]._replace(name="persistent", size=sum(t.share for t in tensors) * tensors[0].members)
    iterations = sum(min(t.members, t.size) for t in tensors)
    key = f"persistent {flat.family}"
    return [
        *gather(flat, value_bytes, key),
        Compute("persistent/unpack", (_copies(flat, dtype),), needs=(key,)),
        Compute("persistent/take-apart", (), on_host_micros=_micros(iterations * UNPACK_NANOS)),
    ]


def is_far(sizes: list[int], tensor_number: int) -> bool:
    """Return whether a tensor of a layer is dropped between the layer's recomputation and its backward pass."""
    # The layer's later tensors are used twice between them, forward and backward. `sizes` are the numbers of elements
    # of the layer's tensors, in the order of the forward pass.
    return 2 * sum(sizes[tensor_number + 1 :]) >= MAX_REUSE


def _views(tensor: ListedTensor, needs: tuple[str, ...] = ()) -> Compute:
    return Compute(f"{tensor.name}/views", (), needs, on_host_micros=_micros(tensor.members * VIEW_NANOS))


def _copies(tensor: ListedTensor, dtype: str) -> Operator:
    return Operator("copies", (tensor.members, tensor.share), dtype)


def _micros(nanos: int) -> int:
    return max(1, round(nanos / 1000))
