"""Rows of NPUs, their collectives and the plans that these follow."""

from pdes.core.rows.row import INF, Kind, Row, word


class Npu(
    Row,
    words=40,
    written_by="build.growth build.npus messages.message_loop messages.whole network.faults nic.driven nic.port "
    "nic.selective nic.selective_receiver nic.transport npu.agenda npu.collective npu.npu_window npu.trace",
):
    """An NPU: two cache lines for what happens often, then the rest."""

    ready_head = word(Kind.ROW, "list of those ready to start, -1 none", begins=-1)
    kick_head = word(Kind.LINK, "list of ports to try, -1 none", begins=-1)
    now_ps = word(Kind.TIME, "of the event in hand")
    heap_size = word(Kind.COUNT, "events of its own")
    heap = word(Kind.PLACE, "its part of `heap`")
    ports = word(Kind.COUNT, "how many it has")
    number = word(Kind.NPU, "in the whole fabric")
    last_receiver = word(Kind.RECEIVER, "of its last data packet", begins=-1)
    rto_at_ps = word(Kind.TIME, "its retransmission event in the heap, INF none", begins=INF)
    last_instance = word(Kind.INSTANCE, "that got its last message of a collective, -1 none", begins=-1)
    agenda_head = word(Kind.PLACE, "list of what instances will do later, -1 none (pdes/npu/agenda.py)", begins=-1)
    agenda_tail = word(Kind.PLACE, "its last")
    ready_tail = word(Kind.ROW, "last of the list", begins=-1)
    trace_base = word(Kind.PLACE, "first row of its trace in the tables")
    row_base = word(Kind.PLACE, "first row of its trace in the per-NPU arrays")
    slot_base = word(Kind.PLACE, "its first group slot")
    lane = word(Kind.ROW, "that a lane works on, -1 idle", many=4, begins=-1)
    wait_head = word(Kind.ROW, "list of those that wait for a lane", many=4, begins=-1)
    wait_tail = word(Kind.ROW, "its last", many=4, begins=-1)
    rows_left = word(Kind.COUNT, "trace rows not finished")
    first_queue_pair = word(Kind.QUEUE_PAIR, "list of its own", begins=-1)
    trace_number = word(Kind.CODE, "which of the distinct traces it runs")
    done_head = word(Kind.MESSAGE, "selective repeat: list of complete ones that are to be told of, -1 none", begins=-1)
    done_tail = word(Kind.MESSAGE, "its last")
    posted = word(Kind.COUNT, "messages, at message level")
    done_bytes = word(Kind.BYTES, "selective repeat: payload of the complete message that was told of last")
    slow_1024ths = word(Kind.RATIO, "of its time that compute takes, 0 as long as it is")
    last_connection = word(Kind.QUEUE_PAIR, "at message level: of the one that it posted last, -1 none", begins=-1)
    driven_ps = word(Kind.TIME, "until then packets of messages to other hosts are moved, where these go at a share")


class System(Row, words=16, written_by="npu.contention npu.endpoints npu.in_flight"):
    """What the system layer knows of an NPU: pdes/npu/contention.py, pdes/npu/in_flight.py."""

    running = word(Kind.COUNT, "collectives from their first step to their end, where they slow compute down")
    work_ps = word(Kind.DURATION, "left of the compute lane's row at since_ps, with no collective running: whole ps")
    work_part = word(Kind.RATIO, "and compute_slow_1000ths-ths of a ps")
    since_ps = word(Kind.TIME, "when that was")
    due_ps = word(Kind.TIME, "when the compute lane's row will be done at its present pace")
    in_flight = word(Kind.COUNT, "places taken, where they are counted")
    line = word(Kind.ROW, "1 + the row that waits for a place since the latest, 0 none")
    later_head = word(Kind.MESSAGE, "1 + the first row of its list of messages (pdes/npu/endpoints.py), 0 none")
    later_tail = word(Kind.MESSAGE, "1 + the last")


class Instance(Row, words=16, written_by="messages.message_loop messages.whole npu.agenda npu.collective"):
    """An active collective on an NPU."""

    key = word(Kind.PACKED, "of the map")
    row = word(Kind.ROW, "its own")
    slot = word(Kind.PLACE, "group slot, counted over all NPUs")
    plan = word(Kind.PLAN, "of its member")
    lanes_left = word(Kind.COUNT, "not done")
    sends_left = word(Kind.COUNT, "posted, last byte not yet sent")
    started = word(Kind.CODE, "STARTED: steps may be done; LAUNCHING: one is due later; 0: only messages have come")
    buffer_bytes = word(Kind.BYTES, "of the whole buffer")
    schedule = word(Kind.PLAN, "of the collective")
    member = word(Kind.COUNT, "which of the group it is")
    priority = word(Kind.CODE, "of its trace row")
    left_ps = word(Kind.TIME, "when the last byte of its messages that no lane waits for has left, at message level")
    left_ordinal = word(Kind.COUNT, "of that message")
    first_lane = word(Kind.PLACE, "row of its member's first lane")
    lanes = word(Kind.COUNT, "of its member's plan")
    stirred = word(Kind.FLAGS, "lanes to which something happened since they were last looked at; -1: look at all")


class LaneState(Row, written_by="nic.rendezvous npu.agenda npu.collective"):
    """A lane of an active collective; behind its lanes a row stands for the collective as a whole."""

    due = word(Kind.PACKED, "DUE: the step may be posted; 0: not put off; else ps << 1 | 1 if an event waits for it")
    later = word(Kind.PLACE, "next of the NPU's list of what will go on later, -1 none", bits=32)
    first = word(Kind.PLACE, "its first step in `step`", bits=32)
    steps = word(Kind.COUNT, "that it has", bits=32)
    pc = word(Kind.COUNT, "2 x steps done, + 1 once the send of the one in hand is posted", bits=32)
    arrived = word(Kind.COUNT, "messages that have come and it has not taken", bits=32)
    left = word(Kind.COUNT, "sends of a blocking lane that have left and it has not seen", bits=32)


class Asked(Row, written_by="nic.rendezvous"):
    """What a lane of an active collective was asked for: pdes/nic/rendezvous.py."""

    first = word(Kind.MESSAGE, "1 + the first request or message behind one that the lane has not come to, 0 none")
    last = word(Kind.MESSAGE, "of that list")
    cleared = word(Kind.FLAG, "a request was answered, and its message has not come")


class Taken(Row, written_by="npu.collective npu.delivery"):
    """What the lanes of an active collective have taken, where a reduction takes time."""

    messages = word(Kind.COUNT, "that are in")
    taken_ps = word(Kind.TIME, "when the lane takes the latest of them")


class Lane(Row, words=16, written_by="build.tables"):
    """A lane of a plan: what its chunks are and who its peers are."""

    plain = word(Kind.FLAG, "as if all the words that follow were not there: see workload.Schedules.lane_plain")
    view_number = word(Kind.PLAN, "row of `view_row`, -1: the group's own order")
    part = word(Kind.COUNT, "which of `parts` equal parts of the buffer")
    parts = word(Kind.COUNT, "of the buffer")
    chunks = word(Kind.COUNT, "into how many the part is cut")
    wire_num = word(Kind.RATIO, "payload bytes per wire_den bytes of data, rounded up for each message")
    wire_den = word(Kind.RATIO, "see wire_num")
    latency_ps = word(Kind.DURATION, "from when a step is ready until its send is posted")
    gate = word(Kind.CODE, "dimension of which its phase needs a token, -1 none")
    phase = word(Kind.COUNT, "which of the plan")
    alike = word(Kind.COUNT, "lanes of the phase")
    blocking = word(Kind.FLAG, "a step ends no sooner than the last byte of what it sends has left")
    connection = word(
        Kind.PACKED,
        "by which of those to the peer it sends, << CONNECTION_SHIFT, and if that is driven at a share of the "
        "line rate, shares << SHARES_SHIFT; holds for plain lanes too",
    )
    begins = word(Kind.FLAG, "endpoint_delay_ps passes before its first send")
    waited_for = word(Kind.FLAGS, "by which lanes of its plan, where that has at most STIRRED_LANES")


class PlanStep(Row, bits=32):
    """A step of a lane of a plan: a row of workload.Schedules.steps."""

    dep_lane = word(Kind.COUNT, "lane of the same plan that must have done more than dep_step steps, -1 none")
    dep_step = word(Kind.COUNT, "see dep_lane")
    send_peer = word(Kind.COUNT, "member to send to, -1 none")
    send_lane = word(Kind.COUNT, "of the receiver")
    send_chunk = word(Kind.COUNT, "first")
    send_count = word(Kind.COUNT, "how many chunks")
    recv_peer = word(Kind.COUNT, "member to receive from, -1 none")
    recv_chunk = word(Kind.COUNT, "first")
    recv_count = word(Kind.COUNT, "how many chunks")
    reduce = word(Kind.FLAG, "what is received is added")


class Phase(Row, written_by="npu.tokens"):
    """A phase of an active collective: pdes/npu/tokens.py."""

    state = word(Kind.CODE, "how far it is")
    next_phase = word(Kind.PHASE, "of those that wait for the same tokens")


class Tokens(Row, written_by="npu.tokens"):
    """What an NPU has of the tokens of a dimension: pdes/npu/tokens.py."""

    running = word(Kind.COUNT, "tokens given out")
    waiting = word(Kind.PHASE, "list of those that wait, the last that came first, -1 none", begins=-1)


class View(Row, words=4, written_by="build.tables"):
    """The members of a group in lines."""

    members = word(Kind.COUNT, "of a line")
    parts = word(Kind.COUNT, "into how many a lane's part is cut once more")
    first = word(Kind.PLACE, "of its members in `view_member`, `view_at` and `view_part`")
