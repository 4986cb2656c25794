"""UGAL with local queues, decided again at each switch of the source's group: as spcl's simulator of "Spritz" does.

The first switch decides as that of `ugal_l`. In a dragonfly each further switch of the source's group decides again,
with a group to which one of its own links leads, and in networks without groups a switch next to the source's, with a
neighbour: so the second link of the shortest path, whose queue the first switch does not see where nothing pauses, is
avoided, too. A detour that is decided there is final, and without groups a shortest path, too, which bounds paths.
"""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import (
    DECIDED,
    DIRECT,
    FINAL,
    PATH_MASK,
    PSN_MASK,
    destination,
    is_on_detour,
    on_detour,
    source,
)
from nadi.pdes.network.detours.state import (
    any_column,
    go_on,
    is_alone,
    is_at_home,
    is_home_of,
    is_of_npu,
    may_decide,
    near_column,
    opened,
    prefers_minimal,
)
from nadi.pdes.network.lane_credits import raised

TITLE = "as ugal-l, but each switch of the source's group decides again"
READS_QUEUES = True
CHANGES = 2


@hook
def route(world_address, node, record, now_ps):
    """Return the cell (port set) of a switch for a packet, and keep the packet's state.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        record: Record of the packet.
        now_ps: Current time in ps.
    """
    net, routes, word1, word2 = opened(world_address, record)
    is_open = word2 >= 0 or (is_on_detour(word2) and word2 & FINAL == 0 and not is_at_home(routes, node, word2))
    if is_open and may_decide(net, routes, node, word1):
        is_first = is_home_of(net, routes, node, source(word1))
        column = any_column(net, routes, node, word1, now_ps) if is_first else near_column(net, routes, node, now_ps)
        # packets within a group decide once
        if column >= 0 and (is_first or not is_of_npu(net, routes, node, destination(word1))):
            was_minimal = word2 >= 0
            word2 &= PATH_MASK | PSN_MASK
            is_minimal = prefers_minimal(net, routes, node, word1, word2, column, now_ps)
            if not is_minimal:
                word2 = on_detour(word2, column) | (0 if is_first else FINAL)
            elif not is_first and is_alone(routes, node):
                word2 |= DECIDED | DIRECT
            if not (is_first or (is_minimal and was_minimal)):
                net.record[record].w1 = raised(net, word1)
    return go_on(net, routes, node, record, word1, word2, now_ps)
