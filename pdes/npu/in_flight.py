"""A limit on the collectives that an NPU runs at a time: others that are ready wait in line.

A collective takes a place when it starts and frees it at its end; `scheduling` chooses the next. Members with different
choices would deadlock, so a called member must come: a collective with a message that has arrived starts without
waiting, even beyond the limit, and a lane that waits for a message calls its sender by a message of control_bytes. So
no member keeps a collective in line that another member waits for.
"""

import numpy as np

from nadi.pdes.core.jit import hook, inline, outline
from nadi.pdes.core.state import COMPUTE_LANE, ROW_CALLED, ROW_READY, world_at
from nadi.pdes.npu.agenda import FIFO, PRIORITY
from nadi.pdes.npu.contention import count_running
from nadi.pdes.npu.trace import make_ready, row_of_collective


@hook
def may_start(world_address, node, row):
    """Return 1 if an NPU's ready collective may start, with a place; else queue it, return 0.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
    """
    world = world_at(world_address)
    npus, rows = world.npus, world.rows
    first = npus.npu[node].row_base
    system = npus.system[node]
    if rows.flag[first + row] & ROW_CALLED != 0 or system.in_flight < world.net.const.collectives_in_flight:
        # a called one goes beyond the limit: it gives a place back at its end, and until then nobody else takes one
        system.in_flight += 1
        return 1
    rows.flag[first + row] |= ROW_READY
    # the state of a row that waits names the next in line
    rows.state[first + row] = system.line - 1
    system.line = row + 1
    return 0


@inline
def leave_line(npus, rows, node, row):
    """Let a trace row start without waiting for a place: now if it is in line, else once ready.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
    """
    first = npus.npu[node].row_base
    system = npus.system[node]
    rows.flag[first + row] |= ROW_CALLED
    before = np.int64(-1)
    # `line` is the newest + 1, and each names the next older one
    at = system.line - 1
    while at >= 0 and at != row:
        before = at
        at = np.int64(rows.state[first + at])
    # not in line yet: its flag lets it start once it is ready
    if at < 0:
        return
    following = np.int64(rows.state[first + row])
    if before < 0:
        system.line = following + 1
    else:
        rows.state[first + before] = following
    make_ready(npus.npu[node], rows, row)


@outline
def call(world_address, node, group, seq):
    """Start a collective of an NPU without further waiting, since a message for it has arrived.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        group: Number of the group.
        seq: Number of the collective in its group.
    """
    world = world_at(world_address)
    # each message of a collective calls it; from the second on the row has started, and nothing is left to do
    row, _ = row_of_collective(world.npus.npu[node], world.trace, world.plans, group, seq)
    leave_line(world.npus, world.rows, node, row)


@inline
def first_in_line(net, npus, rows, trace, node):
    """Return an NPU's row that is next by `scheduling`: first or last to come, or first of the highest priority.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        trace: The distinct traces (`Trace`).
        node: Number of the NPU in the LP.
    """
    # The line begins with the last to come.
    npu = npus.npu[node]
    first = npu.row_base
    base = npu.trace_base
    best = npus.system[node].line - 1
    row = best
    while row >= 0:
        is_higher = trace.priority[base + row] >= trace.priority[base + best]
        if net.const.scheduling == FIFO or (net.const.scheduling == PRIORITY and is_higher):
            best = row
        row = np.int64(rows.state[first + row])
    return best


@hook
def running(world_address, node, row, change, now_ps):
    """Count a collective that begins to run or ends.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        row: Trace row of the collective.
        change: 1 if it begins, -1 if it ends.
        now_ps: Current time in ps.
    """
    # At its end, another collective may take its place, and compute gets its multiprocessors back.
    world = world_at(world_address)
    const, system = world.net.const, world.npus.system[node]
    if const.slows_compute != 0 and world.trace.lane[world.npus.npu[node].trace_base + row] == COMPUTE_LANE:
        count_running(world_address, node, change, now_ps)
    # the next in line starts in the same moment, before time advances
    if change < 0 and const.collectives_in_flight > 0:
        # the next that waits in line starts if there is a place now
        system.in_flight -= 1
        if system.in_flight < const.collectives_in_flight and system.line > 0:
            leave_line(
                world.npus, world.rows, node, first_in_line(world.net, world.npus, world.rows, world.trace, node)
            )
    return 0
