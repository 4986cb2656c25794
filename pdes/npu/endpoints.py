"""Optional delays at the two ends of a message that travels as packets (docs/explanation/fidelity.md).

A trace row that sends may post its message some time after it starts: NCCL's launch and hop
(docs/explanation/nccl.md). The message's first packet may be sent send_latency_ps after it is posted. The receiver
acts on it endpoint_delay_ps after its arrival and, where reductions take time, after its reduction. Where
acknowledgements count, both arrival and the sender's completion are the return of the last one. Behind the receiver's
own port, it is assumed to meet no other traffic, since the queues of switches are unknown there; so the receiver learns
of it no later than the sender, and on an idle path at the same time. The path is that of a world of the whole fabric
without faults (`const.back`), the same in every LP.

A list of the NPU holds its future actions on messages by time; equal times in order of addition. Its rows are rows of
`msg`. An event of the NPU's own marks the first.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.algorithms import heap_decrease_key
from nadi.pdes.core.jit import call_hook, hook, inline
from nadi.pdes.network.detours.source import listed_cell
from nadi.pdes.network.link import class_row, link_psb, on_link_bytes, serialisation_ps
from nadi.pdes.network.routing import choose, forwarding_ps, next_link, npu_route
from nadi.pdes.nic.counting import count_posted
from nadi.pdes.nic.port import set_event
from nadi.pdes.nic.rendezvous import ASKED_FOR, CLEAR, EAGER, KIND_MASK, is_used
from nadi.pdes.nic.transport import (
    enqueue_message,
    must_notify,
    payload_bytes,
    queue_pair,
    receiving_pair,
    send_notification,
)
from nadi.pdes.npu.agenda import agenda_slot
from nadi.pdes.npu.collective import send_has_left, start_collective
from nadi.pdes.npu.delivery import in_lane_at, message_done
from nadi.pdes.npu.trace import KIND_COLLECTIVE, finish_row, post_send

SENDS, ACTS, IS_TOLD, POSTS, STARTS, RUNS, LAPSED, NOTIFIES, ENDS, NOTICED = range(10)
"""Kinds of later actions: a message is sent; its receiver acts on it; the waiter for its acknowledgement is notified; a
trace row posts its message; a collective starts to send packets, as that of an aggregator; a replayed collective begins
to run; it was to run, but sends packets; a NIC sends a congestion notification; a replayed collective ends
(pdes/reuse_kernels/domains.py); the end of a trace row is noticed
(pdes/npu/npu_window.py).
"""


@inline
def later_slot(npus, node):
    """Return the slot of the list in an NPU's heap.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
    """
    return agenda_slot(npus.npu[node].ports) + 1


@inline
def ending_row(msg, row):
    """Return the trace row whose end a later action is, -1 = another action.

    Args:
        msg: Rows of `LaterMessage` (`qps.msg`).
        row: Row of the action in `msg`.
    """
    # ENDS and NOTICED are the last two kinds, and both have a trace row in `ref`
    return msg[row].ref if msg[row].what >= ENDS else np.int64(-1)


@inline
def precedes(msg, row, other):
    """Return whether a later action precedes another that is put off after it.

    Args:
        msg: Rows of `LaterMessage` (`qps.msg`).
        row: Row of the action in `msg`.
        other: Row of the action that is put off later.
    """
    # Ends of rows follow all others of the same time, in the order of the rows, so that their order is the same whether
    # a collective is replayed, whose end is known early, or not.
    if msg[row].due != msg[other].due:
        return msg[row].due < msg[other].due
    return ending_row(msg, row) <= ending_row(msg, other)


@inline
def put_off(npus, qps, node, row, action, due_ps):
    """Postpone an action of an NPU.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        row: Row of the action in `qps.msg`.
        action: Code of the action: POSTS, SENDS and so on.
        due_ps: Time of the action in ps.
    """
    msg = state.later_messages(qps.msg)
    msg[row].what = action
    # << 1, as lists of `agenda.put_in` have it; bit 0 is not used here
    msg[row].due = due_ps << 1
    npu, system = npus.npu[node], npus.system[node]
    # later_head and later_tail are row + 1, so that a zeroed row has an empty list
    head, tail = np.int64(system.later_head - 1), np.int64(system.later_tail - 1)
    before, following = np.int64(-1), head
    # most actions come later than all others: try the end of the list first
    if tail >= 0 and precedes(msg, tail, row):
        before, following = tail, np.int64(-1)
    while following >= 0 and precedes(msg, following, row):
        before, following = following, np.int64(msg[following].later)
    msg[row].later = following
    if following < 0:
        system.later_tail = row + 1
    if before >= 0:
        msg[before].later = row
        return
    system.later_head = row + 1
    if head < 0:
        set_event(npus, node, due_ps, later_slot(npus, node))
    else:
        heap_decrease_key(npus.heap, npu.heap, npu.heap_size, due_ps, later_slot(npus, node))


@inline
def take_first(net, npus, qps, node):
    """Remove the first row from an NPU's list; its words stay readable until another row is taken.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
    """
    system = npus.system[node]
    head = system.later_head - 1
    following = state.later_messages(qps.msg)[head].later
    system.later_head = following + 1
    if following < 0:
        system.later_tail = 0
    # the words of a free row stay as they are
    state.give_row_back(net, qps, head)
    return head


@inline
def arm(npus, qps, node):
    """Set an event of an NPU at the time of its list's first row, after the event of the previous one.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
    """
    # the heap has one event for the list, at its first row's time; the event of that before has just been taken
    head = npus.system[node].later_head - 1
    if head >= 0:
        set_event(npus, node, state.later_messages(qps.msg)[head].due >> 1, later_slot(npus, node))


@inline
def send(net, npus, qps, node, pair, tag, size_bytes, waiter, now_ps):
    """Let a queue pair send a message.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        pair: Row of the queue pair in `qps.qp`.
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        waiter: Waiter for its last byte to leave, or else for its acknowledgement.
        now_ps: Current time in ps.
    """
    if net.hooks.is_acknowledged == 0:
        enqueue_message(net, npus, qps, node, pair, tag, size_bytes, waiter, now_ps)
    else:
        message = enqueue_message(net, npus, qps, node, pair, tag, size_bytes, np.int64(-1), now_ps)
        qps.msg[message].told = waiter


@hook
def post_at_ends(world_address, node, dst, connection, tag, size_bytes, waiter, now_ps):
    """Post a message; with a latency its queue pair gets it later.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        dst: Number of the NPU that receives.
        connection: Group of the queue pair with number and share (pdes/core/packet.py).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        waiter: Waiter for the last byte to leave (`Message.ref`).
        now_ps: Current time in ps.
    """
    # Everything that takes room in a pool happens now, since the later part must succeed whatever room there is.
    world = state.world_at(world_address)
    net, npus, qps = world.net, world.npus, world.qps
    latency = net.const.send_latency_ps
    pair = queue_pair(net, npus, qps, node, dst, connection, tag)
    count_posted(net, npus, qps, node, pair, tag, size_bytes, now_ps)
    if latency == 0:
        send(net, npus, qps, node, pair, tag, size_bytes, waiter, now_ps)
        return 0
    row = state.take_row(net, qps)
    later = state.later_messages(qps.msg)[row]
    later.payload_bytes = size_bytes
    later.tag = tag
    later.connection = pair
    later.ref = waiter
    put_off(npus, qps, node, row, SENDS, now_ps + latency)
    return 0


@hook
def post_later(world_address, node, row, due_ps):
    """Let a trace row post its message later.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
        due_ps: Time of the action in ps.
    """
    world = state.world_at(world_address)
    at = state.take_row(world.net, world.qps)
    state.later_messages(world.qps.msg)[at].ref = row
    put_off(world.npus, world.qps, node, at, POSTS, due_ps)
    return 0


@inline
def acted_on_at(world, node, now_ps, word1, word2, word3):
    """Return when (ps) an NPU acts on a message whose last packet has arrived.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of the last packet of the message (pdes/core/packet.py).
        word2: Word 2 of that packet.
        word3: Word 3 of that packet, the tag.
    """
    net, npus, qps = world.net, world.npus, world.qps
    npu = npus.npu[node]
    at = now_ps
    if net.const.back != 0:
        at = back_at(world, node, word1, word2, now_ps)
    at += net.const.endpoint_delay_ps
    if net.const.reduces == 0:
        return at
    # selective repeat has noted the payload with the message; go back N counts it from the sequence numbers
    size = npu.done_bytes
    if net.hooks.selective_sender == 0:
        receiver = npu.last_receiver
        size = payload_bytes(net, qps, receiver, qps.rxqp[receiver].expected, word1)
    kind = np.int64(EAGER)
    if is_used(net):
        kind = word3 & KIND_MASK
    tag = word3 - kind
    # only data of collectives is reduced: no requests, answers or calls
    if packet.tag_group(tag) == packet.P2P or kind == CLEAR or packet.tag_lane(tag) == packet.CALL_LANE:
        return at
    return in_lane_at(world, node, tag, size, at, kind == EAGER or kind == ASKED_FOR)


@hook
def is_in(world_address, node, now_ps, word1, word2, word3):
    """Let an NPU act on a complete message, now or later. Return as message_by_kind.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of the last packet of the message (pdes/core/packet.py).
        word2: Word 2 of that packet.
        word3: Word 3 of that packet, the tag.
    """
    world = state.world_at(world_address)
    net, qps = world.net, world.qps
    at = acted_on_at(world, node, now_ps, word1, word2, word3)
    if at == now_ps:
        done, inst = message_done(net, world.npus, world.insts, node, word1, word3)
        # 0 in a half stands for none
        return (inst + 1) << 32 | (done + 1)
    row = state.take_row(net, qps)
    later = state.later_messages(qps.msg)[row]
    later.w1 = word1
    later.tag = word3
    put_off(world.npus, qps, node, row, ACTS, at)
    return 0


@hook
def is_acknowledged(world_address, node, waiter, now_ps):
    """Notify what waits for a message's last acknowledgement, after the current packet is handled.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        waiter: The waiter (`Message.told`).
        now_ps: Current time in ps.
    """
    world = state.world_at(world_address)
    # at the same time, but through the list: the caller is in the middle of an acknowledgement, and rows that follow
    # may post
    row = state.take_row(world.net, world.qps)
    state.later_messages(world.qps.msg)[row].ref = waiter
    put_off(world.npus, world.qps, node, row, IS_TOLD, now_ps)
    return 0


@inline
def end_row(world, node, row, now_ps):
    """Finish a trace row whose end was postponed until now.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
        now_ps: Current time in ps.
    """
    net = world.net
    is_collective = world.trace.kind[world.npus.npu[node].trace_base + row] == KIND_COLLECTIVE
    if is_collective and (net.const.slows_compute | net.const.collectives_in_flight) != 0:
        call_hook(net.hooks.running, net.const.address, node, row, -1, now_ps)
    finish_row(net.const.address, node, row, now_ps)


@hook
def notify_later(world_address, node, now_ps, word1, word2, receiver):
    """Let a NIC notify the sender of a marked packet after its delay, unless it did so too short a time ago.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        receiver: Row of the receiving queue pair in `qps.rxqp`.
    """
    world = state.world_at(world_address)
    if must_notify(world.net, world.qps, receiver, now_ps):
        row = state.take_row(world.net, world.qps)
        later = state.later_messages(world.qps.msg)[row]
        later.w1 = word1
        later.payload_bytes = word2 & packet.PATH_MASK
        put_off(world.npus, world.qps, node, row, NOTIFIES, now_ps + world.net.const.cnp_delay_ps)
    return 0


@hook
def do_later(world_address, node, now_ps):
    """Do one action of an NPU that is due, or send all messages that are due. Return as message_by_kind.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
    """
    world = state.world_at(world_address)
    net, npus, qps = world.net, world.npus, world.qps
    msg = state.later_messages(qps.msg)
    system = npus.system[node]
    head = system.later_head - 1
    if msg[head].what == SENDS:
        while head >= 0 and msg[head].what == SENDS and msg[head].due >> 1 <= now_ps:
            m = take_first(net, npus, qps, node)
            # a free row keeps its words until another is taken (`take_first`), so they are read before anything is sent
            pair, tag, size, waiter = msg[m].connection, msg[m].tag, msg[m].payload_bytes, msg[m].ref
            send(net, npus, qps, node, pair, tag, size, waiter, now_ps)
            head = system.later_head - 1
        arm(npus, qps, node)
        return 0
    m = take_first(net, npus, qps, node)
    arm(npus, qps, node)
    if msg[m].what == POSTS:
        post_send(net, npus, world.trace, node, msg[m].ref, now_ps)
        return 0
    if msg[m].what == STARTS:
        # an aggregator may have started long before it is told to take part: its launch is over
        npu = npus.npu[node]
        slot = npu.slot_base + world.trace.group[npu.trace_base + msg[m].ref]
        start_ps = min(np.int64(world.nvlink.start_ps[slot]), now_ps)
        return (start_collective(world, node, msg[m].ref, start_ps, now_ps) + 1) << 32
    if msg[m].what == RUNS:
        call_hook(net.hooks.running, world_address, node, msg[m].ref, 1, now_ps)
        return 0
    if msg[m].what == LAPSED:
        return 0
    if msg[m].what == NOTIFIES:
        word1, word2 = msg[m].w1, msg[m].payload_bytes
        receiver = receiving_pair(net, npus, qps, node, packet.receiver_key(word1, word2))
        send_notification(net, npus, qps, node, receiver, now_ps, word1, word2)
        return 0
    if msg[m].what == ENDS:
        # an end that moved has several entries in the list; only the one whose time is the slot's present end counts
        slot = msg[m].connection
        place = npus.npu[node].row_base + msg[m].ref
        if world.nvlink.end_ps[slot] != now_ps or world.rows.flag[place] & state.ROW_DONE != 0:
            return 0  # the end has moved since this was noted
        world.nvlink.end_ps[slot] = -1
    if msg[m].what >= ENDS:
        end_row(world, node, msg[m].ref, now_ps)
        return 0
    if msg[m].what == ACTS:
        done, inst = message_done(net, world.npus, world.insts, node, msg[m].w1, msg[m].tag)
    else:
        done, inst = send_has_left(net, world.insts, msg[m].ref)
    return (inst + 1) << 32 | (done + 1)


@inline
def on_link_ps(net, link, ack):
    """Return the time of an acknowledgement on an outgoing link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link (row of `tx`).
        ack: Word 1 of the acknowledgement.
    """
    return serialisation_ps(on_link_bytes(net, link, ack, net.const.ack_bytes), link_psb(net, link))


@inline
def back_at(world, node, word1, word2, now_ps):
    """Return when (ps) the acknowledgement of a packet that an NPU sends now is back.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        word1: Word 1 of the packet.
        word2: Word 2 of the packet.
        now_ps: Current time in ps.
    """
    peer = packet.source(word1)
    ack = packet.header(peer, packet.destination(word1), world.net.const.ack_bytes, packet.FLAG_ACK)
    port = npu_route(world.net, node, peer, word2)
    # the answer is behind these in the port's queue; all are of the same size
    waiting = world.npus.port[port].control_packets
    left = max(now_ps, world.net.tx[port].busy_ps) + waiting * on_link_ps(world.net, port, ack)
    # other LPs have the rest of the way, so it is followed on an idle world of the whole fabric
    back = state.world_at(world.net.const.back)
    net = back.net
    link = next_link(net, back.routes, packet.destination(word1), peer, word2)
    # `begin` is when its first bit leaves, `at` when its last bit is in; a cut-through switch sends from `seen` on
    begin = left - on_link_ps(net, link, ack)
    while True:
        link_class = class_row(net, link)
        size = on_link_bytes(net, link, ack, net.const.ack_bytes)
        sent = begin + link_class.delay_ps
        at = sent + serialisation_ps(size, link_class.ps_per_byte)
        far = packet.end_of(net.tx[link].meta)
        if far == peer:
            return at
        seen = sent + serialisation_ps(min(size, link_class.seen_bytes), link_class.ps_per_byte)
        cell = listed_cell(net, back.routes, far, ack, word2) if back.routes.listed_ptr.shape[0] > 1 else np.int64(-1)
        link = choose(back.routes, cell, far, word2) if cell >= 0 else next_link(net, back.routes, far, peer, word2)
        begin = max(seen, at - on_link_ps(net, link, ack)) + forwarding_ps(net, back.routes, far)
