"""The kernel of the message-level models: NPUs and messages, one event after another.

One worker has all NPUs. At each time the kernel does everything that follows from the current event before the next
event, as in pdes/npu/npu_window.py, whose trace rows, lanes and collectives it uses.
"""

import numpy as np

from pdes.core.heap import heap_pop
from pdes.core.jit import call_hook, inline, kernel
from pdes.core.packet import P2P, destination, instance_node, tag_group, tag_lane, tag_seq
from pdes.core.state import (
    COMPUTE_LANE,
    DONE,
    FULL,
    LANES,
    LONGEST_RUN_PS,
    NEED_EVENTS,
    NEED_HOPS,
    give_row_back,
    whole_messages,
    world_at,
)
from pdes.messages.events import (
    ARRIVE,
    FINISH,
    FIRST_POST,
    KEY_SHIFT,
    KIND_SHIFT,
    LAUNCH,
    LEFT,
    OWN,
    SOLVE,
    TAKE,
    add_event,
    take_event,
)
from pdes.messages.whole import add_message_event, ends_of
from pdes.nic.transport import finish_flow
from pdes.npu.agenda import take_due
from pdes.npu.collective import advance, arrives, begins_after, close_if_done, instance_for, send_has_left
from pdes.npu.delivery import in_lane_at, receive_row
from pdes.npu.npu_window import short_of
from pdes.npu.trace import NOTHING, finish_row, leave_lane, next_ready, post_send, start_row

PAUSED, TOO_LATE = 4, 5  # status values in addition to those of pdes.core.state
KEY_NPU_MASK = (1 << KIND_SHIFT - KEY_SHIFT) - 1
SPARE_EVENTS = 64  # maximum number of rows that one action may take where collectives slow computation down


@inline
def move_lanes(w, node):
    """Move the ends of rows that lanes have just begun from the NPU's heap to the events of all NPUs."""
    npu = w.npus.npu[node]
    heap, base = w.npus.heap, npu.heap
    while npu.heap_size > 0:
        time = heap[2 * base]
        lane = heap[2 * base + 1] - npu.ports
        heap_pop(heap, base, npu.heap_size)
        npu.heap_size -= 1
        add_event(w.net.ctl, w.messages, time, OWN, (node << KEY_SHIFT) | lane, node)


@inline
def begin_row(w, node, now):
    """Start the NPU's first ready row. Return as `start_row`; a collective begins after the endpoint's delay."""
    row = next_ready(w.npus.npu[node], w.rows)
    done, inst = start_row(w.net.const.address, node, row, now)
    move_lanes(w, node)
    if inst >= 0 and w.insts.inst[inst].started == 1:
        collective = w.insts.inst[inst]
        delay = begins_after(w.net, w.plans, collective.plan)
        if delay > 0:
            collective.started = 0
            add_event(w.net.ctl, w.messages, now + delay, LAUNCH, collective.key, inst)
            inst = np.int64(NOTHING)
    return done, inst


@inline
def take_message(w, node, message, now):
    """Let the receiver act on a message and free its row. Return as `start_row`."""
    net, qps = w.net, w.qps
    ends = ends_of(qps, message)
    tag = qps.msg[message].tag
    finish_flow(net, qps, ends, tag, whole_messages(qps.msg)[message].ordinal, now)
    give_row_back(net, qps, message)
    if tag_group(tag) == P2P:
        return receive_row(net.const.address, node, ends, tag), np.int64(NOTHING)
    inst = instance_for(w.net, w.npus, w.insts, node, tag_group(tag), tag_seq(tag))
    arrives(net, w.insts, inst, tag_lane(tag))
    return np.int64(NOTHING), inst


@inline
def has_arrived(w, node, message, now):
    """Handle an arrival: the receiver acts after the endpoint's delay and the reduction. Return as `start_row`."""
    net = w.net
    msg = whole_messages(w.qps.msg)[message]
    size = msg.payload_bytes
    net.count.consumed_packets += 1
    net.count.received_bytes += size
    net.count.payload_bytes += size
    at = now + net.const.endpoint_delay_ps
    if net.const.reduces == 1 and tag_group(msg.tag) != P2P:
        at = in_lane_at(w, node, msg.tag, size, at, True)
    if at == now:
        return take_message(w, node, message, now)
    add_message_event(net, w.qps, w.messages, at, TAKE, message)
    return np.int64(NOTHING), np.int64(NOTHING)


@inline
def await_last_byte(w, inst, order, now):
    """Add an event for the last byte of an instance that waits only for unreported bytes; order: current event's."""
    collective = w.insts.inst[inst]
    left_ps = collective.left_ps
    if left_ps >= now and collective.lanes_left == 0 and collective.sends_left == 0:
        key = (collective.key >> KEY_SHIFT << KEY_SHIFT) | collective.left_ordinal
        if left_ps > now or (LEFT << KIND_SHIFT) | key > order:
            collective.sends_left = 1
            collective.left_ps = 0
            add_event(w.net.ctl, w.messages, left_ps, LEFT, key, -1 - inst)


@inline
def has_lapsed(w, node, now):
    """Return whether an event of the compute lane is obsolete, because collectives have changed its row's end."""
    if w.net.const.compute_slow_1000ths == 0:
        return False
    return w.npus.npu[node].lane[COMPUTE_LANE] < 0 or w.npus.system[node].due_ps != now


@inline
def are_events_short(w):
    """Return whether obsolete events have used up the room of others (pdes.build.growth.events_room)."""
    ctl, const = w.net.ctl, w.net.const
    if const.compute_slow_1000ths == 0 and w.net.hooks.settle == 0:
        return False
    others = (
        2 * (ctl.free_messages + w.flows.state.held)
        + (const.lane_stride + 2) * ctl.free_instances
        + (LANES + 1) * const.npus
    )
    if ctl.events + others + SPARE_EVENTS < w.messages.event.shape[0]:
        return False
    ctl.need = NEED_EVENTS
    return True


@inline
def are_hops_short(w):
    """Return whether the path of another connection may not fit."""
    if w.net.hooks.settle == 0 or w.flows.state.hops + w.net.const.reserve_hops <= w.flows.hop.shape[0]:
        return False
    w.net.ctl.need = NEED_HOPS
    return True


@inline
def node_of(w, kind, order, item):
    """Return the NPU at which an event happens; for a STEP, its sender."""
    if kind == OWN:
        return item
    if kind == LAUNCH:
        return instance_node(w.insts.inst[item].key)
    if kind == TAKE or kind == ARRIVE:
        return destination(ends_of(w.qps, item))
    return (order >> KEY_SHIFT) & KEY_NPU_MASK


@inline
def happen(w, node, kind, order, item, now):
    """Carry out an event. Return as `start_row`."""
    done = inst = np.int64(NOTHING)
    if kind == OWN:
        lane = order & ((1 << KEY_SHIFT) - 1)
        if lane == COMPUTE_LANE and has_lapsed(w, node, now):
            return done, inst
        if lane >= FIRST_POST:
            row = lane - FIRST_POST
            give_row_back(w.net, w.qps, np.int64(w.rows.state[w.npus.npu[node].row_base + row]))
            post_send(w.net, w.npus, w.trace, node, row, now)
        elif lane < LANES:
            done = leave_lane(w.npus.npu[node], w.rows, lane)
        elif lane > LANES:
            inst = take_due(w.net, w.npus, w.insts, node, now)
            move_lanes(w, node)
    elif kind == LEFT:
        if item < 0:  # an instance, not a message
            inst = -1 - item
            w.insts.inst[inst].sends_left -= 1
        else:
            done, inst = send_has_left(w.net, w.insts, w.qps.msg[item].ref)
    elif kind == LAUNCH:
        inst = item
        w.insts.inst[inst].started = 1
        if w.net.const.compute_slow_1000ths != 0:
            call_hook(w.net.hooks.running, w.net.const.address, node, np.int64(w.insts.inst[inst].row), 1, now)
            move_lanes(w, node)
    elif kind == TAKE:
        done, inst = take_message(w, node, item, now)
    elif kind == ARRIVE:
        done, inst = has_arrived(w, node, item, now)
    else:
        call_hook(w.net.hooks.act, w.net.const.address, item, now)
    return done, inst


@kernel
def work_messages(address, max_events):
    """Process events until no event is left (DONE), a pool is full (FULL), or `max_events` events are done (PAUSED)."""
    # TOO_LATE: the next event lies beyond LONGEST_RUN_PS
    w = world_at(address)
    net = w.net
    ctl = net.ctl
    events = 0
    order = np.int64(0)
    while True:
        if (ctl.check == 1 and short_of(net, w.qps) > 0) or are_events_short(w) or are_hops_short(w):
            return FULL
        node = ctl.resume_node
        now = ctl.now_ps
        if node >= 0 and w.npus.npu[node].ready_head >= 0:
            done, inst = begin_row(w, node, now)
        else:
            if ctl.events == 0:
                ctl.resume_node = -1
                return DONE
            if events == max_events:
                return PAUSED
            events += 1
            net.count.events += 1
            now, order, item = take_event(ctl, w.messages)
            kind = order >> KIND_SHIFT
            if now > LONGEST_RUN_PS and (kind != FINISH or w.flows.state.alarm_ps == now):
                return TOO_LATE
            if kind == FINISH or kind == SOLVE:
                ctl.resume_node = -1
                ctl.now_ps = now
                call_hook(net.hooks.settle, address, kind, now)
                continue
            node = node_of(w, kind, order, item)
            ctl.resume_node = node
            ctl.now_ps = now
            w.npus.npu[node].now_ps = now
            done, inst = happen(w, node, kind, order, item, now)
        if inst >= 0 and w.insts.inst[inst].started == 1:
            advance(address, node, inst, now)
            move_lanes(w, node)
            await_last_byte(w, inst, order, now)
            done = close_if_done(net, w.insts, inst)
            if done >= 0 and net.const.compute_slow_1000ths != 0:
                call_hook(net.hooks.running, address, node, done, -1, now)
                move_lanes(w, node)
        if done >= 0:
            finish_row(address, node, done, now)
