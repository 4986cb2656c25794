"""Links, NPUs and routes that change during a run: each LP makes its own changes when it opens a cell.

A change is made at the first cell that begins at or after its time, before anything happens in it. Cells lie on one
grid for all LPs, and an LP that has nothing to do in that cell makes the change later, before what it does next: nobody
can tell the difference, since a change makes no event.
"""

from pdes.core.jit import hook, inline
from pdes.core.state import (
    CHANGE_INDEX,
    CHANGE_KIND,
    CHANGE_LINK,
    CHANGE_NPU,
    CHANGE_PS,
    CHANGE_VALUE,
    CHANGE_WORDS,
    CLASS_DELAY,
    CLASS_WORDS,
    CONST_EPOCHS,
    CTL_FAULT_AT,
    CTL_FAULT_PS,
    CTL_NOW,
    INF,
    NPU_SLOW,
    NPU_WORDS,
    TX_BUSY,
    TX_META,
    TX_PACKETS,
    TX_WORDS,
)
from pdes.core.world import world_at

CLASS_SHIFT = 46
META_MASK = (1 << CLASS_SHIFT) - 1


@inline
def slowed(duration_ps, slow):
    """A duration times `slow` 1024ths, rounded down."""
    return (duration_ps >> 10) * slow + (((duration_ps & 1023) * slow) >> 10)


@inline
def change_link(net, link, new_class):
    """Give an outgoing link another class.

    If its delay falls, the port rests until nothing it sends can overtake what is on the wire: packets that wait on a
    link are in the order of their arrival.
    """
    q = link * TX_WORDS
    meta = net.tx[q + TX_META]
    before = net.link_class[(meta >> CLASS_SHIFT) * CLASS_WORDS + CLASS_DELAY]
    after = net.link_class[new_class * CLASS_WORDS + CLASS_DELAY]
    if after < before and net.tx[q + TX_PACKETS] != 0:
        net.tx[q + TX_BUSY] += before - after
    net.tx[q + TX_META] = (meta & META_MASK) | (new_class << CLASS_SHIFT)


@inline
def put_table(into, tables, at, epoch, epochs):
    """Copy one of the tables that stand from `at` on, one for each epoch; where the next array's begin."""
    length = into.shape[0]
    begin = at + epoch * length
    for i in range(length):
        into[i] = tables[begin + i]
    return at + epochs * length


@inline
def change_routes(routes, schedule, epoch, epochs):
    """Take other routing tables. The order is that of pdes.build.schedule.TABLES."""
    at = put_table(routes.node, schedule.table64, 0, epoch, epochs)
    put_table(routes.hop_row, schedule.table64, at, epoch, epochs)
    at = put_table(routes.cell, schedule.table32, 0, epoch, epochs)
    at = put_table(routes.attach, schedule.table32, at, epoch, epochs)
    at = put_table(routes.home, schedule.table32, at, epoch, epochs)
    at = put_table(routes.link, schedule.table32, at, epoch, epochs)
    at = put_table(routes.hop_column, schedule.table32, at, epoch, epochs)
    put_table(routes.via, schedule.table32, at, epoch, epochs)
    put_table(routes.hops, schedule.table8, 0, epoch, epochs)


@hook
def make_changes(address, _a, _b, _c, _d, _e, _f, _g):
    """Make all changes that are due in the cell in hand."""
    world = world_at(address)
    net, schedule = world.net, world.schedule
    change = schedule.change
    ctl = net.ctl
    at = ctl[CTL_FAULT_AT]
    last = change.shape[0] // CHANGE_WORDS
    while at < last and change[at * CHANGE_WORDS + CHANGE_PS] <= ctl[CTL_NOW]:
        row = at * CHANGE_WORDS
        kind = change[row + CHANGE_KIND]
        index = change[row + CHANGE_INDEX]
        value = change[row + CHANGE_VALUE]
        if kind == CHANGE_LINK:
            change_link(net, index, value)
        elif kind == CHANGE_NPU:
            world.npus.npu[index * NPU_WORDS + NPU_SLOW] = value
        else:
            change_routes(world.routes, schedule, value, net.const[CONST_EPOCHS])
        at += 1
    ctl[CTL_FAULT_AT] = at
    ctl[CTL_FAULT_PS] = INF
    if at < last:
        ctl[CTL_FAULT_PS] = change[at * CHANGE_WORDS + CHANGE_PS]
    return 0
