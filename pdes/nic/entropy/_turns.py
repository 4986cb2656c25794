"""What entropy rules share: the permutation of a queue pair's paths, penalties, and random choices."""

import numpy as np

from nadi.pdes.core.algorithms import mix3
from nadi.pdes.core.jit import inline
from nadi.pdes.core.state import PATH_DROPPED, PATH_MARKED, PATH_TIMED_OUT, PATH_TRIMMED

MAX_PENALTY = 15  # UecMpBitmap::_max_penalty, and the penalty of a timeout
MARK_PENALTY, TRIM_PENALTY = 1, 4  # UecMpBitmap::processEv: of PATH_ECN and PATH_NACK
MAX_PORTS = 8  # ports of a NIC, each in a plane of its own


@inline
def path_at(net, paths, turn):
    """Return the path of turn number `turn`: each round of all paths has an order of its own.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        paths: Paths of the queue pair (row of `qps.paths`).
        turn: Turns of the queue pair before this one, since its last pause.
    """
    # Example: of 64 paths, turn 130 is number 2 of round 2: path 2 xor bits 3 to 5 of that hash. The lowest bits
    # keep their order in all rounds, so that each of up to MAX_PORTS ports of a NIC gets every so many packets exactly.
    order = mix3(paths.salt, 0x70BD, turn // net.const.paths) & ~(MAX_PORTS - 1)
    return (turn ^ order) & (net.const.paths - 1)


@inline
def at_random(net, paths):
    """Return a random path of a queue pair.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        paths: Paths of the queue pair (row of `qps.paths`).
    """
    paths.draws += 1
    return mix3(paths.salt, 0xD7A3, paths.draws) & (net.const.paths - 1)


@inline
def next_unpunished(net, qps, pair):
    """Return the next path in turn without a penalty; the first one with a penalty loses one of it.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    # as UecMpBitmap::nextEntropy: if all paths have penalties, the one behind a whole round is taken all the same
    paths = qps.paths[pair]
    base = pair * net.const.paths
    path = path_at(net, paths, paths.position)
    if qps.penalty[base + path] > 0:
        qps.penalty[base + path] -= 1
        for _ in range(net.const.paths):
            paths.position += 1
            path = path_at(net, paths, paths.position)
            if qps.penalty[base + path] <= 0:
                break
    paths.position += 1
    return path


@inline
def punish(net, qps, pair, path, what):
    """Add the penalty of an event to a path.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        path: Number of the path.
        what: The event; PATH_GOOD changes nothing.
    """
    added = np.int64(0)
    if what == PATH_MARKED:
        added = np.int64(MARK_PENALTY)
    elif what == PATH_TRIMMED:
        added = np.int64(TRIM_PENALTY)
    elif what == PATH_TIMED_OUT or what == PATH_DROPPED:
        added = np.int64(MAX_PENALTY)
    at = pair * net.const.paths + path
    qps.penalty[at] = min(np.int64(qps.penalty[at]) + added, MAX_PENALTY)
