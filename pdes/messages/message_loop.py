"""The kernels of the message-level models: NPUs and messages, one event after another.

One worker has all NPUs. At each time the kernel does everything that follows from the current event before the next
event, as in pdes/npu/npu_window.py, whose trace rows, lanes and collectives it uses.
"""

import numpy as np

from nadi.pdes.core import state
from nadi.pdes.core.algorithms import heap_pop
from nadi.pdes.core.jit import call_hook, inline, kernel
from nadi.pdes.core.packet import P2P, destination, instance_node, message_tag, tag_group, tag_lane, tag_seq
from nadi.pdes.messages import events
from nadi.pdes.messages.whole import add_message_event, ends_of
from nadi.pdes.network.batch import blocks_short
from nadi.pdes.nic.counting import finish_flow
from nadi.pdes.nic.transport import post
from nadi.pdes.npu import trace
from nadi.pdes.npu.agenda import begin_slot, take_due
from nadi.pdes.npu.collective import advance, arrives, begins_after, close_if_done, instance_for, send_has_left
from nadi.pdes.npu.contention import serve_next
from nadi.pdes.npu.delivery import in_lane_at, receive_row
from nadi.pdes.npu.npu_window import short_of

PAUSED, TOO_LATE = 4, 5  # beside DONE, FULL and FAILED; SENT of pdes.core.state, also 4, is of packets alone
KEY_NPU_MASK = (1 << events.KIND_SHIFT - events.KEY_SHIFT) - 1
SPARE_EVENTS = 64  # maximum number of rows that one action may take where collectives slow computation down


@inline
def move_lanes(world, node):
    """Move the ends of rows that lanes have just begun from an NPU's heap to the events of all NPUs.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
    """
    npu = world.npus.npu[node]
    heap, base = world.npus.heap, npu.heap
    # kernels of packets put events into the NPU's heap; here one queue orders those of all NPUs, so the heap only
    # passes them
    while npu.heap_size > 0:
        time = heap[2 * base]
        lane = heap[2 * base + 1] - npu.ports
        heap_pop(heap, base, npu.heap_size)
        npu.heap_size -= 1
        events.add_event(world.net.ctl, world.messages, time, events.OWN, (node << events.KEY_SHIFT) | lane, node)


@inline
def begin_row(world, node, now_ps):
    """Start the first ready row of an NPU, if it is its turn, a collective after the endpoint's delay.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
    """
    # Returns the row that is done at once, and the instance to advance, NOTHING for none.
    npu, rows, const = world.npus.npu[node], world.rows, world.net.const
    row = trace.next_ready(npu, rows)
    if const.one_at_a_time == 1 and not trace.takes_turn(
        npu, world.npus.turns[node], rows, world.trace, row, const.serial_collectives
    ):
        return np.int64(trace.NOTHING), np.int64(trace.NOTHING)
    done, inst = trace.start_row(world.net.const.address, node, row, now_ps)
    move_lanes(world, node)
    if inst >= 0 and world.insts.inst[inst].started == 1:
        collective = world.insts.inst[inst]
        delay = begins_after(world.net, world.plans, collective.first_lane)
        if delay > 0:
            # until LAUNCH, messages only wait: the endpoint's delay is before the first step
            collective.started = 0
            events.add_event(world.net.ctl, world.messages, now_ps + delay, events.LAUNCH, collective.key, inst)
            inst = np.int64(trace.NOTHING)
    return done, inst


@inline
def take_message(world, node, message, now_ps):
    """Let an NPU act on a message, and free the message's row. Return (row done, instance to advance).

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        message: Row of the message in `qps.msg`.
        now_ps: Current time in ps.
    """
    net, qps = world.net, world.qps
    ends = ends_of(qps, message)
    tag = qps.msg[message].tag
    # before the row is freed, whose words it reads
    finish_flow(net, qps, ends, tag, state.whole_messages(qps.msg)[message].ordinal, now_ps)
    state.give_row_back(net, qps, message)
    if tag_group(tag) == P2P:
        return receive_row(net.const.address, node, ends, tag), np.int64(trace.NOTHING)
    inst = instance_for(world.net, world.npus, world.insts, node, tag_group(tag), tag_seq(tag))
    arrives(net, world.insts, inst, tag_lane(tag))
    return np.int64(trace.NOTHING), inst


@inline
def has_arrived(world, node, message, now_ps):
    """Handle a message's arrival: the NPU acts after its delay and the reduction. Return (row done, instance).

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        message: Row of the message in `qps.msg`.
        now_ps: Current time in ps.
    """
    net = world.net
    msg = state.whole_messages(world.qps.msg)[message]
    size = msg.payload_bytes
    net.count.consumed_packets += 1
    net.count.received_bytes += size
    net.count.payload_bytes += size
    at = now_ps + net.const.endpoint_delay_ps
    if net.const.reduces == 1 and tag_group(msg.tag) != P2P:
        at = in_lane_at(world, node, msg.tag, size, at, True)
    if at == now_ps:
        return take_message(world, node, message, now_ps)
    add_message_event(net, world.qps, world.messages, at, events.TAKE, message)
    return np.int64(trace.NOTHING), np.int64(trace.NOTHING)


@inline
def await_last_byte(world, instance, order, now_ps):
    """Add an event for the last byte of an instance that waits only for unreported bytes.

    Args:
        world: State of the LP (`World`).
        instance: Row of the collective in `insts.inst`.
        order: Order of the current event.
        now_ps: Current time in ps.
    """
    collective = world.insts.inst[instance]
    left_ps = collective.left_ps
    if left_ps >= now_ps and collective.lanes_left == 0 and collective.sends_left == 0:
        # as the message itself would have had: its sender and its ordinal, so the order of events does not depend on
        # this shortcut
        key = (collective.key >> events.KEY_SHIFT << events.KEY_SHIFT) | collective.left_ordinal
        # at this moment, only what comes behind the current event may still be added
        if left_ps > now_ps or (events.LEFT << events.KIND_SHIFT) | key > order:
            collective.sends_left = 1
            collective.left_ps = 0
            events.add_event(world.net.ctl, world.messages, left_ps, events.LEFT, key, -1 - instance)


@inline
def has_lapsed(world, node, now_ps):
    """Return whether an event of an NPU's compute lane is obsolete, as collectives have changed its row's end.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
    """
    if world.net.const.slows_compute == 0:
        return False
    # events in lists cannot be removed: the one that counts is at due_ps, others find the lane idle or another time
    return world.npus.npu[node].lane[state.COMPUTE_LANE] < 0 or world.npus.system[node].due_ps != now_ps


@inline
def are_events_short(world):
    """Return whether obsolete events have used up the room of others (pdes.core.declared.events_room).

    Args:
        world: State of the LP (`World`).
    """
    ctl, const = world.net.ctl, world.net.const
    if const.slows_compute == 0 and world.net.hooks.settle == 0:
        return False
    # what all others may still add: a message two events, an instance one per lane and a few more, an NPU one per lane
    # and one more
    others = (
        2 * (ctl.free_messages + world.flows.state.held)
        + (const.lane_stride + 2) * ctl.free_instances
        + (state.LANES + 1) * const.npus
    )
    if ctl.events + others + SPARE_EVENTS < world.messages.event.shape[0]:
        return False
    ctl.need = state.NEED_EVENTS
    return True


@inline
def are_hops_short(world):
    """Return whether the path of another connection may not fit into the rows of `hop`.

    Args:
        world: State of the LP (`World`).
    """
    if world.net.hooks.settle == 0 or world.flows.state.hops + world.net.const.reserve_hops <= world.flows.hop.shape[0]:
        return False
    world.net.ctl.need = state.NEED_HOPS
    return True


@inline
def node_of(world, kind, order, item):
    """Return the NPU at which an event happens; for a STEP, its sender.

    Args:
        world: State of the LP (`World`).
        kind: Kind of the event: FINISH and so on (pdes/messages/events.py).
        order: Order of the event (Event.order).
        item: Item of the event (Event.which).
    """
    if kind == events.OWN:
        return item
    if kind == events.LAUNCH:
        return instance_node(world.insts.inst[item].key)
    if kind == events.TAKE or kind == events.ARRIVE:
        return destination(ends_of(world.qps, item))
    # LEFT and STEP have the sender in their key; a STEP's is 1 more (`add_message_event`)
    npu = (order >> events.KEY_SHIFT) & KEY_NPU_MASK
    return npu - 1 if kind == events.STEP else npu


@inline
def happen(world, node, kind, order, which, now_ps):
    """Carry out an event at an NPU. Return (row done, instance).

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        kind: Kind of the event: FINISH and so on (pdes/messages/events.py).
        order: Order of the event (Event.order).
        which: Item of the event (Event.which).
        now_ps: Current time in ps.
    """
    done = inst = np.int64(trace.NOTHING)
    if kind == events.OWN:
        lane = order & ((1 << events.KEY_SHIFT) - 1)
        if lane == state.COMPUTE_LANE and has_lapsed(world, node, now_ps):
            return done, inst
        if lane >= events.FIRST_DONE:
            done = lane - events.FIRST_DONE
            if world.net.const.slows_compute != 0:
                call_hook(world.net.hooks.running, world.net.const.address, node, done, -1, now_ps)
                move_lanes(world, node)
        elif lane >= events.FIRST_POST:
            row = lane - events.FIRST_POST
            state.give_row_back(world.net, world.qps, np.int64(world.rows.state[world.npus.npu[node].row_base + row]))
            trace.post_send(world.net, world.npus, world.trace, node, row, now_ps)
        elif lane < state.LANES:
            done = trace.leave_lane(world.npus.npu[node], world.rows, lane)
            if lane == state.REMOTE_LANE and world.net.const.remote_sharers > 1:
                following = serve_next(world.net, world.npus, world.trace, node, now_ps)
                if following >= 0:
                    move_lanes(world, following)
        elif lane == state.LANES:
            move_lanes(world, node)  # the begin of its job, if that is later
        elif lane == begin_slot(world.npus.npu[node].ports) - world.npus.npu[node].ports:
            trace.begin_job(world.npus.npu[node])
        else:
            inst = take_due(world.net, world.npus, world.insts, node, now_ps)
            move_lanes(world, node)
    elif kind == events.LEFT:
        if which < 0:  # an instance, not a message
            inst = -1 - which
            world.insts.inst[inst].sends_left -= 1
        else:
            done, inst = send_has_left(world.net, world.insts, world.qps.msg[which].ref)
    elif kind == events.LAUNCH:
        inst = which
        world.insts.inst[inst].started = 1
        if world.net.const.slows_compute != 0:
            call_hook(
                world.net.hooks.running, world.net.const.address, node, np.int64(world.insts.inst[inst].row), 1, now_ps
            )
            move_lanes(world, node)
    elif kind == events.TAKE:
        done, inst = take_message(world, node, which, now_ps)
    elif kind == events.ARRIVE:
        done, inst = has_arrived(world, node, which, now_ps)
    else:
        call_hook(world.net.hooks.act, world.net.const.address, which, now_ps)
    return done, inst


@kernel
def work_messages(world_address, max_events, until_ps):
    """Process events before until_ps until no event is left (DONE), a pool is full (FULL), or the kernel is PAUSED.

    Args:
        world_address: Address of the directory of the LP's `World`.
        max_events: Maximum number of events to process.
        until_ps: Time in ps before which events are processed.
    """
    # PAUSED: the next event is at until_ps or later, or `max_events` events are done. TOO_LATE: the next event lies
    # beyond LONGEST_RUN_PS.
    world = state.world_at(world_address)
    net = world.net
    ctl = net.ctl
    processed = 0
    order = np.int64(0)
    while True:
        if (ctl.check == 1 and short_of(net, world.qps) > 0) or are_events_short(world) or are_hops_short(world):
            return state.FULL
        node = ctl.resume_node
        now_ps = ctl.now_ps
        # all that follows from the last event at this NPU is done, so its idle kinds may begin their next rows
        if net.const.one_at_a_time == 1 and node >= 0 and world.npus.npu[node].ready_head < 0:
            trace.begin_turns(world.npus.npu[node], world.npus.turns[node], world.rows)
        if node >= 0 and world.npus.npu[node].ready_head >= 0:
            done, inst = begin_row(world, node, now_ps)
        else:
            if ctl.events == 0:
                ctl.resume_node = -1
                return state.DONE
            if processed == max_events or (
                until_ps < state.INF and events.next_event_ps(ctl, world.messages) >= until_ps
            ):
                return PAUSED
            processed += 1
            net.count.events += 1
            now_ps, order, item = events.take_event(ctl, world.messages)
            kind = order >> events.KIND_SHIFT
            if now_ps > state.LONGEST_RUN_PS and (kind != events.FINISH or world.flows.state.alarm_ps == now_ps):
                return TOO_LATE
            if kind == events.FINISH or kind == events.SOLVE:
                ctl.resume_node = -1
                ctl.now_ps = now_ps
                call_hook(net.hooks.settle, world_address, kind, now_ps)
                continue
            node = node_of(world, kind, order, item)
            ctl.resume_node = node
            ctl.now_ps = now_ps
            world.npus.npu[node].now_ps = now_ps
            done, inst = happen(world, node, kind, order, item, now_ps)
        if inst >= 0 and world.insts.inst[inst].started == 1:
            advance(world_address, node, inst, now_ps)
            move_lanes(world, node)
            await_last_byte(world, inst, order, now_ps)
            done = close_if_done(net, world.insts, inst)
            if done >= 0 and net.const.slows_compute != 0:
                call_hook(net.hooks.running, world_address, node, done, -1, now_ps)
                move_lanes(world, node)
        if done >= 0:
            trace.finish_row(world_address, node, done, now_ps)


# Kernels of an open network (pdes/driver.py): messages that its owner posts, not the NPUs' traces.


@kernel
def post_from_outside(world_address, node, dst, row, size_bytes, now_ps):
    """Post a message whose trace row is done when the last byte has left; return DONE or FULL.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        dst: Number of the NPU that receives.
        row: Trace row of the NPU that sends.
        size_bytes: Payload of the message in bytes.
        now_ps: Current time in ps.
    """
    # after FULL: make room and call again
    world = state.world_at(world_address)
    net = world.net
    if blocks_short(net) or short_of(net, world.qps) > 0 or are_events_short(world) or are_hops_short(world):
        return state.FULL
    # as if an event of the NPU were at hand, from which posts take their time
    world.npus.npu[node].now_ps = now_ps
    net.next_time[node] = now_ps
    tag = message_tag(np.int64(P2P), np.int64(0), row)
    post(world_address, node, dst, np.int64(P2P), tag, size_bytes, row, now_ps)
    return state.DONE


@kernel
def next_message_event_ps(world_address):
    """Return the time in ps of the next event at message level, INF without one.

    Args:
        world_address: Address of the directory of the LP's `World`.
    """
    world = state.world_at(world_address)
    return events.next_event_ps(world.net.ctl, world.messages)
