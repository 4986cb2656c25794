"""The layout that all workers of a run agree on: which logical process owns which nodes, and the window length."""

import numpy as np
from numpy.typing import ArrayLike

from pdes.build.fabric import Fabric
from pdes.build.part import Part
from pdes.build.settings import Settings
from pdes.core.inputs import Graph, Int64


def share(lps: int, workers: int, worker: int) -> range:
    """Return the LPs of one process or rank: consecutive numbers, about as many for each of `workers`."""
    return range(lps * worker // workers, lps * (worker + 1) // workers)


def shares(owner: ArrayLike, workers: int) -> Int64:
    """Return int64[nodes], the process or rank of each node; owner: the LP of each node."""
    owner = np.asarray(owner, np.int64)
    lps = int(owner.max()) + 1
    of_lp = np.concatenate([np.full(len(share(lps, workers, worker)), worker) for worker in range(workers)])
    return of_lp[owner]


class Layout:
    """A fabric divided among LPs.

    Args:
        graph: Graph of the fabric.
        settings: Settings of the packet network.
        owner: int[nodes], the LP of each node, numbered from 0 without gaps; None = one LP.

    Attributes:
        owner: int64[nodes], the LP of each node.
        lps: Number of LPs.
        fabric: Figures of the fabric that all LPs share.
        lookahead_ps: Length of a window in whole cells, at most the reach of any link between LPs; a cell without them.
    """

    def __init__(self, graph: Graph, settings: Settings, owner: ArrayLike | None = None) -> None:
        self.graph = graph
        self.owner = np.zeros(graph.nodes, np.int64) if owner is None else np.asarray(owner, np.int64)
        self.lps = int(self.owner.max()) + 1
        self.fabric = Fabric(graph, settings)
        cut = self.owner[graph.link_src] != self.owner[graph.link_dst]
        cell_ps = self.fabric.cell_ps
        shortest_ps = int(self.fabric.reach_ps[cut].min()) if cut.any() else cell_ps
        self.lookahead_ps = max(1, shortest_ps // cell_ps) * cell_ps

    def part(self, number: int) -> Part:
        """Return the part of one LP."""
        return Part(self.graph, self.fabric, self.owner, number, self.lookahead_ps)

    def pairs(self) -> Int64:
        """Return int64[m, 2]: pairs of LPs with links from the first to the second, sorted."""
        src, dst = (self.owner[ends].astype(np.int64) for ends in (self.graph.link_src, self.graph.link_dst))
        pairs = np.unique((src * self.lps + dst)[src != dst])
        return np.stack([pairs // self.lps, pairs % self.lps], axis=1)

    def share(self, workers: int, worker: int) -> range:
        """Return the LPs of one process or rank out of `workers`."""
        return share(self.lps, workers, worker)
