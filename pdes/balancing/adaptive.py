"""Adaptive routing: every packet takes the link with the least work left, as switches of lossless fabrics do.

The work is what the port still has to send: the rest of the packet on the wire and all that waits. As in hardware it
is graded, GRADE_PACKETS full packets a grade, and a hash chooses among the best grade. Without grades, flows of equal
packets lock into a pattern: each always finds the same port a little emptier, and what collides further on does so for
ever.
"""

import numpy as np

from pdes.hashing import mix3
from pdes.jit import hook, inline
from pdes.link import link_psb
from pdes.packet import identity
from pdes.routing import salt
from pdes.state import (
    CONST_HEADER,
    CONST_MTU,
    CONST_SWITCH_HOOK,
    GATE_QUEUED,
    GATE_WORDS,
    INF,
    NODE_BASE,
    NODE_WORDS,
    TX_BUSY,
    TX_WORDS,
)
from pdes.world import world_at

TITLE = "each packet where the least waits"
REORDERS = True
GRADE_PACKETS = 8


@inline
def work_left(net, link, now):
    """Time that the port needs for all that it has (ps)."""
    until = net.tx[link * TX_WORDS + TX_BUSY]
    if net.const[CONST_SWITCH_HOOK] != 0:
        g = link * GATE_WORDS + GATE_QUEUED
        until += np.int64((net.gate[g] + net.gate[g + 1]) * link_psb(net, link))
    return max(0, until - now)


@hook
def pick(address, node, first, count, w1, w2, now, _spare):
    """The link with the least work left."""
    world = world_at(address)
    net, routes = world.net, world.routes
    begin = (mix3(salt(routes, node) + w1, identity(w2), now) * count) >> 32
    base = routes.node[node * NODE_WORDS + NODE_BASE]
    best = np.int64(0)
    least = np.int64(INF)
    size = net.const[CONST_MTU] + net.const[CONST_HEADER]
    for i in range(count):
        which = (begin + i) % count
        link = base + routes.link[first + which]
        work = np.int64(work_left(net, link, now) / (GRADE_PACKETS * size * link_psb(net, link)))
        if work < least:
            least = work
            best = which
    return best
