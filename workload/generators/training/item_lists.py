"""Items (computations, collectives, messages, transfers of host memory) of one GPU in a part of a pass, in order.

The modules of the layers return lists of items; `workload.generators.training.blocks` turns them into trace rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import DTYPE_BYTES, Operator
from nadi.workload.generators.training.parallel_plan import ParallelPlan


class Compute(NamedTuple):
    """A sequence of operators that starts when the previous computation and everything it waits for have ended."""

    name: str  # Name within the layer, for example "attention"
    operators: tuple[Operator, ...]  # Operators in the order of execution
    needs: tuple[str, ...] = ()  # Keys of overlapped collectives and messages that must end before it starts
    weights: bool = False  # Whether the operators compute gradients of weights, which a split backward pass defers
    on_host_micros: int = 0  # Duration in microseconds if the host computes it; 0 = the accelerator computes it
    # Key of a computation of the host that runs beside the accelerator's: later items list it in `needs` to wait for
    # it; "" = all later items wait for it
    key: str = ""


class GroupCollective(NamedTuple):
    """A collective in the GPU's group of a group family."""

    name: str  # Name within the layer, for example "attention/tp:all-gather"
    kind: CollectiveCommType  # Type of the collective operation
    bytes: int  # comm_size of the trace: a member's contribution to an all-gather, else a member's whole buffer
    family: str  # Name of the group family, for example "tp"; "" = the plan leaves the collective out
    key: str = ""  # Key that later items list in `needs` to wait for the collective; "" = all later items wait for it
    needs: tuple[str, ...] = ()  # Same as Compute.needs
    weights: bool = False  # Same as Compute.weights
    # Amounts that an uneven all-to-all sends to, and receives from, each member, both in the same unit
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


class RingMessage(NamedTuple):
    """A send to the next GPU, or a receive from the previous GPU, of the ring of context parallelism."""

    name: str  # Name within the layer, for example "attention/cp:send"
    bytes: int  # Message size in bytes
    receives: bool  # Whether the message comes from the previous neighbour; otherwise it is sent to the next one
    tag: int  # Message tag, the same at the sender and the receiver
    key: str = ""  # Key that later items list in `needs` to wait for it; "" = no item waits for it (a send)
    needs: tuple[str, ...] = ()  # Same as Compute.needs
    weights: bool = False  # Same as Compute.weights
    is_early: bool = False  # Whether the message waits for its `needs` alone and not for the previous computation


class Memory(NamedTuple):
    """A transfer of a tensor from or to the host's memory."""

    name: str  # Name within the layer, for example "memory:load"
    bytes: int  # Tensor size in bytes
    loads: bool  # Whether the tensor moves from the host to the GPU
    key: str = ""  # Key that later items list in `needs`; "" = all later items wait for a load, none for a store
    needs: tuple[str, ...] = ()  # Same as Compute.needs
    weights: bool = False  # Same as Compute.weights


Item = Compute | GroupCollective | RingMessage | Memory
Items = list[Item]


READ_MICROS = 20
"""Microseconds from the end of the kernel that computes a number to the start of the next kernel, if the host reads the
number between them (Tensor.item): the kernel's end, a copy of 4 bytes over PCIe and the host's wake-up take 10, the
launch of the next kernel from Python 10. Assumed; the queue of launches is empty meanwhile."""
RESTART_MICROS = 200
"""Microseconds until the GPU has work again if the host reads a number in the middle of a pass. Assumed: 20 calls of
operators of 10 each, of a message between stages or of autograd, and of the first module of Transformer Engine."""


def reads_number(plan: ParallelPlan, name: str, further_micros: int = 0, needs: tuple[str, ...] = ()) -> Items:
    """Return the item of a host that reads a number of the GPU, which waits for it; no item without hosts.

    Args:
        plan: The settled parallel plan.
        name: The name of the item.
        further_micros: The microseconds of what the host does before it launches the next kernel.
        needs: The keys of items that the host waits for.
    """
    if "host" in plan.without:
        return []
    return [Compute(name, (), needs, on_host_micros=READ_MICROS + further_micros)]


def only(items: Items, *, weights: bool) -> Items:
    """Return the items of one half of a split backward pass, whose other half ends long before.

    The `needs` that name items of the other half are dropped.

    Args:
        items: The items of the whole backward pass.
        weights: Whether to return the gradients of weights; else everything else.
    """
    chosen = [item for item in items if item.weights == weights]
    keys = {item.key for item in chosen}
    return [item._replace(needs=tuple(key for key in item.needs if key in keys)) for item in chosen]


# ZeRO-3 of DeepSpeed in 2021, which gathered each tensor by itself into a list of one view per GPU (`gather=list`).
#
# The steps for each tensor, from the sources of that time (DeepSpeed 0.3.13 to 0.5, partition_parameters.py and
# stage3.py in runtime/zero; PyTorch 1.8, torch/lib/c10d/ProcessGroupNCCL.cpp):
#
# - `_allgather_param` fills a flat tensor with zeros, waits until the device is idle, creates a view of it for each GPU
#   in a Python loop, and calls all_gather with the list of views. PyTorch gathers into a separate tensor, then copies
#   each GPU's share from there into its view with one kernel launch per share.
# - `_reduce_scatter_gradient` creates such a list of the gradient; PyTorch first copies each view into a flat tensor.
#   DeepSpeed fetches the next module's tensors when the device is idle again, so that no reduction overlaps
#   computation.
# - Tensors of fewer than PERSISTENT elements stay unsharded on all GPUs until the optimizer's step. After it, one
#   all-gather brings all of them, and `_allgather_params` unpacks them in a loop over tensors and GPUs.
# - DeepSpeed drops a tensor after its module unless the tensor is used again within MAX_REUSE elements of other
#   tensors. If whole layers are recomputed, all but the last tensors of a large layer exceed this distance and are
#   gathered a third time.
#
# DeepSpeed's PR #1188 (June 2021) states that these copies and waits make ZeRO-3 slow and that PyTorch's
# `_all_gather_base` avoids them; PR #1453 adopted it. Until PR #1170 (June 2021) the traced order of modules was off by
# one, and without a trace nothing is prefetched: `prefetch=0`.


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
    """Return the creation of a tensor's list of views, and its all-gather.

    Args:
        tensor: The tensor that is gathered or reduced.
        value_bytes: The bytes per value.
        key: The key that later items need to wait for the all-gather.
        needs: The keys of items that the list and the all-gather wait for.
    """
    size = tensor.share * value_bytes
    kind = CollectiveCommType.ALL_GATHER
    return [
        _views(tensor, needs),
        GroupCollective(f"{tensor.name}/dp:all-gather", kind, size, tensor.family, key, needs),
    ]


def unpacked(tensor: ListedTensor, dtype: str, gather_key: str) -> Compute:
    """Return the zero fill of a flat tensor, and the copies into it after its all-gather.

    Args:
        tensor: The tensor that is gathered or reduced.
        dtype: The data type of the values.
        gather_key: The key of the tensor's all-gather.
    """
    zeros = Operator("elementwise", (tensor.share * tensor.members, 0, 1), dtype)
    return Compute(f"{tensor.name}/unpack", (zeros, _copies(tensor, dtype)), needs=(gather_key,))


def reduce(tensor: ListedTensor, value_bytes: int, dtype: str, key: str) -> Items:
    """Return the creation of a gradient's list, the copies of its entries, and the reduce-scatter.

    Args:
        tensor: The tensor of the gradients.
        value_bytes: The bytes per gradient.
        dtype: The data type of the gradients.
        key: The key that later items need to wait for the reduce-scatter.
    """
    size = tensor.share * tensor.members * value_bytes
    return [
        _views(tensor),
        Compute(f"{tensor.name}/pack", (_copies(tensor, dtype),)),
        GroupCollective(
            f"{tensor.name}/dp:reduce-scatter", CollectiveCommType.REDUCE_SCATTER, size, tensor.family, key
        ),
    ]


def gather_persistent(tensors: list[ListedTensor], value_bytes: int, dtype: str) -> Items:
    """Return the gather of one family's unsharded tensors after a step.

    Args:
        tensors: The unsharded tensors, all of one family of groups.
        value_bytes: The bytes per value.
        dtype: The data type of the values.
    """
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
    """Return whether a tensor of a layer is dropped between the layer's recomputation and its backward pass.

    Args:
        sizes: The number of elements of each tensor of the layer, in the order of the forward pass.
        tensor_number: The index of the tensor in `sizes`.
    """
    # The layer's later tensors are used twice between them, forward and backward. `sizes` are the numbers of elements
    # of the layer's tensors, in the order of the forward pass.
    return 2 * sum(sizes[tensor_number + 1 :]) >= MAX_REUSE


def _views(tensor: ListedTensor, needs: tuple[str, ...] = ()) -> Compute:
    return Compute(f"{tensor.name}/views", (), needs, on_host_micros=_micros(tensor.members * VIEW_NANOS))


def _copies(tensor: ListedTensor, dtype: str) -> Operator:
    return Operator("copies", (tensor.members, tensor.share), dtype)


def _micros(nanos: int) -> int:
    return max(1, round(nanos / 1000))


# Tensor-parallel communication in pieces that overlap the adjacent products.
#
# The model is Transformer Engine's userbuffers (comm_gemm_overlap; tp_comm_overlap of Megatron-LM). The first piece of
# an all-gather precedes the product of the first piece of rows, and the other pieces overlap products. The pieces of a
# reduction follow the product of their rows, and later items wait for the last piece only. Because a piece is a range
# of rows, only operators that treat each row separately are cut: attention's core is not.


PIECES = 4  # Number of pieces per collective, the same for all group sizes: an assumption of the model
_BY_ROWS = ("gemm", "norm", "norm-backward", "elementwise", "dropout")
_REDUCTIONS = (CollectiveCommType.REDUCE_SCATTER, CollectiveCommType.ALL_REDUCE)


def overlapped(items: Items) -> Items:
    """Return items in which each all-gather before, and each reduction after, a computation by rows is cut with it.

    Args:
        items: The items of a part of a pass, in order.
    """
    result: Items = []
    number = 0
    for item in items:
        before = result[-1] if result else None
        if isinstance(item, Compute) and _is_waited_for(before, CollectiveCommType.ALL_GATHER) and _is_by_rows(item):
            assert isinstance(before, GroupCollective)  # noqa: S101 - for the type checker: _is_waited_for checks it
            result[-1:] = _gathered(before, item, number)
            number += 1
        elif (
            isinstance(item, GroupCollective)
            and _is_waited_for(item, *_REDUCTIONS)
            and not item.name.startswith("loss")
        ):
            first = _first_piece(result)
            result[first:] = _reduced(result[first:], item, number)
            number += 1
        else:
            result.append(item)
    return result


def _is_waited_for(item: object, *kinds: CollectiveCommType) -> bool:
    return isinstance(item, GroupCollective) and item.family == "tp" and not item.key and item.kind in kinds


def _is_by_rows(item: Compute) -> bool:
    return bool(item.operators) and all(operator.kind in _BY_ROWS for operator in item.operators)


def _gathered(gather: GroupCollective, compute: Compute, number: int) -> Items:
    """Return the pieces of an all-gather, then the pieces of a computation, each of which waits for its gather."""
    # number: distinguishes the keys of the pieces.
    sizes, computes = shares(gather.bytes), _pieces(compute)
    keys = [f"piece {number}.{i}" for i in range(PIECES)]
    gathers = [gather._replace(bytes=size, key=key) for size, key in zip(sizes, keys, strict=True)]
    waiting = [each._replace(needs=(*each.needs, key)) for each, key in zip(computes, keys, strict=True)]
    return [*(each for each in gathers if each.bytes), *waiting]


def _first_piece(items: Items) -> int:
    """Return the index of the last computation if it is by rows, or of its first piece if it is cut already."""
    # The result is len(items) if the last item is no such computation.
    at = len(items)
    last = items[-1] if items else None
    if isinstance(last, Compute) and _is_by_rows(last):
        at -= 1
        while at and isinstance(item := items[at - 1], Compute) and item.name == last.name:
            if not any(key.startswith("piece") for key in item.needs):
                break
            at -= 1
    return at


def _reduced(computes: Items, reduction: GroupCollective, number: int) -> Items:
    """Return the pieces of a computation (or the pieces given), each followed by its piece of the reduction."""
    # number: distinguishes the keys of the pieces.
    if not computes:
        return [reduction]
    pieces = computes if len(computes) > 1 else list(_pieces(computes[0])) if isinstance(computes[0], Compute) else []
    keys = [f"reduced {number}.{i}" for i in range(PIECES)]
    result: Items = []
    for compute, size, key in zip(pieces, shares(reduction.bytes), keys, strict=True):
        result += [compute, reduction._replace(bytes=size, key=key)]
    return [*result[:-1], reduction._replace(bytes=shares(reduction.bytes)[-1])]


def shares(total: int) -> list[int]:
    """Return PIECES nearly equal integers.

    Args:
        total: The sum of the integers.
    """
    return [total * (i + 1) // PIECES - total * i // PIECES for i in range(PIECES)]


def _pieces(compute: Compute) -> list[Compute]:
    """Return the pieces of a computation, each with a share of the rows of all operators."""
    cut = [
        [operator._replace(shape=(rows, *operator.shape[1:])) for rows in shares(operator.shape[0])]
        for operator in compute.operators
    ]
    return [compute._replace(operators=tuple(operators)) for operators in zip(*cut, strict=True)]


# Copies between a layer's tensors and the flat buffers that PyTorch FSDP gathers into and reduces from.
#
# PyTorch's `fully_shard` (FSDP2) shards each tensor along its first dimension, so that the result of a layer's
# all-gather is ordered by GPU and not by tensor. Two copies of the whole layer run on the computation's stream, where
# they overlap nothing (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py and _fsdp_param_group.py):
#
# - `foreach_all_gather_copy_out` waits for the all-gather, then copies the flat buffer into the tensors. This happens
#   before the forward pass of each layer, and before its backward pass if parameters are gathered again.
# - `foreach_reduce_scatter_copy_in` copies the gradients into the flat buffer, in the data type of the reduction.
#   Before it, `post_backward` makes the computation wait for the reduce-scatter of the previous layer and then frees
#   its buffer.
#
# The copies of a GPU's own share (copy-in of the all-gather, gradients after the reduce-scatter) run on other streams
# and are smaller by the number of replicas, so Nadi leaves them out. FSDP1 (`FullyShardedDataParallel`) gathers into
# one flat parameter whose views are the tensors, so it copies gradients only (`copies=gradients` of a plan).


def copied_out(layer: str, values: int, plan: ParallelPlan, gather_keys: Sequence[str]) -> Compute:
    """Return the copy of a layer's gathered parameters from a flat buffer into tensors.

    Args:
        layer: The prefix of the layer's names.
        values: The number of parameters, padding included.
        plan: The settled parallel plan.
        gather_keys: The keys of the all-gathers that the copy waits for.
    """
    size = _parameter_bytes(plan)
    return Compute(f"{layer}/copy-out", (_copy(values, size, size),), tuple(gather_keys))


def copied_in(layer: str, values: int, plan: ParallelPlan, reduction_keys: Sequence[str]) -> Compute:
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
