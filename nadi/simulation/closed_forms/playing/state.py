"""Arrays of a group on an idle fabric: the state of `network`."""

from typing import Annotated, NamedTuple

import numpy as np

from nadi.simulation.closed_forms.playing.rows import Clock, MessageEnds, PacketKind, PlayEvent, PlayState
from pdes.kernels import Float64, Int64, reader

NONE = -1

# State of a lane's next step.
READY, PUT_OFF, POSTED = 0, 1, 2

# Kinds of events (`what` & KINDS_MASK); they concern the lane, port or queue pair `what` >> KIND_BITS. At one moment,
# events of members come first, in this order and then in order of creation; events of packets (FORWARDS and later)
# follow in the order of a hash. SENDS concerns a step and ACTS a lane; at one moment both go in order of creation.
LEAVES, WAKES, MAY_SEND, POSTS, SENDS, ACTS, FORWARDS, FORWARDS_ACK, COMES, IS_ACKNOWLEDGED = range(10)
KIND_BITS, KINDS_MASK, ORDER_SHIFT = 4, 15, 56
# At message level, messages that arrive come before those that need a link; both go by sender, then order of creation.
WAITS_BIT, SENDER_SHIFT, MADE_MASK = 55, 30, (1 << 30) - 1

TOUCHES = 3
"""Memory accesses per byte of a reduction: two reads and a write."""

# Reasons for which `play` returns.
ALL_DONE, NO_ROOM, PAUSED = 0, 1, 2


class PlayedLanes(NamedTuple):
    """L lanes of all members.

    Attributes:
        member_ptr: int64[M+1], range of the lanes of each member.
        first: int64[L+1], range of the steps of each lane.
        latency_ps: float64[L], time from when a step is ready until its send is posted.
        begins: int64[L], 1 = the delay before the first step of a collective applies before this lane's first send.
        blocking: int64[L], 1 = a step ends only when its message has left.
        follower_ptr: int64[L+1], range of `follower` for each lane.
        follower: int64[], lanes of the same member with a step that waits for a step of this lane.
        at: int64[L], next step.
        came: int64[L], number of received messages that no step has used yet.
        left: int64[L], number of sent messages that no step has used yet; blocking lanes only.
        state: int64[L], state of the next step: READY, PUT_OFF or POSTED.
        waits: int64[L], 1 = the lane is in the ring.
        ring: int64[L+1], lanes to advance.
        receive_ptr: int64[L+1], range of the receives of each lane.
        reduces: int64[], 1 = the receive adds its data to memory.
        taken: int64[L], number of messages that have arrived.
        taken_ps: float64[L], time at which the lane acts on the latest of them.
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
        lane: int64[S], lane of the step.
        pair: int64[S], queue pair that sends the step's message, -1 = the step sends nothing.
        to: int64[S], lane that receives the message.
        receives: int64[S], 1 = the step waits for a message.
        after: int64[S], lane that must have done more than after_step steps before, -1 = none.
        after_step: int64[S], index of a step within that lane.
        bytes: int64[S], payload of the message in bytes.
        packets: int64[S], number of packets of the message.
        last_bytes: int64[S], payload of its last packet in bytes.
        last: int64[S], kind of its last packet.
        next: int64[S], step whose message the queue pair sends next.
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
    """W paths from one member to another.

    Attributes:
        port: int64[W], port that packets leave through.
        queue: int64[W], port at which they queue after that, -1 = no such port.
        meets: int64[W], port before `queue` at which all paths to the receiver meet, -1 = no such port.
        via: int64[W], link to the switch of the first of these two ports.
        latency_ps: float64[W], latency of that switch.
        last: int64[W], link to the receiver.
        order: int64[W], index in `free_ps` of the links before `queue` that keep packets in order, -1 = no such links.
        free_ps: float64[], time at which these links are free, as seen from the switch behind them.
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
        way: int64[Q], path of its packets.
        back: int64[Q], path of its acknowledgements.
        full: int64[Q], kind of a full packet.
        ack: int64[Q], kind of an acknowledgement.
        moved_ps: float64[Q], picoseconds per byte of payload at the pair's share of its port, 0 = the pair has no
            share.
        head: int64[Q], step of the first message to send, -1 = none.
        tail: int64[Q], step of the last message to send.
        packets: int64[Q], number of packets that the first message still has to send.
        open: int64[Q], number of unacknowledged packets.
        is_full: int64[Q], 1 = the pair waits for room in its window.
        waits: int64[Q], 1 = the pair waits for its turn or its share.
        next: int64[Q], pair that has the turn after this one.
        next_ps: float64[Q], earliest time of the next packet by the pair's share.
        arrived_ps: float64[Q], arrival time of its last packet so far, if its path has no queue.
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
        free_ps: float64[P], time at which the port has sent everything.
        wake_ps: float64[P], time of the port's next WAKES event.
        turn: int64[P], queue pair whose turn it is, -1 = none.
        last_turn: int64[P], last queue pair in line.
        ack: int64[P], next acknowledgement to send, -1 = none.
        last_ack: int64[P], last acknowledgement in line.
        acks: int64[P], number of waiting acknowledgements.
        is_kicked: int64[P], 1 = the port is in `kicked`.
        kicked: int64[P], ports that must try to send.
        ack_pair: int64[A], queue pair of each waiting acknowledgement; other entries are free.
        ack_step: int64[A], step whose message the acknowledged packet completes, -1 = none, or acknowledgements do not
            count.
        next_ack: int64[A], next acknowledgement in line, or next free entry.
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
        lanes: Lanes of all members.
        steps: Steps of all lanes.
        ways: Paths between members.
        pairs: Queue pairs.
        ports: Ports and queues.
        ctl: Progress and parameters of the play.
        clock: Time of the current event, and of the last completed step or message.
        ends: Delays at the ends of a message.
        kind: Times of packets on their paths.
        time_ps: float64[], times of the event heap.
        event: Event of each entry of the heap.
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
