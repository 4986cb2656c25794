"""The choice of the outgoing link: by tables per destination switch, or one coordinate after another.

Both yield a *cell*, a set of equal-cost links; the packet's entropy and the node's salt choose one (ECMP), or another
rule of pdes/network/balancing does. Links in cells are numbered from the node's first, so nodes with equal routes share
rows; and a row holds only the columns that differ from the node's default (a leaf switch sends everything but the
traffic of its own NPUs up). NPUs with several homes or ports, and dimensions, need hooks that read more than one row.
If tables name several homes of a destination, the nearest is used. Dimensions are corrected one after another.
"""

import numpy as np

from pdes.core.hashing import mix, mix3
from pdes.core.jit import call_hook, hook, inline
from pdes.core.packet import entropy
from pdes.core.state import world_at

DIM_RING, DIM_TABLE = 0, 1  # modes of a dimension at a node; in all other modes there is one way
SET_SHIFT = 22  # position of the number of links in a cell
SET_MASK = (1 << SET_SHIFT) - 1
UNREACHABLE = 127  # hops to an unreachable home: the maximum of int8


@inline
def salt_of(seed, node):
    """Return a 32-bit hash of the seed and a node's number in the whole fabric."""
    return mix3(seed, node, 0x5A17)


@inline
def choose(routes, cell, node, w2):
    """Return one link of the cell, by ECMP."""
    first = np.int64(cell) & SET_MASK
    count = np.int64(cell) >> SET_SHIFT
    if count > 1:
        h = mix(routes.node[node].salt ^ (entropy(w2) * 0x9E3779B1))
        first = np.int64(routes.link[first + ((h * count) >> 32)])
    return routes.node[node].first_link + first


@inline
def cell_to(routes, node, column):
    """Table mode: return the cell of a switch towards a home other than itself."""
    forwarding = routes.node[node]
    cell = forwarding.default
    if column >= forwarding.first and column < forwarding.last:
        cell = np.int64(routes.cell[forwarding.row + column])
    return cell


@inline
def npu_route(net, node, dst, w2):
    """Return the outgoing link of an NPU towards another."""
    if net.out_ptr[node + 1] - net.out_ptr[node] == 1:
        return net.out_ptr[node]
    return call_hook(net.hooks.choose_port, net.const.address, node, dst, w2)


@inline
def switch_cell_to(net, routes, node, dst, w2):
    """Return the cell of a switch towards an NPU."""
    hook = net.hooks.route
    if hook != 0:
        return call_hook(hook, net.const.address, node, dst, w2)
    column = np.int64(routes.home[dst])
    if column == routes.node[node].column:
        return np.int64(routes.attach[dst])
    return cell_to(routes, node, column)


@inline
def balanced(net, routes, cell, node, w1, w2, now):
    """Return one link of a node's cell, by the run's rule; w1, w2: words of the packet, now: time in ps."""
    first = cell & SET_MASK
    count = cell >> SET_SHIFT
    if count > 1:
        which = call_hook(net.hooks.balancing, net.const.address, node, first, count, w1, w2, now)
        first = np.int64(routes.link[first + which])
    return routes.node[node].first_link + first


@inline
def next_link(net, routes, node, dst, w2):
    """Return the outgoing link of a node towards an NPU, by ECMP, for code that follows a path in advance."""
    if node < net.const.npus:
        return npu_route(net, node, dst, w2)
    return choose(routes, switch_cell_to(net, routes, node, dst, w2), node, w2)


@inline
def forwarding_ps(net, routes, node):
    """Return the time from arrival to departure at a node on the path."""
    return np.int64(0) if node < net.const.npus else routes.node[node].forward >> 1


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
    """Return the cell of a switch towards an NPU; in table mode towards its nearest home."""
    # The packet's entropy decides between equally near homes. Where faults have left no path, the cell leads into the
    # pit.
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
