"""The part of the fabric that one logical process holds, its links to other LPs, and where outboxes lie.

An LP numbers its own nodes in the order of their numbers in the whole fabric, so its NPUs come first, and its outgoing
links node by node. Behind them stand the links that come from other LPs, neighbour by neighbour. Links between two LPs
are numbered, on both sides, in the order of their numbers in the whole fabric.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from pdes.build.fabric import Fabric
from pdes.core.inputs import Graph, Int64, Rows
from pdes.core.link_words import link_meta
from pdes.core.memory import rows_of, zeros
from pdes.core.rows.network import OutgoingLink
from pdes.network.boundary import FAR_WINDOWS, HEADER_WORDS, WORD_BYTES


def offsets(counts: ArrayLike) -> Int64:
    """CSR offsets of counts."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))


class Part:
    """Nodes and links of one LP.

    Attributes:
        number: of the LP.
        crossing_words: of a packet in an outbox.
        nodes: int64[n], own nodes' numbers in the fabric, ascending.
        npus: how many of them are NPUs; they come first.
        local: int64[nodes of the fabric], own number of a node, -1 = another LP's.
        links: int64[m], own outgoing links' numbers in the fabric, node by node.
        out_ptr: int64[n + 1], own outgoing links of a node.
        neighbours: numbers of the LPs to which links go, ascending.
        links_out, links_in: per neighbour, int64[] links to it and from it, ascending.
        rooms: per neighbour, the most packets that go there in a window.
        rooms_in: per neighbour, the most that come from there.
        outer: the first of the switches that act before all other nodes, by own number; as many as nodes: none do.
        splits: these switches alone send to other nodes of a cluster, see `send_first`.
    """

    def __init__(self, graph: Graph, fabric: Fabric, owner: Int64, number: int, lookahead_ps: int) -> None:
        self.number = number
        self.crossing_words = fabric.crossing_words
        self.nodes = np.flatnonzero(owner == number)
        self.npus = int(np.searchsorted(self.nodes, graph.npus))
        self.local = np.full(graph.nodes, -1, np.int64)
        self.local[self.nodes] = np.arange(len(self.nodes))
        src, dst = graph.link_src, graph.link_dst
        own = np.flatnonzero(owner[src] == number)
        self.links = own[np.argsort(self.local[src[own]], kind="stable")]
        self.out_ptr = offsets(np.bincount(self.local[src[self.links]], minlength=len(self.nodes)))
        leaving = own[owner[dst[own]] != number]
        coming = np.flatnonzero((owner[dst] == number) & (owner[src] != number))
        self.neighbours = np.unique(owner[dst[leaving]]).tolist()
        self.links_out = [leaving[owner[dst[leaving]] == other] for other in self.neighbours]
        self.links_in = [coming[owner[src[coming]] == other] for other in self.neighbours]
        packet_ps = np.maximum((fabric.smallest_bytes * fabric.fastest_psb + 0.5).astype(np.int64), 1)
        most = FAR_WINDOWS * lookahead_ps // packet_ps + 2
        self.rooms = [int(most[links].sum()) for links in self.links_out]
        self.rooms_in = [int(most[links].sum()) for links in self.links_in]
        self.outer = len(self.nodes)
        self.splits = False

    def send_first(self, graph: Graph, away: Collection[int]) -> None:
        """Have switches with links to these LPs act before other nodes, if no NPU has such links.

        The first of them and all that are numbered higher are taken for such switches: builders of fabrics number those
        of higher tiers, which have the links between parts, behind the others.
        """
        links = [links for other, links in zip(self.neighbours, self.links_out, strict=True) if other in away]
        senders = self.local[graph.link_src[np.concatenate([*links, np.zeros(0, np.int64)]).astype(np.int64)]]
        first = int(senders.min(initial=len(self.nodes)))
        if first >= self.npus:
            self.outer, self.splits = first, True

    def half_words(self, room: int) -> int:
        """Length of half an outbox that holds so many packets, in whole cache lines."""
        return HEADER_WORDS + -(-room * self.crossing_words // 8) * 8

    def outbox_at(self) -> Int64:
        """int64[neighbours x 2]: where the halves begin, and behind them the length of the outbox."""
        return offsets([self.half_words(room) for room in self.rooms for _ in range(2)])

    def tx_rows(self, graph: Graph, fabric: Fabric, owner: Int64) -> Rows:
        """The `tx` table: own outgoing links, then those that come from other LPs."""
        links = np.concatenate([self.links, *self.links_in]).astype(np.int64)
        neighbour = np.full(int(owner.max()) + 1, -1, np.int64)
        neighbour[self.neighbours] = np.arange(len(self.neighbours))
        dst = graph.link_dst[links]
        node = np.where(self.local[dst] >= 0, self.local[dst], len(self.nodes) + neighbour[owner[dst]])
        return rows_of(OutgoingLink, len(links), meta=link_meta(node, links, fabric.link_class[links]))

    def far(self, graph: Graph) -> Int64:
        """int64[own links]: place of a link among those to its neighbour."""
        place = np.zeros(graph.links, np.int64)
        for links in self.links_out:
            place[links] = np.arange(len(links))
        return place[self.links]

    def ghost(self) -> Int64:
        """int64[neighbours]: `tx` row of the first link that comes from a neighbour."""
        return offsets([len(self.links), *(len(links) for links in self.links_in)])[1:-1]


class Outboxes:
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
