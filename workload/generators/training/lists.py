"""Parameters that DeepSpeed of 2021 gathered tensor by tensor, into lists of one tensor for each GPU (`gather=list`).

What is done for each tensor, from the sources of then (DeepSpeed 0.3.13 to 0.5, partition_parameters.py and stage3.py
in runtime/zero; PyTorch 1.8, torch/lib/c10d/ProcessGroupNCCL.cpp):

- `_allgather_param` fills a flat tensor with zeros, waits until the device is idle, makes a view of it for each GPU in
  a loop of Python, and calls all_gather with that list. PyTorch gathers into a tensor of its own, and copies each GPU's
  share from there into its view: a launch each.
- `_reduce_scatter_gradient` makes such a list of the gradient; PyTorch copies each view into a flat tensor first. The
  next module's tensors are fetched when the device is idle again, so that nothing hides a reduction.
- Tensors of fewer than PERSISTENT elements stay whole on all GPUs until the optimizer's step. After it all of them are
  gathered at once, and `_allgather_params` takes them apart by a loop over tensors and GPUs.
- A tensor is dropped after its module unless it is used again within MOST_REUSE elements of others. With whole layers
  recomputed that far are all but the last ones of a large layer, so that they are gathered a third time.

DeepSpeed's PR #1188 (June 2021) says that these copies and waits are what makes ZeRO-3 slow, and that PyTorch's
`_all_gather_base` has none of them; PR #1453 took it up. Until PR #1170 (June 2021) the order of modules was traced off
by one, and where tracing fails nothing is fetched ahead: `prefetch=0`.
"""

from typing import NamedTuple

from et import CollectiveCommType
from workload.compute.operators import Operator
from workload.generators.training.items import Compute, GroupCollective, Items

PERSISTENT = 100_000
"""Elements (stage3_param_persistence_threshold)."""
MOST_REUSE = 10**9
"""Elements (stage3_max_reuse_distance)."""
VIEW_NANOS = 1_700
"""Of the host for each entry of a list, `partitions.append(flat.narrow(0, i * size, size))`. Measured on 2026-11-22
with PyTorch 2.14 on one core of an AMD EPYC, the best of some 100 loops of 1,536."""
TAKE_APART_NANOS = 6_000
"""Of the host for each GPU's share of a tensor in `_allgather_params`: three views and a comparison, 3.4 us, the call
of copy_, 0.65 us, both measured like VIEW_NANOS, and its launch, 2 us as the GPUs' files assume."""


class ListedTensor(NamedTuple):
    """A tensor that is gathered and reduced by itself.

    Attributes:
        name: beginning of its names, "layer17/tensor3".
        size: elements.
        members: GPUs that share it.
        family: their groups.
    """

    name: str
    size: int
    members: int
    family: str

    @property
    def share(self) -> int:
        """Elements of each GPU."""
        return -(-self.size // self.members)


def gather(tensor: ListedTensor, value_bytes: int, key: str, needs: tuple[str, ...] = ()) -> Items:
    """The list is made, and its all-gather begins."""
    size = tensor.share * value_bytes
    kind = CollectiveCommType.ALL_GATHER
    return [
        _views(tensor, needs),
        GroupCollective(f"{tensor.name}/dp:all-gather", kind, size, tensor.family, key, needs),
    ]


def unpacked(tensor: ListedTensor, dtype: str, key: str) -> Compute:
    """The flat tensor's zeros, and the copies after the all-gather."""
    zeros = Operator("elementwise", (tensor.share * tensor.members, 0, 1), dtype)
    return Compute(f"{tensor.name}/unpack", (zeros, _copies(tensor, dtype)), needs=(key,))


def reduce(tensor: ListedTensor, value_bytes: int, dtype: str, key: str) -> Items:
    """A gradient's list, the copies of its entries, and the reduce-scatter."""
    size = tensor.share * tensor.members * value_bytes
    return [
        _views(tensor),
        Compute(f"{tensor.name}/pack", (_copies(tensor, dtype),)),
        GroupCollective(
            f"{tensor.name}/dp:reduce-scatter", CollectiveCommType.REDUCE_SCATTER, size, tensor.family, key
        ),
    ]


def gather_persistent(tensors: list[ListedTensor], value_bytes: int, dtype: str) -> Items:
    """After a step: tensors that all GPUs have whole, of one family. The last loop's copies hide behind its Python."""
    if not tensors:
        return []
    together = tensors[0]._replace(name="persistent", size=sum(t.share for t in tensors) * tensors[0].members)
    passes = sum(min(t.members, t.size) for t in tensors)
    key = f"persistent {together.family}"
    return [
        *gather(together, value_bytes, key),
        Compute("persistent/unpack", (_copies(together, dtype),), needs=(key,)),
        Compute("persistent/take-apart", (), on_host_micros=_micros(passes * TAKE_APART_NANOS)),
    ]


def is_far(sizes: list[int], number: int) -> bool:
    """Whether a tensor of a layer is dropped between the layer's recomputation and its backward pass.

    Between them are the later ones, forward and backward.

    Args:
        sizes: of the layer's tensors, in the order of the forward pass.
        number: of these.
    """
    return 2 * sum(sizes[number + 1 :]) >= MOST_REUSE


def _views(tensor: ListedTensor, needs: tuple[str, ...] = ()) -> Compute:
    return Compute(f"{tensor.name}/views", (), needs, on_host_micros=_micros(tensor.members * VIEW_NANOS))


def _copies(tensor: ListedTensor, dtype: str) -> Operator:
    return Operator("copies", (tensor.members, tensor.share), dtype)


def _micros(nanos: int) -> int:
    return max(1, round(nanos / 1000))
