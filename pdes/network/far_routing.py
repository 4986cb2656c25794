"""Routing that reads more than one row: NPUs with several homes or ports, and dimensions (hooks).

If tables name several homes of a destination, the nearest is used. Dimensions are corrected one after another.
"""

import numpy as np

from pdes.core.hashing import mix
from pdes.core.jit import hook, inline
from pdes.core.packet import entropy
from pdes.core.world import world_at
from pdes.network.routing import DIM_RING, DIM_TABLE, UNREACHABLE, cell_to, choose, salt_of


@inline
def dimension_cell(net, routes, node, dst, w2):
    """Dimension mode: return the cell that corrects the first coordinate that differs."""
    dims = net.const.dimensions
    d = 0
    while d < dims - 1 and routes.here[node * dims + d] == routes.digit[dst * dims + d]:
        d += 1
    at = routes.offset[node * dims + d]
    mode = routes.mode[node * dims + d]
    target = routes.digit[dst * dims + d]
    if mode == DIM_TABLE:
        at += target
    elif mode == DIM_RING:
        size = routes.size[d]
        ahead = target - routes.here[node * dims + d]
        if ahead < 0:
            ahead += size
        opposite = 2 * ahead == size
        if 2 * ahead > size or (opposite and mix(salt_of(net.const.seed, dst) ^ entropy(w2)) & 1 == 1):
            at += 1
    return routes.cell[at]


@inline
def hops_by(net, routes, out, dst):
    """Table mode: return the switches from the far end of an NPU's outgoing link to the destination, or UNREACHABLE."""
    homes = net.const.homes
    via = routes.via[out]
    best = UNREACHABLE
    for i in range(homes):
        column = routes.home[dst * homes + i]
        if column >= 0:
            hops = 0 if column == routes.hop_column[via] else np.int64(routes.hops[routes.hop_row[via] + column])
            best = min(best, hops)
    return best


@hook
def cell_of_several(address, node, dst, w2):
    """Return the cell of a switch towards an NPU; in table mode towards its nearest home.

    The packet's entropy decides between equally near homes. Where faults have left no path, the cell leads into the
    pit.
    """
    w = world_at(address)
    net, routes = w.net, w.routes
    if net.const.dimensions > 0:
        return np.int64(dimension_cell(net, routes, node, dst, w2))
    forwarding = routes.node[node]
    homes = net.const.homes
    best = UNREACHABLE
    cell = np.int64(0)
    equals = 0
    for i in range(homes):
        column = routes.home[dst * homes + i]
        if column >= 0:
            here = column == forwarding.column
            hops = np.int64(0) if here else np.int64(routes.hops[routes.hop_row[node] + column])
            if hops < best:
                best = hops
                equals = 0
            if hops == best and hops < UNREACHABLE:
                equals += 1
                if (mix(forwarding.salt ^ ((entropy(w2) + i) * 0x5BD1E995)) * equals) >> 32 == 0:
                    cell = np.int64(routes.attach[dst * homes + i]) if here else cell_to(routes, node, column)
    if equals == 0 and net.const.pit > 0:
        cell = net.const.pit - forwarding.first_link
    return cell


@hook
def port_of_several(address, node, dst, w2):
    """Return the outgoing link of an NPU with several ports; in table mode one whose switch is nearest."""
    w = world_at(address)
    net, routes = w.net, w.routes
    if net.const.dimensions > 0:
        return choose(routes, dimension_cell(net, routes, node, dst, w2), node, w2)
    best = UNREACHABLE
    count = 0
    for out in range(net.out_ptr[node], net.out_ptr[node + 1]):
        hops = hops_by(net, routes, out, dst)
        if hops < best:
            best = hops
            count = 0
        if hops == best:
            count += 1
    pick = (mix(routes.node[node].salt ^ (entropy(w2) * 0x9E3779B1)) * count) >> 32
    link = np.int64(net.out_ptr[node])
    for out in range(net.out_ptr[node], net.out_ptr[node + 1]):
        if hops_by(net, routes, out, dst) == best:
            if pick == 0:
                link = np.int64(out)
            pick -= 1
    return link
