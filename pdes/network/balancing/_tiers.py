"""Load balancing by tier: each switch has the rule of its tier, one of those of the run."""

from nadi.pdes.core.jit import call_hook, hook
from nadi.pdes.core.state import world_at
from nadi.pdes.network.routing import choose_of


@hook
def pick(world_address, node, first, count, word1, word2, now_ps):
    """Return the index, of the equal links of a switch, that the rule of its tier chooses.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        first: Index in `routes.link` of the first of the equal links.
        count: Number of equal links.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, rule = world.net, world.routes.rule[node]
    if rule == 0 and net.hooks.balancing_0 != 0:
        return call_hook(net.hooks.balancing_0, world_address, node, first, count, word1, word2, now_ps)
    if rule == 1 and net.hooks.balancing_1 != 0:
        return call_hook(net.hooks.balancing_1, world_address, node, first, count, word1, word2, now_ps)
    if rule == 2 and net.hooks.balancing_2 != 0:
        return call_hook(net.hooks.balancing_2, world_address, node, first, count, word1, word2, now_ps)
    if rule == 3 and net.hooks.balancing_3 != 0:
        return call_hook(net.hooks.balancing_3, world_address, node, first, count, word1, word2, now_ps)
    return choose_of(world.routes, node, count, word2)
