"""Where outboxes lie, and where the neighbours find what is for them."""

from collections.abc import Callable, Sequence

from pdes.build.part import Part
from pdes.core.inputs import Int64
from pdes.core.memory import zeros
from pdes.network.boundary import WORD_BYTES


class Post:
    """Outboxes of LPs, all in memory that this process sees.

    Args:
        parts: the LPs.
        memory: words -> int64[words] of zeros; new memory if not given.
    """

    def __init__(self, parts: Sequence[Part], memory: Callable[[int], Int64] = zeros) -> None:
        self._neighbours = {part.number: part.neighbours for part in parts}
        self._at = {part.number: part.outbox_at() for part in parts}
        self.outbox = {number: memory(int(at[-1])) for number, at in self._at.items()}

    def address(self, sender: int, receiver: int, half: int) -> int:
        """Address of the half of the sender's outbox that is for the receiver."""
        at = self._at[sender][2 * self._neighbours[sender].index(receiver) + half]
        return self.outbox[sender].ctypes.data + WORD_BYTES * int(at)
