"""What a group on an idle fabric is, as arrays: the state of `network`."""

from typing import Annotated, NamedTuple

import numpy as np

from nadi.simulation.closed_forms.playing.rows import Clock, MessageEnds, PacketKind, PlayEvent, PlayState
from pdes.kernels import Float64, Int64, reader

NONE = -1

# Where a lane's next step is.
READY, PUT_OFF, POSTED = 0, 1, 2

# What happens (`what` & KINDS_MASK), to the lane, port or queue pair `what` >> KIND_BITS. At one moment own events go
# in this order and as they were made, then those of packets, from FORWARDS on, by a hash.
# SENDS is of a step, ACTS of a lane; of these two in one moment the one that was made first goes first.
LEAVES, WAKES, MAY_SEND, POSTS, SENDS, ACTS, FORWARDS, FORWARDS_ACK, COMES, IS_ACKNOWLEDGED = range(10)
KIND_BITS, KINDS_MASK, ORDER_SHIFT = 4, 15, 56
# Whole messages that arrive come before those that want a link, and both by their senders and as they were made.
WAITS_BIT, SENDER_SHIFT, MADE_MASK = 55, 30, (1 << 30) - 1

TOUCHES = 3

# How playing stops.
ALL_DONE, NO_ROOM, PAUSED = 0, 1, 2


class PlayedLanes(NamedTuple):
    """L lanes of all members.

    Attributes:
        member_ptr: int64[M+1], lanes of a member.
        first: int64[L+1], its steps.
        latency_ps: float64[L], from when a step is ready until its send is posted.
        begins: int64[L], 1 = what passes before the first step of a collective passes before its first send.
        blocking: int64[L], 1 = a step ends no sooner than what it sends has left.
        follower_ptr: int64[L+1], lanes of the same member of which a step waits for one of this lane.
        follower: int64[].
        at: int64[L], next step.
        came: int64[L], messages.
        left: int64[L], messages of blocking lanes.
        state: int64[L], of the next step: READY, PUT_OFF, POSTED.
        waits: int64[L], 1 = in the ring.
        ring: int64[L], lanes to look at.
        receive_ptr: int64[L+1], receives of a lane.
        reduces: int64[], 1 = what is received is added to what is there.
        taken: int64[L], messages that have come.
        taken_ps: float64[L], when the latest of them is acted on.
    """

    member_ptr: Int64
    first: Int64
    latency_ps: Float64
    begins: Int64
    blocking: Int64
    follower_ptr: Int64
    follower: Int64
    at: Int64
    came: Int64
    left: Int64
    state: Int64
    waits: Int64
    ring: Int64
    receive_ptr: Int64
    reduces: Int64
    taken: Int64
    taken_ps: Float64


class PlayedSteps(NamedTuple):
    """S steps of all lanes, and the messages that they send.

    Attributes:
        lane: int64[S].
        pair: int64[S], queue pair by which it sends, -1 = it does not.
        to: int64[S], lane that gets the message.
        receives: int64[S], 1 = it waits for a message.
        after: int64[S], lane that must have done more than after_step steps, -1 = none.
        after_step: int64[S].
        bytes: int64[S], of the message.
        packets: int64[S], likewise.
        last_bytes: int64[S], payload of its last packet.
        last: int64[S], kind of that packet.
        next: int64[S], next message of the queue pair.
    """

    lane: Int64
    pair: Int64
    to: Int64
    receives: Int64
    after: Int64
    after_step: Int64
    bytes: Int64
    packets: Int64
    last_bytes: Int64
    last: Int64
    next: Int64


class MemberPaths(NamedTuple):
    """W ways from a member to another.

    Attributes:
        port: int64[W], by which packets leave.
        queue: int64[W], port at which they queue after that, -1 = they do not.
        meets: int64[W], port before that at which they meet all that goes to the receiver, -1 = none.
        via: int64[W], link by which they come to the first of the two ports' switch.
        latency_ps: float64[W], of the switch.
        last: int64[W], link by which they come to the receiver.
        order: int64[W], which of the links below keep their order before that, -1 = none do.
        free_ps: float64[], when these links are free, as seen from the switch behind them.
    """

    port: Int64
    queue: Int64
    meets: Int64
    via: Int64
    latency_ps: Float64
    last: Int64
    order: Int64
    free_ps: Float64


class QueuePairs(NamedTuple):
    """Q queue pairs.

    Attributes:
        way: int64[Q], of its packets.
        back: int64[Q], of its acknowledgements.
        full: int64[Q], kind of a full packet.
        ack: int64[Q], kind of an acknowledgement.
        moved_ps: float64[Q], per byte of payload, at its share; 0 = no share.
        head: int64[Q], first message; -1 = none.
        tail: int64[Q], last message.
        packets: int64[Q], left of the first.
        open: int64[Q], packets that are not acknowledged.
        is_full: int64[Q], 1 = it waits for its window.
        waits: int64[Q], 1 = it waits for its turn or its share.
        next: int64[Q], who has the turn after it.
        next_ps: float64[Q], when it may send, as far as its share goes.
        arrived_ps: float64[Q], when its last packet so far is there, if it queues nowhere.
    """

    way: Int64
    back: Int64
    full: Int64
    ack: Int64
    moved_ps: Float64
    head: Int64
    tail: Int64
    packets: Int64
    open: Int64
    is_full: Int64
    waits: Int64
    next: Int64
    next_ps: Float64
    arrived_ps: Float64


class Ports(NamedTuple):
    """P ports and queues.

    Attributes:
        free_ps: float64[P], when all is sent.
        wake_ps: float64[P], when it is to be tried.
        turn: int64[P], queue pair whose turn it is, -1 = none.
        last_turn: int64[P].
        ack: int64[P], acknowledgement that is next, -1 = none.
        last_ack: int64[P].
        acks: int64[P], acknowledgements that wait.
        is_kicked: int64[P], 1 = among the kicked.
        kicked: int64[P], ports to be tried.
        ack_pair: int64[A], acknowledgements that wait, and free places.
        ack_step: int64[A], step whose message the packet was the last of, -1 = none, or acknowledgements do not count.
        next_ack: int64[A].
    """

    free_ps: Float64
    wake_ps: Float64
    turn: Int64
    last_turn: Int64
    ack: Int64
    last_ack: Int64
    acks: Int64
    is_kicked: Int64
    kicked: Int64
    ack_pair: Int64
    ack_step: Int64
    next_ack: Int64


class IdleGroup(NamedTuple):
    """A group on an idle fabric.

    Attributes:
        ctl: how far it is, and what it goes by.
        clock: time of the event in hand, and of the last step or message that was done.
        ends: what passes at the ends of a message.
        kind: packets on their ways.
        time_ps: float64[], the heap.
        event: what each of its entries is.
    """

    lanes: PlayedLanes
    steps: PlayedSteps
    ways: MemberPaths
    pairs: QueuePairs
    ports: Ports
    ctl: Annotated[np.record, PlayState]
    clock: Annotated[np.record, Clock]
    ends: Annotated[np.record, MessageEnds]
    kind: Annotated[np.recarray, PacketKind]
    time_ps: Float64
    event: Annotated[np.recarray, PlayEvent]


idle_at = reader(IdleGroup)
