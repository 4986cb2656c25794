"""Quiet moments of a logical process: no packet is under way and no message is open.

What happens next then depends on little: rows of traces that are under way, events of NPUs, collectives that wait for
their replay, and what lasts, such as ties of a moment ago. `write_state` writes that as words which name neither the
time nor the place in a trace, so that two moments with equal words have equal futures if the traces repeat themselves
(pdes/reuse/recurrence.py); pdes/reuse_kernels/recurring.py then does what these futures have in common.
"""

import numpy as np

from nadi.pdes.core.hashing import FREE
from nadi.pdes.core.jit import inline, kernel
from nadi.pdes.core.state import (
    COMPUTE_LANE,
    INF,
    LANES,
    ROW_DONE,
    ROW_READY,
    ROW_STARTED,
    later_messages,
    world_at,
)
from nadi.pdes.nic.port import NOT_KICKED
from nadi.pdes.npu.endpoints import ENDS, NOTICED, POSTS, RUNS, STARTS
from nadi.pdes.reuse_kernels.islands import INSIDE

LOOSE = 1 << 60  # added to words that may differ a little where a state recurs only nearly: times, counts of ties
NOT_QUIET = -1  # result of `write_state` if a packet, a message or a collective of packets is under way
WORDS_OF_LP, WORDS_OF_NPU, WORDS_OF_PORT, WORDS_OF_SLOT = 16, 40, 2, 5  # words that `write_state` writes, at most
WORDS_OF_ROW, WORDS_OF_EVENT, WORDS_OF_LATER, WORDS_OF_ISLAND, WORDS_OF_MEMBER = 3, 2, 4, 1, 4


@inline
def has_no_packets(world):
    """Return whether no packet of the LP of `world` is under way, at the end of a window, and no collective sends."""
    ctl = world.net.ctl
    return (
        ctl.free_blocks == world.net.block_free.shape[0]
        and ctl.out_soonest_ps >= INF
        and ctl.far_soonest_ps >= INF
        and ctl.free_instances == world.insts.inst_free.shape[0]
    )


@inline
def is_touched(rows, place, parents):
    """Return whether anything has happened to the trace row at `place` of `rows`, which has `parents` parents."""
    # collectives without parents, such as those of aggregators, are ready from the begin of the run until their turn
    if parents == 0 and rows.flag[place] == ROW_READY:
        return False
    return rows.flag[place] != 0 or rows.state[place] != parents


@kernel
def find_windows(world_address, parents, row_ptr, low, high):
    """Find the rows [low, high) of each NPU's trace: all before are done, and nothing has happened to later ones.

    world_address: address of the directory of the LP's `World`; parents: int64[rows of all traces], number of parents;
    row_ptr: int64[NPUs + 1], offsets of the NPUs' rows; low, high: int64[NPUs], written; low holds a row before which
    all are done, such as 0.
    """
    world = world_at(world_address)
    rows = world.rows
    for node in range(low.shape[0]):
        base, of_trace = row_ptr[node], world.npus.npu[node].trace_base
        end = row_ptr[node + 1] - base
        row = low[node]
        while row < end and rows.flag[base + row] & ROW_DONE != 0:
            row += 1
        last = end
        # from the end, since a trace may have rows that begin out of order
        while last > row and not is_touched(rows, base + last - 1, parents[of_trace + last - 1]):
            last -= 1
        low[node], high[node] = row, last


@inline
def from_now(time_ps, moment_ps):
    """Return the time from moment_ps to time_ps as an approximate word (LOOSE); INF if it is never."""
    return time_ps - moment_ps + LOOSE if time_ps < INF else INF


@inline
def write_rows(world, node, low, high, words, at):
    """Write the state of an NPU's trace rows [low, high), and its lanes; return the place behind it in `words`.

    world: state of the LP; node: number of the NPU in the LP; low, high: rows [low, high) of the NPU's trace, of
    `find_windows`; words: int64[], output; at: index in `words` of the first word to write.
    """
    npu, rows = world.npus.npu[node], world.rows
    base = npu.row_base
    words[at] = high - low
    begin = at + 1
    at = begin
    for row in range(low, high):
        flag = np.int64(rows.flag[base + row])
        words[at] = ROW_DONE if flag & ROW_DONE != 0 else flag
        words[at + 1] = rows.state[base + row] if flag & (ROW_DONE | ROW_STARTED | ROW_READY) == 0 else 0
        at += 2
    for lane in range(LANES):
        words[at] = max(npu.lane[lane] - low, -1)
        at += 1
        row = npu.wait_head[lane]
        while row >= 0:
            words[begin + 2 * (row - low) + 1] = 0  # its state names the next row
            words[at] = row - low
            at += 1
            row = np.int64(rows.state[base + row])
        words[at] = -1
        at += 1
    return at


@inline
def write_events(npus, node, moment_ps, words, at):
    """Write an NPU's own events in their order; return the place behind them in `words`.

    npus: NPUs of the LP; node: number of the NPU in the LP; moment_ps: time in ps to which times are relative; words:
    int64[], output; at: index in `words` of the first word to write.
    """
    npu = npus.npu[node]
    words[at] = npu.heap_size
    begin = at + 1
    at = begin
    for i in range(npu.heap_size):
        entry = 2 * (npu.heap + i)
        time, slot = npus.heap[entry] - moment_ps + LOOSE, npus.heap[entry + 1]
        place = at
        # insertion sort: the order of entries in a heap depends on its history
        while place > begin and (words[place - 2] > time or (words[place - 2] == time and words[place - 1] > slot)):
            words[place], words[place + 1] = words[place - 2], words[place - 1]
            place -= 2
        words[place], words[place + 1] = time, slot
        at += 2
    return at


@inline
def write_ports(net, npus, node, moment_ps, words, at):
    """Write the state of an NPU's ports; return the place behind it in `words`, or NOT_QUIET.

    net: ports of the LP; npus: NPUs of the LP; node: number of the NPU in the LP; moment_ps: time in ps to which times
    are relative; words: int64[], output; at: index in `words` of the first word to write.
    """
    for link in range(net.out_ptr[node], net.out_ptr[node + 1]):
        port = npus.port[link]
        waits = port.control_packets + port.transit_packets
        # packets or queue pairs wait, so packets are under way
        if waits != 0 or port.ring >= 0 or port.paced >= 0 or port.sent_ref >= 0 or port.kick_next != NOT_KICKED:
            return np.int64(NOT_QUIET)
        words[at] = np.int64(port.scheduled) | np.int64(port.turn) << 1
        words[at + 1] = from_now(port.pace_at_ps, moment_ps)
        at += WORDS_OF_PORT
    return at


@inline
def write_later(world, node, low, moment_ps, words, at):
    """Write an NPU's later actions; return the place behind them in `words`, or NOT_QUIET, and their number.

    world: state of the LP; node: number of the NPU in the LP; low: first trace row of `find_windows`; moment_ps: time
    in ps to which times are relative; words: int64[], output; at: index in `words` of the first word to write.
    """
    later = later_messages(world.qps.msg)
    count = np.int64(0)
    row = world.npus.system[node].later_head - 1
    while row >= 0:
        what = later[row].what
        # other actions handle messages, which are under way then
        if what != ENDS and what != NOTICED and what != POSTS and what != STARTS and what != RUNS:
            return np.int64(NOT_QUIET), np.int64(0)
        words[at] = what
        words[at + 1] = (later[row].due >> 1) - moment_ps + LOOSE
        words[at + 2] = later[row].ref - low
        words[at + 3] = later[row].connection if what == ENDS else 0
        at += WORDS_OF_LATER
        row = later[row].later
        count += 1
    words[at] = -1
    return at + 1, count


@inline
def write_npu(npus, node, slows_compute, moment_ps, words, at):
    """Write the words of an NPU that last; return the place behind them in `words`, or NOT_QUIET.

    npus: NPUs of the LP; node: number of the NPU in the LP; slows_compute: 1 if collectives slow compute; moment_ps:
    time in ps to which times are relative; words: int64[], output; at: index in `words` of the first word to write.
    """
    npu, system = npus.npu[node], npus.system[node]
    begins = max(npu.ready_head, npu.kick_head, npu.agenda_head, npu.done_head, npu.job_row)
    # something happens at this very moment
    if begins >= 0 or system.in_flight != 0 or system.line != 0:
        return np.int64(NOT_QUIET)
    words[at] = npu.slow_1024ths
    words[at + 1] = from_now(npu.rto_at_ps, moment_ps)
    words[at + 2] = max(npu.driven_ps - moment_ps, 0) + LOOSE
    words[at + 3] = np.int64(system.running)
    at += 4
    if npu.lane[COMPUTE_LANE] >= 0 and slows_compute != 0:
        words[at] = system.work_ps + LOOSE
        words[at + 1] = system.work_part + LOOSE
        words[at + 2] = system.since_ps - moment_ps + LOOSE
        words[at + 3] = system.due_ps - moment_ps + LOOSE
        at += 4
    return at


@inline
def write_starts(world, node, slots, low, moment_ps, words, at):
    """Write which collectives of an NPU wait for their replay; return the place behind it in `words`, or NOT_QUIET.

    world: state of the LP; node: number of the NPU in the LP; slots: number of the NPU's group slots; low: first trace
    row of `find_windows`; moment_ps: time in ps to which times are relative; words: int64[], output; at: index in
    `words` of the first word to write.
    """
    net, islands, npu = world.net, world.islands, world.npus.npu[node]
    number = islands.island_of[npu.number]
    if number < 0:
        return at
    is_aggregator = npu.number >= islands.island[number].first_aggregator
    for slot in range(npu.slot_base, npu.slot_base + slots):
        if islands.role[slot] != INSIDE:
            continue
        if islands.packet_row[slot] != 0:
            return np.int64(NOT_QUIET)
        waits = islands.start_row[slot] >= 0
        words[at] = islands.start_row[slot] - low if waits else -1
        words[at + 1] = islands.start_ps[slot] - moment_ps + LOOSE if waits else 0
        words[at + 2] = islands.end_ps[slot] - moment_ps + LOOSE if islands.end_ps[slot] >= 0 else INF
        if is_aggregator:  # its collectives that go by packets, of which none is left to start
            if islands.start_order[slot] > world.rows.slot_next[slot]:
                return np.int64(NOT_QUIET)
            words[at + 3] = 0
        else:
            words[at + 3] = net.ctl.replay_starts - islands.start_order[slot] + LOOSE if waits else 0
        at += WORDS_OF_SLOT - 1
    return at


@inline
def write_islands(world, moment_ps, forgotten_ps, words, at):
    """Write the state of an LP's islands; return the place behind it in `words`.

    world: state of the LP; moment_ps: time in ps to which times are relative; forgotten_ps: age in ps from which
    times at ports no longer matter; words: int64[], output; at: index in `words` of the first word to write.
    """
    islands = world.islands
    for number in range(islands.island.shape[0]):
        words[at] = islands.island[number].off
        at += 1
    for node in range(world.net.const.npus):
        member = islands.member[node]
        words[at] = member.waiting
        words[at + 1] = member.had_packets
        # times that no longer matter are all the same
        words[at + 2] = max(member.crossed_ps - moment_ps, -forgotten_ps) + LOOSE
        words[at + 3] = max(member.busy_until_ps - moment_ps, -1) + LOOSE
        at += 4
    for group in range(islands.started.shape[0]):
        if islands.started[group] != 0:
            words[at] = group
            words[at + 1] = islands.started[group]
            at += 2
    return at


@inline
def write_ties(own, moment_ps, forgotten_ps, words, at):
    """Write the ties that a node or a port has had; return the place behind them in `words`.

    own: row `NodeCounts` or `PortTies`; moment_ps: time in ps to which times are relative; forgotten_ps: age in ps
    from which times at ports no longer matter; words: int64[], output; at: index in `words` of the first word to
    write.
    """
    lasts = moment_ps - own.last_tie_ps <= forgotten_ps
    words[at] = (own.ties if lasts else 0) + LOOSE
    words[at + 1] = (moment_ps - own.last_tie_ps if lasts else 0) + LOOSE
    return at + 2


@inline
def write_network(world, moment_ps, forgotten_ps, words, at):
    """Write what nodes, links and queue pairs remember; return the place behind it in `words`, or NOT_QUIET.

    world: state of the LP; moment_ps: time in ps to which times are relative; forgotten_ps: age in ps from which
    times at ports no longer matter; words: int64[], output; at: index in `words` of the first word to write.
    """
    net, qps = world.net, world.qps
    for link in range(net.tx_dropped.shape[0]):
        words[at] = max(net.tx[link].busy_ps - moment_ps, -forgotten_ps) + LOOSE
        at = write_ties(net.port_ties[link], moment_ps, forgotten_ps, words, at + 1)
    for node in range(net.const.nodes):
        own = net.counts[node]
        # a recent choice by load balancing still affects the next one
        if net.hooks.balancing != 0 and moment_ps - own.last_choice_ps <= forgotten_ps:
            return np.int64(NOT_QUIET)
        at = write_ties(own, moment_ps, forgotten_ps, words, at)
    for pair in range(net.ctl.queue_pairs):
        qp = qps.qp[pair]
        is_open = qp.una != qp.end_seq or qp.next_seq != qp.end_seq or qp.active != 0 or qp.pending != 0
        if is_open or qp.head_message >= 0:
            return np.int64(NOT_QUIET)
        words[at] = qp.retries
        words[at + 1] = LOOSE
        if net.hooks.congestion_control != 0:
            words[at + 1] += max(qps.cc[pair].next_send_ps - moment_ps, 0)
        at += 2
    for receiver in range(qps.rxqp.shape[0]):
        if qps.rxqp[receiver].key != FREE and qps.rxqp[receiver].nak_sent & 1 != 0:
            return np.int64(NOT_QUIET)
    return at


@kernel
def write_state(world_address, moment_ps, forgotten_ps, slots, low, high, words):
    """Write what determines the future of an LP at a quiet moment; return the number of words, or NOT_QUIET.

    world_address: address of the directory of the LP's `World`; moment_ps: time in ps of the earliest event of all LPs;
    forgotten_ps: age in ps from which times at ports no longer matter; slots: int64[NPUs], number of group slots;
    low, high: int64[NPUs], trace rows of `find_windows`; words: int64[], output.
    """
    world = world_at(world_address)
    net, npus = world.net, world.npus
    ctl = net.ctl
    if not has_no_packets(world) or ctl.packet_rows != 0 or ctl.changes_cell != 0 or ctl.due_replays != 0:
        return np.int64(NOT_QUIET)
    words[0], words[1], words[2] = ctl.cell_ps, ctl.queue_pairs, ctl.receivers
    words[3] = from_now(ctl.retry_ps, moment_ps)
    messages = np.int64(0)
    at = np.int64(4)
    for node in range(net.const.npus):
        at = write_rows(world, node, low[node], high[node], words, at)
        at = write_events(npus, node, moment_ps, words, at)
        at = write_ports(net, npus, node, moment_ps, words, at)
        if at >= 0:
            at, count = write_later(world, node, low[node], moment_ps, words, at)
            messages += count
        if at >= 0:
            at = write_npu(npus, node, net.const.slows_compute, moment_ps, words, at)
        if at >= 0 and net.hooks.leave_island != 0:
            at = write_starts(world, node, slots[node], low[node], moment_ps, words, at)
        if at < 0:
            return at
    # a message that is in no list of later actions is under way
    if messages + ctl.free_messages != world.qps.msg_free.shape[0]:
        return np.int64(NOT_QUIET)
    if net.hooks.leave_island != 0:
        at = write_islands(world, moment_ps, forgotten_ps, words, at)
    return write_network(world, moment_ps, forgotten_ps, words, at)
