"""The choice of the outgoing link: by tables per destination switch, or one coordinate after another.

Both yield a *cell*, a set of equal-cost links; the packet's entropy and the node's salt choose one (ECMP), or another
rule of pdes/network/balancing does. Links in cells are numbered from the node's first, so nodes with equal routes share
rows; and a row holds only the columns that differ from the node's default (a leaf switch sends everything but the
traffic of its own NPUs up). NPUs with several homes or ports, and dimensions, need hooks that read more than one row.
If tables name several homes of a destination, the nearest is used. Dimensions are corrected one after another.

Faults change the tables, links and NPUs during a run.
"""

import numpy as np

from nadi.pdes.core.algorithms import mix, mix3
from nadi.pdes.core.jit import call_hook, copy_row, hook, inline
from nadi.pdes.core.packet import (
    CONNECTION_SHIFT,
    MAX_DATA_CLASSES,
    PAUSE,
    class_of,
    end_of,
    entropy,
    link_meta,
    number_of,
    pause_word,
)
from nadi.pdes.core.state import CHANGE_LINK, CHANGE_NPU, CHANGE_PAUSE, CHANGE_ROUTES, INF, world_at
from nadi.pdes.network.port_queues import set_pause

DIM_RING, DIM_TABLE = 0, 1  # modes of a dimension at a node; in all other modes there is one way
SET_SHIFT = 22  # position of the number of links in a cell
SET_MASK = (1 << SET_SHIFT) - 1
FIRST_PORT, PORT_BY_HASH = 1, 2  # places in `pdes.construction.constants.PORT_RULES`
UNREACHABLE = 127  # hops to an unreachable home: the maximum of int8


@inline
def salt_of(seed, node):
    """Return a 32-bit hash of the seed and a node's number in the whole fabric."""
    return mix3(seed, node, 0x5A17)


@inline
def choose_of(routes, node, count, word2):
    """Return one of `count` numbers from 0 on for a packet at a node of `routes`, by a hash of the entropy in word2."""
    # the salt is the switch's own: with one for all, a second tier would repeat the first's choice (hash polarisation)
    h = mix(routes.node[node].salt ^ (entropy(word2) * 0x9E3779B1))
    # h is below 2^32, so (h x count) >> 32 is below count: a fair choice without a division
    return (h * count) >> 32


@inline
def choose(routes, cell, node, word2):
    """Return one link of a cell (port set) of a node, by a hash of the packet's entropy in word 2 (ECMP).

    Args:
        routes: Routing state of the LP (`Routes`).
        cell: Port set of the node: links << 22 | first (`Routes`).
        node: Number of the node in the LP.
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
    """
    first = np.int64(cell) & SET_MASK
    count = np.int64(cell) >> SET_SHIFT
    if count > 1:
        first = np.int64(routes.link[first + choose_of(routes, node, count, word2)])
    return routes.node[node].first_link + first


@inline
def cell_to(routes, node, column):
    """Table mode: return the cell (port set) of a switch towards the home in a column, another node.

    Args:
        routes: Routing state of the LP (`Routes`).
        node: Number of the node in the LP.
        column: Column of the table.
    """
    forwarding = routes.node[node]
    cell = forwarding.default
    # `last` is the column behind the stretch; columns outside of it use `default`
    if column >= forwarding.first and column < forwarding.last:
        cell = np.int64(routes.cell[forwarding.row + column])
    return cell


@inline
def npu_route(net, node, dst, word2):
    """Return the outgoing link of an NPU towards another.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the node in the LP.
        dst: Number of the destination NPU.
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
    """
    if net.out_ptr[node + 1] - net.out_ptr[node] == 1:
        return net.out_ptr[node]
    return call_hook(net.hooks.choose_port, net.const.address, node, dst, word2)


@inline
def switch_cell_to(net, routes, node, dst, word2):
    """Return the cell (port set) of a switch towards an NPU.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the node in the LP.
        dst: Number of the destination NPU.
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
    """
    hook = net.hooks.route
    if hook != 0:
        return call_hook(hook, net.const.address, node, dst, word2)
    # the home of the NPU, one column for all NPUs of a leaf, so tables have homes, not NPUs, as columns
    column = np.int64(routes.home[dst])
    if column == routes.node[node].column:
        return np.int64(routes.attach[dst])
    return cell_to(routes, node, column)


@inline
def balanced(net, routes, cell, node, word1, word2, now_ps):
    """Return one link of a cell (port set) of a node, by the run's load balancing.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        cell: Port set of the node: links << 22 | first (`Routes`).
        node: Number of the node in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
        now_ps: Current time in ps.
    """
    first = cell & SET_MASK
    count = cell >> SET_SHIFT
    if count > 1 and net.hooks.balancing == 0:
        return choose(routes, cell, node, word2)
    if count > 1:
        which = call_hook(net.hooks.balancing, net.const.address, node, first, count, word1, word2, now_ps)
        first = np.int64(routes.link[first + which])
    return routes.node[node].first_link + first


@inline
def link_by_rule(net, routes, cell, node, record, now_ps):
    """Return the link of a packet at a switch, by the run's rules of detours and load balancing.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        cell: Port set of the node on shortest paths: links << 22 | first (`Routes`).
        node: Number of the switch in the LP.
        record: Record of the packet, whose word 2 a rule of detours changes.
        now_ps: Current time in ps.
    """
    if net.hooks.detour != 0:
        cell = call_hook(net.hooks.detour, net.const.address, node, record, now_ps)
    packet = net.record[record]
    return balanced(net, routes, cell, node, packet.w1, packet.w2, now_ps)


@inline
def next_link(net, routes, node, dst, word2):
    """Return the outgoing link of a node towards an NPU, by ECMP, for code that follows a path in advance.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the node in the LP.
        dst: Number of the destination NPU.
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
    """
    if node < net.const.npus:
        return npu_route(net, node, dst, word2)
    return choose(routes, switch_cell_to(net, routes, node, dst, word2), node, word2)


@inline
def forwarding_ps(net, routes, node):
    """Return the time from arrival to departure at a node on the path.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the node in the LP.
    """
    return np.int64(0) if node < net.const.npus else routes.node[node].forward >> 2


@inline
def dimension_cell(net, routes, node, dst, word2):
    """Dimension mode: return the port set of a node that corrects the first coordinate in which `dst` differs.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the node in the LP.
        dst: Number of the destination NPU.
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
    """
    dims = net.const.dimensions
    d = 0
    # the last dimension needs no test: a packet that arrives at its NPU is not routed
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
        # a ring of 8 from digit 6 to 1: -5 + 8 = 3 links towards +1, which is the shorter way
        if ahead < 0:
            ahead += size
        # equally far both ways: a hash of destination and entropy decides
        opposite = 2 * ahead == size
        if 2 * ahead > size or (opposite and mix(salt_of(net.const.seed, dst) ^ entropy(word2)) & 1 == 1):
            at += 1
    return routes.cell[at]


@inline
def hops_by(net, routes, port, dst):
    """Table mode: return the switches from the far end of an NPU's port to another NPU, or UNREACHABLE.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        port: Outgoing link of the NPU.
        dst: Number of the destination NPU.
    """
    homes = net.const.homes
    # the table of hops is that of the switch at the other end: NPUs have no rows
    via = routes.via[port]
    best = UNREACHABLE
    only = np.int64(routes.only_home[via])
    for i in range(max(only, 0), only + 1 if only >= 0 else homes):
        column = routes.home[dst * homes + i]
        if column >= 0:
            hops = 0 if column == routes.hop_column[via] else np.int64(routes.hops[routes.hop_row[via] + column])
            best = min(best, hops)
    return best


@inline
def share_of(routes, port, hops):
    """Return the share of an NPU's port among those with `hops` to the destination; 1 if all are cut.

    Args:
        routes: Routing state of the LP (`Routes`).
        port: Outgoing link of the NPU.
        hops: Switches to the destination, as `hops_by` returns them.
    """
    return np.int64(routes.share[port]) if hops < UNREACHABLE else np.int64(1)


@inline
def path_of(net, src, dst, connection):
    """Return the number whose lowest bits are the entropy of a connection's path between two NPUs of the fabric.

    It is a hash. Where NPUs have several NICs, the connections of two NPUs have consecutive numbers, so that
    `port_of_several` shares them out exactly.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        src: Number of the NPU that sends.
        dst: Number of the destination NPU.
        connection: Group within the job with the number of the connection, without its share of a rate.
    """
    if net.const.several_nics == 0:
        return mix3(src + net.const.seed, dst, connection)
    # Example: connections 0 to 3 of two NPUs get hash + 0 to hash + 3: modulo four NICs, each of them once
    group = connection & ((1 << CONNECTION_SHIFT) - 1)
    return mix3(src + net.const.seed, dst, group) + (connection >> CONNECTION_SHIFT)


@hook
def cell_of_several(world_address, node, dst, word2):
    """Return the cell (port set) of a switch towards an NPU; in table mode towards its nearest home.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the node in the LP.
        dst: Number of the destination NPU.
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
    """
    # The packet's entropy, in word 2, decides between equally near homes. Where faults have left no path, the cell
    # leads into the pit.
    world = world_at(world_address)
    net, routes = world.net, world.routes
    if net.const.dimensions > 0:
        return np.int64(dimension_cell(net, routes, node, dst, word2))
    forwarding = routes.node[node]
    homes = net.const.homes
    only = np.int64(routes.only_home[node])
    best = UNREACHABLE
    cell = np.int64(0)
    equals = 0
    for i in range(max(only, 0), only + 1 if only >= 0 else homes):
        column = routes.home[dst * homes + i]
        if column >= 0:
            here = column == forwarding.column
            hops = np.int64(0) if here else np.int64(routes.hops[routes.hop_row[node] + column])
            if hops < best:
                best = hops
                equals = 0
            if hops == best and hops < UNREACHABLE:
                # reservoir sampling: the k-th of equal homes replaces the choice with probability 1 / k, so each is
                # equally likely
                equals += 1
                if equals == 1 or (mix(forwarding.salt ^ ((entropy(word2) + i) * 0x5BD1E995)) * equals) >> 32 == 0:
                    cell = np.int64(routes.attach[dst * homes + i]) if here else cell_to(routes, node, column)
    if equals == 0 and net.const.pit > 0:
        cell = net.const.pit - forwarding.first_link
    return cell


@hook
def port_of_several(world_address, node, dst, word2):
    """Return the outgoing link of an NPU with several to another; in table mode one with the nearest switch.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the node in the LP.
        dst: Number of the destination NPU.
        word2: Word 2 of the packet, which has the entropy of its path (pdes/core/packet.py).
    """
    # Of those with equally near switches, NICs take turns with consecutive entropies, each as often as its share says.
    world = world_at(world_address)
    net, routes = world.net, world.routes
    if net.const.dimensions > 0:
        return choose(routes, dimension_cell(net, routes, node, dst, word2), node, word2)
    best, total = UNREACHABLE, 0
    for out in range(net.out_ptr[node], net.out_ptr[node + 1]):
        hops = hops_by(net, routes, out, dst)
        if hops < best:
            best = hops
            total = 0
        if hops == best:
            total += share_of(routes, out, hops)
    # Example: two NICs with shares 1 and 3: entropies 0 to 3 give picks 0 to 3, so the first NIC gets one of four
    # consecutive connections, and the other three. Ports that are no NICs of one NPU are chosen by a hash.
    pick = entropy(word2) % total
    if net.const.port_rule == FIRST_PORT:
        pick = 0
    elif net.const.port_rule == PORT_BY_HASH:
        # without the salt, so that acknowledgements come back by the same plane
        pick = (mix(entropy(word2) * 0x9E3779B1) * total) >> 32
    elif net.const.several_nics == 0:
        pick = choose_of(routes, node, total, word2)
    link = np.int64(net.out_ptr[node])
    for out in range(net.out_ptr[node], net.out_ptr[node + 1]):
        if pick >= 0 and hops_by(net, routes, out, dst) == best:
            link = np.int64(out)
            pick -= share_of(routes, out, best)
    return link


# Changes of links, NPUs and routes during a run: each LP makes its own changes when it opens a cell.
#
# A change takes effect at the first cell that begins at or after its time, before anything happens in it. Cells lie on
# one grid for all LPs. An LP that has nothing to do in that cell makes the change later, before its next action; this
# makes no difference, since a change causes no event.


@inline
def slowed(duration_ps, slow):
    """Return a duration that a factor lengthens, rounded down.

    Args:
        duration_ps: Duration in ps.
        slow: Factor in 1024ths.
    """
    # in two parts, since the product of a duration (up to 2^61 ps) and a factor could exceed 63 bits
    return (duration_ps >> 10) * slow + (((duration_ps & 1023) * slow) >> 10)


@inline
def put_table(table, all_tables, at, epoch, epochs):
    """Copy one of several tables, which are stored one after another, into `table`; return where the last ends.

    Args:
        table: Table in use, which the function changes.
        all_tables: Tables of all sets, one after another.
        at: Index in `all_tables` where the first of them begins.
        epoch: Number of the set of routing tables.
        epochs: Number of sets of routing tables.
    """
    length = table.shape[0]
    # all sets of one table lie one after another, so set `epoch` is `epoch` lengths behind the first
    begin = at + epoch * length
    for i in range(length):
        table[i] = all_tables[begin + i]
    return at + epochs * length


@inline
def change_routes(routes, schedule, epoch, epochs):
    """Load the routing tables of a set, in the order of pdes.construction.schedule.TABLES.

    Args:
        routes: Routing state of the LP (`Routes`).
        schedule: Changes during the run (`FaultSchedule`).
        epoch: Number of the set of routing tables.
        epochs: Number of sets of routing tables.
    """
    # copied into the arrays in use: kernels keep the addresses of these, so another array could not take their place
    nodes = routes.node.shape[0]
    for i in range(nodes):
        copy_row(routes.node, i, schedule.table_node, epoch * nodes + i)
    at = put_table(routes.hop_row, schedule.table64, 0, epoch, epochs)
    put_table(routes.listed_pair, schedule.table64, at, epoch, epochs)
    at = 0
    for table in (routes.cell, routes.attach, routes.home, routes.link):
        at = put_table(table, schedule.table32, at, epoch, epochs)
    for table in (routes.hop_column, routes.only_home, routes.via):
        at = put_table(table, schedule.table32, at, epoch, epochs)
    for table in (routes.detour, routes.own_homes, routes.near_ptr, routes.near):
        at = put_table(table, schedule.table32, at, epoch, epochs)
    for table in (routes.listed_ptr, routes.listed_cell_ptr, routes.listed_cell):
        at = put_table(table, schedule.table32, at, epoch, epochs)
    at = 0
    for table in (routes.hops, routes.switch_hops, routes.home_hops):
        at = put_table(table, schedule.table8, at, epoch, epochs)


@inline
def change_row(net, schedule, number):
    """Return the row of a change, which happens again in every period of circuits, or the number of rows.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        schedule: Changes during the run (`FaultSchedule`).
        number: Number of the change, from 0 on.
    """
    rows, first = schedule.change.shape[0], net.const.first_repeated
    return number if number < rows or first == rows else first + (number - first) % (rows - first)


@inline
def change_ps(net, schedule, number):
    """Return the time in ps of a change; INF behind the last one.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        schedule: Changes during the run (`FaultSchedule`).
        number: Number of the change, from 0 on.
    """
    row = change_row(net, schedule, number)
    rows, first = schedule.change.shape[0], net.const.first_repeated
    if row >= rows:
        return np.int64(INF)
    turns = (number - row) // max(1, rows - first)
    return schedule.change[row].begin_ps + turns * net.const.circuits_period_ps


@hook
def make_changes(world_address):
    """Make all changes that are due in the current cell.

    Args:
        world_address: Address of the directory of the LP's `World`.
    """
    world = world_at(world_address)
    net, schedule = world.net, world.schedule
    at = net.ctl.fault_at
    repeated = schedule.change.shape[0] - net.const.first_repeated
    if repeated > 0 and at >= net.const.first_repeated:
        # after a long idle time, whole periods of circuits leave the routes of the last one
        behind = (net.ctl.now_ps - change_ps(net, schedule, at)) // net.const.circuits_period_ps
        at += max(0, behind - 1) * repeated
    # several may be due, as idle LPs skip cells; in order, so that the last of one link holds
    while change_ps(net, schedule, at) <= net.ctl.now_ps:
        change = schedule.change[change_row(net, schedule, at)]
        if change.kind == CHANGE_LINK:
            # if the delay decreases, the port pauses until nothing it sends can overtake packets on the wire: packets
            # that wait on a link must be in order of arrival
            tx = net.tx[change.index]
            gain_ps = net.link_class[class_of(tx.meta)].delay_ps - net.link_class[change.value].delay_ps
            if gain_ps > 0 and tx.sent_packets != 0:
                tx.busy_ps += gain_ps
            tx.meta = link_meta(end_of(tx.meta), number_of(tx.meta), change.value)
        elif change.kind == CHANGE_NPU:
            world.npus.npu[change.index].slow_1024ths = change.value
        elif change.kind == CHANGE_PAUSE:
            # a pause storm: the NIC sends pause frames for ever, and no resume follows (Guo et al., SIGCOMM 2016,
            # section 4.3)
            for data_class in range(MAX_DATA_CLASSES):
                if net.const.classes >> data_class & 1 != 0:
                    set_pause(net, change.index, pause_word(data_class, PAUSE), change.begin_ps)
        elif change.kind == CHANGE_ROUTES:
            change_routes(world.routes, schedule, change.value, net.const.epochs)
        at += 1
    net.ctl.fault_at = at
    net.ctl.fault_ps = change_ps(net, schedule, at)
    return 0
