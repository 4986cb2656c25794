"""State of packets that may take a detour, and what the rules of detours share: draws, queues, lengths of paths.

A detour leads over a *home* (a switch with NPUs) of another group, named by its column in the routing tables. Switches
without groups, as of a slim fly, are groups of their own. A packet is on the detour until it arrives at a switch of the
home's group, and then goes on by shortest paths. If source and destination are in one group, the detour leads over a
switch of that group.

Word 2 of a packet has this state. Bit 63 is 0: nothing is decided, and bits 48 to 62 are the entropy of the path, as
everywhere. Bit 63 is 1: bit 62 says that only shortest paths are left, bit 61 that no switch decides again, and bits 48
to 60 are the column of the home, whose hash then chooses among equal links. Acknowledgements begin without a decision
(`pdes/nic/transport.py`).
"""

import numpy as np

from nadi.pdes.core.algorithms import mix2
from nadi.pdes.core.jit import inline, outline
from nadi.pdes.core.packet import (
    DIRECT,
    FLAG_ACK,
    destination,
    detour_column,
    flags,
    is_on_detour,
    source,
    wire_bytes,
)
from nadi.pdes.core.state import world_at
from nadi.pdes.network.balancing.adaptive import work_left
from nadi.pdes.network.batch import count_choice
from nadi.pdes.network.lane_credits import raised
from nadi.pdes.network.link import full_packet_bytes, link_psb, serialisation_ps
from nadi.pdes.network.routing import cell_to, choose, switch_cell_to
from nadi.pdes.network.shared_switch import bring_up_for

LOGGED = 63  # packets of a port in `QueueLog`
SEED = 0xDE70  # keeps these draws apart from others of the same switch and count


@inline
def opened(world_address, record):
    """Return nodes and links, routes, and words 1 and 2 of a packet, with which a rule begins.

    Args:
        world_address: Address of the directory of the LP's `World`.
        record: Record of the packet.
    """
    world = world_at(world_address)
    packet = world.net.record[record]
    return world.net, world.routes, packet.w1, packet.w2


@inline
def is_of_npu(net, routes, node, npu):
    """Return whether a first switch of an NPU is in the group of a switch.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        npu: Number of the NPU in the fabric.
    """
    group = routes.group[node]
    for i in range(net.const.homes):
        column = routes.home[npu * net.const.homes + i]
        if column >= 0 and routes.column_group[column] == group:
            return True
    return False


@inline
def is_home_of(net, routes, node, npu):
    """Return whether a switch is a first switch of an NPU.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        npu: Number of the NPU in the fabric.
    """
    own = routes.node[node].column
    found = False
    for i in range(net.const.homes):
        found |= own >= 0 and routes.home[npu * net.const.homes + i] == own
    return found


@inline
def is_beside(net, routes, node, npu):
    """Return whether a switch that is a group of its own is one link from a first switch of an NPU.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        npu: Number of the NPU in the fabric.
    """
    found = False
    if is_alone(routes, node):
        for i in range(net.const.homes):
            home = routes.home[npu * net.const.homes + i]
            found |= home >= 0 and routes.switch_hops[routes.switch_row[node] + home] == 1
    return found


@inline
def is_alone(routes, node):
    """Return whether a switch is a group of its own.

    Args:
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
    """
    return routes.own_homes[4 * node + 1] - routes.own_homes[4 * node] == 1


@inline
def is_at_home(routes, node, word2):
    """Return whether a switch is the home of a packet's detour.

    Args:
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word2: Word 2 of a packet on a detour.
    """
    return np.int64(detour_column(word2)) == routes.node[node].column


@inline
def may_decide(net, routes, node, word1):
    """Return whether a switch of the source's group, or beside it without groups, may send a packet on a detour.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
    """
    # acknowledgements and notifications take shortest paths
    return (
        flags(word1) & FLAG_ACK == 0
        and routes.group[node] >= 0
        and (is_of_npu(net, routes, node, source(word1)) or is_beside(net, routes, node, source(word1)))
        and not is_home_of(net, routes, node, destination(word1))
    )


@inline
def draw(net, routes, node, count, now_ps):
    """Return a number below `count`, by a hash of the switch and of its choices since its last pause.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        count: Number of possibilities.
        now_ps: Current time in ps.
    """
    choices = count_choice(net, node, now_ps)
    return (mix2(routes.node[node].salt + SEED, np.int64(choices)) * count) >> 32


@inline
def any_column(net, routes, node, word1, now_ps):
    """Return the column of a random home of another group, or of the own group for packets within it; -1 = none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        now_ps: Current time in ps.
    """
    # homes are in the order of their groups, so that those of the own group are one stretch
    first, last = np.int64(routes.own_homes[4 * node]), np.int64(routes.own_homes[4 * node + 1])
    begin, end = np.int64(routes.own_homes[4 * node + 2]), np.int64(routes.own_homes[4 * node + 3])
    if last > first and is_of_npu(net, routes, node, destination(word1)):
        return np.int64(routes.detour[first + draw(net, routes, node, last - first, now_ps)])
    others = end - begin - (last - first)
    if others <= 0:
        return np.int64(-1)
    which = begin + draw(net, routes, node, others, now_ps)
    if which >= first:
        which += last - first
    return np.int64(routes.detour[which])


@inline
def first_column(net, routes, node, word1, word2, now_ps):
    """Return `any_column` for a packet that nothing is decided of, at its first switch; -1 elsewhere and for others.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet, with its state.
        now_ps: Current time in ps.
    """
    if word2 >= 0 and is_home_of(net, routes, node, source(word1)) and may_decide(net, routes, node, word1):
        return any_column(net, routes, node, word1, now_ps)
    return np.int64(-1)


@inline
def near_column(net, routes, node, now_ps):
    """Return the column of a home in the group to which a random one of the switch's links leads; -1 = no such link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        now_ps: Current time in ps.
    """
    first = np.int64(routes.near_ptr[node])
    count = np.int64(routes.near_ptr[node + 1]) - first
    if count == 0:
        return np.int64(-1)
    return np.int64(routes.near[first + draw(net, routes, node, count, now_ps)])


@outline
def note_joined(net, node, link, size_bytes, now_ps):
    """Note that a packet joins the queue of a port.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the switch in the LP.
        link: Number of the outgoing link.
        size_bytes: Size of the packet on the wire in bytes.
        now_ps: Current time in ps.
    """
    if net.hooks.shared_switches != 0 and net.pool[node].shared_bytes > 0:
        bring_up_for(net, node, link, now_ps)
    log = net.queue_log[link]
    log.newest = (log.newest + 1) % LOGGED
    log.joined_ps[log.newest] = now_ps
    log.work_ps[log.newest] = work_left(net, link, now_ps) + serialisation_ps(size_bytes, link_psb(net, link))


@outline
def work_before(net, link, now_ps):
    """Return the time that a port needed for all that it had to send, when a packet's way was chosen.

    That is what was left then of what it had to send behind the last packet before, if it sent all the time. Of more
    than LOGGED packets since then, the first of these stands for what came before.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
        now_ps: Time in ps at which the packet joins a queue.
    """
    log, chosen_ps = net.queue_log[link], now_ps - net.const.routing_delay_ps
    at = np.int64(log.newest)
    for _ in range(LOGGED - 1):
        if log.joined_ps[at] <= chosen_ps:
            break
        at = (at - 1) % LOGGED
    return max(0, np.int64(log.work_ps[at]) - max(0, chosen_ps - np.int64(log.joined_ps[at])))


@inline
def queued_packets(net, node, link, now_ps):
    """Return the full packets at a port of a switch, rounded up: one counts until its last bit has left.

    With `Constants.routing_delay_ps` they are those of that long ago, when the packet's way was chosen.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the switch in the LP.
        link: Number of the outgoing link.
        now_ps: Current time in ps.
    """
    if net.hooks.shared_switches != 0 and net.pool[node].shared_bytes > 0:
        bring_up_for(net, node, link, now_ps)
    packet_ps = max(1, serialisation_ps(full_packet_bytes(net), link_psb(net, link)))
    work = work_before(net, link, now_ps) if net.const.routing_delay_ps > 0 else work_left(net, link, now_ps)
    return (work + packet_ps - 1) // packet_ps


@inline
def hops_of_detour(net, routes, column, dst):
    """Return the links from a home of a detour to the nearest home of an NPU.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        column: Column of the home of the detour.
        dst: Number of the destination NPU.
    """
    columns = routes.column_group.shape[0]
    best = np.int64(127)
    for i in range(net.const.homes):
        home = routes.home[dst * net.const.homes + i]
        if home >= 0:
            best = min(best, np.int64(routes.home_hops[column * columns + home]))
    return best


@inline
def hops_to(net, routes, node, dst):
    """Return the links from a switch to the nearest home of an NPU.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        dst: Number of the destination NPU.
    """
    best = np.int64(127)
    for i in range(net.const.homes):
        home = routes.home[dst * net.const.homes + i]
        if home >= 0:
            best = min(best, np.int64(routes.switch_hops[routes.switch_row[node] + home]))
    return best


@inline
def links_of_both(net, routes, node, word1, word2, column):
    """Return a packet's next link on its shortest path, and on a detour over a home; the first twice at the home.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        column: Column of the home of the detour.
    """
    minimal = choose(routes, switch_cell_to(net, routes, node, destination(word1), word2), node, word2)
    if column == routes.node[node].column:
        return minimal, minimal
    return minimal, choose(routes, cell_to(routes, node, column), node, word2)


@inline
def prefers_minimal(net, routes, node, word1, word2, column, now_ps):
    """Return whether the shortest path's queue times its links is at most that of a detour over a home.

    This is UGAL's rule (Singh, 2005) with the queues of the switch's own ports; where a cell has several links, with
    that which the packet's entropy chooses.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        column: Column of the home of the detour.
        now_ps: Current time in ps.
    """
    minimal, detour = links_of_both(net, routes, node, word1, word2, column)
    return minimal == detour or prefers_first(net, routes, node, word1, column, minimal, detour, now_ps)


@inline
def prefers_first(net, routes, node, word1, column, minimal, detour, now_ps):
    """Return `prefers_minimal` where the paths begin with different links.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        column: Column of the home of the detour.
        minimal: First link of the shortest path.
        detour: First link of the detour.
        now_ps: Current time in ps.
    """
    queue = queued_packets(net, node, minimal, now_ps)
    if queue == 0:
        return True
    other = queued_packets(net, node, detour, now_ps)
    return is_no_longer(net, routes, node, word1, column, queue, other)


@inline
def is_no_longer(net, routes, node, word1, column, queue, other):
    """Return whether a queue times the links of the shortest path is at most another times those of a detour.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        column: Column of the home of the detour.
        queue: What waits on the shortest path.
        other: What waits on the detour, in the same unit.
    """
    dst = destination(word1)
    detour = np.int64(routes.switch_hops[routes.switch_row[node] + column]) + hops_of_detour(net, routes, column, dst)
    return queue * hops_to(net, routes, node, dst) <= other * detour


@inline
def turned(net, routes, node, word1, word2):
    """Return word 2 of a packet at a switch, which says that only shortest paths are left where a detour ends here.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet, with its state.
    """
    if is_on_detour(word2) and (
        is_at_home(routes, node, word2)
        or (
            routes.column_group[np.int64(detour_column(word2))] == routes.group[node]
            and not is_of_npu(net, routes, node, source(word1))
        )
    ):
        word2 |= DIRECT
    return word2


@inline
def cell_of(net, routes, node, word1, word2):
    """Return the cell of a switch for a packet: to the home of its detour, or its destination.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet, with its state.
    """
    if is_on_detour(word2):
        return np.int64(cell_to(routes, node, np.int64(detour_column(word2))))
    return np.int64(switch_cell_to(net, routes, node, destination(word1), word2))


@inline
def go_on(net, routes, node, record, word1, word2, now_ps):
    """Keep a packet's state, and return the cell of a switch for it: to the home of its detour, or its destination.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        record: Record of the packet.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet, with its state.
        now_ps: Current time in ps.
    """
    now_word2 = turned(net, routes, node, word1, word2)
    if now_word2 != word2:
        # what waits on the way to a home does not wait for what comes from there
        net.record[record].w1 = raised(net, word1)
    net.record[record].w2 = now_word2
    cell = cell_of(net, routes, node, word1, now_word2)
    if net.const.routing_delay_ps > 0:
        note_joined(net, node, choose(routes, cell, node, now_word2), wire_bytes(word1), now_ps)
    return cell
