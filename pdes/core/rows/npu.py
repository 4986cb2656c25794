"""Rows of NPUs, their collectives and the plans that collectives follow."""

from pdes.core.rows.row import INF, Row, WordKind, word


class Npu(
    Row,
    words=40,
    written_by="build.growth build.npus messages.message_loop messages.whole network.faults nic.driven nic.port "
    "nic.selective nic.selective_receiver nic.transport npu.agenda npu.collective npu.npu_window npu.trace",
):
    """An NPU: two cache lines for frequent use, then the rest."""

    ready_head = word(WordKind.ROW, "first of the rows that are ready to start, -1 none", begins=-1)
    kick_head = word(WordKind.LINK, "first of the ports to try, -1 none", begins=-1)
    now_ps = word(WordKind.TIME, "time of the current event")
    heap_size = word(WordKind.COUNT, "number of its own events")
    heap = word(WordKind.PLACE, "first entry of its part of `heap`")
    ports = word(WordKind.COUNT, "number of its ports")
    number = word(WordKind.NPU, "number in the whole fabric")
    last_receiver = word(WordKind.RECEIVER, "receiving queue pair of its last data packet", begins=-1)
    rto_at_ps = word(WordKind.TIME, "its retransmission event in the heap, INF none", begins=INF)
    last_instance = word(WordKind.INSTANCE, "instance that got its last message of a collective, -1 none", begins=-1)
    agenda_head = word(
        WordKind.PLACE, "first of its instances' future actions, -1 none (pdes/npu/agenda.py)", begins=-1
    )
    agenda_tail = word(WordKind.PLACE, "last of its instances' future actions")
    ready_tail = word(WordKind.ROW, "last of the rows that are ready", begins=-1)
    trace_base = word(WordKind.PLACE, "first row of its trace in the tables")
    row_base = word(WordKind.PLACE, "first row of its trace in the per-NPU arrays")
    slot_base = word(WordKind.PLACE, "first of its group slots")
    lane = word(WordKind.ROW, "row that a lane works on, -1 idle", many=4, begins=-1)
    wait_head = word(WordKind.ROW, "first of the rows that wait for a lane", many=4, begins=-1)
    wait_tail = word(WordKind.ROW, "last of the rows that wait for a lane", many=4, begins=-1)
    rows_left = word(WordKind.COUNT, "trace rows not finished")
    first_queue_pair = word(WordKind.QUEUE_PAIR, "first of its queue pairs", begins=-1)
    trace_number = word(WordKind.CODE, "number of the distinct trace that it runs")
    done_head = word(WordKind.MESSAGE, "selective repeat: first of the complete messages to report, -1 none", begins=-1)
    done_tail = word(WordKind.MESSAGE, "last of the complete messages to report")
    posted = word(WordKind.COUNT, "messages posted, at message level")
    done_bytes = word(WordKind.BYTES, "selective repeat: payload of the complete message that was reported last")
    slow_1024ths = word(WordKind.RATIO, "factor on compute time in 1024ths, 0 = no slowdown")
    last_connection = word(
        WordKind.QUEUE_PAIR, "at message level: connection of its last posted message, -1 none", begins=-1
    )
    driven_ps = word(
        WordKind.TIME, "end of the time for which messages to other hosts have moved packets, where these have a share"
    )


class System(Row, words=16, written_by="npu.contention npu.endpoints npu.in_flight"):
    """An NPU's state in the system layer: pdes/npu/contention.py, pdes/npu/in_flight.py."""

    running = word(WordKind.COUNT, "collectives between first step and end, where they slow compute down")
    work_ps = word(
        WordKind.DURATION, "work left of the compute lane's row at since_ps, in whole ps of an NPU without collectives"
    )
    work_part = word(WordKind.RATIO, "remainder of work_ps in units of 1 / compute_slow_1000ths ps")
    since_ps = word(WordKind.TIME, "time to which work_ps refers")
    due_ps = word(WordKind.TIME, "completion time of the compute lane's row at its present pace")
    in_flight = word(WordKind.COUNT, "collectives in flight, where their number is limited")
    line = word(WordKind.ROW, "1 + the newest row that waits for a place, 0 none")
    later_head = word(WordKind.MESSAGE, "1 + the first row of its list of messages (pdes/npu/endpoints.py), 0 none")
    later_tail = word(WordKind.MESSAGE, "1 + the last row of that list")


class Instance(Row, words=16, written_by="messages.message_loop messages.whole npu.agenda npu.collective"):
    """An active collective on an NPU."""

    key = word(WordKind.PACKED, "key in the map of instances")
    row = word(WordKind.ROW, "trace row of the collective")
    slot = word(WordKind.PLACE, "group slot, counted over all NPUs")
    plan = word(WordKind.PLAN, "plan of its member")
    lanes_left = word(WordKind.COUNT, "lanes that are not done")
    sends_left = word(WordKind.COUNT, "posted sends whose last byte has not left")
    started = word(WordKind.CODE, "STARTED: steps may be done; LAUNCHING: one is due later; 0: only messages have come")
    buffer_bytes = word(WordKind.BYTES, "size of the whole buffer")
    schedule = word(WordKind.PLAN, "schedule of the collective")
    member = word(WordKind.COUNT, "number of the member within the group")
    priority = word(WordKind.CODE, "priority of its trace row")
    left_ps = word(
        WordKind.TIME, "at message level, time at which the last of its messages that no lane waits for has left"
    )
    left_ordinal = word(WordKind.COUNT, "ordinal of that message")
    first_lane = word(WordKind.PLACE, "row of its member's first lane")
    lanes = word(WordKind.COUNT, "lanes of its member's plan")
    stirred = word(WordKind.FLAGS, "lanes to check because something happened to them; -1: check all")


class LaneState(Row, written_by="nic.rendezvous npu.agenda npu.collective"):
    """A lane of an active collective; a row after its lanes represents the collective as a whole."""

    due = word(
        WordKind.PACKED, "DUE: the step may be posted; 0: not put off; else ps << 1 | 1 if an event waits for it"
    )
    later = word(WordKind.PLACE, "next of the NPU's list of future actions, -1 none", bits=32)
    first = word(WordKind.PLACE, "first step in `step`", bits=32)
    steps = word(WordKind.COUNT, "number of steps", bits=32)
    pc = word(WordKind.COUNT, "2 x steps done, + 1 once the send of the current step is posted", bits=32)
    arrived = word(WordKind.COUNT, "messages that have arrived and are not taken yet", bits=32)
    left = word(WordKind.COUNT, "sends of a blocking lane that have left and are not counted yet", bits=32)


class LaneRequest(Row, written_by="nic.rendezvous"):
    """Requests to a lane of an active collective: pdes/nic/rendezvous.py."""

    first = word(
        WordKind.MESSAGE, "1 + the first request, or message behind one, that the lane has not reached, 0 none"
    )
    last = word(WordKind.MESSAGE, "last of that list")
    cleared = word(WordKind.FLAG, "a request was answered, and its message has not arrived")


class LaneReductions(Row, written_by="npu.collective npu.delivery"):
    """Messages that the lanes of an active collective have taken, where a reduction takes time."""

    messages = word(WordKind.COUNT, "messages that have been received")
    taken_ps = word(WordKind.TIME, "time at which the lane takes the latest of them")


class PlanLane(Row, words=16, written_by="build.tables"):
    """A lane of a plan: its chunks and its peers."""

    plain = word(WordKind.FLAG, "all words that follow have their neutral values: see workload.Schedules.lane_plain")
    view_number = word(WordKind.PLAN, "row of `view_row`, -1: the group's own order")
    part = word(WordKind.COUNT, "number of the lane's part among `parts` equal parts of the buffer")
    parts = word(WordKind.COUNT, "number of equal parts of the buffer")
    chunks = word(WordKind.COUNT, "number of chunks of the part")
    wire_num = word(WordKind.RATIO, "payload bytes per wire_den bytes of data, rounded up per message")
    wire_den = word(WordKind.RATIO, "see wire_num")
    latency_ps = word(WordKind.DURATION, "time from when a step is ready until its send is posted")
    gate = word(WordKind.CODE, "dimension whose token its phase needs, -1 none")
    phase = word(WordKind.COUNT, "number of its phase within the plan")
    alike = word(WordKind.COUNT, "lanes of its phase")
    blocking = word(WordKind.FLAG, "a step ends at the earliest when the last byte that it sends has left")
    connection = word(
        WordKind.PACKED,
        "number of its connection to the peer << CONNECTION_SHIFT | if that has a share of the line rate, "
        "shares << SHARES_SHIFT; also valid for plain lanes",
    )
    begins = word(WordKind.FLAG, "endpoint_delay_ps passes before its first send")
    waited_for = word(WordKind.FLAGS, "lanes of its plan that wait for it, up to STIRRED_LANES")


class PlanStep(Row, bits=32):
    """A step of a lane of a plan: a row of workload.Schedules.steps."""

    dep_lane = word(WordKind.COUNT, "lane of the same plan that must have done more than dep_step steps first, -1 none")
    dep_step = word(WordKind.COUNT, "see dep_lane")
    send_peer = word(WordKind.COUNT, "member to send to, -1 none")
    send_lane = word(WordKind.COUNT, "lane of the receiver")
    send_chunk = word(WordKind.COUNT, "first chunk to send")
    send_count = word(WordKind.COUNT, "number of chunks to send")
    recv_peer = word(WordKind.COUNT, "member to receive from, -1 none")
    recv_chunk = word(WordKind.COUNT, "first chunk to receive")
    recv_count = word(WordKind.COUNT, "number of chunks to receive")
    reduce = word(WordKind.FLAG, "the received chunks are reduced with own data")


class CollectivePhase(Row, written_by="npu.tokens"):
    """A phase of an active collective: pdes/npu/tokens.py."""

    state = word(WordKind.CODE, "progress of the phase")
    next_phase = word(WordKind.PHASE, "next of those that wait for the same tokens")


class Tokens(Row, written_by="npu.tokens"):
    """An NPU's tokens of a dimension: pdes/npu/tokens.py."""

    running = word(WordKind.COUNT, "tokens in use")
    waiting = word(WordKind.PHASE, "phases that wait, the last to come first, -1 none", begins=-1)


class GroupView(Row, words=4, written_by="build.tables"):
    """The members of a group arranged in lines."""

    members = word(WordKind.COUNT, "members of a line")
    parts = word(WordKind.COUNT, "number of further parts of a lane's part")
    first = word(WordKind.PLACE, "first of its members in `view_member`, `view_at` and `view_part`")
