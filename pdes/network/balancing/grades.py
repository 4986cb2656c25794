"""Adaptive routing by grades: each packet takes one of the links whose queues have the lowest grade.

A switch does not compare queues to the byte, but by how many thresholds (`grade_thresholds`) they exceed, by default
20, 40 and 80 flits of 64 bytes, as in Mellanox's model of InfiniBand for OMNeT++ (grades of the ports of a switch with
adaptive routing); Spectrum-X chooses the port of a packet by such grades, too. What a port has to send is the rest of
the packet on the wire and the data that waits. Among links of the lowest grade a hash of the switch and of its choices
since its last pause decides, so that the choices of a run recur.
"""

import numpy as np

from nadi.pdes.core.algorithms import mix2
from nadi.pdes.core.jit import hook, inline
from nadi.pdes.core.state import world_at
from nadi.pdes.network.balancing.adaptive import work_left
from nadi.pdes.network.batch import count_choice
from nadi.pdes.network.link import link_psb
from nadi.pdes.network.shared_switch import bring_up

TITLE = "each packet over a link whose queue has the lowest grade"
REORDERS = True


@inline
def grade_of(net, link, now_ps):
    """Return how many thresholds the work of a port exceeds, 0 to 3.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
        now_ps: Current time in ps.
    """
    work, psb, limits = work_left(net, link, now_ps), link_psb(net, link), net.const.grade_bytes
    return np.int64(work > limits[0] * psb) + np.int64(work > limits[1] * psb) + np.int64(work > limits[2] * psb)


@hook
def pick(world_address, node, first_port, count, _w1, _w2, now_ps):
    """Return the index of one of the equal links of a switch whose queues have the lowest grade.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        first_port: Index in `routes.link` of the first of the equal links.
        count: Number of equal links.
        _w1: Not used here.
        _w2: Not used here.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, routes, grades = world.net, world.routes, world.inbox.grades
    choices = count_choice(net, node, now_ps)
    if net.hooks.shared_switches != 0:
        bring_up(net, node, now_ps + 1)
    base = routes.node[node].first_link
    lowest, equals = np.int64(4), np.int64(0)
    for i in range(count):
        grade = grade_of(net, base + routes.link[first_port + i], now_ps)
        grades[i] = grade
        if grade < lowest:
            lowest, equals = grade, np.int64(0)
        equals += np.int64(grade == lowest)
    # the drawn one of those of the lowest grade
    left = (mix2(routes.node[node].salt, np.int64(choices)) * equals) >> 32
    which = np.int64(0)
    for i in range(count):
        is_lowest = grades[i] == lowest
        if is_lowest and left == 0:
            which = np.int64(i)
        left -= np.int64(is_lowest)
    return which
