"""Pauses that wait for each other in a circle: a cyclic buffer dependency has come true, and nothing goes on."""

import numpy as np

from pdes.build.simulation import LogicalProcess
from pdes.core.inputs import Graph, Int64, Rows


def held_links(graph: Graph, lp: LogicalProcess) -> Int64:
    """int64[k, 3]: own links whose port has data that a pause holds back, with their two ends."""
    net = lp.world.net
    if net.hooks.shared_switches == 0:
        return np.zeros((0, 3), np.int64)
    gate: Rows = net.gate[: len(lp.part.links)]
    held = lp.part.links[(gate.mask & gate.paused) != 0]
    return np.stack([held, graph.link_src[held], graph.link_dst[held]], axis=1).astype(np.int64)


def circle(held: Int64) -> list[int]:
    """Nodes of a circle of links, each held back by the switch at its end, whose own link is held back; [] if none.

    Args:
        held: int64[k, 3] of all LPs.
    """
    held = held[np.argsort(held[:, 0])]
    while not (goes_on := np.isin(held[:, 2], held[:, 1])).all():
        held = held[goes_on]
    if not len(held):
        return []
    onward = dict(held[::-1, 1:].tolist())  # from each node by its first link
    path = [int(held[0, 1])]
    while (node := onward[path[-1]]) not in path:
        path.append(node)
    return path[path.index(node) :]
