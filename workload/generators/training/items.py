"""Items: the computations, collectives, messages and host-memory transfers of one GPU in a part of a pass, in order.

The modules of the layers return lists of items; `workload.generators.training.blocks` turns them into trace rows.
"""

from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator


class Compute(NamedTuple):
    """A sequence of operators that starts when the previous computation and everything it waits for have ended."""

    name: str  # Name within the layer, for example "attention"
    operators: tuple[Operator, ...]  # Operators in the order of execution
    needs: tuple[str, ...] = ()  # Keys of overlapped collectives and messages that must end before it starts
    weights: bool = False  # Whether the operators compute gradients of weights, which a split backward pass defers
    on_host_micros: int = 0  # Duration in microseconds if the host computes it; 0 = the accelerator computes it


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


def only(items: Items, *, weights: bool) -> Items:
    """Return the items of one half of a split backward pass: gradients of weights, or everything else."""
    # The other half ends long before the pass of the weights, so the function drops the `needs` that name its items.
    chosen = [item for item in items if item.weights == weights]
    keys = {item.key for item in chosen if not isinstance(item, Compute)}
    return [item._replace(needs=tuple(key for key in item.needs if key in keys)) for item in chosen]
