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

from pdes.core.heap import heap_hasten
from pdes.core.jit import hook, inline
from pdes.core.packet import CALL_LANE, FLAG_ACK, P2P, destination, end_of, header, source, tag_group, tag_lane
from pdes.core.state import give_row_back, later_messages, take_row, world_at
from pdes.network.link import class_row, link_psb, on_link_bytes, serialisation_ps
from pdes.network.routing import forwarding_ps, next_link, npu_route
from pdes.nic.port import set_event
from pdes.nic.rendezvous import ASKED_FOR, CLEAR, EAGER, KIND_MASK, is_used
from pdes.nic.transport import count_posted, line_up, payload_bytes, queue_pair
from pdes.npu.agenda import agenda_slot, put_in
from pdes.npu.collective import send_has_left
from pdes.npu.delivery import in_lane_at, message_done
from pdes.npu.trace import post_send

SENDS, ACTS, IS_TOLD, POSTS = range(4)
"""Kinds of later actions: a message is sent; its receiver acts on it; the waiter for its acknowledgement is notified; a
trace row posts its message.
"""


@inline
def later_slot(npus, node):
    """Return the slot of the list in an NPU's heap."""
    return agenda_slot(npus.npu[node].ports) + 1


@inline
def put_off(npus, qps, node, row, what, due):
    """Postpone the action `what` of a row until `due`."""
    msg = later_messages(qps.msg)
    msg[row].what = what
    npu, system = npus.npu[node], npus.system[node]
    head = system.later_head - 1
    first, last = put_in(msg, head, system.later_tail - 1, row, due << 1)
    system.later_head = first + 1
    system.later_tail = last + 1
    if head < 0:
        set_event(npus, node, due, later_slot(npus, node))
    elif first == row:
        heap_hasten(npus.heap, npu.heap, npu.heap_size, due, later_slot(npus, node))


@inline
def take_first(net, npus, qps, node):
    """Remove the first row from the list; its words stay readable until another row is taken."""
    system = npus.system[node]
    head = system.later_head - 1
    following = later_messages(qps.msg)[head].later
    system.later_head = following + 1
    if following < 0:
        system.later_tail = 0
    give_row_back(net, qps, head)
    return head


@inline
def arm(npus, qps, node):
    """Set an event at the time of the first row, after the event of the previous one."""
    head = npus.system[node].later_head - 1
    if head >= 0:
        set_event(npus, node, later_messages(qps.msg)[head].due >> 1, later_slot(npus, node))


@inline
def send(net, npus, qps, node, q, tag, size, ref, now):
    """Let a queue pair send a message; `ref`: waiter for its last byte, or, where that counts, its acknowledgement."""
    if net.hooks.is_acknowledged == 0:
        line_up(net, npus, qps, node, q, tag, size, ref, now)
    else:
        message = line_up(net, npus, qps, node, q, tag, size, np.int64(-1), now)
        qps.msg[message].told = ref


@hook
def post_at_ends(address, node, dst, connection, tag, size, ref, now):
    """Post a message, as pdes.nic.transport.post; with a latency its queue pair gets it later."""
    # everything that takes room in a pool happens now, since the later part must succeed whatever room there is
    w = world_at(address)
    net, npus, qps = w.net, w.npus, w.qps
    latency = net.const.send_latency_ps
    q = queue_pair(net, npus, qps, node, dst, connection)
    count_posted(net, npus, qps, node, q, tag, size, now)
    if latency == 0:
        send(net, npus, qps, node, q, tag, size, ref, now)
        return 0
    row = take_row(net, qps)
    later = later_messages(qps.msg)[row]
    later.payload_bytes = size
    later.tag = tag
    later.connection = q
    later.ref = ref
    put_off(npus, qps, node, row, SENDS, now + latency)
    return 0


@hook
def post_later(address, node, row, due):
    """Let a row of an NPU's trace post its message at `due`."""
    w = world_at(address)
    at = take_row(w.net, w.qps)
    later_messages(w.qps.msg)[at].ref = row
    put_off(w.npus, w.qps, node, at, POSTS, due)
    return 0


@inline
def acted_on_at(w, node, now, w1, w2, w3):
    """Return when the receiver acts on a message whose last packet has arrived."""
    net, npus, qps = w.net, w.npus, w.qps
    npu = npus.npu[node]
    at = now
    if net.const.back != 0:
        at = back_at(w, node, w1, w2, now)
    at += net.const.endpoint_delay_ps
    if net.const.reduces == 0:
        return at
    size = npu.done_bytes
    if net.hooks.selective_sender == 0:
        rx = npu.last_receiver
        size = payload_bytes(net, qps, rx, qps.rxqp[rx].expected, w1)
    kind = np.int64(EAGER)
    if is_used(net):
        kind = w3 & KIND_MASK
    tag = w3 - kind
    if tag_group(tag) == P2P or kind == CLEAR or tag_lane(tag) == CALL_LANE:
        return at
    return in_lane_at(w, node, tag, size, at, kind == EAGER or kind == ASKED_FOR)


@hook
def is_in(address, node, now, w1, w2, w3):
    """Let the receiver act on a complete message, now or later. Return as npu.delivery.message_by_kind."""
    w = world_at(address)
    net, qps = w.net, w.qps
    at = acted_on_at(w, node, now, w1, w2, w3)
    if at == now:
        done, inst = message_done(net, w.npus, w.insts, node, w1, w3)
        return (inst + 1) << 32 | (done + 1)
    row = take_row(net, qps)
    later = later_messages(qps.msg)[row]
    later.w1 = w1
    later.tag = w3
    put_off(w.npus, qps, node, row, ACTS, at)
    return 0


@hook
def is_acknowledged(address, node, ref, now):
    """Notify the waiter for a message's last acknowledgement, after the current packet is handled."""
    w = world_at(address)
    row = take_row(w.net, w.qps)
    later_messages(w.qps.msg)[row].ref = ref
    put_off(w.npus, w.qps, node, row, IS_TOLD, now)
    return 0


@hook
def do_later(address, node, now):
    """Do one action that is due, or send all messages that are due. Return as npu.delivery.message_by_kind."""
    w = world_at(address)
    net, npus, qps = w.net, w.npus, w.qps
    msg = later_messages(qps.msg)
    system = npus.system[node]
    head = system.later_head - 1
    if msg[head].what == SENDS:
        while head >= 0 and msg[head].what == SENDS and msg[head].due >> 1 <= now:
            m = take_first(net, npus, qps, node)
            q, tag, size, ref = msg[m].connection, msg[m].tag, msg[m].payload_bytes, msg[m].ref
            send(net, npus, qps, node, q, tag, size, ref, now)
            head = system.later_head - 1
        arm(npus, qps, node)
        return 0
    m = take_first(net, npus, qps, node)
    arm(npus, qps, node)
    if msg[m].what == POSTS:
        post_send(net, npus, w.trace, node, msg[m].ref, now)
        return 0
    if msg[m].what == ACTS:
        done, inst = message_done(net, w.npus, w.insts, node, msg[m].w1, msg[m].tag)
    else:
        done, inst = send_has_left(net, w.insts, msg[m].ref)
    return (inst + 1) << 32 | (done + 1)


@inline
def on_link_ps(net, link, ack):
    """Return the time of the acknowledgement with word 1 `ack` on an outgoing link."""
    return serialisation_ps(on_link_bytes(net, link, ack, net.const.ack_bytes), link_psb(net, link))


@inline
def back_at(w, node, w1, w2, now):
    """Return when the acknowledgement of a packet (its words) that is acknowledged now is back; node: the receiver."""
    peer = source(w1)
    ack = header(peer, destination(w1), w.net.const.ack_bytes, FLAG_ACK)
    port = npu_route(w.net, node, peer, w2)
    waiting = w.npus.port[port].control_packets
    left = max(now, w.net.tx[port].busy_ps) + waiting * on_link_ps(w.net, port, ack)
    back = world_at(w.net.const.back)
    net = back.net
    link = next_link(net, back.routes, destination(w1), peer, w2)
    begin = left - on_link_ps(net, link, ack)
    while True:
        link_class = class_row(net, link)
        size = on_link_bytes(net, link, ack, net.const.ack_bytes)
        sent = begin + link_class.delay_ps
        at = sent + serialisation_ps(size, link_class.ps_per_byte)
        far = end_of(net.tx[link].meta)
        if far == peer:
            return at
        seen = sent + serialisation_ps(min(size, link_class.seen_bytes), link_class.ps_per_byte)
        link = next_link(net, back.routes, far, peer, w2)
        begin = max(seen, at - on_link_ps(net, link, ack)) + forwarding_ps(net, back.routes, far)
