"""Messages of the message-level models: posted by an NPU, moved by the run's fidelity, taken by an NPU."""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.packet import P2P, SHARES_SHIFT, destination, header, pair_word, tag_group
from pdes.core.state import REF_INSTANCE, REF_LANE
from pdes.core.world import whole_messages, world_at
from pdes.messages.events import KEY_SHIFT, LEFT, STEP, add_event
from pdes.network.path import next_link
from pdes.nic.message_pool import take_row
from pdes.nic.transport import queue_pair
from pdes.npu.reduction import in_lane_at

LONGEST_STEP_PS = 2.4e18
"""What takes longer is cut to this: it is more than LONGEST_RUN_PS, and so ends the run before times overflow."""


@inline
def whole_ps(net, size, psb, latency_ps):
    """Time of `size` bytes at `psb` ps per byte and a latency, cut to a multiple of the resolution."""
    time = np.int64(min(size * psb + 0.5, LONGEST_STEP_PS)) + latency_ps
    return time - time % net.const.resolution_ps


@inline
def link_of_connection(net, routes, qps, row, node):
    """Outgoing link of a node for messages of the connection at `row`, which knows that of its sender."""
    qp = qps.qp[row]
    if node == qp.npu:
        return np.int64(qp.port)
    return next_link(net, routes, node, destination(qp.w1), qp.w2)


@inline
def add_message_event(net, qps, messages, time, kind, message):
    """Add an event of a message."""
    whole = whole_messages(qps.msg)[message]
    src = np.int64(qps.qp[whole.connection].npu)
    add_event(net.ctl, messages, time, kind, (src << KEY_SHIFT) | whole.ordinal, message)


@inline
def leaves(w, message, left_ps, now):
    """A message's last byte will have left at left_ps.

    A collective that has steps left to do need not be told: it keeps in mind when the last one has. Its blocking lanes,
    trace rows that send, and collectives that wait for nothing else are.
    """
    whole = whole_messages(w.qps.msg)[message]
    ref = whole.ref
    if ref >> REF_LANE == REF_INSTANCE >> REF_LANE and left_ps > now:
        collective = w.insts.inst[ref - REF_INSTANCE]
        if collective.lanes_left > 0:
            collective.sends_left -= 1
            if left_ps >= collective.left_ps:
                collective.left_ps = left_ps
                collective.left_ordinal = whole.ordinal
            return
    add_message_event(w.net, w.qps, w.messages, left_ps, LEFT, message)


@inline
def connection_to(w, node, dst, connection):
    """The NPU's connection to `dst`: the one by which it sent last, or that of the map."""
    npu = w.npus.npu[node]
    q = npu.last_connection
    which = connection & ((1 << SHARES_SHIFT) - 1)
    if q < 0 or destination(w.qps.qp[q].w1) != dst or w.qps.qp[q].connection != which:
        q = queue_pair(w.net, w.npus, w.qps, node, dst, connection)
        npu.last_connection = q
    return q


@hook
def post_whole(address, node, dst, connection, tag, size, ref, now):
    """Post a message, as pdes.nic.transport.post."""
    w = world_at(address)
    net, qps = w.net, w.qps
    q = connection_to(w, node, dst, connection)
    message = take_row(net, qps)
    whole = whole_messages(qps.msg)[message]
    npu = w.npus.npu[node]
    ordinal = npu.posted
    npu.posted = ordinal + 1
    whole.payload_bytes = size
    whole.tag = tag
    whole.ref = ref
    whole.connection = q
    whole.ordinal = ordinal
    whole.node = node
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
    add_message_event(net, qps, w.messages, now, STEP, message)
    return 0


@inline
def ends_of(qps, message):
    """Packet word 1 of a message: who sends to whom."""
    qp = qps.qp[whole_messages(qps.msg)[message].connection]
    return header(destination(qp.w1), np.int64(qp.npu), 0, 0)


@inline
def taken_at(w, node, message, now):
    """When the receiver acts on a message that is in now: an endpoint's delay, and a reduction if it is added."""
    whole = whole_messages(w.qps.msg)[message]
    net = w.net
    at = now + net.const.endpoint_delay_ps
    tag = whole.tag
    if net.const.reduces == 1 and tag_group(tag) != P2P:
        at = in_lane_at(w, node, tag, whole.payload_bytes, at, True)
    return at
