"""Oblivious spraying: all paths in turn, each round of them in another order (UecMpOblivious of htsim)."""

import numpy as np

from nadi.pdes.core.jit import hook
from nadi.pdes.core.state import PATH_CHOOSE, world_at
from nadi.pdes.nic.entropy._turns import path_at

TITLE = "all paths in turn, whatever happens on them"


@hook
def act(world_address, operation, pair, _path, _now):
    """Return the path whose turn it is, with PATH_CHOOSE.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: PATH_CHOOSE; others change nothing.
        pair: Row of the queue pair in `qps.qp`.
        _path: Not used here.
        _now: Not used here.
    """
    world = world_at(world_address)
    if operation != PATH_CHOOSE:
        return np.int64(0)
    paths = world.qps.paths[pair]
    turn = paths.position
    paths.position = turn + 1
    return np.int64(path_at(world.net, paths, turn))
