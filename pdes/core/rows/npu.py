"""Rows of NPUs, their collectives and the plans that collectives follow, of NVLink domains and of jobs."""

from nadi.pdes.core.rows import INF, Row, word


class Npu(
    Row,
    words=48,
):
    """An NPU: two cache lines for frequent use, then the rest."""

    # Lists of rows are linked through `RowStates.state`, which counts the parents that are left until a row is ready
    # and names the next row of its list afterwards: a row is never both.
    ready_head = word("row", "first of the rows that are ready to start, -1 none", begins=-1, rest="begins")
    wake_head = word("link", "first of the ports to try, -1 none", begins=-1, rest="begins")
    now_ps = word("time", "time of the current event")
    heap_size = word("count", "number of its own events")
    heap = word("place", "first entry of its part of `heap`", is_built=True)
    ports = word("count", "number of its ports", is_built=True)
    number = word("npu", "number in the whole fabric", is_built=True)
    last_receiver = word("receiver", "receiving queue pair of its last data packet", begins=-1)
    rto_at_ps = word("time", "its retransmission event in the heap, INF none", begins=INF)
    last_instance = word("instance", "instance that got its last message of a collective, -1 none", begins=-1)
    agenda_head = word(
        "lane", "first of its instances' future actions, -1 none (pdes/npu/agenda.py)", begins=-1, rest="begins"
    )
    agenda_tail = word("lane", "last of its instances' future actions")
    ready_tail = word("row", "last of the rows that are ready", begins=-1)
    trace_base = word("place", "first row of its trace in the tables", is_built=True)
    row_base = word("place", "first row of its trace in the per-NPU arrays", is_built=True)
    slot_base = word("place", "first of its group slots", is_built=True)
    lane = word("row", "row that a lane works on, -1 idle", many=4, begins=-1)
    wait_head = word("row", "first of the rows that wait for a lane", many=4, begins=-1)
    wait_tail = word("row", "last of the rows that wait for a lane", many=4, begins=-1)
    rows_left = word("count", "trace rows not finished")
    first_queue_pair = word("queue_pair", "first of its queue pairs", begins=-1)
    trace_number = word("code", "number of the distinct trace that it runs", is_built=True)
    done_head = word(
        "message", "selective repeat: first of the complete messages to report, -1 none", begins=-1, rest="begins"
    )
    done_tail = word("message", "last of the complete messages to report")
    posted = word("count", "messages posted, at message level")
    done_bytes = word("bytes", "selective repeat: payload of the complete message that was reported last")
    slow_1024ths = word("ratio", "factor on compute time in 1024ths, 0 = no slowdown", rest="same")
    last_connection = word("queue_pair", "at message level: connection of its last posted message, -1 none", begins=-1)
    rate_limited_ps = word(
        "time", "where messages to other hosts have a share: end of the time in which packets have moved", rest="future"
    )
    place = word("place", "its place among the ranks of all jobs (`Jobs.npu`)", is_built=True)
    job_row = word(
        "row", "first of the rows that are ready when its job starts, -1 none or started", begins=-1, rest="begins"
    )
    job_begin_ps = word("time", "time at which its job starts", is_built=True)


class CreditPacer(Row, words=24):
    """An NPU's pacer of what its senders may send: pdes/nic/receiver_credits.py."""

    ps_per_quantum = word("float", "ps per quantum of credit at the rate of its links", is_built=True)
    head = word(
        "packed_local", "key of the first receiving queue pair that asks; of the first idle one", many=2, begins=-1
    )
    tail = word("packed_local", "key of the last of each", many=2, begins=-1)
    next_ps = word("time", "time of the next grant", rest="future")
    is_set = word("flag", "an event of the NPU's own marks that time", rest="same")
    cut = word("float", "oversubscribed control: share by which the rate is below that of the links", rest="same")
    average = word("float", "average share of marked packets", rest="same")
    increases = word("count", "intervals in which the rate has risen since it fell", rest="same")
    packets = word("count", "data packets in this interval", rest="same")
    marked = word("count", "marked ones", rest="same")
    trimmed = word("count", "packets trimmed before the last hop", rest="same")
    trimmed_last = word("count", "packets trimmed at the last hop", rest="same")
    draws = word("count", "intervals since the control began", rest="same")
    until_ps = word("time", "end of the interval", rest="future")
    fresh_ps = word("time", "time from which the control begins anew, if nothing arrives before", rest="future")


class System(Row, words=16):
    """An NPU's state in the system layer: pdes/npu/contention.py, pdes/npu/in_flight.py."""

    # an NPU slowed 1.5 times by collectives (slow_1000ths = 1500) does 2 ps of work in 3 ps; `work_part` has the rest
    running = word("count", "collectives between first step and end, where they slow compute down", rest="same")
    work_ps = word("duration", "work left of the compute lane's row at since_ps, in whole ps without collectives")
    work_part = word("ratio", "remainder of work_ps in units of 1 / slow_1000ths ps")
    since_ps = word("time", "time to which work_ps refers")
    due_ps = word("time", "completion time of the compute lane's row at its present pace")
    in_flight = word("count", "collectives in flight, where their number is limited", rest="begins")
    line = word("row", "1 + the newest row that waits for a place, 0 none", plus=1, rest="begins")
    later_head = word("message", "1 + the first row of its list of messages (pdes/npu/endpoints.py), 0 none", plus=1)
    later_tail = word("message", "1 + the last row of that list", plus=1)
    slow_1000ths = word("ratio", "factor on compute time during a collective in 1000ths, where any NPU is slowed")


class Turns(Row):
    """What an NPU does where it runs one row of each kind at a time: pdes/npu/trace.py."""

    running = word("row", "trace row that runs: on the CPU, on the GPU, communication; -1 none", many=3, begins=-1)
    next_row = word("row", "first of the rows that wait, in the order of the trace, -1 none", many=3, begins=-1)
    is_free = word("flag", "its rows take no turns, as it is an aggregator in a switch")


class SharedMemory(Row):
    """A remote memory that NPUs share, and one NPU's place in its queue: pdes/npu/contention.py."""

    user = word("node", "NPU whose access it serves, -1 idle", begins=-1)
    first_waiting = word("node", "first of the NPUs that wait for it, -1 none", begins=-1)
    last_waiting = word("node", "last of them")
    next_waiting = word("node", "of the NPU with the row's number: the NPU that waits behind it, -1 none", begins=-1)


class Instance(
    Row,
    words=16,
):
    """An active collective on an NPU; of a coupled flow, that of the first member, which stands for all."""

    # Life of an instance: it is created when its NPU starts the trace row or when the first message for it arrives,
    # whichever is first (`instance`). With `started` = 0 messages only wait, counted by lane. Started, it is LAUNCHING
    # until its first step is due, then STARTED: its lanes do their steps as messages arrive (`advance`). Once all lanes
    # are done and the last byte of each send has left, it is freed (`close_if_done`), and its trace row ends. Members
    # of a collective have separate instances, which know each other by messages alone, but for coupled flows.
    key = word("packed_local", "key in the map of instances")
    row = word("row", "trace row of the collective")
    slot = word("place", "group slot, counted over all NPUs")
    list_first = word("place", "first entry of its member's list in `peer_list`, -1 steps name members and lanes")
    lanes_left = word("count", "lanes that are not done; of a coupled flow, members that have not started")
    sends_left = word("count", "posted sends whose last byte has not left")
    started = word("code", "STARTED: steps may be done; LAUNCHING: one is due later; 0: only messages have come")
    buffer_bytes = word("bytes", "size of the whole buffer")
    schedule = word("plan", "schedule of the collective")
    member = word("count", "number of the member within the group")
    priority = word("code", "priority of its trace row")
    left_ps = word(
        "time",
        "at message level, time at which the last of its messages that no lane waits for has left; "
        "of a coupled flow, time that its stages count for",
    )
    left_ordinal = word("count", "ordinal of that message")
    first_lane = word("place", "row of its member's first lane")
    lanes = word("count", "lanes of its member's plan")
    pending_lanes = word("flags", "lanes to check because something happened to them; -1: check all")


class LaneState(Row):
    """A lane of an active collective; a row after its lanes represents the collective as a whole."""

    # `pc` of a lane with three steps goes 0 (nothing), 1 (send of step 0 posted), 2 (its message received: step 0
    # done), ..., 6 = 2 x steps. A step without a send, or without a receive, passes through the odd number all the same
    due = word("packed", "DUE: the step may be posted; 0: not put off; else ps << 1 | 1 if an event waits for it")
    later = word("lane", "next of the NPU's list of future actions, -1 none", bits=32)
    first = word("place", "first step in `step`", bits=32)
    steps = word("count", "number of steps", bits=32)
    pc = word("count", "2 x steps done, + 1 once the send of the current step is posted", bits=32)
    arrived = word("count", "messages that have arrived and are not taken yet", bits=32)
    left = word("count", "sends of a blocking lane that have left and are not counted yet", bits=32)


class LaneRequest(Row):
    """Requests to a lane of an active collective: pdes/nic/rendezvous.py."""

    first = word(
        "message", "1 + the first request, or message behind one, that the lane has not reached, 0 none", plus=1
    )
    last = word("message", "last of that list")
    cleared = word("flag", "a request was answered, and its message has not arrived")


class LaneReductions(Row):
    """Messages that the lanes of an active collective have taken, where a reduction takes time."""

    messages = word("count", "messages that have been received")
    taken_ps = word("time", "time at which the lane takes the latest of them")


class PlanLane(Row, words=16):
    """A lane of a plan: its chunks and its peers."""

    plain = word("flag", "all words that follow have their neutral values: see workload.Schedules.lane_plain")
    view_number = word("plan", "row of `view_row`, -1: the group's own order")
    part = word("count", "number of the lane's part among `parts` equal parts of the buffer")
    parts = word("count", "number of equal parts of the buffer")
    chunks = word("count", "number of chunks of the part")
    wire_num = word("ratio", "payload bytes per wire_den bytes of data, rounded up per message")
    wire_den = word("ratio", "see wire_num")
    latency_ps = word("duration", "time from when a step is ready until its send is posted")
    gate = word("code", "dimension whose token its phase needs, -1 none")
    phase = word("count", "number of its phase within the plan")
    alike = word("count", "lanes of its phase")
    blocking = word("flag", "a step ends at the earliest when the last byte that it sends has left")
    connection = word(
        "packed",
        "number of its connection to the peer << CONNECTION_SHIFT | if that has a share of the line rate, "
        "shares << SHARES_SHIFT; also valid for plain lanes",
    )
    begins = word("flag", "endpoint_delay_ps passes before its first send")
    waited_for = word("flags", "lanes of its plan that wait for it, up to PENDING_LANES")


class PlanStep(Row, bits=32):
    """A step of a lane of a plan: a row of workload.Schedules.steps."""

    dep_lane = word("count", "lane of the same plan that must have done more than dep_step steps first, -1 none")
    dep_step = word("count", "see dep_lane")
    send_peer = word("count", "member to send to, or its index in the member's list (list_first), -1 none")
    send_lane = word("count", "lane of the receiver, or its index in that list")
    send_chunk = word("count", "first chunk to send")
    send_count = word("count", "number of chunks to send")
    recv_peer = word("count", "member to receive from, or its index in that list, -1 none")
    recv_chunk = word("count", "first chunk to receive")
    recv_count = word("count", "number of chunks to receive")
    reduce = word("flag", "the received chunks are reduced with own data")


class CollectivePhase(Row):
    """A phase of an active collective: pdes/npu/agenda.py."""

    state = word("code", "progress of the phase")
    next_phase = word("phase", "next of those that wait for the same tokens")


class Tokens(Row):
    """An NPU's tokens of a dimension: pdes/npu/agenda.py."""

    # a collective of several dimensions, such as ring by ring, is cut into phases: at most `Constants.tokens` of them
    # run here
    running = word("count", "tokens in use")
    waiting = word("phase", "phases that wait, the last to come first, -1 none", begins=-1)


class GroupView(Row, words=4):
    """The members of a group arranged in lines."""

    members = word("count", "members of a line")
    parts = word("count", "number of further parts of a lane's part")
    first = word("place", "first of its members in `view_member`, `view_at` and `view_part`")


# Rows of NVLink domains whose collectives are simulated once and replayed (pdes/reuse).


class ReplayedDomain(Row, words=8):
    """An NVLink domain whose NPUs and NVSwitch belong to one LP."""

    packet_rows = word("count", "trace rows under way whose packets cross the domain's links in this world")
    off = word("flag", "nothing more is replayed, once nothing is under way", rest="same")
    drain_ps = word(
        "duration", "time after which an idle link's packets have arrived and ties are forgotten", is_built=True
    )
    first_aggregator = word(
        "npu", "first NPU that is an aggregator: it sends nothing before it receives", is_built=True
    )


class DomainMember(Row, words=8):
    """An NPU of an LP in its domain: what keeps its links busy."""

    # links are busy with packets (packet_rows > 0, or crossed_ps not long ago), with a replayed collective (waiting >
    # 0, or until busy_until_ps), or with nothing; both at a time means that the replay was wrong: is_disturbed
    waiting = word("count", "replayed collectives that some members have started, and others have not", rest="same")
    packet_rows = word("count", "trace rows under way, of all NPUs, whose packets may cross its links in this world")
    had_packets = word("flag", "packets of this world have crossed its links", rest="same")
    crossed_ps = word("time", "end of the latest of these rows", rest="recent")
    busy_until_ps = word(
        "time", "time from which the latest replayed collective no longer affects others", begins=-1, rest="future"
    )
    is_disturbed = word("flag", "packets are to cross its links while replayed collectives are under way")
    link_out = word("link", "row of `tx` of its link to the switch", is_built=True)
    link_in = word("link", "row of `tx` of the link from the switch", is_built=True)


# Rows of jobs: programs that share a fabric, each with ranks, groups and times of its own.


class JobTotal(Row, words=8):
    """What a job has done on the NPUs of this LP; the digest names ranks, not NPUs, and counts from the job's start."""

    # sums, since rows and messages finish in another order with another number of workers; two of each, so that two
    # wrong terms that cancel each other in one sum do not cancel in the other
    digest_a = word("packed", "sum of a hash of every finished trace row")
    digest_b = word("packed", "sum of a second hash")
    messages_a = word("packed", "sum over completed messages modulo a prime (pdes.nic.counting)")
    messages_b = word("packed", "sum modulo another prime")
    messages = word("count", "completed messages")
    trace_rows = word("count", "finished trace rows")
    begin_ps = word("time", "time at which the job starts")
    pair_per_message = word("flag", "each point-to-point message has a queue pair of its own")
