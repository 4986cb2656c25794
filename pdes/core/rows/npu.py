"""Rows of NPUs, their collectives and the plans that these follow."""

from pdes.core.rows.row import INF, Row, WordKind, word


class Npu(
    Row,
    words=40,
    written_by="build.growth build.npus messages.message_loop messages.whole network.faults nic.driven nic.port "
    "nic.selective nic.selective_receiver nic.transport npu.agenda npu.collective npu.npu_window npu.trace",
):
    """An NPU: two cache lines for what happens often, then the rest."""

    ready_head = word(WordKind.ROW, "list of those ready to start, -1 none", begins=-1)
    kick_head = word(WordKind.LINK, "list of ports to try, -1 none", begins=-1)
    now_ps = word(WordKind.TIME, "of the event in hand")
    heap_size = word(WordKind.COUNT, "events of its own")
    heap = word(WordKind.PLACE, "its part of `heap`")
    ports = word(WordKind.COUNT, "how many it has")
    number = word(WordKind.NPU, "in the whole fabric")
    last_receiver = word(WordKind.RECEIVER, "of its last data packet", begins=-1)
    rto_at_ps = word(WordKind.TIME, "its retransmission event in the heap, INF none", begins=INF)
    last_instance = word(WordKind.INSTANCE, "that got its last message of a collective, -1 none", begins=-1)
    agenda_head = word(WordKind.PLACE, "list of what instances will do later, -1 none (pdes/npu/agenda.py)", begins=-1)
    agenda_tail = word(WordKind.PLACE, "its last")
    ready_tail = word(WordKind.ROW, "last of the list", begins=-1)
    trace_base = word(WordKind.PLACE, "first row of its trace in the tables")
    row_base = word(WordKind.PLACE, "first row of its trace in the per-NPU arrays")
    slot_base = word(WordKind.PLACE, "its first group slot")
    lane = word(WordKind.ROW, "that a lane works on, -1 idle", many=4, begins=-1)
    wait_head = word(WordKind.ROW, "list of those that wait for a lane", many=4, begins=-1)
    wait_tail = word(WordKind.ROW, "its last", many=4, begins=-1)
    rows_left = word(WordKind.COUNT, "trace rows not finished")
    first_queue_pair = word(WordKind.QUEUE_PAIR, "list of its own", begins=-1)
    trace_number = word(WordKind.CODE, "which of the distinct traces it runs")
    done_head = word(
        WordKind.MESSAGE, "selective repeat: list of complete ones that are to be told of, -1 none", begins=-1
    )
    done_tail = word(WordKind.MESSAGE, "its last")
    posted = word(WordKind.COUNT, "messages, at message level")
    done_bytes = word(WordKind.BYTES, "selective repeat: payload of the complete message that was told of last")
    slow_1024ths = word(WordKind.RATIO, "of its time that compute takes, 0 as long as it is")
    last_connection = word(WordKind.QUEUE_PAIR, "at message level: of the one that it posted last, -1 none", begins=-1)
    driven_ps = word(
        WordKind.TIME, "until then packets of messages to other hosts are moved, where these go at a share"
    )


class System(Row, words=16, written_by="npu.contention npu.endpoints npu.in_flight"):
    """What the system layer knows of an NPU: pdes/npu/contention.py, pdes/npu/in_flight.py."""

    running = word(WordKind.COUNT, "collectives from their first step to their end, where they slow compute down")
    work_ps = word(
        WordKind.DURATION, "left of the compute lane's row at since_ps, with no collective running: whole ps"
    )
    work_part = word(WordKind.RATIO, "and compute_slow_1000ths-ths of a ps")
    since_ps = word(WordKind.TIME, "when that was")
    due_ps = word(WordKind.TIME, "when the compute lane's row will be done at its present pace")
    in_flight = word(WordKind.COUNT, "places taken, where they are counted")
    line = word(WordKind.ROW, "1 + the row that waits for a place since the latest, 0 none")
    later_head = word(WordKind.MESSAGE, "1 + the first row of its list of messages (pdes/npu/endpoints.py), 0 none")
    later_tail = word(WordKind.MESSAGE, "1 + the last")


class Instance(Row, words=16, written_by="messages.message_loop messages.whole npu.agenda npu.collective"):
    """An active collective on an NPU."""

    key = word(WordKind.PACKED, "of the map")
    row = word(WordKind.ROW, "its own")
    slot = word(WordKind.PLACE, "group slot, counted over all NPUs")
    plan = word(WordKind.PLAN, "of its member")
    lanes_left = word(WordKind.COUNT, "not done")
    sends_left = word(WordKind.COUNT, "posted, last byte not yet sent")
    started = word(WordKind.CODE, "STARTED: steps may be done; LAUNCHING: one is due later; 0: only messages have come")
    buffer_bytes = word(WordKind.BYTES, "of the whole buffer")
    schedule = word(WordKind.PLAN, "of the collective")
    member = word(WordKind.COUNT, "which of the group it is")
    priority = word(WordKind.CODE, "of its trace row")
    left_ps = word(
        WordKind.TIME, "when the last byte of its messages that no lane waits for has left, at message level"
    )
    left_ordinal = word(WordKind.COUNT, "of that message")
    first_lane = word(WordKind.PLACE, "row of its member's first lane")
    lanes = word(WordKind.COUNT, "of its member's plan")
    stirred = word(WordKind.FLAGS, "lanes to which something happened since they were last looked at; -1: look at all")


class LaneState(Row, written_by="nic.rendezvous npu.agenda npu.collective"):
    """A lane of an active collective; behind its lanes a row stands for the collective as a whole."""

    due = word(
        WordKind.PACKED, "DUE: the step may be posted; 0: not put off; else ps << 1 | 1 if an event waits for it"
    )
    later = word(WordKind.PLACE, "next of the NPU's list of what will go on later, -1 none", bits=32)
    first = word(WordKind.PLACE, "its first step in `step`", bits=32)
    steps = word(WordKind.COUNT, "that it has", bits=32)
    pc = word(WordKind.COUNT, "2 x steps done, + 1 once the send of the one in hand is posted", bits=32)
    arrived = word(WordKind.COUNT, "messages that have come and it has not taken", bits=32)
    left = word(WordKind.COUNT, "sends of a blocking lane that have left and it has not seen", bits=32)


class LaneRequest(Row, written_by="nic.rendezvous"):
    """What a lane of an active collective was asked for: pdes/nic/rendezvous.py."""

    first = word(WordKind.MESSAGE, "1 + the first request or message behind one that the lane has not come to, 0 none")
    last = word(WordKind.MESSAGE, "of that list")
    cleared = word(WordKind.FLAG, "a request was answered, and its message has not come")


class LaneReductions(Row, written_by="npu.collective npu.delivery"):
    """What the lanes of an active collective have taken, where a reduction takes time."""

    messages = word(WordKind.COUNT, "that are in")
    taken_ps = word(WordKind.TIME, "when the lane takes the latest of them")


class PlanLane(Row, words=16, written_by="build.tables"):
    """A lane of a plan: what its chunks are and who its peers are."""

    plain = word(WordKind.FLAG, "as if all the words that follow were not there: see workload.Schedules.lane_plain")
    view_number = word(WordKind.PLAN, "row of `view_row`, -1: the group's own order")
    part = word(WordKind.COUNT, "which of `parts` equal parts of the buffer")
    parts = word(WordKind.COUNT, "of the buffer")
    chunks = word(WordKind.COUNT, "into how many the part is cut")
    wire_num = word(WordKind.RATIO, "payload bytes per wire_den bytes of data, rounded up for each message")
    wire_den = word(WordKind.RATIO, "see wire_num")
    latency_ps = word(WordKind.DURATION, "from when a step is ready until its send is posted")
    gate = word(WordKind.CODE, "dimension of which its phase needs a token, -1 none")
    phase = word(WordKind.COUNT, "which of the plan")
    alike = word(WordKind.COUNT, "lanes of the phase")
    blocking = word(WordKind.FLAG, "a step ends no sooner than the last byte of what it sends has left")
    connection = word(
        WordKind.PACKED,
        "by which of those to the peer it sends, << CONNECTION_SHIFT, and if that is driven at a share of the "
        "line rate, shares << SHARES_SHIFT; holds for plain lanes too",
    )
    begins = word(WordKind.FLAG, "endpoint_delay_ps passes before its first send")
    waited_for = word(WordKind.FLAGS, "by which lanes of its plan, where that has at most STIRRED_LANES")


class PlanStep(Row, bits=32):
    """A step of a lane of a plan: a row of workload.Schedules.steps."""

    dep_lane = word(WordKind.COUNT, "lane of the same plan that must have done more than dep_step steps, -1 none")
    dep_step = word(WordKind.COUNT, "see dep_lane")
    send_peer = word(WordKind.COUNT, "member to send to, -1 none")
    send_lane = word(WordKind.COUNT, "of the receiver")
    send_chunk = word(WordKind.COUNT, "first")
    send_count = word(WordKind.COUNT, "how many chunks")
    recv_peer = word(WordKind.COUNT, "member to receive from, -1 none")
    recv_chunk = word(WordKind.COUNT, "first")
    recv_count = word(WordKind.COUNT, "how many chunks")
    reduce = word(WordKind.FLAG, "what is received is added")


class CollectivePhase(Row, written_by="npu.tokens"):
    """A phase of an active collective: pdes/npu/tokens.py."""

    state = word(WordKind.CODE, "how far it is")
    next_phase = word(WordKind.PHASE, "of those that wait for the same tokens")


class Tokens(Row, written_by="npu.tokens"):
    """What an NPU has of the tokens of a dimension: pdes/npu/tokens.py."""

    running = word(WordKind.COUNT, "tokens given out")
    waiting = word(WordKind.PHASE, "list of those that wait, the last that came first, -1 none", begins=-1)


class GroupView(Row, words=4, written_by="build.tables"):
    """The members of a group in lines."""

    members = word(WordKind.COUNT, "of a line")
    parts = word(WordKind.COUNT, "into how many a lane's part is cut once more")
    first = word(WordKind.PLACE, "of its members in `view_member`, `view_at` and `view_part`")
