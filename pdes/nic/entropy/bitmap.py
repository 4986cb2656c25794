"""Paths in turn, but those with a penalty lose turns (UecMpBitmap of htsim)."""

import numpy as np

from nadi.pdes.core.jit import hook
from nadi.pdes.core.state import PATH_CHOOSE, world_at
from nadi.pdes.nic.entropy._turns import next_unpunished, punish

TITLE = "all paths in turn, except those with penalties for marks, trims and timeouts"
LEARNS = True


@hook
def act(world_address, operation, pair, path, _now):
    """Return the next path in turn without a penalty, with PATH_CHOOSE; else add the penalty of an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: PATH_CHOOSE, or what has happened on `path`; PATH_FORGET changes nothing.
        pair: Row of the queue pair in `qps.qp`.
        path: Number of the path.
        _now: Not used here.
    """
    world = world_at(world_address)
    if operation == PATH_CHOOSE:
        return np.int64(next_unpunished(world.net, world.qps, pair))
    punish(world.net, world.qps, pair, path, operation)
    return np.int64(0)
