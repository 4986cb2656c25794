"""Rendezvous for large messages: the sender requests, the receiver answers when it is ready, and only then data moves.

Requests and answers are messages of `control_bytes` over the same transport. A request uses the queue pair of its
message, so that it stays in order with the smaller messages before and after it, which are sent at once. Answers have
queue pairs of their own between two NPUs, so they do not wait behind data. A receiver is ready when its receive is
posted; a lane of a collective when it is at a step that receives. A lane handles requests and small messages in order
of arrival.
"""

import numpy as np

from nadi.pdes.core.jit import call_hook, hook, inline, outline
from nadi.pdes.core.packet import CONTROL, tag_for
from nadi.pdes.core.state import INF, asking, give_row_back, requests, take_row, world_at
from nadi.pdes.nic.transport import post, queue_pair

KIND_SHIFT = 22  # position of the kind of message in a tag with rendezvous, above the lane
KIND_MASK = 3 << KIND_SHIFT
# kinds of messages with rendezvous: sent at once, a request, its answer, data after an answer
EAGER, REQUEST, CLEAR, ASKED_FOR = 0, 1 << KIND_SHIFT, 2 << KIND_SHIFT, 3 << KIND_SHIFT
MAX_TAG = 1 << KIND_SHIFT  # upper bound (exclusive) of tags and lanes with rendezvous
NOBODY, SENT_AT_ONCE = -1, -1  # words in place of a waiter, and of the NPU that asks


@inline
def is_used(net):
    """Return whether this run uses rendezvous.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    return net.const.rendezvous_bytes < INF


@hook
def ask(world_address, node, dst, group, tag, size_bytes, waiter, now_ps):
    """Send a request for a message, which waits for the answer.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        dst: Number of the NPU that receives the message.
        group: Group of the queue pair with number and share of its connection (pdes/core/packet.py).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        waiter: Waiter for its last byte to leave (`Message.ref`), -1 = nobody.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    # open requests to an NPU hang on the queue pair for answers to it, of which a pair of NPUs has one
    qp = qps.qp[queue_pair(net, world.npus, qps, node, dst, CONTROL, tag)]
    waiting = requests(qps.msg)
    message = take_row(net, qps)
    request = waiting[message]
    request.payload_bytes = size_bytes
    request.tag = tag
    request.group = group
    request.ref = waiter
    request.next_message = -1
    # pending is the row + 1, so that a zeroed queue pair has none
    last = qp.pending - 1
    if last < 0:
        qp.pending = message + 1
    else:
        # at the end of the list: requests with equal tags are answered in their order
        while waiting[last].next_message >= 0:
            last = waiting[last].next_message
        waiting[last].next_message = message
    post(world_address, node, dst, group, tag | REQUEST, net.const.control_bytes, np.int64(NOBODY), now_ps)
    return 0


@inline
def post_or_ask(net, node, dst, group, tag, size_bytes, waiter, now_ps):
    """Post a message, or, if it is large, a request for it.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the NPU in the LP.
        dst: Number of the NPU that receives the message.
        group: Group of the queue pair with number and share of its connection (pdes/core/packet.py).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        waiter: Waiter for its last byte to leave (`Message.ref`), -1 = nobody.
        now_ps: Current time in ps.
    """
    if size_bytes < net.const.rendezvous_bytes:
        post(net.const.address, node, dst, group, tag, size_bytes, waiter, now_ps)
    else:
        call_hook(net.hooks.ask, net.const.address, node, dst, group, tag, size_bytes, waiter, now_ps)


@inline
def answer(net, node, src, tag, now_ps):
    """Send an answer to a request, so that its message may come.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the NPU in the LP.
        src: Number of the NPU that has sent the request.
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        now_ps: Current time in ps.
    """
    size = net.const.control_bytes
    post(net.const.address, node, src, np.int64(CONTROL), tag | CLEAR, size, np.int64(NOBODY), now_ps)


@inline
def send_cleared(net, npus, qps, node, dst, tag, now_ps):
    """Handle an answer: post its message, the one requested first among several with this tag.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        dst: Number of the NPU that answers.
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        now_ps: Current time in ps.
    """
    qp = qps.qp[queue_pair(net, npus, qps, node, dst, CONTROL, tag)]
    waiting = requests(qps.msg)
    before = np.int64(-1)
    message = qp.pending - 1
    # an answer names the tag alone, and older requests with other tags may be open still
    while waiting[message].tag != tag:
        before = message
        message = waiting[message].next_message
    request = waiting[message]
    if before < 0:
        qp.pending = request.next_message + 1
    else:
        waiting[before].next_message = request.next_message
    give_row_back(net, qps, message)
    post(net.const.address, node, dst, request.group, tag | ASKED_FOR, request.payload_bytes, request.ref, now_ps)


@inline
def take_first(net, qps, insts, lane_place):
    """Remove the first request to a lane; return its sender, or SENT_AT_ONCE.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        insts: Active collectives of the LP (`Insts`).
        lane_place: Row of the lane in `insts.lane` and `insts.asked`.
    """
    asked = insts.asked[lane_place]
    entry = asked.first - 1
    first = asking(qps.msg)[entry]
    asked.first = first.next_message + 1
    give_row_back(net, qps, entry)
    return first.src


@inline
def lane_gets(net, qps, insts, lane_place, kind, src):
    """Handle a request or a message for a lane.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        insts: Active collectives of the LP (`Insts`).
        lane_place: Row of the lane in `insts.lane` and `insts.asked`.
        kind: EAGER: message without a request. REQUEST: request. ASKED_FOR: message that was asked for.
        src: Number of the NPU that sends.
    """
    asked = insts.asked[lane_place]
    if kind == ASKED_FOR:
        # its request was answered, and no other is answered before the lane has taken this message
        asked.cleared = 0
        insts.lane[lane_place].arrived += 1
        # messages behind the one that was asked for count now, as a lane takes all in order
        while asked.first > 0 and asking(qps.msg)[asked.first - 1].src == SENT_AT_ONCE:
            take_first(net, qps, insts, lane_place)
            insts.lane[lane_place].arrived += 1
        return
    # behind an open request, a message waits for its turn
    if kind == EAGER:
        if asked.first == 0 and asked.cleared == 0:
            insts.lane[lane_place].arrived += 1
            return
        src = np.int64(SENT_AT_ONCE)
    # Example: a lane gets the small message a, the request B and the small message c. a counts at once; B and c wait in
    # this list. When the lane needs B, it is answered; when B's data is in, c counts as well. So the lane takes a, B, c
    # in order.
    entry = take_row(net, qps)
    waiting = asking(qps.msg)
    waiting[entry].src = src
    waiting[entry].next_message = -1
    if asked.first == 0:
        asked.first = entry + 1
    else:
        waiting[asked.last].next_message = entry
    asked.last = entry


@outline
def answer_next(world_address, node, inst, lane, now_ps):
    """Answer the first request to a lane of an instance that is at a step that receives, if no message has arrived.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        inst: Row of the instance in `insts.inst`.
        lane: Number of the lane within its plan.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, insts = world.net, world.insts
    at = inst * net.const.lane_stride + lane
    asked = insts.asked[at]
    # not earlier than needed: what the lane takes first is there already, or is under way
    if insts.lane[at].arrived > 0 or asked.first == 0 or asked.cleared == 1:
        return
    src = take_first(net, world.qps, insts, at)
    asked.cleared = 1
    answer(net, node, src, tag_for(insts.inst[inst].key, lane), now_ps)
