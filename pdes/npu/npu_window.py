"""One NPU in one window: its packets, ports, lanes and timer in one order of time.

At each moment everything that follows from the event at hand is done first (rows start, messages are posted), then
the ports that were touched are tried, so that all that is posted at one moment takes turns from its first packet on.
An NPU's own events come before packets that arrive at the same time. Before an action is taken, the pools have room
for the most it can use, or FULL is returned and the action is taken when the driver has made room.
"""

import numpy as np

from pdes.core.fifo import SET_DOWN, TAKE_UP, carry, push, take_block
from pdes.core.heap import heap_pop
from pdes.core.jit import call_hook, hook, inline, outline
from pdes.core.packet import FLAG_ACK, FLAG_TRIMMED, P2P, PAUSE_FRAME, destination, flags, source, wire_bytes
from pdes.core.state import (
    COMPUTE_LANE,
    INF,
    LANES,
    NEED_FLOWS,
    NEED_INSTS,
    NEED_MSGS,
    NEED_QPS,
    NEED_RXQPS,
    REF_INSTANCE,
    ROW_ARRIVED,
    ROW_ASKED,
    ROW_POSTED,
    ROW_READY,
    ROW_STARTED,
)
from pdes.core.world import world_at
from pdes.network.batch import blocks_short, give_back, take_batch
from pdes.network.faults import slowed
from pdes.network.link import drop
from pdes.network.pause import on_pause
from pdes.network.routing import npu_route
from pdes.nic.port import NOT_KICKED, kick, queue_control, set_event, transmit
from pdes.nic.rendezvous import (
    CLEAR,
    EAGER,
    KIND_MASK,
    REQUEST,
    answer,
    is_used,
    lane_gets,
    post_or_ask,
    send_cleared,
)
from pdes.nic.selective import take_complete
from pdes.nic.transport import on_ack, on_data, on_timeout
from pdes.npu.agenda import agenda_slot, lane_place, take_due
from pdes.npu.ahead import list_busy, prefetch_npus
from pdes.npu.collective import advance, arrives, close_if_done, instance_for, send_has_left, start_collective
from pdes.npu.contention import begin_work, count_running
from pdes.npu.in_flight import CALL_LANE, call, give_place_back
from pdes.npu.trace import (
    KIND_COLLECTIVE,
    KIND_COMPUTE,
    KIND_MEMORY,
    KIND_RECV,
    KIND_SEND,
    finish_row,
    leave_lane,
    next_for_lane,
    next_ready,
    wait_for_lane,
)

NOTHING = -1


@inline
def next_kicked(npus, node):
    """Take the first port of the list of ports to try."""
    npu = npus.npu[node]
    link = npu.kick_head
    port = npus.port[link]
    npu.kick_head = np.int64(port.kick_next)
    port.kick_next = NOT_KICKED
    return link


@inline
def short_of(net, qps):
    """The pool (other than the blocks) that may not do for the next action (NEED_*), or 0."""
    ctl = net.ctl
    need = 0
    if ctl.free_messages < net.const.reserve_messages:
        need = NEED_MSGS
    elif 2 * (ctl.queue_pairs + net.const.reserve_queue_pairs) > qps.qp_key.shape[0]:
        need = NEED_QPS
    elif 2 * (ctl.receivers + 1) > qps.rxqp.shape[0]:
        need = NEED_RXQPS
    elif ctl.free_instances < 1:
        need = NEED_INSTS
    elif ctl.flows_out + net.const.reserve_messages > qps.flow_out.shape[0]:
        need = NEED_FLOWS
    elif ctl.flows_in + 1 > qps.flow_in.shape[0]:
        need = NEED_FLOWS
    ctl.need = need
    ctl.check = int(need > 0)
    return need


@outline
def start_row(address, node, row, now):
    """Start a row. Returns the row if it is done at once, and the instance to advance, each NOTHING if none."""
    w = world_at(address)
    net, npus, rows, trace = w.net, w.npus, w.rows, w.trace
    npu = npus.npu[node]
    first = npu.row_base
    r = npu.trace_base + row
    kind = trace.kind[r]
    done = np.int64(NOTHING)
    inst = np.int64(NOTHING)
    if kind == KIND_COMPUTE or kind == KIND_MEMORY:
        lane = np.int64(trace.lane[r])
        if npu.lane[lane] >= 0:
            wait_for_lane(npus, rows, node, lane, row)
            return done, inst
        duration = trace.duration_ps[r]
        if kind == KIND_COMPUTE and npu.slow_1024ths != 0:
            duration = slowed(duration, npu.slow_1024ths)
        if lane == COMPUTE_LANE and net.const.compute_slow_1000ths != 0:
            duration = begin_work(net, npus, node, duration, now)
        if duration == 0:
            done = row
            next_for_lane(npus, rows, node, lane)
        else:
            npu.lane[lane] = row
            set_event(npus, node, now + duration, npu.ports + lane)
    elif kind == KIND_SEND:
        dst = npu.number + np.int64(trace.peer[r])
        tag = (P2P << 44) | (np.int64(trace.seq[r]) << 24) | np.int64(trace.tag[r])
        post_or_ask(net, node, dst, np.int64(P2P), tag, trace.bytes[r], row, now)
    elif kind == KIND_RECV:
        if rows.flag[first + row] & ROW_ARRIVED != 0:
            done = row
        elif rows.flag[first + row] & ROW_ASKED != 0:
            src = npu.number + np.int64(trace.peer[r])
            answer(net, node, src, (P2P << 44) | (np.int64(trace.seq[r]) << 24) | np.int64(trace.tag[r]), now)
        rows.flag[first + row] |= ROW_POSTED
    elif kind == KIND_COLLECTIVE:
        slot = npu.slot_base + trace.group[r]
        if net.const.serial_collectives == 1 and rows.slot_next[slot] != trace.seq[r]:
            rows.flag[first + row] |= ROW_READY
            return done, inst
        if trace.schedule[r] < 0:
            done = row
        elif net.const.collectives_in_flight > 0 and (call_hook(net.hooks.may_start, address, node, row) == 0):
            return done, inst
        else:
            inst = start_collective(w, node, row, now)
    else:
        done = row
    rows.flag[first + row] |= ROW_STARTED
    if net.const.record_nodes == 1:
        rows.start[first + row] = now
    return done, inst


@inline
def row_of_message(npus, trace, node, w1, w3):
    """The trace row that receives a message between two NPUs."""
    npu = npus.npu[node]
    number = npu.trace_number
    peer = source(w1) - npu.number
    key = ((peer + (1 << 19)) << 44) | ((w3 & 0xFFFFFF) << 20) | ((w3 >> 24) & 0xFFFFF)
    low = trace.recv_ptr[number]
    high = trace.recv_ptr[number + 1]
    while low < high:
        middle = (low + high) >> 1
        if trace.recv_key[middle] < key:
            low = middle + 1
        else:
            high = middle
    return np.int64(trace.recv_node[low])


@outline
def receive_row(address, node, w1, w3):
    """A message between two NPUs is complete. Returns its receive if that has been posted, else NOTHING."""
    w = world_at(address)
    rows = w.rows
    row = row_of_message(w.npus, w.trace, node, w1, w3)
    flag = w.npus.npu[node].row_base + row
    rows.flag[flag] |= ROW_ARRIVED
    if rows.flag[flag] & ROW_POSTED != 0:
        return row
    return np.int64(NOTHING)


@inline
def pass_on(net, npus, node, now, w1, w2, w3):
    """A packet of others on its way through this NPU."""
    link = npu_route(net, node, destination(w1), w2)
    if flags(w1) & (FLAG_ACK | FLAG_TRIMMED) != 0:
        queue_control(net, npus, link, now, w1, w2, w3)
    else:
        port = npus.port[link]
        size = wire_bytes(w1)
        limit = net.const.queue_limit_bytes
        if limit > 0 and port.transit_bytes + size > limit:
            drop(net, link, w1)
            return
        port.transit_bytes += size
        port.transit_packets += 1
        tail = np.int64(port.transit_tail)
        if port.transit_packets == 1:
            tail = take_block(net)
            port.transit_head = tail
        port.transit_tail = push(net, tail, now, w1, w2, w3)
        carry(net, SET_DOWN, tail)
    kick(npus, node, link)


@inline
def own_event(net, npus, rows, insts, node, now):
    """The NPU's own earliest event: a port falls idle, a lane's row is done, or the timer runs out.

    Returns as `start_row`, and the port that fell idle or NOTHING.
    """
    npu = npus.npu[node]
    heap = npu.heap
    ports = npu.ports
    slot = npus.heap[2 * heap + 1]
    heap_pop(npus.heap, heap, npu.heap_size)
    npu.heap_size -= 1
    done = np.int64(NOTHING)
    inst = np.int64(NOTHING)
    link = np.int64(NOTHING)
    if slot < ports:
        link = net.out_ptr[node] + slot
        port = npus.port[link]
        port.scheduled = 0
        ref = port.sent_ref
        if ref >= REF_INSTANCE:
            inst = send_has_left(net, insts, ref)
        elif ref >= 0:
            done = ref
        port.sent_ref = -1
    elif slot < ports + LANES:
        done = leave_lane(npus, rows, node, slot - ports)
    elif slot == agenda_slot(ports):
        inst = take_due(net, npus, insts, node, now)
    elif slot > agenda_slot(ports):
        both = call_hook(net.hooks.do_later, net.const.address, node, now)
        done, inst = apart(both)
    elif slot > ports + LANES:
        link = net.out_ptr[node] + slot - ports - LANES - 1
        npus.port[link].pace_at_ps = INF
        if npus.port[link].scheduled == 1:
            link = np.int64(NOTHING)
    else:
        on_timeout(net.const.address, node, now)
    return done, inst, link


@hook
def message_by_kind(address, node, w1, w3):
    """A message is complete: a request, its answer, a call, or data. Returns as `start_row`, both in one word."""
    w = world_at(address)
    net, npus, rows = w.net, w.npus, w.rows
    npu = npus.npu[node]
    done = np.int64(NOTHING)
    inst = np.int64(NOTHING)
    kind = np.int64(EAGER)
    if is_used(net):
        kind = w3 & KIND_MASK
    tag = w3 - kind
    group = tag >> 44
    lane = tag & 0xFFFFFF
    if net.const.collectives_in_flight > 0 and group != P2P:
        call(address, node, group, (tag >> 24) & 0xFFFFF)
        if lane == CALL_LANE:
            return 0
    if kind == CLEAR:
        send_cleared(net, npus, w.qps, node, source(w1), tag, npu.now_ps)
    elif group != P2P:
        inst = instance_for(net, npus, w.insts, node, group, (tag >> 24) & 0xFFFFF)
        at = lane_place(net, inst, lane)
        if is_used(net):
            lane_gets(net, w.qps, w.insts, at, kind, source(w1))
        else:
            arrives(net, w.insts, inst, lane)
    elif kind == REQUEST:
        flag = npu.row_base + row_of_message(npus, w.trace, node, w1, tag)
        rows.flag[flag] |= ROW_ASKED
        if rows.flag[flag] & ROW_POSTED != 0:
            answer(net, node, source(w1), tag, npu.now_ps)
    else:
        done = receive_row(address, node, w1, tag)
    return (inst + 1) << 32 | (done + 1)


@hook
def running(address, node, by, now):
    """A collective begins to run (by = 1) or is done (-1): others may have its place, and compute its processors."""
    const = world_at(address).net.const
    if const.compute_slow_1000ths != 0:
        count_running(address, node, by, now)
    if by < 0 and const.collectives_in_flight > 0:
        give_place_back(address, node)
    return 0


@inline
def apart(both):
    """Row and instance that a hook returns in one word."""
    return (both & 0xFFFFFFFF) - 1, (both >> 32) - 1


@inline
def message_done(net, npus, insts, node, w1, w3):
    """The receiver acts on a message; w1, w3: of its last packet. Returns as `start_row`."""
    done = np.int64(NOTHING)
    inst = np.int64(NOTHING)
    group = w3 >> 44
    if net.const.handshakes == 1:
        done, inst = apart(call_hook(net.hooks.message_by_kind, net.const.address, node, w1, w3))
    elif group == P2P:
        done = receive_row(net.const.address, node, w1, w3)
    else:
        inst = instance_for(net, npus, insts, node, group, (w3 >> 24) & 0xFFFFF)
        arrives(net, insts, inst, w3 & 0xFFFFFF)
    return done, inst


@inline
def message_is_in(net, npus, insts, node, now, w1, w2, w3):
    """A message is complete at its receiver, who acts on it now or later; words of its last packet. As `start_row`."""
    if net.hooks.is_in != 0:
        return apart(call_hook(net.hooks.is_in, net.const.address, node, now, w1, w2, w3))
    return message_done(net, npus, insts, node, w1, w3)


@inline
def packet_event(net, npus, qps, node, record, now):
    """A packet has come. Returns the tag of the message that it completes, or NOTHING."""
    packet = net.record[record]
    carry(net, TAKE_UP, record)
    w1 = packet.w1
    w2 = packet.w2
    w3 = packet.w3
    if destination(w1) == PAUSE_FRAME:
        link = on_pause(net, record, w2, now)
        kick(npus, node, link)
    elif destination(w1) != npus.npu[node].number:
        pass_on(net, npus, node, now, w1, w2, w3)
    elif flags(w1) & FLAG_ACK != 0:
        on_ack(net, npus, qps, node, now, w1, w2, w3)
    elif on_data(net, npus, qps, node, now, w1, w2, w3):
        return w3
    return np.int64(NOTHING)


@outline
def npus_window(address, begin, end):
    """Let every NPU act on what happens to it before `end`. True if interrupted because a pool is short."""
    w = world_at(address)
    net, inbox, npus, qps, rows, insts = w.net, w.inbox, w.npus, w.qps, w.rows, w.insts
    ctl = net.ctl
    interrupted = ctl.resume_node >= 0
    if interrupted:
        net.next_time[ctl.resume_node] = INF
    turns = list_busy(net, npus, end)
    for turn in range(-int(interrupted), turns):
        # a node that was interrupted goes on with its batch; others gather theirs
        if turn < 0:
            node = ctl.resume_node
        else:
            node = np.int64(npus.busy[turn])
            prefetch_npus(net, npus, qps, insts, w.plans, turn, turns - 1)
            if blocks_short(net):
                return True
            take_batch(net, inbox, node, begin, end)
        batch = ctl.batch
        i = ctl.resume_at
        npu = npus.npu[node]
        while True:
            # each turn is one action, and begins only if every pool has room for the most that an action takes
            if blocks_short(net) or (ctl.check == 1 and short_of(net, qps) > 0):
                ctl.resume_node = node
                ctl.resume_at = i
                return True
            now = npu.now_ps
            done = np.int64(NOTHING)
            inst = np.int64(NOTHING)
            link = np.int64(NOTHING)
            tag = np.int64(NOTHING)
            w1 = np.int64(0)
            w2 = np.int64(0)
            # first all that follows from the event at hand, at its time: rows start, complete messages are told of, and
            # only then ports are tried, so that all that is posted at one moment takes turns from its first packet on
            if npu.ready_head >= 0:
                row = next_ready(npus, rows, node)
                done, inst = start_row(address, node, row, now)
            elif net.hooks.selective_sender != 0 and npu.done_head >= 0:
                w1, w2, tag = take_complete(net, npus, qps, node)
            elif npu.kick_head >= 0:
                link = next_kicked(npus, node)
            else:
                # nothing more follows: time goes on to the earlier of the NPU's own next event and the next packet
                own = np.int64(INF)
                if npu.heap_size > 0:
                    own = npus.heap[2 * npu.heap]
                comes = np.int64(INF)
                if i < batch:
                    comes = begin + (inbox.batch_key[i] >> 16)
                now = min(own, comes)
                if now >= end:
                    break
                npu.now_ps = now
                # own events come before packets of the same time
                if own <= comes:
                    net.count.events += 1
                    done, inst, link = own_event(net, npus, rows, insts, node, now)
                else:
                    record = inbox.batch_pos[inbox.batch_key[i] & 0xFFFF]
                    packet = net.record[record]
                    i += 1
                    w1 = packet.w1
                    w2 = packet.w2
                    tag = packet_event(net, npus, qps, node, record, now)
            # what the action has brought: a message that is complete, a collective that may go on, a row that is done,
            # and a port that fell idle
            if tag >= 0:
                done, inst = message_is_in(net, npus, insts, node, now, w1, w2, tag)
            if inst >= 0 and insts.inst[inst].started == 1:
                advance(address, node, inst, now)
                done = close_if_done(net, insts, inst)
                if done >= 0 and (net.const.compute_slow_1000ths | net.const.collectives_in_flight) != 0:
                    call_hook(net.hooks.running, address, node, -1, now)
            if done >= 0:
                finish_row(address, node, done, now)
            if link >= 0 and npus.port[link].kick_next == NOT_KICKED:
                # rows that became ready post before the port chooses
                if npu.ready_head >= 0:
                    kick(npus, node, link)
                else:
                    transmit(net, npus, qps, node, link, now)
        # the node is done with this window: its records are free, and the driver knows its next event
        ctl.resume_node = -1
        give_back(net, inbox)
        net.next_time[node] = INF
        if npu.heap_size > 0:
            net.next_time[node] = npus.heap[2 * npu.heap]
    return False
