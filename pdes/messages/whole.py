"""Messages that go whole: posted by an NPU, moved by the run's fidelity, taken by an NPU."""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.packet import P2P, SHARES_SHIFT, header
from pdes.core.state import (
    CONST_ENDPOINT,
    CONST_RECORD_FLOWS,
    CONST_REDUCES,
    CONST_RESOLUTION,
    COUNT_BYTES_SENT,
    COUNT_DATA_PACKETS,
    CTL_FLOWS_OUT,
    FLOW_OUT_WORDS,
    INST_KEY,
    INST_LANES_LEFT,
    INST_LEFT_ORDINAL,
    INST_LEFT_PS,
    INST_SENDS_LEFT,
    INST_WORDS,
    MSG_BYTES,
    MSG_NODE,
    MSG_ORDINAL,
    MSG_QP,
    MSG_REF,
    MSG_TAG,
    MSG_WORDS,
    NPU_DONE_HEAD,
    NPU_GLOBAL,
    NPU_LAST_RX,
    NPU_POSTED,
    NPU_WORDS,
    QP_CONNECTION,
    QP_DST,
    QP_NPU,
    QP_PORT,
    QP_W2,
    QP_WORDS,
    REF_INSTANCE,
    REF_LANE,
)
from pdes.core.world import world_at
from pdes.messages.events import KEY_SHIFT, LEFT, STEP, add_event
from pdes.network.path import next_link
from pdes.nic.message_pool import take_row
from pdes.nic.transport import queue_pair
from pdes.npu.collective import instance
from pdes.npu.reduction import in_lane_at

NPU_LAST_QP, NPU_LAST_INST = NPU_LAST_RX, NPU_DONE_HEAD
"""What an NPU of such messages has there."""

LONGEST_STEP_PS = 2.4e18
"""What takes longer is cut to this: it is more than LONGEST_RUN_PS, and so ends the run before times overflow."""


@inline
def whole_ps(net, size, psb, latency_ps):
    """Time of `size` bytes at `psb` ps per byte and a latency, cut to a multiple of the resolution."""
    time = np.int64(min(size * psb + 0.5, LONGEST_STEP_PS)) + latency_ps
    return time - time % net.const[CONST_RESOLUTION]


@inline
def link_of_connection(net, routes, qps, row, node):
    """Outgoing link of a node for messages of the connection at `row`, which knows that of its sender."""
    if node == qps.qp[row + QP_NPU]:
        return qps.qp[row + QP_PORT]
    return next_link(net, routes, node, qps.qp[row + QP_DST], qps.qp[row + QP_W2])


@inline
def add_message_event(net, qps, messages, time, kind, message):
    """Add an event of a message."""
    m = message * MSG_WORDS
    src = qps.qp[qps.msg[m + MSG_QP] * QP_WORDS + QP_NPU]
    add_event(net.ctl, messages, time, kind, (src << KEY_SHIFT) | qps.msg[m + MSG_ORDINAL], message)


@inline
def leaves(w, message, left_ps, now):
    """A message's last byte will have left at left_ps.

    A collective that has steps left to do need not be told: it keeps in mind when the last one has. Its blocking lanes,
    trace rows that send, and collectives that wait for nothing else are.
    """
    m = message * MSG_WORDS
    ref = w.qps.msg[m + MSG_REF]
    if ref >> REF_LANE == REF_INSTANCE >> REF_LANE and left_ps > now:
        i = (ref - REF_INSTANCE) * INST_WORDS
        if w.insts.inst[i + INST_LANES_LEFT] > 0:
            w.insts.inst[i + INST_SENDS_LEFT] -= 1
            if left_ps >= w.insts.inst[i + INST_LEFT_PS]:
                w.insts.inst[i + INST_LEFT_PS] = left_ps
                w.insts.inst[i + INST_LEFT_ORDINAL] = w.qps.msg[m + MSG_ORDINAL]
            return
    add_message_event(w.net, w.qps, w.messages, left_ps, LEFT, message)


@inline
def connection_to(w, node, dst, connection):
    """The NPU's connection to `dst`: the one by which it sent last, or that of the map."""
    n = node * NPU_WORDS
    q = w.npus.npu[n + NPU_LAST_QP]
    row = q * QP_WORDS
    which = connection & ((1 << SHARES_SHIFT) - 1)
    if q < 0 or w.qps.qp[row + QP_DST] != dst or w.qps.qp[row + QP_CONNECTION] != which:
        q = queue_pair(w.net, w.npus, w.qps, node, dst, connection)
        w.npus.npu[n + NPU_LAST_QP] = q
    return q


@inline
def instance_for(w, node, group, seq):
    """As pdes.npu.collective.instance; the one to which the last message came, or that of the map."""
    n = node * NPU_WORDS
    inst = w.npus.npu[n + NPU_LAST_INST]
    if inst < 0 or w.insts.inst[inst * INST_WORDS + INST_KEY] != (node << 40) | (group << 20) | seq:
        inst = instance(w.net, w.insts, node, group, seq)
        w.npus.npu[n + NPU_LAST_INST] = inst
    return inst


@hook
def post_whole(address, node, dst, connection, tag, size, ref, now):
    """Post a message, as pdes.nic.transport.post."""
    w = world_at(address)
    net, qps = w.net, w.qps
    q = connection_to(w, node, dst, connection)
    message = take_row(net, qps)
    posted = node * NPU_WORDS + NPU_POSTED
    ordinal = w.npus.npu[posted]
    w.npus.npu[posted] = ordinal + 1
    m = message * MSG_WORDS
    qps.msg[m + MSG_BYTES] = size
    qps.msg[m + MSG_TAG] = tag
    qps.msg[m + MSG_REF] = ref
    qps.msg[m + MSG_QP] = q
    qps.msg[m + MSG_ORDINAL] = ordinal
    qps.msg[m + MSG_NODE] = node
    net.count[COUNT_DATA_PACKETS] += 1
    net.count[COUNT_BYTES_SENT] += size
    if net.const[CONST_RECORD_FLOWS] == 1:
        out = net.ctl[CTL_FLOWS_OUT] * FLOW_OUT_WORDS
        net.ctl[CTL_FLOWS_OUT] += 1
        qps.flow_out[out] = w.npus.npu[node * NPU_WORDS + NPU_GLOBAL] | (dst << 20)
        qps.flow_out[out + 1] = tag
        qps.flow_out[out + 2] = size
        qps.flow_out[out + 3] = now
        qps.flow_out[out + 4] = ordinal
    add_message_event(net, qps, w.messages, now, STEP, message)
    return 0


@inline
def ends_of(qps, message):
    """Packet word 1 of a message: who sends to whom."""
    row = qps.msg[message * MSG_WORDS + MSG_QP] * QP_WORDS
    return header(qps.qp[row + QP_DST], qps.qp[row + QP_NPU], 0, 0)


@inline
def taken_at(w, node, message, now):
    """When the receiver acts on a message that is in now: an endpoint's delay, and a reduction if it is added."""
    net = w.net
    at = now + net.const[CONST_ENDPOINT]
    tag = w.qps.msg[message * MSG_WORDS + MSG_TAG]
    if net.const[CONST_REDUCES] == 1 and tag >> 44 != P2P:
        at = in_lane_at(w, node, tag, w.qps.msg[message * MSG_WORDS + MSG_BYTES], at, True)
    return at
