"""Two kinds of traffic in one run: messages of some groups are flows, all others packets, on the same links.

Each connection of packets with a message under way takes part in the solution of rates (pdes/messages/rates.py)
as a *placeholder*: a flow over its path and back that never ends, with the weights and the cap of a long message. So
flows get their max-min share beside packets, and packets get the rest of each link: its rate less the rates of its
flows, but at least MIN_SHARE of it, for acknowledgements that follow their last message. A solution, at each begin and
end of a message of either kind, sets the rates for packets, which hold for packets that are sent from then on; switches
act on them in the same cell.

Flows begin and end at exact times, so NPUs act in order of time within a cell. An NPU without flows to or from it runs
to the end of the cell, or until it posts a message that is a flow: another NPU's flow takes at least a cell to arrive.
"""

import numpy as np

from nadi.pdes.core import packet
from nadi.pdes.core.algorithms import keyed_remove, keyed_sift
from nadi.pdes.core.jit import call_hook, hook, inline, outline
from nadi.pdes.core.state import INF, whole_messages, world_at
from nadi.pdes.fidelity.flow import take_up
from nadi.pdes.messages import events
from nadi.pdes.messages.message_loop import KEY_NPU_MASK, are_events_short, are_hops_short, has_arrived
from nadi.pdes.messages.paths import lay_path, load_message
from nadi.pdes.messages.rates import ask_to_solve, enter, leave
from nadi.pdes.messages.whole import ends_of, post_message
from nadi.pdes.network.batch import blocks_short, order_ties, take_batch
from nadi.pdes.network.link import inbox_of, nominal_psb
from nadi.pdes.nic.counting import count_posted
from nadi.pdes.nic.transport import enqueue_message, queue_pair
from nadi.pdes.npu.collective import send_has_left
from nadi.pdes.npu.delivery import message_done
from nadi.pdes.npu.npu_window import follow_up, next_action, short_of
from nadi.pdes.npu.trace import NOTHING

MIN_SHARE = 64  # packets get at least 1 / MIN_SHARE of a link's rate: an acknowledgement takes 0.1 µs at 400 Gb/s
ENDLESS_BYTES = 1e300  # bytes of a placeholder: it has no end at any rate
BEGINS, ENDS = 0, 1  # a connection of packets has posted a message, or one of them is complete


@inline
def announce(world, pair, what, now_ps):
    """Add an event: a queue pair of packets has posted a message, or one is complete.

    Args:
        world: State of the LP (`World`).
        pair: Row of the queue pair in `qps.qp`.
        what: BEGINS: a message was posted. ENDS: one is complete.
        now_ps: Current time in ps.
    """
    # Its key is smaller than that of any message, so that flows begin beside the placeholders of their moment.
    word = pair << 1 | what
    events.add_event(world.net.ctl, world.messages, now_ps, events.STEP, word, -1 - word)


@hook
def post_by_kind(world_address, node, dst, connection, tag, size_bytes, waiter, now_ps):
    """Post a message as a flow or as packets.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        dst: Number of the receiving NPU in the fabric.
        connection: Group of the queue pair with number and share (pdes/core/packet.py).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        waiter: Waiter for its last byte to leave (`Message.ref`), -1 = nobody.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, npus, qps, flows = world.net, world.npus, world.qps, world.flows
    group = min(connection & ((1 << packet.CONNECTION_SHIFT) - 1), flows.by_flow.shape[0] - 1)  # P2P is the last
    if flows.by_flow[group] == 1:
        flows.turn[node].flow_messages += 1
        flows.turn[dst].flow_messages += 1
        post_message(world_address, node, dst, connection, tag, size_bytes, waiter, now_ps)
    else:
        pair = queue_pair(net, npus, qps, node, dst, connection, tag)
        enqueue_message(net, npus, qps, node, pair, tag, size_bytes, waiter, now_ps)
        count_posted(net, npus, qps, node, pair, tag, size_bytes, now_ps)
        announce(world, pair, BEGINS, now_ps)
    return 0


@hook
def packets_are_in(world_address, node, now_ps, word1, word2, word3):
    """Handle a message of packets that is complete. Return (row done, instance).

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of its last packet (pdes/core/packet.py).
        word2: Word 2 of its last packet.
        word3: Word 3 of its last packet, the tag.
    """
    world = world_at(world_address)
    announce(world, packet.sender_pair(word2), ENDS, now_ps)
    done, inst = message_done(world.net, world.npus, world.insts, node, word1, word3)
    return (inst + 1) << 32 | (done + 1)


@inline
def count_placeholder(world, pair, what, now_ps):
    """Let the placeholder of a queue pair begin with the first of its messages or end with the last.

    Args:
        world: State of the LP (`World`).
        pair: Row of the queue pair in `qps.qp`.
        what: BEGINS: a message was posted. ENDS: one is complete.
        now_ps: Current time in ps.
    """
    flows = world.flows
    flow = flows.flow[pair]
    if what == BEGINS:
        flow.messages += 1
        if flow.messages > 1:
            return
        if flow.is_packets == 0:
            flow.is_packets = 1
            lay_path(world, pair, now_ps)
            # a message longer than a window, to which the cap of the window applies
            load_message(world, pair, (world.net.const.window_packets + 1) * world.net.const.mtu_bytes)
            # it ends with the last message of packets, never by its bytes
            flow.remaining_bytes = ENDLESS_BYTES
        enter(flows, pair, now_ps)
    else:
        flow.messages -= 1
        if flow.messages > 0:
            return
        leave(flows, pair)
    ask_to_solve(world, now_ps)


@inline
def set_packet_rate(world, link):
    """Set a link's rate for packets from the rates of its flows, unless that was done after the latest solution.

    Args:
        world: State of the LP (`World`).
        link: Number of the outgoing link.
    """
    net, flows = world.net, world.flows
    row = flows.link[link]
    if row.packets_stamp == flows.state.stamp:
        return
    row.packets_stamp = flows.state.stamp
    taken = np.int64(0)
    for i in range(row.first_flow, row.first_flow + row.flows):
        flow = flows.flow[flows.link_flow[i].flow]
        if flow.is_packets == 0:
            taken += flows.link_flow[i].weight * flow.rate
    psb = nominal_psb(net, link)
    if taken > 0:
        # packets get what flows leave, and at least a small part, so that they always move
        psb *= row.whole_capacity / max(row.whole_capacity - taken, row.whole_capacity // MIN_SHARE)
    number = packet.number_of(net.tx[link].meta)
    net.link_class[number].ps_per_byte = psb
    if world.inbox.rx_psb.shape[0] > 1:
        world.inbox.rx_psb[number] = psb


@outline
def solve_for_both(world_address, now_ps):
    """Set the rates of flows, and those of the links that they use for packets.

    Args:
        world_address: Address of the directory of the LP's `World`.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    flows = world.flows
    dirty, solved = flows.state.dirty, flows.state.solved
    call_hook(world.net.hooks.settle, world_address, events.SOLVE, now_ps)
    for i in range(dirty):  # the lists that the solution has emptied still have their items
        set_packet_rate(world, np.int64(flows.dirty[i]))
    for i in range(flows.state.solved - solved):
        flow = flows.flow[flows.reached_flow[i]]
        for h in range(flow.first_hop, flow.first_hop + flow.hops):
            set_packet_rate(world, np.int64(flows.hop[h].link))


@inline
def next_packet_ps(world, node, begin_ps):
    """Return when (ps) the next packet of the cell from begin_ps arrives at an NPU, INF without one.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        begin_ps: Begin of the cell in ps.
    """
    turn = world.flows.turn[node]
    if turn.next_packet == turn.end:
        return np.int64(INF)
    return begin_ps + packet.inbox_later_ps(world.net.record[world.net.ordered[turn.next_packet]].ready_ps)


@inline
def own_event_ps(world, node):
    """Return the time in ps of an NPU's next own event, INF without one.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
    """
    npu = world.npus.npu[node]
    return np.int64(world.npus.heap[2 * npu.heap]) if npu.heap_size > 0 else np.int64(INF)


@inline
def plan_turn(world, node, begin_ps, end_ps):
    """Put an NPU's next turn in the cell into the heap of turns, or take it out.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    flows, npu = world.flows, world.npus.npu[node]
    state = flows.state
    next_ps = min(own_event_ps(world, node), next_packet_ps(world, node, begin_ps))
    # what follows from the last action happens at its time
    if npu.ready_head >= 0 or npu.wake_head >= 0 or (world.net.hooks.selective_sender != 0 and npu.done_head >= 0):
        next_ps = np.int64(npu.now_ps)
    place = flows.turn_place[node] - 1
    if next_ps < end_ps:
        if place < 0:
            place = state.turns
            state.turns += 1
        keyed_sift(flows.turn_heap, flows.turn_place, state.turns, place, next_ps, node)
        return
    if place >= 0:
        keyed_remove(flows.turn_heap, flows.turn_place, state.turns, node)
        state.turns -= 1
    world.net.next_time[node] = own_event_ps(world, node)


@outline
def gather_cell(world, begin_ps, end_ps):
    """Order the packets that arrive at each NPU in a cell, and plan the first turns.

    Args:
        world: State of the LP (`World`).
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    net, inbox, flows = world.net, world.inbox, world.flows
    count = held = np.int64(0)
    for node in range(net.const.npus):
        turn = flows.turn[node]
        turn.next_packet = count
        if net.inbox[inbox_of(node, net.ctl.side)] >= 0:
            take_batch(net, inbox, node, begin_ps, end_ps)
            order_ties(net, inbox, node, begin_ps)
            for i in range(net.ctl.batch):
                net.ordered[count] = inbox.batch_pos[inbox.batch_key[i] & 0xFFFF]
                count += 1
            # blocks stay until the cell is over
            for i in range(net.ctl.batch_freed):
                net.held_block[held] = inbox.batch_freed[i]
                held += 1
        turn.end = count
        if turn.next_packet < count or net.next_time[node] < end_ps:
            plan_turn(world, node, begin_ps, end_ps)
    flows.state.held_blocks = held
    flows.state.cell_ps = begin_ps


@inline
def is_short(world):
    """Return whether a pool is too small for the next action.

    Args:
        world: State of the LP (`World`).
    """
    net = world.net
    return (
        blocks_short(net)
        or (net.ctl.check == 1 and short_of(net, world.qps) > 0)
        or are_events_short(world)
        or are_hops_short(world)
    )


@inline
def due_event_ps(world):
    """Return the time of the earliest event of flows in ps, INF without one.

    Args:
        world: State of the LP (`World`).
    """
    state = world.flows.state
    if state.known_events != world.net.ctl.events:
        state.known_events = world.net.ctl.events
        state.due_ps = events.next_event_ps(world.net.ctl, world.messages)
    return state.due_ps


@outline
def take_turn(world_address, begin_ps, end_ps):
    """Let the first NPU of the heap of turns act, as far as no flow can affect it.

    Args:
        world_address: Address of the directory of the LP's `World`.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    world = world_at(world_address)
    net, inbox, flows = world.net, world.inbox, world.flows
    ctl, state, heap = net.ctl, flows.state, flows.turn_heap
    node = np.int64(heap[0].number)
    turn = flows.turn[node]
    end = end_ps
    if turn.flow_messages > 0:
        end = min(end, due_event_ps(world) + 1)
        for other in range(1, min(3, state.turns)):
            end = min(end, max(heap[other].key, heap[0].key + 1))
    batch = np.int64(0)
    for i in range(turn.next_packet, turn.end):
        record = np.int64(net.ordered[i])
        later_ps = packet.inbox_later_ps(net.record[record].ready_ps)
        if begin_ps + later_ps >= end:
            break
        inbox.batch_key[batch] = later_ps << 16 | batch
        inbox.batch_pos[batch] = record
        batch += 1
    ctl.batch = batch
    packets_done = np.int64(0)
    while not is_short(world):
        packets_done, now_ps, done, inst, link, tag, word1, word2 = next_action(
            world, world_address, node, begin_ps, end, packets_done
        )
        if now_ps >= end:
            break
        follow_up(world, world_address, node, now_ps, done, inst, link, tag, word1, word2)
        if turn.flow_messages > 0 and ctl.events != state.known_events:  # what it posted may leave at once
            end = min(end, now_ps + 1)
    turn.next_packet += packets_done
    plan_turn(world, node, begin_ps, end_ps)


@outline
def take_flow_event(world_address, begin_ps, end_ps):
    """Carry out the earliest event of flows.

    Args:
        world_address: Address of the directory of the LP's `World`.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    world = world_at(world_address)
    net, flows = world.net, world.flows
    now_ps, order, item = events.take_event(net.ctl, world.messages)
    flows.state.known_events = -1
    kind = order >> events.KIND_SHIFT
    if kind == events.FINISH:
        call_hook(net.hooks.settle, world_address, kind, now_ps)
    elif kind == events.SOLVE:
        solve_for_both(world_address, now_ps)
    # negative items are placeholders of packets (`announce`)
    elif kind == events.STEP and item < 0:
        count_placeholder(world, (-1 - item) >> 1, (-1 - item) & 1, now_ps)
    elif kind == events.STEP:
        take_up(world, item, now_ps)
    else:
        if kind == events.LEFT:
            node = (order >> events.KEY_SHIFT) & KEY_NPU_MASK
            world.npus.npu[node].now_ps = now_ps
            done, inst = send_has_left(net, world.insts, whole_messages(world.qps.msg)[item].ref)
        else:
            node = packet.destination(ends_of(world.qps, item))
            world.npus.npu[node].now_ps = now_ps
            done, inst = has_arrived(world, node, item, now_ps)
        flows.turn[node].flow_messages -= 1
        nothing = np.int64(NOTHING)
        follow_up(world, world_address, node, now_ps, done, inst, nothing, nothing, np.int64(0), np.int64(0))
        plan_turn(world, node, begin_ps, end_ps)


@hook
def npus_with_flows(world_address, begin_ps, end_ps):
    """Let every NPU process its events from begin_ps to before end_ps. Return 1 if a pool is too small to continue.

    Args:
        world_address: Address of the directory of the LP's `World`.
        begin_ps: Begin of the cell in ps.
        end_ps: End of the cell in ps.
    """
    world = world_at(world_address)
    net, flows = world.net, world.flows
    state = flows.state
    if state.cell_ps != begin_ps:
        gather_cell(world, begin_ps, end_ps)
    while True:
        if is_short(world):
            return 1
        due_ps = due_event_ps(world)
        if state.turns > 0 and flows.turn_heap[0].key <= due_ps:
            take_turn(world_address, begin_ps, end_ps)
        elif due_ps < end_ps:
            take_flow_event(world_address, begin_ps, end_ps)
        else:
            break
    # until now, turns have read packets in the blocks of their batches
    free = net.ctl.free_blocks
    for i in range(state.held_blocks):
        net.block_free[free + i] = net.held_block[i]
    net.ctl.free_blocks = free + state.held_blocks
    net.next_time[net.next_time.shape[0] - 1] = due_ps
    state.cell_ps = -1
    return 0
