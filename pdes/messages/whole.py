"""Messages of the message-level models: an NPU posts them, the run's fidelity moves them, an NPU takes them."""

import numpy as np

from nadi.pdes.core.jit import hook, inline, outline
from nadi.pdes.core.packet import SHARES_SHIFT, destination, header, pair_word
from nadi.pdes.core.state import REF_INSTANCE, REF_LANE, take_row, whole_messages, world_at
from nadi.pdes.messages.events import FIRST_POST, KEY_SHIFT, LEFT, OWN, STEP, add_event
from nadi.pdes.network.routing import next_link
from nadi.pdes.nic.transport import has_own_pair, queue_pair

LONGEST_STEP_PS = 2.4e18  # upper bound of a step: more than LONGEST_RUN_PS, so it ends the run before times overflow


@inline
def whole_ps(net, size_bytes, psb, latency_ps):
    """Return the time in ps of bytes at a rate plus a latency, rounded down to the resolution.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        size_bytes: Number of bytes.
        psb: Time in ps per byte.
        latency_ps: Latency in ps.
    """
    # min: a float beyond 2^63 would become a negative time
    time = np.int64(min(size_bytes * psb + 0.5, LONGEST_STEP_PS)) + latency_ps
    return time - time % net.const.resolution_ps


@inline
def link_of_connection(net, routes, qps, pair, node):
    """Return a node's outgoing link for the messages of a queue pair, which stores the link of its sender.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        node: Number of the node.
    """
    qp = qps.qp[pair]
    # the sender's port is chosen once, when the connection opens, as for packets
    if node == qp.npu:
        return np.int64(qp.port)
    return next_link(net, routes, node, destination(qp.w1), qp.w2)


@inline
def add_message_event(net, qps, messages, time_ps, kind, message):
    """Add an event for a message.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        messages: State of the message-level models of the LP (`MessageModels`).
        time_ps: Time of the event in ps.
        kind: Kind of the event: LEFT, ARRIVE or STEP.
        message: Row of the message in `qps.msg`.
    """
    msg = whole_messages(qps.msg)[message]
    src = np.int64(qps.qp[msg.connection].npu)
    if kind == STEP:  # behind the keys of placeholders (pdes/fidelity/flows_with_packets.py), which are small numbers
        src += 1
    add_event(net.ctl, messages, time_ps, kind, (src << KEY_SHIFT) | msg.ordinal, message)


@inline
def leaves(world, message, left_ps, now_ps):
    """Record when a message's last byte leaves.

    Args:
        world: State of the LP (`World`).
        message: Row of the message in `qps.msg`.
        left_ps: Time in ps at which it leaves.
        now_ps: Current time in ps.
    """
    # A collective with steps left needs no event: it only remembers when its last message leaves. Its blocking lanes,
    # trace rows that send, and collectives that wait for nothing else get an event.
    msg = whole_messages(world.qps.msg)[message]
    waiter = msg.ref
    if waiter >> REF_LANE == REF_INSTANCE >> REF_LANE and left_ps > now_ps:
        collective = world.insts.inst[waiter - REF_INSTANCE]
        if collective.lanes_left > 0:
            collective.sends_left -= 1
            if left_ps >= collective.left_ps:
                collective.left_ps = left_ps
                collective.left_ordinal = msg.ordinal
            return
    add_message_event(world.net, world.qps, world.messages, left_ps, LEFT, message)


@outline
def post_message(world_address, node, dst, connection, tag, size_bytes, waiter, now_ps):
    """Post a message that moves as a whole.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        dst: Number of the NPU that receives.
        connection: Group of the queue pair with number and share (pdes/core/packet.py).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        waiter: Waiter for its last byte to leave (`Message.ref`), -1 = nobody.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    npu = world.npus.npu[node]
    # the connection of its last message, or the one in the map
    pair = npu.last_connection
    which = connection & ((1 << SHARES_SHIFT) - 1)
    is_other = pair < 0 or destination(qps.qp[pair].w1) != dst or qps.qp[pair].connection != which
    if is_other or has_own_pair(net, npu.number, which):
        pair = queue_pair(net, world.npus, qps, node, dst, connection, tag)
        npu.last_connection = pair
    message = take_row(net, qps)
    msg = whole_messages(qps.msg)[message]
    ordinal = npu.posted
    npu.posted = ordinal + 1
    msg.payload_bytes = size_bytes
    msg.tag = tag
    msg.ref = waiter
    msg.connection = pair
    # number of the message within its sender: the key of its events, which no two events of a kind and time share
    msg.ordinal = ordinal
    msg.node = node
    net.count.data_packets += 1
    net.count.sent_bytes += size_bytes
    if net.const.record_flows == 1:
        flow = qps.flow_out[net.ctl.flows_out]
        net.ctl.flows_out += 1
        flow.pair = pair_word(npu.number, dst)
        flow.tag = tag
        flow.payload_bytes = size_bytes
        flow.posted_ps = now_ps
        flow.ordinal = ordinal
    add_message_event(net, qps, world.messages, now_ps + net.const.send_latency_ps, STEP, message)


@hook
def post_whole(world_address, node, dst, connection, tag, size_bytes, waiter, now_ps):
    """Post a message at message level.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        dst: Number of the NPU that receives.
        connection: Group of the queue pair with number and share (pdes/core/packet.py).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        waiter: Waiter for its last byte to leave (`Message.ref`), -1 = nobody.
        now_ps: Current time in ps.
    """
    post_message(world_address, node, dst, connection, tag, size_bytes, waiter, now_ps)
    return 0


@hook
def post_whole_later(world_address, node, row, due_ps):
    """Post the message of a trace row later; a row of `msg` reserves room for the event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
        due_ps: Time in ps at which to post it.
    """
    world = world_at(world_address)
    world.rows.state[world.npus.npu[node].row_base + row] = take_row(world.net, world.qps)
    add_event(world.net.ctl, world.messages, due_ps, OWN, (node << KEY_SHIFT) | (FIRST_POST + row), node)
    return 0


@inline
def ends_of(qps, message):
    """Return packet word 1 with sender and receiver of a message.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        message: Row of the message in `qps.msg`.
    """
    qp = qps.qp[whole_messages(qps.msg)[message].connection]
    return header(destination(qp.w1), np.int64(qp.npu), 0, 0)
