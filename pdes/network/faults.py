"""Changes of links, NPUs and routes during a run: each LP makes its own changes when it opens a cell.

A change takes effect at the first cell that begins at or after its time, before anything happens in it. Cells lie on
one grid for all LPs. An LP that has nothing to do in that cell makes the change later, before its next action; this
makes no difference, since a change causes no event.
"""

from nadi.pdes.core.jit import copy_row, hook, inline
from nadi.pdes.core.packet import PAUSE, class_of, end_of, link_meta, number_of, pause_word
from nadi.pdes.core.state import CHANGE_LINK, CHANGE_NPU, CHANGE_PAUSE, INF, world_at
from nadi.pdes.network.port_queues import set_pause


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
    put_table(routes.hop_row, schedule.table64, 0, epoch, epochs)
    at = put_table(routes.cell, schedule.table32, 0, epoch, epochs)
    at = put_table(routes.attach, schedule.table32, at, epoch, epochs)
    at = put_table(routes.home, schedule.table32, at, epoch, epochs)
    at = put_table(routes.link, schedule.table32, at, epoch, epochs)
    at = put_table(routes.hop_column, schedule.table32, at, epoch, epochs)
    put_table(routes.via, schedule.table32, at, epoch, epochs)
    put_table(routes.hops, schedule.table8, 0, epoch, epochs)


@hook
def make_changes(world_address):
    """Make all changes that are due in the current cell.

    Args:
        world_address: Address of the directory of the LP's `World`.
    """
    world = world_at(world_address)
    net, schedule = world.net, world.schedule
    at = net.ctl.fault_at
    last = schedule.change.shape[0]
    # several may be due, as idle LPs skip cells; in order, so that the last of one link holds
    while at < last and schedule.change[at].begin_ps <= net.ctl.now_ps:
        change = schedule.change[at]
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
            for data_class in range(1 + net.const.p2p_class):
                set_pause(net, change.index, pause_word(data_class, PAUSE), change.begin_ps)
        else:
            change_routes(world.routes, schedule, change.value, net.const.epochs)
        at += 1
    net.ctl.fault_at = at
    net.ctl.fault_ps = schedule.change[at].begin_ps if at < last else INF
    return 0
