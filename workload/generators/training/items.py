"""Items: the computations, collectives, messages and host-memory transfers of one GPU in a part of a pass, in order.

The modules of the layers return lists of items; `workload.generators.training.blocks` turns them into trace rows.
"""

from typing import NamedTuple

from et import CollectiveCommType
from workload.compute.operators import Operator


class Compute(NamedTuple):
    """A sequence of operators that starts when the previous computation and everything it waits for have ended.

    Attributes:
        name: Name within the layer, for example "attention".
        operators: Operators in the order of execution.
        needs: Keys of the overlapped collectives and messages that must end before the computation starts.
        weights: Whether the operators compute gradients of weights, which a split backward pass defers.
        on_host_micros: Duration in microseconds if the host computes it; 0 = the accelerator computes it.
    """

    name: str
    operators: tuple[Operator, ...]
    needs: tuple[str, ...] = ()
    weights: bool = False
    on_host_micros: int = 0


class GroupCollective(NamedTuple):
    """A collective in the GPU's group of a group family.

    Attributes:
        name: Name within the layer, for example "attention/tp:all-gather".
        kind: Type of the collective operation.
        bytes: comm_size of the trace: a member's contribution to an all-gather, else a member's whole buffer.
        family: Name of the group family, for example "tp".
        key: Key that later items list in `needs` to wait for the collective; "" = all later items wait for it.
        needs: Same as Compute.needs.
        weights: Same as Compute.weights.
        splits: Amounts that an uneven all-to-all sends to, and receives from, each member, both in the same unit.
    """

    name: str
    kind: CollectiveCommType
    bytes: int
    family: str
    key: str = ""
    needs: tuple[str, ...] = ()
    weights: bool = False
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


class RingMessage(NamedTuple):
    """A send to the next GPU, or a receive from the previous GPU, of the ring of context parallelism.

    Attributes:
        name: Name within the layer, for example "attention/cp:send".
        bytes: Message size in bytes.
        receives: Whether the message comes from the previous neighbour; otherwise it is sent to the next one.
        tag: Message tag, the same at the sender and the receiver.
        key: Key that later items list in `needs` to wait for it; "" = no item waits for it (a send).
        needs: Same as Compute.needs.
        weights: Same as Compute.weights.
        is_early: Whether the message waits for its `needs` alone and not for the previous computation.
    """

    name: str
    bytes: int
    receives: bool
    tag: int
    key: str = ""
    needs: tuple[str, ...] = ()
    weights: bool = False
    is_early: bool = False


class Memory(NamedTuple):
    """A transfer of a tensor from or to the host's memory.

    Attributes:
        name: Name within the layer, for example "memory:load".
        bytes: Tensor size in bytes.
        loads: Whether the tensor moves from the host to the GPU.
        key: Key that later items list in `needs` to wait for it; "" = all later items wait for a load, none for a
            store.
        needs: Same as Compute.needs.
        weights: Same as Compute.weights.
    """

    name: str
    bytes: int
    loads: bool
    key: str = ""
    needs: tuple[str, ...] = ()
    weights: bool = False


Item = Compute | GroupCollective | RingMessage | Memory
Items = list[Item]


def only(items: Items, *, weights: bool) -> Items:
    """Return the items of one half of a split backward pass: gradients of weights, or everything else.

    The other half ends long before the pass of the weights, so the function drops the `needs` that name its items.
    """
    chosen = [item for item in items if item.weights == weights]
    keys = {item.key for item in chosen if not isinstance(item, Compute)}
    return [item._replace(needs=tuple(key for key in item.needs if key in keys)) for item in chosen]
