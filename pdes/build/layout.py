"""Which logical process owns what, and how long windows are: what all workers of a run agree on."""

import numpy as np
from numpy.typing import ArrayLike

from pdes.build.fabric import Fabric
from pdes.build.part import Part
from pdes.build.settings import Settings
from pdes.core.inputs import Graph, Int64


def share(lps: int, workers: int, worker: int) -> range:
    """The LPs of one of so many processes or ranks: about as many each, and neighbours by number."""
    return range(lps * worker // workers, lps * (worker + 1) // workers)


def shares(owner: ArrayLike, workers: int) -> Int64:
    """int64[]: the process or rank of each node; owner: the LP of each node."""
    owner = np.asarray(owner, np.int64)
    lps = int(owner.max()) + 1
    of_lp = np.concatenate([np.full(len(share(lps, workers, worker)), worker) for worker in range(workers)])
    return of_lp[owner]


class Layout:
    """A fabric divided among LPs.

    Args:
        graph: the fabric.
        settings: of the packet network.
        owner: int[nodes], the LP of each node, numbered from 0 without gaps; None = one LP.

    Attributes:
        owner: int64[nodes].
        lps: how many.
        fabric: what all LPs know of the fabric.
        lookahead_ps: length of a window: whole cells, and no link between LPs is shorter; without such links, a cell.
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
        """The part of one LP."""
        return Part(self.graph, self.fabric, self.owner, number, self.lookahead_ps)

    def pairs(self) -> Int64:
        """int64[m, 2]: LPs that have links from the first to the second, in order."""
        src, dst = (self.owner[ends].astype(np.int64) for ends in (self.graph.link_src, self.graph.link_dst))
        found = np.unique((src * self.lps + dst)[src != dst])
        return np.stack([found // self.lps, found % self.lps], axis=1)

    def share(self, workers: int, worker: int) -> range:
        """The LPs of one of so many processes or ranks."""
        return share(self.lps, workers, worker)
