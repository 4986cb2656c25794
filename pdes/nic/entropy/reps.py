"""REPS: random paths, of which those with good acknowledgements are used again (UecMpReps of htsim).

Bonato et al., "REPS: Recycled Entropy Packet Spraying", 2024. A ring holds the last RING good paths; each is used once.
After a timeout the ring is frozen: its paths are used in rotation, whether they are fresh or not, for FREEZE_PS; then
it is emptied, and EXPLORED packets take random paths.
"""

import numpy as np

from nadi.pdes.core import state
from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import PairPaths
from nadi.pdes.nic.entropy._turns import at_random

TITLE = "random paths, of which those of unmarked acknowledgements are used again"
LEARNS = True
RECYCLES = True
RING = 8  # CircularBufferREPS::repsBufferSize
FREEZE_PS = 10_000_000_000  # exit_freeze_after: 10 ms
EXPLORED = 16  # explore_counter when a freeze ends


class RepsPaths(PairPaths, words=16):
    """Paths of a queue pair with the rule `reps`."""

    head = word("place", "place of the ring that is written next")
    entries = word("count", "entries of the ring")
    fresh = word("count", "entries that were not used yet, the newest of the ring")
    frozen_head = word("place", "place that is used next while the ring is frozen")
    frozen_until_ps = word("time", "end of the freeze, 0 = not frozen")
    exploring = word("count", "packets that still take random paths after a freeze")


of_rule = seen_as(RepsPaths)


@inline
def empty(own):
    """Empty the ring of a queue pair, and end its freeze.

    Args:
        own: Paths of the queue pair (row of `qps.paths`).
    """
    own.head = own.entries = own.fresh = own.frozen_head = own.frozen_until_ps = own.exploring = 0


@hook
def act(world_address, operation, pair, path, now_ps):
    """Return a path of the ring or a random one, with PATH_CHOOSE; else put a good path into the ring, or freeze it.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: PATH_CHOOSE, or what has happened on `path`.
        pair: Row of the queue pair in `qps.qp`.
        path: Number of the path.
        now_ps: Current time in ps.
    """
    world = state.world_at(world_address)
    net, qps = world.net, world.qps
    own = of_rule(qps.paths)[pair]
    base = pair * state.SELECTIVE_PACKETS
    if operation == state.PATH_CHOOSE:
        if own.exploring > 0:
            own.exploring -= 1
            return np.int64(at_random(net, qps.paths[pair]))
        place = np.int64(-1)
        if own.frozen_until_ps > 0 and own.entries > 0:
            place = own.frozen_head
            own.frozen_head = (place + 1) % own.entries
        elif own.frozen_until_ps == 0 and own.fresh > 0:
            # the oldest fresh one: fresh ones are the last that were written
            place = (own.head - own.fresh) & (RING - 1)
            own.fresh -= 1
        if place < 0:
            return np.int64(at_random(net, qps.paths[pair]))
        return np.int64(qps.path_good[base + place]) & (state.MAX_PATHS - 1)
    is_lost = operation == state.PATH_TIMED_OUT or operation == state.PATH_DROPPED
    if is_lost and own.frozen_until_ps == 0 and own.exploring == 0:
        own.frozen_until_ps = now_ps + FREEZE_PS
    if own.frozen_until_ps > 0 and now_ps > own.frozen_until_ps:
        empty(own)
        own.exploring = EXPLORED
    if operation == state.PATH_GOOD:
        qps.path_good[base + own.head] = path
        own.head = (own.head + 1) & (RING - 1)
        own.fresh = min(own.fresh + 1, RING)
        own.entries = min(own.entries + 1, RING)
    elif operation == state.PATH_FORGET:
        empty(own)
    return np.int64(0)
