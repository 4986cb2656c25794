"""State of a checkpoint independent of a division of the fabric: names of queue pairs, nodes and lists.

A queue pair is named by its NPU and its ordinal among the NPU's queue pairs, nodes and links by their numbers in the
fabric, messages and active collectives by the lists that hold them. Local numbers of a world follow from these.
Packets are plain arrays (pdes/construction/packets.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nadi.pdes.construction import packets as plain_packets
from nadi.pdes.construction.layout import LogicalProcess, Part, offsets
from nadi.pdes.core import Int64, packet, state as s

PAIR_MASK = (1 << 24) - 1  # of the field `sender_pair` of word 2
PAIR_SHIFT = 24


class QueuePairs:
    """New numbers of all queue pairs of a run: those of an NPU keep their order, which decides between equal times."""

    def __init__(self, npu_of_pair: Sequence[Int64], old_owner: Int64, owner: Int64, npus: int) -> None:
        """Number the queue pairs.

        Args:
            npu_of_pair: NPU of each queue pair, an int64[queue pairs] per old LP.
            old_owner: int64[nodes], LP of each node in the saved run.
            owner: int64[nodes], LP of each node now.
            npus: Number of NPUs of the fabric.
        """
        self._ptr = offsets([len(each) for each in npu_of_pair])
        self._old_owner = old_owner
        npu = np.concatenate([*npu_of_pair, np.zeros(0, np.int64)]).astype(np.int64)
        count = np.bincount(npu, minlength=npus)
        order = np.argsort(owner[:npus], kind="stable")  # NPUs by their LPs, ascending in each
        before = np.zeros(npus, np.int64)
        before[order] = np.cumsum(count[order]) - count[order]
        first_npu = order[np.searchsorted(owner[order], owner[:npus])]  # the first of the same LP
        begin = before - before[first_npu]
        by_npu = np.argsort(npu, kind="stable")
        ordinal = np.zeros(len(npu), np.int64)
        ordinal[by_npu] = np.arange(len(npu)) - np.repeat(offsets(count)[:-1], count)
        self._new = begin[npu] + ordinal

    def of_lp(self, number: int) -> Int64:
        """Return the new numbers of the queue pairs of an old LP.

        Args:
            number: Number of the LP in the division of the checkpoint.
        """
        return self._new[self._ptr[number] : self._ptr[number + 1]]

    def renumbered(self, word1: Int64, word2: Int64) -> Int64:
        """Return words 2 of packets with new numbers of queue pairs.

        Args:
            word1: int64[n], words 1 of the packets (pdes/core/packet.py).
            word2: int64[n], their words 2 with old numbers.
        """
        sender, pair = plain_packets.sending_pairs(word1, word2)
        number = self._number(sender, pair)
        return np.where(pair < 0, word2, (word2 & ~(PAIR_MASK << PAIR_SHIFT)) | (number << PAIR_SHIFT))

    def receiver_keys(self, keys: Int64) -> Int64:
        """Return keys of receiving queue pairs, dst << 44 | src << 24 | queue pair of src, with new numbers."""
        number = self._number(packet.key_source(keys), keys & packet.PSN_MASK)
        return (keys & ~np.int64(packet.PSN_MASK)) | number

    def _number(self, npu: Int64, pair: Int64) -> Int64:
        """Return the new number of a queue pair of an NPU by its old number, 0 for the number -1."""
        at = self._ptr[self._old_owner[npu]] + np.maximum(pair, 0)
        return np.where(pair < 0, 0, np.append(self._new, 0)[np.minimum(at, len(self._new))])


def looked_up(table: Int64, numbers: Any, plus: int = 0) -> Int64:
    """Return the new numbers of a word that holds an old number + plus, or less than plus for none.

    Args:
        table: int64[old numbers], the new number of each old one.
        numbers: Values of the word.
        plus: Offset that the word adds to a number.
    """
    numbers = np.asarray(numbers, np.int64)
    old = numbers - plus
    if len(table) == 0:
        return numbers
    return np.where(old >= 0, table[np.clip(old, 0, len(table) - 1)] + plus, numbers)


def walked(heads: Any, following: Any) -> Int64:
    """Return all members of the lists that begin at `heads` (-1: empty); following: the next of each, -1 at the end."""
    found = []
    at = np.asarray(heads, np.int64)
    at = at[at >= 0]
    # all lists advance together, one element in each round
    while len(at):
        found.append(at)
        at = following[at].astype(np.int64)
        at = at[at >= 0]
    return np.concatenate([*found, np.zeros(0, np.int64)])


@dataclass(eq=False)
class Shared:
    """What an old LP, whose world is `world`, and a new one, `lp`, have in common; pairs of old and new numbers."""

    part: Part  # of the old LP
    world: s.World
    lp: LogicalProcess
    slot_ptr: Int64  # int64[NPUs of the program + 1] group slots of each NPU
    node: Int64  # new number of each old node, -1: of another LP
    link: Int64  # new row of `tx` of each old outgoing link, -1: of another LP
    pairs: QueuePairs  # new numbers of all queue pairs
    pair: Int64  # new number of each old queue pair, whose NPU may be of another LP
    message: Int64  # new row of `msg` of each old one that is in use, -1
    collective: Int64  # new row of `inst`, likewise

    @property
    def nodes(self) -> tuple[Int64, Int64]:
        """Old and new numbers of the nodes that both have."""
        old = np.flatnonzero(self.node >= 0)
        return old, self.node[old]

    @property
    def npus(self) -> tuple[Int64, Int64]:
        """Old and new numbers of the NPUs that both have."""
        old, new = self.nodes
        is_npu = old < self.part.npus
        return old[is_npu], new[is_npu]

    @property
    def links(self) -> tuple[Int64, Int64]:
        """Old and new rows of the outgoing links that both have."""
        old = np.flatnonzero(self.link >= 0)
        return old, self.link[old]


def shared_by(part: Part, world: s.World, lp: LogicalProcess, slot_ptr: Int64, pairs: QueuePairs) -> Shared:
    """Return what an old LP and a new one have in common.

    Args:
        part: Nodes and links of the old LP.
        world: State of the old LP.
        lp: The new LP.
        slot_ptr: int64[npus + 1], first group slot of each NPU (Program.slot_ptr).
        pairs: New numbers of all queue pairs.
    """
    place = np.full(int(max(part.links.max(initial=-1), lp.part.links.max(initial=-1))) + 1, -1, np.int64)
    place[lp.part.links] = np.arange(len(lp.part.links))
    none = np.full(0, -1, np.int64)
    node, pair = lp.part.local[part.nodes], pairs.of_lp(part.number)
    return Shared(part, world, lp, slot_ptr, node, place[part.links], pairs, pair, none, none)


# Packets in queues and under way between worlds, as plain arrays and back.
