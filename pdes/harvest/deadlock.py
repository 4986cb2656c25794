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
    onward: dict[int, list[int]] = {}
    for _link, src, dst in held[np.argsort(held[:, 0])].tolist():
        onward.setdefault(src, []).append(dst)
    done = set()
    for begin, ends in onward.items():
        path, at = [begin], {begin: 0}
        ways = [iter(ends)]
        while ways:
            node = next(ways[-1], None)
            if node is None:
                ways.pop()
                left = path.pop()
                del at[left]
                done.add(left)
            elif node in at:
                return path[at[node] :]
            elif node in onward and node not in done:
                at[node] = len(path)
                path.append(node)
                ways.append(iter(onward[node]))
    return []
