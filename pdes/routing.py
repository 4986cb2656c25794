"""Which outgoing link a packet takes: tables by destination switch, or one coordinate after another.

Both give a *cell*, a set of equal-cost links; the packet's entropy and the node's salt choose one (ECMP), or another
rule of pdes/balancing does. Links in
cells count from the node's first, so nodes that look alike share rows; and a row holds only the columns that differ
from what the node does by default (a leaf switch sends all but its own NPUs up).
"""

import numpy as np

from pdes.hashing import mix, mix3
from pdes.jit import call_hook, inline, outline
from pdes.packet import entropy
from pdes.state import (
    CONST_ADDRESS,
    CONST_BALANCE,
    CONST_DIMENSIONS,
    CONST_HOMES,
    CONST_ROUTE_MODE,
    CONST_SEED,
    NODE_BASE,
    NODE_COLUMN,
    NODE_DEFAULT,
    NODE_FIRST,
    NODE_LAST,
    NODE_ROW,
    NODE_SALT,
    NODE_WORDS,
)

MODE_ONE_HOME, MODE_TABLE, MODE_DIMENSIONS = 0, 1, 2
DIM_RING, DIM_TABLE, DIM_SINGLE, DIM_NONE = 0, 1, 2, 3
SET_SHIFT = 22
SET_MASK = (1 << SET_SHIFT) - 1
UNREACHABLE = 127


@inline
def salt_of(seed, node):
    """32-bit hash of the seed and a node's number in the whole fabric."""
    return mix3(seed, node, 0x5A17)


@inline
def salt(routes, node):
    """The node's salt."""
    return routes.node[node * NODE_WORDS + NODE_SALT]


@inline
def choose(routes, cell, node, w2):
    """One link of the cell."""
    first = np.int64(cell) & SET_MASK
    count = np.int64(cell) >> SET_SHIFT
    if count > 1:
        h = mix(salt(routes, node) ^ (entropy(w2) * 0x9E3779B1))
        first = np.int64(routes.link[first + ((h * count) >> 32)])
    return routes.node[node * NODE_WORDS + NODE_BASE] + first


@inline
def cell_to(routes, node, column):
    """Table mode: the cell of a switch for a home that it is not."""
    n = node * NODE_WORDS
    cell = routes.node[n + NODE_DEFAULT]
    if column >= routes.node[n + NODE_FIRST] and column < routes.node[n + NODE_LAST]:
        cell = np.int64(routes.cell[routes.node[n + NODE_ROW] + column])
    return cell


@inline
def switch_cell(net, routes, node, dst, w2):
    """Table mode, at a switch: the cell of the destination's nearest home.

    The packet's entropy decides between equals.
    """
    homes = net.const[CONST_HOMES]
    best = UNREACHABLE
    cell = np.int64(0)
    equals = 0
    for i in range(homes):
        column = routes.home[dst * homes + i]
        if column >= 0:
            here = column == routes.node[node * NODE_WORDS + NODE_COLUMN]
            hops = np.int64(0)
            if not here:
                hops = np.int64(routes.hops[routes.hop_row[node] + column])
            if hops < best:
                best = hops
                equals = 0
            if hops == best and hops < UNREACHABLE:
                equals += 1
                if (mix(salt(routes, node) ^ ((entropy(w2) + i) * 0x5BD1E995)) * equals) >> 32 == 0:
                    if here:
                        cell = np.int64(routes.attach[dst * homes + i])
                    else:
                        cell = cell_to(routes, node, column)
    return cell


@inline
def dimension_cell(net, routes, node, dst, w2):
    """Dimension mode: the cell that corrects the first coordinate that differs."""
    dims = net.const[CONST_DIMENSIONS]
    d = 0
    while d < dims - 1 and routes.here[node * dims + d] == routes.digit[dst * dims + d]:
        d += 1
    at = routes.offset[node * dims + d]
    mode = routes.mode[node * dims + d]
    want = routes.digit[dst * dims + d]
    if mode == DIM_TABLE:
        at += want
    elif mode == DIM_RING:
        size = routes.size[d]
        ahead = want - routes.here[node * dims + d]
        if ahead < 0:
            ahead += size
        opposite = 2 * ahead == size
        if 2 * ahead > size or (opposite and mix(salt_of(net.const[CONST_SEED], dst) ^ entropy(w2)) & 1 == 1):
            at += 1
    return routes.cell[at]


@inline
def hops_by(net, routes, out, dst):
    """Table mode: switches between the far end of an NPU's outgoing link and the destination (UNREACHABLE if none)."""
    homes = net.const[CONST_HOMES]
    via = routes.via[out]
    best = UNREACHABLE
    for i in range(homes):
        column = routes.home[dst * homes + i]
        if column >= 0:
            hops = np.int64(0)
            if column != routes.hop_column[via]:
                hops = np.int64(routes.hops[routes.hop_row[via] + column])
            if hops < best:
                best = hops
    return best


@inline
def npu_port(net, routes, node, dst, w2):
    """Table mode, at an NPU of several ports: one of the ports whose switch is nearest to the destination."""
    best = UNREACHABLE
    count = 0
    for out in range(net.out_ptr[node], net.out_ptr[node + 1]):
        hops = hops_by(net, routes, out, dst)
        if hops < best:
            best = hops
            count = 0
        if hops == best:
            count += 1
    pick = (mix(salt(routes, node) ^ (entropy(w2) * 0x9E3779B1)) * count) >> 32
    link = np.int64(net.out_ptr[node])
    for out in range(net.out_ptr[node], net.out_ptr[node + 1]):
        if hops_by(net, routes, out, dst) == best:
            if pick == 0:
                link = out
            pick -= 1
    return link


@outline
def route_among_ports(net, routes, node, dst, w2):
    """Outgoing link of an NPU of several ports towards another."""
    if net.const[CONST_ROUTE_MODE] == MODE_DIMENSIONS:
        return choose(routes, dimension_cell(net, routes, node, dst, w2), node, w2)
    return npu_port(net, routes, node, dst, w2)


@inline
def npu_route(net, routes, node, dst, w2):
    """Outgoing link of an NPU towards another."""
    if net.out_ptr[node + 1] - net.out_ptr[node] == 1:
        return net.out_ptr[node]
    return route_among_ports(net, routes, node, dst, w2)


@inline
def switch_cell_to(net, routes, node, dst, w2):
    """The cell of a switch towards an NPU."""
    mode = net.const[CONST_ROUTE_MODE]
    if mode == MODE_ONE_HOME:
        column = np.int64(routes.home[dst])
        if column == routes.node[node * NODE_WORDS + NODE_COLUMN]:
            cell = np.int64(routes.attach[dst])
        else:
            cell = cell_to(routes, node, column)
    elif mode == MODE_TABLE:
        cell = switch_cell(net, routes, node, dst, w2)
    else:
        cell = np.int64(dimension_cell(net, routes, node, dst, w2))
    return cell


@inline
def balanced(net, routes, cell, node, w1, w2, now):
    """One link of the cell, by the run's rule."""
    first = cell & SET_MASK
    count = cell >> SET_SHIFT
    if count > 1:
        which = call_hook(net.const[CONST_BALANCE], net.const[CONST_ADDRESS], node, first, count, w1, w2, now, 0)
        first = np.int64(routes.link[first + which])
    return routes.node[node * NODE_WORDS + NODE_BASE] + first
