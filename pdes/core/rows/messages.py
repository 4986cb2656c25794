"""Rows of the message-level models and of their flows."""

from nadi.pdes.core.rows import INF, Row, word

MERGING, SORTING, WAITING, FIRST_EVENT = range(4)
"""Rows of `event` that hold no event but precede the first of a list: one being merged, one being sorted, and the
STEPs and SOLVEs that wait. With them, appending to a list needs no test whether it is empty.
"""


class Event(Row):
    """A future event of a message in a message-level model (pdes/messages/events.py)."""

    # 32 bytes, two to a cache line; events stay where they are: sorting a list changes nothing but next_event
    time_ps = word("time", "time of the event")
    order = word("packed", "kind << KIND_SHIFT | key")
    which = word("message", "message, or another subject that the kind defines")
    next_event = word("place", "next event of its list, -1 none")


class WholeMessage(Row, words=8):
    """A row of `msg` in a message-level model (pdes/messages/whole.py)."""

    # Life of a whole message: posted (`post_message`), it waits at `node` for a STEP; each STEP moves it over one link,
    # or to its end at once, as the fidelity defines; LEFT tells its sender that the last byte is gone, ARRIVE and TAKE
    # its receiver, which frees the row. Events name the message; only a flow has a list of those that it has not sent
    # (`following`).
    payload_bytes = word("bytes", "payload of the message")
    tag = word("packed", "packet word 3")
    connection = word("queue_pair", "connection that carries it")
    ordinal = word("count", "number of messages that its sender had posted before")
    node = word("node", "its current node")
    ref = word("packed", "as of Message")
    following = word("message", "flows: the connection's next message")


class EventQueue(Row, words=1440):
    """The lists that hold the events of a message-level model (pdes/messages/events.py)."""

    now_ps = word("time", "current time")
    kind = word("code", "latest kind of event at the current time so far")
    due = word("place", "sorted events of the current time", begins=-1)
    waiting_last = word(
        "place", "last of the STEPs and SOLVEs that joined them, WAITING if there is none", begins=WAITING
    )
    same_time_size = word("count", "number of entries of the heap `same_time`")
    free = word("place", "list of free rows", begins=-1)
    fresh = word("count", "number of rows that were ever used", begins=FIRST_EVENT)
    # 11 digits of 6 bits are 66 bits, more than the 63 of a time; 11 x 64 lists x 2 ends = 1408 words
    full = word("flags", "non-empty lists of a digit", many=11)
    lists = word("place", "first and last event of each list", many=1408, begins=-1)


# Rows of the flow model (pdes/messages/rates.py). Rates are in units of 1 / RATE_UNITS B/s of bytes on the wire.


class FlowState(Row, words=24):
    """What all flows share."""

    active = word("count", "flows under way: entries of `finish_heap`")
    hops = word("count", "rows of `hop` in use")
    link_flows = word("count", "rows of `link_flow` in use")
    fresh = word("count", "entries of `fresh`")
    dirty = word("count", "entries of `dirty`")
    stamp = word("count", "number of solutions so far, for the marks of flows and links")
    solve_ps = word("time", "time of the latest SOLVE event", begins=-1)
    alarm_ps = word("time", "time of the FINISH event that counts, INF none", begins=INF)
    held = word("count", "messages that have not left, and members of coupled flows that have not ended")
    epoch = word("count", "1 + number of the routing tables in force", begins=1)
    moved_epoch = word("count", "the epoch to whose paths all flows under way have moved", begins=1)
    solved = word("count", "flows whose rates all solutions have set")
    solve_ns = word("count", "nanoseconds of all solutions")
    reached = word("count", "entries of `reached_flow`")
    open_flows = word("count", "flows without a rate in this solution")
    filling = word("count", "entries of `fill_heap`")
    full = word("count", "entries of `fill_heap` whose level is not INF")
    touched = word("count", "entries of `touched`")
    cell_ps = word("time", "begin of the cell whose packets are in `ordered`, -1 none", begins=-1)
    held_blocks = word("count", "entries of `held_block`")
    turns = word("count", "entries of `turn_heap`")
    due_ps = word("time", "earliest event when there were known_events, INF none")
    known_events = word("count", "events when due_ps was found, -1 not known", begins=-1)


class Flow(
    Row,
    words=24,
):
    """A connection, parallel to its queue pair; its messages are sent one after another. Or a coupled flow."""

    # Life of a flow: its path is found when the first message of the connection begins (`lay_path`), and again after
    # each change of routes. With a message it enters its links; it leaves them when the message ends, unless the next
    # one has the same size. It is *open* from then on, or from a change at one of its links, until the next solution
    # sets `rate` (mark = 2 x stamp: open; + 1: set). Between solutions the rate is constant, so its end is known
    # (`finish_heap`); at each change of rate the bytes sent since `since_ps` are subtracted.
    rate = word("ratio", "current rate")
    peak = word("ratio", "maximum rate: of the cap, and of every link of the path without other flows")
    limit = word("link", "full link that limits the rate, -1 none: the rate is the peak", begins=-1)
    mark = word("count", "2 * stamp of the latest solution that set the rate, + 1 when the rate is set")
    old_rate = word("ratio", "rate before the latest solution that set it")
    old_limit = word("link", "limit before the latest solution that set the rate")
    first_hop = word("place", "first of its rows of `hop`")
    hops = word("count", "number of its rows of `hop`, those of its first path in front")
    cap = word("ratio", "maximum rate that the sender allows itself")
    remaining_bytes = word("float", "bytes on the wire that were left of the current message at since_ps")
    turn = word("packed", "distance to the receiver << 25 | connection: order of flows that end together at a port")
    packet_bytes = word("float", "bytes of a full packet if packets of the current message take turns, else 0")
    since_ps = word("time", "time of the last change of the rate")
    bound_link = word("link", "link that limited the rate for most of the time with messages, -1 none")
    bound_ps = word("duration", "time for which bound_link did, less the time for which it did not")
    round_trip_ps = word("duration", "idle round trip of a full packet")
    epoch = word("count", "FlowState.epoch when its path was found, 0 = no path yet")
    latency_ps = word("duration", "time from the end of the current message until it has arrived")
    messages = word("count", "messages that have not left")
    first_message = word("message", "first of them, which is under way")
    last_message = word("message", "last of them")
    is_fresh = word("flag", "it is in `fresh`")
    is_coupled = word("flag", "it is a stage of a coupled flow, not a connection")
    is_packets = word("flag", "its messages are packets, and it only takes part in solutions")


class FlowHop(Row, bits=32):
    """A link of a connection's path. Solutions read these rows most, so they are short."""

    link = word("link", "outgoing link")
    weight = word("ratio", "load of the link per rate of the flow, in units of 2^-WEIGHT_SHIFT")


class HopUse(Row, bits=32):
    """How a connection uses a link of its path, parallel to FlowHop."""

    share = word("ratio", "part of the flow's packets that takes the link, in units of 2^-WEIGHT_SHIFT")
    is_back = word("flag", "acknowledgements take the link, which is of the path back")
    place = word("place", "place among the flows of the link")
    ack_weight = word("ratio", "load of acknowledgements on the link per rate, in units of 2^-WEIGHT_SHIFT")


class LinkTotal(Row):
    """What a collective that is a coupled flow puts on a link."""

    total_bytes = word("bytes", "bytes on the link, of messages and acknowledgements")
    messages = word("count", "messages that cross the link")


class CoupledKind(Row, words=16):
    """Collectives of one group with the same schedule and size, as coupled flows."""

    schedule = word("plan", "their schedule")
    buffer_bytes = word("bytes", "size of the buffer")
    alone_ps = word("duration", "time of one alone on the idle fabric")
    group = word("group", "their group")
    stages = word("count", "stages of each, 0: not known yet")
    reach_ps = word("duration", "latency of the longest chain of lanes' first messages, 0: not known yet")
    free_flow = word("queue_pair", "first stage of the first flow that is not under way, -1 none", begins=-1)


class CoupledLane(Row):
    """A lane of a plan in coupled flows, and the first message that it sends, on the idle fabric."""

    stage = word("count", "stage in which the lane begins")
    stages = word("count", "number of its stages")
    latency_ps = word("duration", "latency of its first message")
    chunk_ps = word("duration", "time of this message's bytes at the slowest link of its path")
    begin_ps = word("duration", "time from the collective's first step until the lane sends its first message")
    arrival_ps = word("duration", "time until the lane receives its first message")


class CoupledStage(Row, words=16):
    """A stage of a coupled flow, parallel to `flow`: what lanes do between two changes of their peers."""

    # rows parallel to `flow`; those of one collective are linked by next_stage, and return to `CoupledKind.free_flow`
    # together
    kind = word("place", "its row of `coupled`")
    number = word("count", "stages before it")
    next_stage = word("queue_pair", "the next stage, -1 none")
    next_flow = word("queue_pair", "first stage: that of the next flow of the kind that is not under way, -1 none")
    instance = word("instance", "the collective under way")
    whole_bytes = word("float", "bytes on the wire of the lane that sends most")
    lanes = word("count", "lanes that share the members' slowest port")
    peak_link = word("link", "link that limits its rate where there are no other flows, -1 none")
    port_ps = word("duration", "time of the bytes at the members' idle ports")
    begun_ps = word("time", "begin of the stage under way")
    messages = word("count", "messages of the stage")
    payload_bytes = word("bytes", "payload of these messages")
    link_messages = word("count", "links that these messages cross")


class LinkFlow(Row, bits=32):
    """A flow under way over a link. Rows of a link are consecutive, and short, because solutions read them all."""

    # the inverse of `hop`: which flows cross a link. Each entry knows its hop and each hop its entry (HopUse.place), so
    # that a flow leaves in constant time: the last entry takes its place
    flow = word("queue_pair", "connection")
    weight = word("ratio", "FlowHop.weight")


class FlowLink(Row, words=24):
    """An outgoing link. Loads are rates times weights. Solutions use the first cache line most."""

    # with weights w and rates r of its flows: load = sum of w r, over flows that have a rate, at most `capacity`; a
    # link with load = capacity limits those of its flows that could be faster, all to the same rate, its `level`
    capacity = word("ratio", "load that the link carries, beside acknowledgements")
    load = word("ratio", "sum of its flows' loads, but of those without a rate in this solution")
    level = word("ratio", "rate of the flows that this link limits, INF none", begins=INF)
    limited_weight = word("ratio", "sum of the weights of the flows that this link limits")
    open_weight = word("ratio", "sum of the weights of its flows without a rate in this solution")
    filled = word("count", "stamp of the latest solution that set the level of the full link")
    first_flow = word("place", "first of its rows of `link_flow`")
    peak = word("ratio", "sum of its flows' loads at their peaks >> WEIGHT_SHIFT, each rounded up")
    weight = word("ratio", "sum of its flows' weights")
    is_dirty = word("flag", "it is in `dirty`")
    flows = word("count", "flows under way over it")
    room = word("count", "its rows of `link_flow`")
    idle_capacity = word("ratio", "load that the link carries without faults")
    packets_stamp = word("count", "stamp of the latest solution that set the link's rate for packets")
    whole_capacity = word("ratio", "load that the link carries, acknowledgements included")
    ack_weight = word("ratio", "sum of the weights of acknowledgements of flows that take the link back")
    ack_flows = word("count", "flows whose acknowledgements take the link")


class NpuTurn(Row, words=4):
    """An NPU in a cell, where flows share links with packets."""

    next_packet = word("place", "first of its packets in `ordered` that are left")
    end = word("place", "end of its packets in `ordered`")
    flow_messages = word("count", "messages from or to it that are flows and have not left or arrived")


class KeyedEntry(Row):
    """An entry of a heap (pdes/core/algorithms.py)."""

    key = word("ratio", "in `fill_heap` a rate, in `finish_heap` a time in ps")
    number = word("place", "in `fill_heap` a link, in `finish_heap` a connection")
