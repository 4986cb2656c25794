"""Paths of good acknowledgements again, else paths in turn without penalties (UecMpMixed of htsim, its default)."""

import numpy as np

from nadi.pdes.core.jit import hook, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import PairPaths
from nadi.pdes.core.state import MAX_PATHS, PATH_CHOOSE, PATH_FORGET, PATH_GOOD, SELECTIVE_PACKETS, world_at
from nadi.pdes.nic.entropy._turns import next_unpunished, punish

TITLE = "paths of unmarked acknowledgements again, in their order; without any, as bitmap"
LEARNS = True
RECYCLES = True


class MixedPaths(PairPaths, words=16):
    """Paths of a queue pair with the rule `mixed`."""

    added = word("count", "paths that have entered the queue of good ones")
    taken = word("count", "paths that have left it")


of_rule = seen_as(MixedPaths)


@hook
def act(world_address, operation, pair, path, _now):
    """Return a path that was good, or the next without a penalty, with PATH_CHOOSE; else note what has happened.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: PATH_CHOOSE, or what has happened on `path`.
        pair: Row of the queue pair in `qps.qp`.
        path: Number of the path.
        _now: Not used here.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    own = of_rule(qps.paths)[pair]
    base = pair * SELECTIVE_PACKETS
    if operation == PATH_CHOOSE:
        taken = own.taken
        if taken < own.added:
            own.taken = taken + 1
            return np.int64(qps.path_good[base + (taken & (SELECTIVE_PACKETS - 1))]) & (MAX_PATHS - 1)
        return np.int64(next_unpunished(net, qps, pair))
    if operation == PATH_GOOD:
        # The queue never overflows: since it was empty, each packet sent has taken one, so it holds at most as many as
        # the packets under way have become fewer.
        added = own.added
        qps.path_good[base + (added & (SELECTIVE_PACKETS - 1))] = path
        own.added = added + 1
    elif operation == PATH_FORGET:
        own.added = own.taken = 0
    else:
        punish(net, qps, pair, path, operation)
    return np.int64(0)
