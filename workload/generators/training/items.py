"""What a GPU does in a part of a pass, one after another: computations, collectives and messages.

Layers make lists of items; `workload.generators.training.blocks` makes rows of a trace of them.
"""

from typing import NamedTuple

from et import CollectiveCommType
from workload.compute.operators import Operator


class Compute(NamedTuple):
    """Operators, after the computation before and after what that one waits for.

    Attributes:
        name: within its layer, "attention".
        operators: done one after another.
        needs: keys of collectives and messages beside earlier computations that must be done first.
        weights: it works out gradients of weights, which a split backward pass leaves for later.
        on_host_micros: the host does it, and takes so long; 0 = the accelerator does.
    """

    name: str
    operators: tuple[Operator, ...]
    needs: tuple[str, ...] = ()
    weights: bool = False
    on_host_micros: int = 0


class GroupCollective(NamedTuple):
    """A collective of a GPU's group of a family.

    Attributes:
        name: within its layer, "attention/tp:all-gather".
        kind: which.
        bytes: comm_size as traces count it: a member's contribution to an all-gather, else its whole buffer.
        family: of groups.
        key: "" = what comes after waits for it; else only what needs this key does.
        needs: as of Compute.
        weights: as of Compute.
        splits: of an uneven all-to-all, what goes to each member, and what comes from each, in the same unit.
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
    """A send to, or a receive from, a neighbour in the ring of a family.

    Attributes:
        name: within its layer, "attention/cp:send".
        bytes: of the message.
        receives: whether it is the receive, from the neighbour before; sends go to the one after.
        tag: of both ends.
        key: what needs it; "" = a send that nobody waits for.
        needs: as of Compute.
        weights: as of Compute.
        is_early: it waits for what it needs only, not for the computation before.
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
    """A tensor that comes from the host's memory, or goes there.

    Attributes:
        name: within its layer, "memory:load".
        bytes: of the tensor.
        loads: whether it comes.
        key: what needs it; "" = what comes after waits, but for what goes nobody.
        needs: as of Compute.
        weights: as of Compute.
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
    """Items of a split backward pass: those that work out gradients of weights, or the others.

    What the others did before is long done when the weights' pass comes, so that nothing of it is needed any more.
    """
    chosen = [item for item in items if item.weights == weights]
    keys = {item.key for item in chosen if not isinstance(item, Compute)}
    return [item._replace(needs=tuple(key for key in item.needs if key in keys)) for item in chosen]
