"""Arrays of a group on an idle fabric: the state of `network`."""

from typing import Annotated, NamedTuple

import numpy as np

from pdes.kernels import Float64, Int64, Row, reader, word


class PlayState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.playing.events nadi.simulation.closed_forms.playing.idle_fabric "
    "nadi.simulation.closed_forms.playing.network",
):
    """Progress and parameters of the play of one group."""

    events = word("count", "events in the heap")
    made = word("count", "events created so far")
    free_ack = word("place", "first free entry for an acknowledgement")
    looked_from = word("place", "first entry of the ring of lanes to advance")
    looked_to = word("place", "entry behind the ring's last")
    kicked = word("count", "ports in the list of kicked ports")
    window_packets = word("count", "maximum of unacknowledged packets of a queue pair")
    mtu_bytes = word("bytes", "payload of a full packet")
    begun = word("count", "members that have begun")
    room = word("count", "maximum of events that one event adds to the heap")
    pause_after = word("count", "packets to send before `play` returns")
    seed = word("packed", "seed of the hash, -1: message level")


class Clock(
    Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric nadi.simulation.closed_forms.playing.network"
):
    """Times of a play, in fractions of a picosecond."""

    now_ps = word("float", "ps, time of the current event")
    end_ps = word("float", "ps, time of the last completed step or message")


class MessageEnds(Row, written_by="nadi.simulation.closed_forms.playing.idle_paths"):
    """Delays at the ends of a message."""

    begin_ps = word("float", "ps before the first step of a collective")
    send_ps = word("float", "ps before the message's first packet may be sent")
    act_ps = word("float", "ps before the receiver acts on the message")
    memory_ps_per_byte = word("float", "ps per byte of each memory access of a reduction")
    resolution_ps = word("float", "ps, resolution of reduction times")
    counts_back = word("float", "1: a message counts when its last acknowledgement is back")


class PacketKind(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """Times of a packet on its path: see `PathTimes` of `idle_paths`."""

    first_ps = word("float", "ps on the first link")
    head_ps = word("float", "ps until the queue's switch may send it")
    last_ps = word("float", "ps on the link behind the queue")
    tail_ps = word("float", "ps between the links")
    after_ps = word("float", "ps behind the queue")
    left_ps = word("float", "ps until its sender is done")
    between_ps = word("float", "ps on the slowest link between the two ports")
    seen_ps = word("float", "ps on that link until the next switch may send it")
    meet_ps = word("float", "ps on the link where paths to the receiver meet")
    on_head_ps = word("float", "ps from there until the queue's switch may send it")
    on_tail_ps = word("float", "ps between these links")


class PlayEvent(Row, written_by="nadi.simulation.closed_forms.playing.events"):
    """An event of a play."""

    order = word("packed", "order among the events of one moment")
    what = word("packed", "lane, port or queue pair << KIND_BITS | kind of event")
    kind = word("code", "kind of packet")
    to = word("code", "step or lane of the event")


class PlayedLanes(NamedTuple):
    """L lanes of all members."""

    member_ptr: Int64  # int64[M+1], range of the lanes of each member
    first: Int64  # int64[L+1], range of the steps of each lane
    latency_ps: Float64  # float64[L], time from when a step is ready until its send is posted
    begins: Int64  # int64[L], 1 = the delay before the first step of a collective applies before this lane's first send
    blocking: Int64  # int64[L], 1 = a step ends only when its message has left
    follower_ptr: Int64  # int64[L+1], range of `follower` for each lane
    follower: Int64  # int64[], lanes of the same member with a step that waits for a step of this lane
    at: Int64  # int64[L], next step
    came: Int64  # int64[L], number of received messages that no step has used yet
    left: Int64  # int64[L], number of sent messages that no step has used yet; blocking lanes only
    state: Int64  # int64[L], state of the next step: READY, PUT_OFF or POSTED
    waits: Int64  # int64[L], 1 = the lane is in the ring
    ring: Int64  # int64[L+1], lanes to advance
    receive_ptr: Int64  # int64[L+1], range of the receives of each lane
    reduces: Int64  # int64[], 1 = the receive adds its data to memory
    taken: Int64  # int64[L], number of messages that have arrived
    taken_ps: Float64  # float64[L], time at which the lane acts on the latest of them


class PlayedSteps(NamedTuple):
    """S steps of all lanes, and the messages that they send."""

    lane: Int64  # int64[S], lane of the step
    pair: Int64  # int64[S], queue pair that sends the step's message, -1 = the step sends nothing
    to: Int64  # int64[S], lane that receives the message
    receives: Int64  # int64[S], 1 = the step waits for a message
    after: Int64  # int64[S], lane that must have done more than after_step steps before, -1 = none
    after_step: Int64  # int64[S], index of a step within that lane
    bytes: Int64  # int64[S], payload of the message in bytes
    packets: Int64  # int64[S], number of packets of the message
    last_bytes: Int64  # int64[S], payload of its last packet in bytes
    last: Int64  # int64[S], kind of its last packet
    next: Int64  # int64[S], step whose message the queue pair sends next


class MemberPaths(NamedTuple):
    """W paths from one member to another."""

    port: Int64  # int64[W], port that packets leave through
    queue: Int64  # int64[W], port at which they queue after that, -1 = no such port
    meets: Int64  # int64[W], port before `queue` at which all paths to the receiver meet, -1 = no such port
    via: Int64  # int64[W], link to the switch of the first of these two ports
    latency_ps: Float64  # float64[W], latency of that switch
    last: Int64  # int64[W], link to the receiver
    # int64[W], index in `free_ps` of the links before `queue` that keep packets in order, -1 = no such links
    order: Int64
    free_ps: Float64  # float64[], time at which these links are free, as seen from the switch behind them


class QueuePairs(NamedTuple):
    """Q queue pairs."""

    way: Int64  # int64[Q], path of its packets
    back: Int64  # int64[Q], path of its acknowledgements
    full: Int64  # int64[Q], kind of a full packet
    ack: Int64  # int64[Q], kind of an acknowledgement
    # float64[Q], picoseconds per byte of payload at the pair's share of its port, 0 = the pair has no share
    moved_ps: Float64
    head: Int64  # int64[Q], step of the first message to send, -1 = none
    tail: Int64  # int64[Q], step of the last message to send
    packets: Int64  # int64[Q], number of packets that the first message still has to send
    open: Int64  # int64[Q], number of unacknowledged packets
    is_full: Int64  # int64[Q], 1 = the pair waits for room in its window
    waits: Int64  # int64[Q], 1 = the pair waits for its turn or its share
    next: Int64  # int64[Q], pair that has the turn after this one
    next_ps: Float64  # float64[Q], earliest time of the next packet by the pair's share
    arrived_ps: Float64  # float64[Q], arrival time of its last packet so far, if its path has no queue


class Ports(NamedTuple):
    """P ports and queues."""

    free_ps: Float64  # float64[P], time at which the port has sent everything
    wake_ps: Float64  # float64[P], time of the port's next WAKES event
    turn: Int64  # int64[P], queue pair whose turn it is, -1 = none
    last_turn: Int64  # int64[P], last queue pair in line
    ack: Int64  # int64[P], next acknowledgement to send, -1 = none
    last_ack: Int64  # int64[P], last acknowledgement in line
    acks: Int64  # int64[P], number of waiting acknowledgements
    is_kicked: Int64  # int64[P], 1 = the port is in `kicked`
    kicked: Int64  # int64[P], ports that must try to send
    ack_pair: Int64  # int64[A], queue pair of each waiting acknowledgement; other entries are free
    # int64[A], step whose message the acknowledged packet completes, -1 = none, or acknowledgements do not count
    ack_step: Int64
    next_ack: Int64  # int64[A], next acknowledgement in line, or next free entry


class IdleGroup(NamedTuple):
    """A group on an idle fabric."""

    lanes: PlayedLanes  # lanes of all members
    steps: PlayedSteps  # steps of all lanes
    ways: MemberPaths  # paths between members
    pairs: QueuePairs  # queue pairs
    ports: Ports  # ports and queues
    ctl: Annotated[np.record, PlayState]  # progress and parameters of the play
    clock: Annotated[np.record, Clock]  # time of the current event, and of the last completed step or message
    ends: Annotated[np.record, MessageEnds]  # delays at the ends of a message
    kind: Annotated[np.recarray, PacketKind]  # times of packets on their paths
    time_ps: Float64  # float64[], times of the event heap
    event: Annotated[np.recarray, PlayEvent]  # event of each entry of the heap


idle_at = reader(IdleGroup)
