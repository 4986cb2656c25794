"""The part of the fabric that one logical process holds, its links to other LPs, and the places of outboxes.

An LP numbers its own nodes in the order of their numbers in the whole fabric, so its NPUs come first, and its outgoing
links node by node. The links that come from other LPs follow, neighbour by neighbour. Links between two LPs are
numbered, on both sides, in the order of their numbers in the whole fabric.
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
    """Return the CSR offsets of counts."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))


class Part:
    """Nodes and links of one LP.

    Attributes:
        number: Number of the LP.
        crossing_words: Number of words of a packet in an outbox.
        nodes: int64[n], own nodes' numbers in the fabric, ascending.
        npus: Number of own nodes that are NPUs; they come first.
        local: int64[nodes of the fabric], own number of a node, -1 = another LP's.
        links: int64[m], own outgoing links' numbers in the fabric, node by node.
        out_ptr: int64[n + 1], own outgoing links of a node.
        neighbours: Numbers of the LPs that own links lead to, ascending.
        links_out, links_in: int64[] per neighbour, links to it and from it, ascending.
        rooms: Maximum number of packets that go to each neighbour in a window.
        rooms_in: Maximum number of packets that come from each neighbour in a window.
        outer: Own number of the first switch that acts before all other nodes; number of nodes = no such switch.
        splits: Whether only these switches send to other nodes of a cluster, see `send_first`.
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
        max_packets = FAR_WINDOWS * lookahead_ps // packet_ps + 2
        self.rooms = [int(max_packets[links].sum()) for links in self.links_out]
        self.rooms_in = [int(max_packets[links].sum()) for links in self.links_in]
        self.outer = len(self.nodes)
        self.splits = False

    def send_first(self, graph: Graph, away: Collection[int]) -> None:
        """Let switches with links to the LPs `away` act before other nodes, unless an NPU has such links.

        The first of them and all nodes with higher numbers count as such switches: builders of fabrics number the
        switches of higher tiers, which have the links between parts, after the others.
        """
        links = [links for other, links in zip(self.neighbours, self.links_out, strict=True) if other in away]
        senders = self.local[graph.link_src[np.concatenate([*links, np.zeros(0, np.int64)]).astype(np.int64)]]
        first = int(senders.min(initial=len(self.nodes)))
        if first >= self.npus:
            self.outer, self.splits = first, True

    def half_words(self, room: int) -> int:
        """Return the length of half an outbox for `room` packets, in words, whole cache lines."""
        return HEADER_WORDS + -(-room * self.crossing_words // 8) * 8

    def outbox_at(self) -> Int64:
        """Return int64[neighbours x 2 + 1]: the begin of each half, then the length of the outbox."""
        return offsets([self.half_words(room) for room in self.rooms for _ in range(2)])

    def tx_rows(self, graph: Graph, fabric: Fabric, owner: Int64) -> Rows:
        """Return the `tx` table: own outgoing links, then links that come from other LPs."""
        links = np.concatenate([self.links, *self.links_in]).astype(np.int64)
        neighbour = np.full(int(owner.max()) + 1, -1, np.int64)
        neighbour[self.neighbours] = np.arange(len(self.neighbours))
        dst = graph.link_dst[links]
        node = np.where(self.local[dst] >= 0, self.local[dst], len(self.nodes) + neighbour[owner[dst]])
        return rows_of(OutgoingLink, len(links), meta=link_meta(node, links, fabric.link_class[links]))

    def far(self, graph: Graph) -> Int64:
        """Return int64[own links]: index of each link among the links to its neighbour."""
        place = np.zeros(graph.links, np.int64)
        for links in self.links_out:
            place[links] = np.arange(len(links))
        return place[self.links]

    def ghost(self) -> Int64:
        """Return int64[neighbours]: `tx` row of the first link that comes from each neighbour."""
        return offsets([len(self.links), *(len(links) for links in self.links_in)])[1:-1]


class Outboxes:
    """Outboxes of LPs in memory that this process can access.

    Args:
        parts: Parts of the LPs.
        memory: Allocator, words -> int64[words] of zeros; new private memory by default.
    """

    def __init__(self, parts: Sequence[Part], memory: Callable[[int], Int64] = zeros) -> None:
        self._neighbours = {part.number: part.neighbours for part in parts}
        self._at = {part.number: part.outbox_at() for part in parts}
        self.outbox = {number: memory(int(at[-1])) for number, at in self._at.items()}

    def address(self, sender: int, receiver: int, half: int) -> int:
        """Return the address of the half of the sender's outbox that is for the receiver."""
        at = self._at[sender][2 * self._neighbours[sender].index(receiver) + half]
        return self.outbox[sender].ctypes.data + WORD_BYTES * int(at)
