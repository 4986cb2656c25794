"""Messages of the message-level models: an NPU posts them, the run's fidelity moves them, an NPU takes them."""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.packet import SHARES_SHIFT, destination, header, pair_word
from pdes.core.state import REF_INSTANCE, REF_LANE, take_row, whole_messages, world_at
from pdes.messages.events import FIRST_POST, KEY_SHIFT, LEFT, OWN, STEP, add_event
from pdes.network.routing import next_link
from pdes.nic.transport import queue_pair

LONGEST_STEP_PS = 2.4e18  # upper bound of a step: more than LONGEST_RUN_PS, so it ends the run before times overflow


@inline
def whole_ps(net, size, psb, latency_ps):
    """Return the time of `size` bytes at `psb` ps per byte plus a latency, rounded down to the resolution."""
    time = np.int64(min(size * psb + 0.5, LONGEST_STEP_PS)) + latency_ps
    return time - time % net.const.resolution_ps


@inline
def link_of_connection(net, routes, qps, row, node):
    """Return a node's outgoing link for the connection at `row`, which stores the link of its sender."""
    qp = qps.qp[row]
    if node == qp.npu:
        return np.int64(qp.port)
    return next_link(net, routes, node, destination(qp.w1), qp.w2)


@inline
def add_message_event(net, qps, messages, time, kind, message):
    """Add an event of a message."""
    msg = whole_messages(qps.msg)[message]
    src = np.int64(qps.qp[msg.connection].npu)
    add_event(net.ctl, messages, time, kind, (src << KEY_SHIFT) | msg.ordinal, message)


@inline
def leaves(w, message, left_ps, now):
    """Record that a message's last byte leaves at left_ps."""
    # A collective with steps left needs no event: it only remembers when its last message leaves. Its blocking lanes,
    # trace rows that send, and collectives that wait for nothing else get an event.
    msg = whole_messages(w.qps.msg)[message]
    ref = msg.ref
    if ref >> REF_LANE == REF_INSTANCE >> REF_LANE and left_ps > now:
        collective = w.insts.inst[ref - REF_INSTANCE]
        if collective.lanes_left > 0:
            collective.sends_left -= 1
            if left_ps >= collective.left_ps:
                collective.left_ps = left_ps
                collective.left_ordinal = msg.ordinal
            return
    add_message_event(w.net, w.qps, w.messages, left_ps, LEFT, message)


@hook
def post_whole(address, node, dst, connection, tag, size, ref, now):
    """Post a message, as pdes.nic.transport.post."""
    w = world_at(address)
    net, qps = w.net, w.qps
    npu = w.npus.npu[node]
    # the connection of its last message, or the one in the map
    q = npu.last_connection
    which = connection & ((1 << SHARES_SHIFT) - 1)
    if q < 0 or destination(qps.qp[q].w1) != dst or qps.qp[q].connection != which:
        q = queue_pair(net, w.npus, qps, node, dst, connection)
        npu.last_connection = q
    message = take_row(net, qps)
    msg = whole_messages(qps.msg)[message]
    ordinal = npu.posted
    npu.posted = ordinal + 1
    msg.payload_bytes = size
    msg.tag = tag
    msg.ref = ref
    msg.connection = q
    msg.ordinal = ordinal
    msg.node = node
    net.count.data_packets += 1
    net.count.sent_bytes += size
    if net.const.record_flows == 1:
        flow = qps.flow_out[net.ctl.flows_out]
        net.ctl.flows_out += 1
        flow.pair = pair_word(npu.number, dst)
        flow.tag = tag
        flow.payload_bytes = size
        flow.posted_ps = now
        flow.ordinal = ordinal
    add_message_event(net, qps, w.messages, now + net.const.send_latency_ps, STEP, message)
    return 0


@hook
def post_whole_later(address, node, row, due):
    """Post the message of an NPU's trace row at `due`; a row of `msg` reserves room for the event."""
    w = world_at(address)
    w.rows.state[w.npus.npu[node].row_base + row] = take_row(w.net, w.qps)
    add_event(w.net.ctl, w.messages, due, OWN, (node << KEY_SHIFT) | (FIRST_POST + row), node)
    return 0


@inline
def ends_of(qps, message):
    """Return packet word 1 of a message: sender and receiver."""
    qp = qps.qp[whole_messages(qps.msg)[message].connection]
    return header(destination(qp.w1), np.int64(qp.npu), 0, 0)
