"""One NPU in one window: its packets, ports, lanes, timer and ticks in time order.

At each time everything that follows from the current event comes first (rows start, messages are posted), then the
ports that were touched are tried, so that all messages posted at one time take turns from the first packet on. An NPU's
own events precede packets that arrive at the same time. Before an action, the pools must have room for the maximum that
it can use; else FULL is returned, and the action follows when the driver has made room.
"""

import numpy as np

from nadi.pdes.core import algorithms, packet, state
from nadi.pdes.core.jit import call_hook, hook, inline, outline
from nadi.pdes.network import lane_credits
from nadi.pdes.network.batch import blocks_short, give_back, order_ties, take_batch
from nadi.pdes.network.link import drop, inbox_of
from nadi.pdes.network.port_queues import on_pause, paused_link
from nadi.pdes.network.routing import npu_route
from nadi.pdes.nic.port import NOT_WOKEN, queue_control, set_event, transmit, wake_port
from nadi.pdes.nic.selective import take_complete
from nadi.pdes.nic.several_ports import first_port
from nadi.pdes.nic.timeouts import on_timeout
from nadi.pdes.nic.transport import on_ack, on_data
from nadi.pdes.npu.agenda import agenda_slot, begin_slot, take_due
from nadi.pdes.npu.ahead import prefetch_batch, prefetch_npus
from nadi.pdes.npu.collective import advance, close_if_done, send_has_left
from nadi.pdes.npu.delivery import apart, message_is_in
from nadi.pdes.npu.endpoints import NOTICED, put_off
from nadi.pdes.npu.trace import (
    KIND_COLLECTIVE,
    NOTHING,
    begin_job,
    begin_turns,
    finish_row,
    leave_lane,
    next_ready,
    start_row,
    takes_turn,
)

# Ticks: an NPU notices what has ended at multiples of an interval since the begin of its job (`const.tick_ps`).
#
# A GPU sees that a message has come, or a kernel is done, when something next looks at a flag in memory, not at the
# picosecond at which that happened. Rows of a trace then start at ticks alone, so that members of a group whose
# messages came at slightly different times go on together, and the times of a run repeat themselves
# (docs/explanation/reuse.md).


@inline
def next_tick_ps(net, npu, now_ps):
    """Return the time of an NPU's first tick from now_ps on.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npu: The NPU (a row `Npu`).
        now_ps: Current time in ps.
    """
    # (begin - now) mod tick is what is missing to the next multiple: begin 0, tick 10, now 13: -13 mod 10 = 7, so 20
    return now_ps + (net.jobs.total[packet.job_of(net.jobs.who[npu.number])].begin_ps - now_ps) % net.const.tick_ps


@inline
def lane_waits(net, npus, node, lane, now_ps):
    """Let the row of a lane of an NPU, which is done, stay until the next tick; return False if that is now.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        lane: Number of the lane.
        now_ps: Current time in ps.
    """
    npu = npus.npu[node]
    tick_ps = next_tick_ps(net, npu, now_ps)
    if tick_ps == now_ps:
        return False
    if lane == state.COMPUTE_LANE and net.const.slows_compute != 0:
        # no work is left, so that collectives no longer change the end
        npus.system[node].work_ps = npus.system[node].work_part = 0
    set_event(npus, node, tick_ps, npu.ports + lane)
    return True


@hook
def wait_for_tick(world_address, node, row, now_ps):
    """Let a trace row, which is done, finish at the next tick; return 0 if that is now.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
        now_ps: Current time in ps.
    """
    world = state.world_at(world_address)
    net, trace = world.net, world.trace
    npu = world.npus.npu[node]
    r = npu.trace_base + row
    tick_ps = next_tick_ps(net, npu, now_ps)
    # a collective finishes after all that is to happen at its tick, as one that is replayed does
    if trace.kind[r] == KIND_COLLECTIVE and trace.schedule[r] >= 0 and tick_ps == now_ps:
        tick_ps += net.const.tick_ps
    if tick_ps == now_ps:
        return 0
    at = state.take_row(net, world.qps)
    state.later_messages(world.qps.msg)[at].ref = row
    put_off(world.npus, world.qps, node, at, NOTICED, tick_ps)
    return np.int64(1)


@inline
def short_of(net, qps):
    """Return the pool, other than the blocks, that may be too small for the next action (NEED_*), or 0.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
    """
    ctl = net.ctl
    need = 0
    if ctl.free_messages < net.const.reserve_messages:
        need = state.NEED_MSGS
    # maps are at most half full, so that searches are short
    # a map that is half full needs 1.5 probes for a key it has, and 2.5 for one it lacks (Knuth, volume 3, 6.4,
    # algorithm L)
    elif 2 * (ctl.queue_pairs + net.const.reserve_queue_pairs) > qps.qp_key.shape[0]:
        need = state.NEED_QPS
    elif 2 * (ctl.receivers + 1) > qps.rxqp.shape[0]:
        need = state.NEED_RXQPS
    elif ctl.free_instances < 1:
        need = state.NEED_INSTS
    elif ctl.flows_out + net.const.reserve_messages > qps.flow_out.shape[0]:
        need = state.NEED_FLOWS
    elif ctl.flows_in + 1 > qps.flow_in.shape[0]:
        need = state.NEED_FLOWS
    ctl.need = need
    ctl.check = int(need > 0)
    return need


@inline
def pass_on(net, npus, node, now_ps, word1, word2, word3):
    """Queue a packet that passes through an NPU in transit.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        word3: Word 3 of the packet, the tag of its message.
    """
    link = npu_route(net, node, packet.destination(word1), word2)
    if packet.flags(word1) & (packet.FLAG_ACK | packet.FLAG_TRIMMED) != 0:
        queue_control(net, npus, link, now_ps, word1, word2, word3)
    else:
        port = npus.port[link]
        size = packet.wire_bytes(word1)
        limit = net.const.queue_limit_bytes
        if limit > 0 and port.transit_bytes + size > limit:
            drop(net, link, word1)
            return
        port.transit_bytes += size
        port.transit_packets += 1
        tail = np.int64(port.transit_tail)
        # an empty queue holds no block
        if port.transit_packets == 1:
            tail = algorithms.take_block(net)
            port.transit_head = tail
        port.transit_tail = algorithms.push(net, tail, now_ps, word1, word2, word3)
        algorithms.carry(net, algorithms.SET_DOWN, tail)
    wake_port(npus, node, link)


@inline
def own_event(net, npus, rows, insts, node, now_ps):
    """Take an NPU's earliest own event: a port falls idle, a lane's row is done, the timer expires, and so on.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
    """
    # Returns a row that is done, an instance to advance, and the port that fell idle, or NOTHING for each.
    npu = npus.npu[node]
    heap = npu.heap
    ports = npu.ports
    slot = npus.heap[2 * heap + 1]
    algorithms.heap_pop(npus.heap, heap, npu.heap_size)
    npu.heap_size -= 1
    done = inst = link = np.int64(NOTHING)
    # whose event it is, by its slot: the ports, the lanes, the timer, the ports' pacing, the agenda, and messages that
    # are acted on later
    if slot < ports:
        # the port is idle, and whoever waits for the last byte of what it sent is told
        link = net.out_ptr[node] + slot
        port = npus.port[link]
        port.scheduled = 0
        done, inst = send_has_left(net, insts, port.sent_ref)
        port.sent_ref = -1
    elif slot < ports + state.LANES:
        if net.const.tick_ps == 0 or not lane_waits(net, npus, node, slot - ports, now_ps):
            done = leave_lane(npu, rows, slot - ports)
    elif slot == agenda_slot(ports):
        inst = take_due(net, npus, insts, node, now_ps)
    elif slot == begin_slot(ports):
        begin_job(npu)
    elif slot > begin_slot(ports):
        call_hook(net.hooks.credits, net.const.address, state.CREDIT_PACE, node, 0, now_ps, 0, 0, 0)
    elif slot > agenda_slot(ports):
        done, inst = apart(call_hook(net.hooks.do_later, net.const.address, node, now_ps))
    elif slot > ports + state.LANES:
        link = net.out_ptr[node] + slot - ports - state.LANES - 1
        # a busy port is tried when it falls idle, and then takes all whose pace is over
        npus.port[link].pace_at_ps = state.INF
        if npus.port[link].scheduled == 1:
            link = np.int64(NOTHING)
    else:
        on_timeout(net.const.address, node, now_ps)
    return done, inst, link


@outline
def return_credits(net, npus, node, record, now_ps, word1):
    """Return the credits of a data packet to its sender: an NPU takes it out of its input buffer at once.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        record: Record of the packet.
        now_ps: Current time in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
    """
    link = np.int64(paused_link(net, record))
    if not lane_credits.takes_credits(net, link, word1):
        return
    units = lane_credits.units_of(net, packet.wire_bytes(word1))
    word2 = lane_credits.frame_of(packet.data_class(word1), units)
    net.count.pause_frames += 1
    net.gate[link].pause_frames += 1
    queue_control(net, npus, link, now_ps, lane_credits.frame_header(net), word2, np.int64(0))
    wake_port(npus, node, link)


@inline
def packet_event(net, npus, qps, node, record, now_ps):
    """Handle the arrival of a packet at an NPU; return the tag of the message that it completes, or NOTHING.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        record: Record of the packet.
        now_ps: Current time in ps.
    """
    arrival = net.record[record]
    algorithms.carry(net, algorithms.TAKE_UP, record)
    word1, word2, word3 = arrival.w1, arrival.w2, arrival.w3
    if packet.destination(word1) == packet.PAUSE_FRAME:
        # a resume lets the port send; a pause changes nothing that was sent
        link = on_pause(net, record, word2, now_ps)
        wake_port(npus, node, first_port(net, npus, link))
        return np.int64(NOTHING)
    if net.const.queues != 0:
        return_credits(net, npus, node, record, now_ps, word1)
    # fabrics without switches route through NPUs
    if packet.destination(word1) != npus.npu[node].number:
        pass_on(net, npus, node, now_ps, word1, word2, word3)
    elif packet.flags(word1) & packet.FLAG_ACK != 0:
        on_ack(net, npus, qps, node, now_ps, word1, word2, word3)
    elif on_data(net, npus, qps, node, now_ps, word1, word2, word3):
        return word3
    return np.int64(NOTHING)


@inline
def next_action(world, world_address, node, begin_ps, end_ps, packets_done):
    """Take an NPU's next action of the current time, or advance to the next time.

    Args:
        world: State of the LP (`World`).
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
        packets_done: Number of packets of the batch that are done.
    """
    # Returns packets_done, the number of packets of the batch that are done; the time, at least end_ps if there is no
    # earlier one; row and instance as `start_row`; the port that fell idle or is to be tried; and tag and words of a
    # complete message. NOTHING replaces whatever does not apply.
    net, inbox, npus, qps = world.net, world.inbox, world.npus, world.qps
    npu = npus.npu[node]
    now_ps = npu.now_ps
    done = inst = link = tag = np.int64(NOTHING)
    word1 = word2 = np.int64(0)
    # first all that follows from the event at hand, at its time: rows start, complete messages are told of, and only
    # then ports are tried, so that all that is posted at one moment takes turns from its first packet on
    if npu.ready_head >= 0:
        row = next_ready(npu, world.rows)
        if net.const.one_at_a_time == 0 or takes_turn(
            npu, npus.turns[node], world.rows, world.trace, row, net.const.serial_collectives
        ):
            done, inst = start_row(world_address, node, row, now_ps)
    elif net.hooks.selective_sender != 0 and npu.done_head >= 0:
        word1, word2, tag = take_complete(net, npus, qps, node)
    elif npu.wake_head >= 0:
        link = npu.wake_head
        port = npus.port[link]
        npu.wake_head = np.int64(port.wake_next)
        port.wake_next = NOT_WOKEN
    else:
        # nothing more follows: time goes on to the earlier of the NPU's own next event and the next packet
        own = np.int64(state.INF)
        if npu.heap_size > 0:
            own = npus.heap[2 * npu.heap]
        comes = np.int64(state.INF)
        if packets_done < net.ctl.batch:
            comes = begin_ps + (inbox.batch_key[packets_done] >> 16)
        now_ps = min(own, comes)
        # else the NPU is done with this cell; its next event stays in the heap
        if now_ps < end_ps:
            npu.now_ps = now_ps
            # own events come before packets of the same time
            if own <= comes:
                net.count.events += 1
                done, inst, link = own_event(net, npus, world.rows, world.insts, node, now_ps)
            else:
                record = inbox.batch_pos[inbox.batch_key[packets_done] & 0xFFFF]
                arrival = net.record[record]
                packets_done += 1
                word1, word2 = arrival.w1, arrival.w2
                tag = packet_event(net, npus, qps, node, record, now_ps)
    return packets_done, now_ps, done, inst, link, tag, word1, word2


@inline
def follow_up(world, world_address, node, now_ps, done, inst, link, tag, word1, word2):
    """Handle the results of an action of an NPU, as `next_action` returns them: message, instance, row, port.

    world: state of the LP; world_address: address of its directory; node: number of the NPU in the LP; now_ps: current
    time in ps; done: trace row that is done; inst: instance to advance; link: port to try; tag, word1, word2: tag and
    words of a complete message; NOTHING replaces what does not apply.
    """
    net, npus, insts = world.net, world.npus, world.insts
    if tag >= 0:
        done, inst = message_is_in(net, npus, insts, node, now_ps, word1, word2, tag)
    # messages may come before the collective has started, and then only wait
    if inst >= 0 and insts.inst[inst].started == 1:
        advance(world_address, node, inst, now_ps)
        done = close_if_done(net, insts, inst)
        counts = (net.const.slows_compute | net.const.collectives_in_flight) != 0 and net.const.tick_ps == 0
        if done >= 0 and counts:  # else `end_row` counts it
            call_hook(net.hooks.running, world_address, node, done, -1, now_ps)
    if done >= 0 and (
        net.const.tick_ps == 0 or call_hook(net.hooks.wait_for_tick, world_address, node, done, now_ps) == 0
    ):
        finish_row(world_address, node, done, now_ps)
    if net.const.one_at_a_time == 1 and npus.npu[node].ready_head < 0:
        begin_turns(npus.npu[node], npus.turns[node], world.rows)
    if link >= 0 and npus.port[link].wake_next == NOT_WOKEN:
        # rows that became ready post before the port chooses
        if npus.npu[node].ready_head >= 0:
            wake_port(npus, node, link)
        else:
            transmit(net, npus, world.qps, node, link, now_ps)


@inline
def npu_window(world, world_address, node, begin_ps, end_ps):
    """Let an NPU process its batch and its events in the cell. Return True if a pool is too small to continue.

    Args:
        world: State of the LP (`World`).
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    net = world.net
    ctl = net.ctl
    i = ctl.resume_at
    while True:
        # each turn is one action, and begins only if every pool has room for the most that an action takes
        if blocks_short(net) or (ctl.check == 1 and short_of(net, world.qps) > 0):
            ctl.resume_node = node
            ctl.resume_at = i
            return True
        i, now_ps, done, inst, link, tag, word1, word2 = next_action(world, world_address, node, begin_ps, end_ps, i)
        if now_ps >= end_ps:
            return False
        follow_up(world, world_address, node, now_ps, done, inst, link, tag, word1, word2)


@outline
def npus_window(world_address, begin_ps, end_ps):
    """Let every NPU process its events in the cell. Return True if a pool is too small to continue.

    Args:
        world_address: Address of the directory of the LP's `World`.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    world = state.world_at(world_address)
    net, npus = world.net, world.npus
    ctl = net.ctl
    interrupted = ctl.resume_node >= 0
    if interrupted:
        net.next_time[ctl.resume_node] = state.INF
    turns = 0
    for node in range(net.const.npus):  # list those with events before `end_ps`
        npus.busy[turns] = node
        turns += np.int64(net.next_time[node] < end_ps or net.inbox[inbox_of(node, ctl.side)] >= 0)
    for turn in range(-np.int64(interrupted), turns):
        # a node that was interrupted goes on with its batch; others gather theirs
        if turn < 0:
            node = ctl.resume_node
        else:
            node = np.int64(npus.busy[turn])
            prefetch_npus(net, npus, world.qps, world.insts, world.plans, turn, turns - 1)
            if blocks_short(net):
                return True
            take_batch(net, world.inbox, node, begin_ps, end_ps)
            order_ties(net, world.inbox, node, begin_ps)
            if net.hooks.paths != 0:
                prefetch_batch(net, npus, world.inbox, world.qps, node)
        if npu_window(world, world_address, node, begin_ps, end_ps):
            return True
        # the node is done with this window: its records are free, and the driver knows its next event
        ctl.resume_node = -1
        give_back(net, world.inbox)
        net.next_time[node] = state.INF
        if npus.npu[node].heap_size > 0:
            net.next_time[node] = npus.heap[2 * npus.npu[node].heap]
    return False
