"""Rows of the flow model (pdes/messages/flows). Rates are in units of 1 / RATE_UNITS B/s of bytes on the wire."""

from pdes.core.rows.row import INF, Row, word


class FlowState(Row, words=16, written_by="messages.fidelity.* messages.flows.finish_heap messages.flows.rates"):
    """What all flows share."""

    active = word("count", "flows under way: entries of `finish_heap`")
    hops = word("count", "rows of `hop` in use")
    fresh = word("count", "entries of `fresh`")
    dirty = word("count", "entries of `dirty`")
    stamp = word("count", "number of solutions so far, for the marks of flows and links")
    solve_ps = word("time", "time of the latest SOLVE event", begins=-1)
    alarm_ps = word("time", "time of the FINISH event that counts, INF none", begins=INF)
    held = word("count", "messages of all connections that have not left")
    epoch = word("count", "1 + number of the routing tables in force", begins=1)
    moved_epoch = word("count", "the epoch to whose paths all flows under way have moved", begins=1)
    solved = word("count", "flows whose rates all solutions have set")
    solve_ns = word("count", "nanoseconds of all solutions")


class Flow(
    Row, words=24, written_by="messages.fidelity.* messages.flows.finish_heap messages.flows.paths messages.flows.rates"
):
    """A connection, parallel to its queue pair; its messages are sent one after another."""

    remaining_bytes = word("float", "bytes on the wire that were left of the current message at since_ps")
    rate = word("ratio", "current rate")
    since_ps = word("time", "time of the last change of the rate")
    finish_ps = word("time", "end of the current message at its rate, INF never")
    peak = word("ratio", "maximum rate: of the cap, and of every link of the path without other flows")
    cap = word("ratio", "maximum rate that the sender allows itself")
    heap_place = word("place", "place in `finish_heap` + 1, 0 = no message is under way")
    first_hop = word("place", "first of its rows of `hop`")
    hops = word("count", "number of its rows of `hop`, those of its first path in front")
    round_trip_ps = word("duration", "idle round trip of a full packet")
    epoch = word("count", "FlowState.epoch when its path was found, 0 = no path yet")
    latency_ps = word("duration", "time from the end of the current message until it has arrived")
    messages = word("count", "messages that have not left")
    first_message = word("message", "first of them, which is under way")
    last_message = word("message", "last of them")
    is_fresh = word("flag", "it is in `fresh`")
    mark = word("count", "2 * stamp of the latest solution that set the rate, + 1 when the rate is set")
    new_rate = word("ratio", "rate in the latest solution")


class FlowHop(Row, bits=32, written_by="messages.flows.paths messages.flows.rates"):
    """A link of a connection's path; of the path back, which acknowledgements load, if `is_back`."""

    link = word("link", "outgoing link")
    flow = word("queue_pair", "connection")
    next_hop = word("place", "next row of the link's list, -1 none")
    previous_hop = word("place", "previous row, -1 none")
    weight = word("ratio", "load of the link per rate of the flow, in units of 2^-WEIGHT_SHIFT")
    share = word("ratio", "part of the flow's packets that takes the link, in units of 2^-WEIGHT_SHIFT")
    is_back = word("flag", "acknowledgements take the link")


class FlowLink(Row, written_by="build.worlds messages.flows.rates"):
    """An outgoing link. Loads are rates times weights."""

    capacity = word("ratio", "load that the link carries")
    load = word("ratio", "sum of its flows' loads")
    weight = word("ratio", "sum of its flows' weights")
    peak = word("ratio", "sum of its flows' loads at their peaks >> WEIGHT_SHIFT, each rounded up")
    level = word("ratio", "rate of the flows that this link limits, INF none", begins=INF)
    first_hop = word("place", "list of rows of `hop`, -1 none", begins=-1)
    is_dirty = word("flag", "it is in `dirty`")
    mark = word("count", "stamp of the latest solution that reached it")
    rest = word("ratio", "capacity left for flows whose rate is not set in this solution")
    open_weight = word("ratio", "sum of these flows' weights")
