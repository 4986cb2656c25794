"""An NPU's progress through its trace: rows whose parents are done start, take their lane or their turn, and finish."""

import numpy as np

from nadi.pdes.core import state
from nadi.pdes.core.algorithms import mix2, mix3
from nadi.pdes.core.jit import call_hook, inline, outline
from nadi.pdes.core.packet import P2P, job_of, message_tag, rank_of
from nadi.pdes.network.routing import slowed
from nadi.pdes.nic.port import set_event
from nadi.pdes.nic.rendezvous import answer, post_or_ask
from nadi.pdes.npu.collective import start_collective
from nadi.pdes.npu.contention import ask_memory, begin_work

# An `npu` here is a row of NPUs, or of classes of equal NPUs (nadi/simulation/closed_forms/advancing/state.py).
#
# Lanes (CPU, compute, memory) run one row at a time, in the order in which rows became ready. Rows that become ready
# at the same time start in the order of the trace.

NOTHING = -1  # no row, instance, port or message

KIND_NOOP, KIND_COMPUTE, KIND_MEMORY, KIND_SEND, KIND_RECV, KIND_COLLECTIVE = range(6)
KINDS_OF_TURNS = 3  # kinds of rows of which an NPU may run one at a time (pdes/npu/trace.py)


@inline
def row_of_collective(npu, trace, plans, group, seq):
    """Return an NPU's trace row of a collective of one of its groups, and its slot of the group.

    Args:
        npu: The NPU (a row `Npu`).
        trace: The distinct traces (`Trace`).
        plans: Groups and schedules of collectives (`PlanTables`).
        group: Number of the group.
        seq: Number of the collective in its group.
    """
    slot = npu.slot_base
    at = trace.trace_slot_ptr[npu.trace_number]
    # an NPU is in few groups, so a search is short; `at` moves along, as slots of trace and NPU have the same order
    while plans.slot_group[slot] != group:
        slot += 1
        at += 1
    return np.int64(trace.coll_node[trace.coll_ptr[at] + seq]), slot


@inline
def make_ready(npu, rows, row):
    """Append a trace row of an NPU, whose parents are all done, to its ready rows.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        row: Trace row of the NPU.
    """
    # from here on the word names the next row of the list, no longer the parents that are left
    rows.state[npu.row_base + row] = -1
    if npu.ready_head < 0:
        npu.ready_head = row
    else:
        rows.state[npu.row_base + npu.ready_tail] = row
    npu.ready_tail = row


@inline
def begin_job(npu):
    """Let the rows of an NPU that have no parents be ready, as its job starts.

    Args:
        npu: The NPU (a row `Npu`).
    """
    npu.ready_head = npu.job_row
    npu.job_row = NOTHING


@inline
def next_ready(npu, rows):
    """Remove the NPU's first ready row and return it.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
    """
    row = npu.ready_head
    # -1 at the end; `ready_tail` is then void, and set by the next `make_ready`
    npu.ready_head = rows.state[npu.row_base + row]
    return row


@inline
def wait_for_lane(npu, rows, lane, row):
    """Queue a trace row of an NPU behind the one that its lane works on.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        lane: Number of the lane.
        row: Trace row of the NPU.
    """
    rows.state[npu.row_base + row] = -1
    if npu.wait_head[lane] < 0:
        npu.wait_head[lane] = row
    else:
        rows.state[npu.row_base + npu.wait_tail[lane]] = row
    npu.wait_tail[lane] = row


@inline
def next_for_lane(npu, rows, lane):
    """Make the next trace row of an NPU that waits for an idle lane ready.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        lane: Number of the lane.
    """
    waiting = npu.wait_head[lane]
    if waiting >= 0:
        npu.wait_head[lane] = rows.state[npu.row_base + waiting]
        make_ready(npu, rows, waiting)


@inline
def leave_lane(npu, rows, lane):
    """Free a lane of an NPU of its finished row, for the next; return the row.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        lane: Number of the lane.
    """
    row = npu.lane[lane]
    # the lane is free before the next is ready: that may start at once, at the same time
    npu.lane[lane] = -1
    next_for_lane(npu, rows, lane)
    return row


@inline
def npu_of_rank(net, npu, difference):
    """Return the NPU of another rank of an NPU's job.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npu: The NPU (a row `Npu`).
        difference: Number of that rank minus the own one.
    """
    return np.int64(net.jobs.npu[npu.place + difference])


@inline
def post_send(net, npus, trace, node, row, now_ps):
    """Post the message of a trace row.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        trace: The distinct traces (`Trace`).
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
        now_ps: Current time in ps.
    """
    npu = npus.npu[node]
    r = npu.trace_base + row
    tag = message_tag(np.int64(P2P), np.int64(trace.seq[r]), np.int64(trace.tag[r]))
    # all point-to-point messages of two NPUs share a connection, unless the program divides them (Channels)
    connection = np.int64(P2P)
    if trace.channel[r] >= 0:
        connection = trace.connections[trace.channel[r]]
    post_or_ask(net, node, npu_of_rank(net, npu, trace.peer[r]), connection, tag, trace.bytes[r], row, now_ps)


@outline
def start_row(world_address, node, row, now_ps):
    """Start trace row `row` of NPU `node` at now_ps; return (row done at once, instance to advance) or NOTHING."""
    world = state.world_at(world_address)
    net, npus, rows, trace = world.net, world.npus, world.rows, world.trace
    npu = npus.npu[node]
    first = npu.row_base
    r = npu.trace_base + row
    kind = trace.kind[r]
    done = inst = np.int64(NOTHING)
    if kind == KIND_COMPUTE or kind == KIND_MEMORY:
        lane = np.int64(trace.lane[r])
        if npu.lane[lane] >= 0:
            wait_for_lane(npu, rows, lane, row)
            return done, inst
        duration = trace.duration_ps[r]
        if kind == KIND_COMPUTE and npu.slow_1024ths != 0:
            duration = slowed(duration, npu.slow_1024ths)
        if lane == state.COMPUTE_LANE and net.const.slows_compute != 0:
            duration = begin_work(npus.system[node], duration, now_ps)
        if lane == state.REMOTE_LANE and net.const.remote_sharers > 1:
            npu.lane[lane] = row
            ask_memory(net, npus, node, duration, now_ps)
        elif duration == 0:  # needs no lane
            done = row
            next_for_lane(npu, rows, lane)
        else:
            npu.lane[lane] = row
            set_event(npus, node, now_ps + duration, npu.ports + lane)
    elif kind == KIND_SEND:
        if net.hooks.leave_domain != 0:
            call_hook(net.hooks.join, world_address, node, row, now_ps)
        if trace.duration_ps[r] > 0:
            call_hook(net.hooks.post_later, world_address, node, row, now_ps + trace.duration_ps[r])
        else:
            post_send(net, npus, trace, node, row, now_ps)
    elif kind == KIND_RECV:
        if rows.flag[first + row] & state.ROW_ARRIVED != 0:
            done = row
        elif rows.flag[first + row] & state.ROW_ASKED != 0:
            tag = message_tag(np.int64(P2P), np.int64(trace.seq[r]), np.int64(trace.tag[r]))
            answer(net, node, npu_of_rank(net, npu, trace.peer[r]), tag, now_ps)
        rows.flag[first + row] |= state.ROW_POSTED
    elif kind == KIND_COLLECTIVE:
        slot = npu.slot_base + trace.group[r]
        if net.const.serial_collectives == 1 and rows.slot_next[slot] != trace.seq[r]:
            rows.flag[first + row] |= state.ROW_READY
            return done, inst
        if trace.schedule[r] < 0:
            done = row
        elif net.const.collectives_in_flight > 0 and (call_hook(net.hooks.may_start, world_address, node, row) == 0):
            return done, inst
        elif net.hooks.join == 0 or call_hook(net.hooks.join, world_address, node, row, now_ps) == 0:
            inst = start_collective(world, node, row, now_ps, now_ps)
    else:
        done = row
    rows.flag[first + row] |= state.ROW_STARTED
    if net.const.record_nodes == 1:
        rows.start[first + row] = now_ps
    return done, inst


@inline
def count_row(net, npu, total, row, now_ps):
    """Count a trace row of an NPU that is done, in the digest of its job, too.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npu: The NPU (a row `Npu`).
        total: Totals of the job (a row `JobTotal`).
        row: Trace row of the NPU.
        now_ps: Time in ps at which it is done.
    """
    # the digest is a sum, so that rows may be counted in any order
    h = mix3(rank_of(net.jobs.who[npu.number]), row, 0x4E41)
    since_ps = now_ps - total.begin_ps
    net.count.trace_rows += 1
    total.trace_rows += 1
    total.digest_a += mix2(h, since_ps)
    total.digest_b += mix2(since_ps * 3 + 1, h)
    if now_ps > net.ctl.finish_ps:
        net.ctl.finish_ps = now_ps


@inline
def end_turn(turns, row):
    """Let the kind of a trace row that is done be idle if it ran this row (pdes/npu/trace.py).

    Args:
        turns: Rows of the NPU that run or wait, by kind (a row `Turns`).
        row: Trace row of the NPU.
    """
    for kind in range(KINDS_OF_TURNS):
        if turns.running[kind] == row:
            turns.running[kind] = -1


@outline
def finish_row(world_address, node, row, now_ps):
    """Count a trace row, which is done, and notify the rows that wait for it.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
        now_ps: Current time in ps.
    """
    world = state.world_at(world_address)
    net, rows = world.net, world.rows
    if now_ps < net.ctl.catch_up_ps:  # it has ended before (pdes/reuse_kernels/domains.py)
        return
    npu = world.npus.npu[node]
    if net.const.record_nodes == 1:
        rows.finish[npu.row_base + row] = now_ps
    count_row(net, npu, net.jobs.total[job_of(net.jobs.who[npu.number])], row, now_ps)
    npu.rows_left -= 1
    net.ctl.rows_left -= 1
    if net.const.one_at_a_time == 1:
        end_turn(world.npus.turns[node], row)
    if net.hooks.leave_domain != 0:
        call_hook(net.hooks.leave_domain, world_address, node, row, now_ps)
    notify_children(npu, rows, world.trace, row, net.const.serial_collectives)


@inline
def notify_children(npu, rows, trace, row, is_serial):
    """Notify the children of a done row of an NPU, and, if collectives are serial, the next collective of its group.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        trace: The distinct traces (`Trace`).
        row: Trace row of the NPU.
        is_serial: 1 if collectives of a group run one after another, else 0.
    """
    first = npu.row_base
    r = npu.trace_base + row
    rows.flag[first + row] |= state.ROW_DONE
    if trace.kind[r] == KIND_COLLECTIVE and is_serial == 1:
        wake_group(npu, rows, trace, r)
    for i in range(trace.child_ptr[r], trace.child_ptr[r + 1]):
        child = np.int64(trace.child[i])
        # the state of a row that is not ready counts the parents to come
        left = rows.state[first + child] - 1
        rows.state[first + child] = left
        if left == 0:
            make_ready(npu, rows, child)


@inline
def wake_group(npu, rows, trace, table_row):
    """Let the next collective of a row's group start if it is ready.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        trace: The distinct traces (`Trace`).
        table_row: The row in the tables of traces.
    """
    group = np.int64(trace.group[table_row])
    slot = npu.slot_base + group
    # collectives of a group run in the order of the trace on all members: no member waits for one that another has not
    # reached
    rows.slot_next[slot] += 1
    i = trace.trace_slot_ptr[npu.trace_number] + group
    at = trace.coll_ptr[i] + rows.slot_next[slot]
    if at < trace.coll_ptr[i + 1]:
        following = np.int64(trace.coll_node[at])
        # it was ready before, and had to wait for this one
        if rows.flag[npu.row_base + following] & state.ROW_READY != 0:
            make_ready(npu, rows, following)


# NPUs that run one row of each kind at a time, as ASTRA-sim does (workload/HardwareResource.cc).
#
# Kinds are computation on the CPU, computation on the GPU, and communication: collectives, sends and memory nodes.
# Receives, collectives of one member and aggregators in switches take no turn. When all that follows from an event is
# done, each idle kind begins its first row that is ready, in the order of the trace.
#
# The functions are shared with closed forms (nadi/simulation/closed_forms/advancing). `npu` is a row with the words of
# an NPU's ready rows and places in the tables, `turns` its row of Turns, `rows` the states of trace rows.

COMMUNICATION = 2  # the other kinds have the numbers of their lanes


@inline
def kind_of(npu, rows, trace, row, is_serial):
    """Return the kind of a trace row of an NPU, -1 if it takes no turn now.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        trace: The distinct traces (`Trace`).
        row: Trace row of the NPU.
        is_serial: 1 if collectives of a group run one after another, else 0.
    """
    r = npu.trace_base + row
    kind = trace.kind[r]
    if kind == KIND_COMPUTE:
        # CPU and COMPUTE are 0 and 1, as lanes and as kinds
        return np.int64(trace.lane[r])
    if kind == KIND_COLLECTIVE:
        # the collective waits for others of its group, not for its kind
        is_early = is_serial == 1 and rows.slot_next[npu.slot_base + trace.group[r]] != trace.seq[r]
        return np.int64(-1) if trace.schedule[r] < 0 or is_early else np.int64(COMMUNICATION)
    return np.int64(COMMUNICATION) if kind == KIND_SEND or kind == KIND_MEMORY else np.int64(-1)


@inline
def takes_turn(npu, turns, rows, trace, row, is_serial):
    """Return whether a ready row of an NPU may start now; else let it wait for its turn.

    Args:
        npu: The NPU (a row `Npu`).
        turns: Rows of the NPU that run or wait, by kind (a row `Turns`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        trace: The distinct traces (`Trace`).
        row: Trace row of the NPU.
        is_serial: 1 if collectives of a group run one after another, else 0.
    """
    row_state = rows.state
    kind = kind_of(npu, rows, trace, row, is_serial)
    if kind < 0 or turns.is_free == 1 or turns.running[kind] == row:
        return True
    before = np.int64(-1)
    at = np.int64(turns.next_row[kind])
    # the list is in the order of the trace
    # insertion by row number: rows ready earlier but later in the trace come behind
    while at >= 0 and at < row:
        before = at
        at = np.int64(row_state[npu.row_base + at])
    row_state[npu.row_base + row] = at
    if before < 0:
        turns.next_row[kind] = row
    else:
        row_state[npu.row_base + before] = row
    return False


@inline
def begin_turns(npu, turns, rows):
    """Let each kind of an NPU that is idle begin its next row.

    Args:
        npu: The NPU (a row `Npu`).
        turns: Rows of the NPU that run or wait, by kind (a row `Turns`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
    """
    for kind in range(KINDS_OF_TURNS):
        row = np.int64(turns.next_row[kind])
        if turns.running[kind] < 0 and row >= 0:
            turns.next_row[kind] = rows.state[npu.row_base + row]
            turns.running[kind] = row
            # it goes through the list of ready rows once more, and passes `takes_turn` as the row that runs
            make_ready(npu, rows, row)
