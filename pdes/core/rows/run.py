"""Rows of which a logical process has one each: scalars, counters, constants and hooks."""

from pdes.core.rows.row import INF, Row, WordKind, word


class Scalars(
    Row,
    words=48,
    written_by="build.growth build.simulation build.worlds core.fifo core.world messages.events messages.message_loop "
    "messages.whole network.batch network.boundary network.faults network.link network.pause network.shared_switch "
    "nic.transport npu.collective npu.npu_window npu.trace window",
):
    """What all kernels of an LP share."""

    free_blocks = word(WordKind.COUNT, "blocks of records that nobody uses")
    free_messages = word(WordKind.COUNT, "rows of `msg` that nobody uses")
    free_instances = word(WordKind.COUNT, "rows of `inst` that nobody uses")
    queue_pairs = word(WordKind.COUNT, "in use")
    receivers = word(WordKind.COUNT, "receiving queue pairs in use")
    flows_out = word(WordKind.COUNT, "rows of `flow_out` in use")
    flows_in = word(WordKind.COUNT, "rows of `flow_in` in use")
    resume_node = word(WordKind.NODE, "whose batch was interrupted, -1 none", begins=-1)
    resume_at = word(WordKind.COUNT, "packets of its batch that are done")
    batch = word(WordKind.COUNT, "packets in the batch")
    rows_left = word(WordKind.COUNT, "trace rows not finished, all NPUs")
    need = word(WordKind.CODE, "which pool was too small (NEED_*)")
    now_ps = word(WordKind.TIME, "start of the cell")
    finish_ps = word(WordKind.TIME, "last trace row finished")
    failed_queue_pair = word(WordKind.QUEUE_PAIR, "gave up, -1 none", begins=-1)
    batch_freed = word(WordKind.COUNT, "blocks that the batch has emptied")
    window_open = word(WordKind.FLAG, "a window was interrupted")
    check = word(WordKind.FLAG, "a pool other than the blocks was taken from since `short_of` last looked", begins=1)
    side = word(WordKind.CODE, "which of a node's inboxes is for this cell")
    soonest_ps = word(WordKind.TIME, "earliest arrival of what waits on links", begins=INF)
    pending = word(WordKind.FLAG, "something lies in an inbox of this side", many=4)
    begin_ps = word(WordKind.TIME, "start of the window")
    parity = word(WordKind.CODE, "of the window's number: which of its two halves of each outbox it writes")
    cell_open = word(WordKind.FLAG, "a cell was interrupted")
    far_soonest_ps = word(WordKind.TIME, "earliest arrival of what waits on links to other LPs", begins=INF)
    out_soonest_ps = word(WordKind.TIME, "earliest arrival of what went to other LPs in this window", begins=INF)
    in_neighbour = word(WordKind.NEIGHBOUR, "whose packets are being taken in")
    in_at = word(WordKind.COUNT, "packets of it that have been")
    next_ps = word(WordKind.TIME, "earliest event of this LP after the window")
    cost = word(WordKind.COUNT, "packet-hops of the last window")
    events = word(WordKind.COUNT, "to come, of a message-level model")
    outer_done = word(WordKind.FLAG, "switches that send to other teams have acted in this cell")
    fault_ps = word(WordKind.TIME, "the next change of the schedule, INF none", begins=INF)
    fault_at = word(WordKind.PLACE, "its row in `change`")
    depth_ps = word(WordKind.DURATION, "width of the columns of `depth`", begins=1_000_000)
    pauses = word(WordKind.COUNT, "pauses and resumes that took effect, logged or not")


class Counters(
    Row,
    words=24,
    written_by="harvest.gathering messages.fidelity.* messages.message_loop messages.whole network.batch network.link "
    "network.shared_switch nic.port nic.selective_receiver nic.transport npu.npu_window npu.trace "
    "window",
):
    """What a run counts; sums over LPs are results."""

    hops = word(WordKind.COUNT, "packets sent over links")
    events = word(WordKind.COUNT, "events of NPUs' own")
    windows = word(WordKind.COUNT, "windows done")
    data_packets = word(WordKind.COUNT, "sent by NPUs")
    ack_packets = word(WordKind.COUNT, "sent by NPUs")
    consumed_packets = word(WordKind.COUNT, "that came to their end")
    dropped_packets = word(WordKind.COUNT, "lost at a port, for want of room or by a fault")
    retransmitted_packets = word(WordKind.COUNT, "sent again")
    sent_bytes = word(WordKind.BYTES, "by NPUs")
    received_bytes = word(WordKind.BYTES, "that came to their end")
    dropped_bytes = word(WordKind.BYTES, "dropped or lost")
    flows = word(WordKind.COUNT, "messages complete")
    timeouts = word(WordKind.COUNT, "of retransmission timers")
    trace_rows = word(WordKind.COUNT, "finished")
    digest_a = word(WordKind.PACKED, "sum of a hash of all that happened")
    digest_b = word(WordKind.PACKED, "sum of another")
    payload_bytes = word(WordKind.BYTES, "of complete messages")
    lost_packets = word(WordKind.COUNT, "of these, by errors and failures of links")
    marked_packets = word(WordKind.COUNT, "sent with a congestion mark")
    pause_frames = word(WordKind.COUNT, "sent")
    trimmed_packets = word(WordKind.COUNT, "cut to their headers")
    congestion_notifications = word(WordKind.COUNT, "sent")


class Constants(Row, words=64, written_by="build.constants build.schedule build.simulation build.worlds"):
    """Constants of a run."""

    seed = word(WordKind.PACKED, "of all hashes")
    mtu_bytes = word(WordKind.BYTES, "payload of a full packet")
    header_bytes = word(WordKind.BYTES, "of a data packet")
    ack_bytes = word(WordKind.BYTES, "of an acknowledgement on the wire")
    window_packets = word(WordKind.COUNT, "that may be unacknowledged")
    queue_limit_bytes = word(WordKind.BYTES, "of a queue, 0 none")
    window_fixed = word(WordKind.FLAG, "no congestion control changes it, or paces queue pairs that are not driven")
    rto_ps = word(WordKind.DURATION, "retransmission timeout, 0 none")
    cell_ps = word(WordKind.DURATION, "no link of the fabric is shorter")
    homes = word(WordKind.COUNT, "home columns of an NPU")
    lookahead_ps = word(WordKind.DURATION, "a multiple of the cell: no link to another LP is shorter")
    npus = word(WordKind.COUNT, "of this LP")
    nodes = word(WordKind.COUNT, "of this LP")
    lane_stride = word(WordKind.COUNT, "rows of lanes kept per active collective, one more than the most lanes")
    reserve_blocks = word(WordKind.COUNT, "what one action may use")
    reserve_messages = word(WordKind.COUNT, "what one action may use")
    reserve_queue_pairs = word(WordKind.COUNT, "what one action may use")
    serial_collectives = word(WordKind.FLAG, "those of a group go one after another")
    record_nodes = word(WordKind.FLAG, "times of trace rows are kept")
    record_flows = word(WordKind.FLAG, "times of messages are kept")
    max_retries = word(WordKind.COUNT, "timeouts in a row after which a queue pair gives up")
    dimensions = word(WordKind.COUNT, "of the fabric's coordinates")
    cut_bytes = word(WordKind.BYTES, "a switch that cuts through waits for these")
    neighbours = word(WordKind.COUNT, "LPs to which links go")
    address = word(WordKind.ADDRESS, "where kernels find this world")
    base_rtt_ps = word(WordKind.DURATION, "idle round trip of a full packet over the longest path")
    cnp_interval_ps = word(WordKind.DURATION, "in which a receiver notifies a queue pair of congestion once at most")
    pause_frame_bytes = word(WordKind.BYTES, "a pause frame on the wire")
    pfc = word(WordKind.FLAG, "switches pause, else they drop")
    alpha_1024ths = word(WordKind.RATIO, "of dynamic thresholds")
    resume_offset_bytes = word(WordKind.BYTES, "below the threshold at which a pause ends")
    ecn = word(WordKind.FLAG, "switches mark")
    trim = word(WordKind.FLAG, "switches that do not pause cut packets to their headers")
    class_weights = word(WordKind.PACKED, "packets of class 0 | of class 1 << 16 a turn, 0: class 0 first")
    p2p_class = word(WordKind.CODE, "data class of messages between two NPUs")
    p2p_shares = word(WordKind.RATIO, "messages to other hosts go at SHARE_UNITS / that of the line rate, 0: all of it")
    crossing_words = word(WordKind.COUNT, "words of a packet in an outbox")
    carries_send_time = word(WordKind.FLAG, "packets carry when they were sent")
    reorder_packets = word(WordKind.COUNT, "by which one may come late before it is taken for lost")
    flowlet_gap_ps = word(WordKind.DURATION, "without packets after which a flow may take another link")
    epochs = word(WordKind.COUNT, "sets of routing tables")
    pit = word(WordKind.LINK, "`tx` row of a link on which all is lost, for what no route leads to; 0 none")
    depths = word(WordKind.COUNT, "columns of `depth`, 0: queues are not sampled")
    endpoint_delay_ps = word(
        WordKind.DURATION, "before a collective's first step, and before a receiver acts on a message"
    )
    reduces = word(WordKind.FLAG, "adding a message to what is there takes time")
    resolution_ps = word(WordKind.DURATION, "transfers at message level, and reductions, are cut to multiples")
    tokens = word(WordKind.COUNT, "phases that an NPU does in a dimension at a time, 0 = no limit")
    gated_dimensions = word(WordKind.COUNT, "in which phases need tokens")
    phase_stride = word(WordKind.COUNT, "phases kept per active collective")
    scheduling = word(WordKind.CODE, "which phase that waits goes next (pdes/npu/tokens.py)")
    rendezvous_bytes = word(WordKind.BYTES, "of the smallest message that is asked for before it is sent, INF none")
    control_bytes = word(WordKind.BYTES, "of a request or its answer")
    collectives_in_flight = word(WordKind.COUNT, "that an NPU does at a time, 0 = no limit")
    compute_slow_1000ths = word(
        WordKind.RATIO, "of its time that compute takes beside a collective, 0: as long as ever"
    )
    handshakes = word(WordKind.FLAG, "some messages are asked for, or members of collectives called")
    send_latency_ps = word(WordKind.DURATION, "from when a message is posted until its first packet may be sent")
    outer = word(WordKind.NODE, "first switch of those that act before NPUs and other switches")
    splits = word(WordKind.FLAG, "these alone send to other teams: there is a stop between what they do and the rest")
    back = word(WordKind.ADDRESS, "where kernels find a world of the whole fabric, by whose routes acknowledgements go")


class ControlParameters(Row, words=16, written_by="build.worlds"):
    """Parameters of the run's congestion control; each file of pdes/nic/congestion declares its own."""


class Hooks(Row, words=32, written_by="build.simulation"):
    """Addresses of what kernels call: the parts of the engine of which a run uses some.

    A meaning begins with what is passed on behind the address of the world.
    """

    congestion_control = word(WordKind.HOOK, "(q, event, now, a, b, c): pdes/nic/congestion")
    shared_switches = word(
        WordKind.HOOK, "(begin, end, first, last): switches that share their buffer; 0: output queues"
    )
    telemetry = word(WordKind.HOOK, "(what, at): moves telemetry; 0: packets carry none")
    balancing = word(WordKind.HOOK, "(node, first, count, w1, w2, now): chooses one of several equal links, 0: ECMP")
    notify = word(WordKind.HOOK, "(node, now, w1, w2, row): notifies of marks, 0: acknowledgements echo them")
    first_allowed = word(WordKind.HOOK, "(node, link, now): says who may send at a port, 0: all that take turns may")
    selective_sender = word(
        WordKind.HOOK, "(what, q, a, b, trimmed): the sender's side of selective repeat, 0: go back N"
    )
    selective_receiver = word(WordKind.HOOK, "(node, now, w1, w2, w3, rx, flag): the receiver's side")
    pace = word(WordKind.HOOK, "(link, q, now, seq, size, flag): paces")
    route = word(WordKind.HOOK, "(node, dst, w2): routes at switches by more than one row, 0: one row and one home")
    choose_port = word(WordKind.HOOK, "(node, dst, w2): chooses among the ports of an NPU, 0: NPUs have one")
    make_changes = word(WordKind.HOOK, "(): makes changes of the schedule")
    post = word(
        WordKind.HOOK,
        "(node, dst, connection, tag, size, ref, now): takes a message at message level (pdes/messages/whole.py), or "
        "that is sent later, or whose acknowledgement counts (pdes/npu/endpoints.py)",
    )
    act = word(WordKind.HOOK, "(message, now): moves messages (pdes/messages/fidelity), 0: they go as packets")
    ask = word(WordKind.HOOK, "(node, dst, group, tag, size, ref, now): asks to send")
    expect = word(WordKind.HOOK, "(node, inst, number, lane, step, now): what a lane does that waits for a message")
    may_start = word(WordKind.HOOK, "(node, row): holds collectives back")
    message_by_kind = word(WordKind.HOOK, "(node, w1, w3): takes messages of which some are requests, answers or calls")
    running = word(WordKind.HOOK, "(node, row, by, now): is told when a collective begins or ends")
    begin_message = word(WordKind.HOOK, "(q, now): is told of a message to be sent next, where queue pairs are driven")
    is_in = word(WordKind.HOOK, "(node, now, w1, w2, w3): takes a message that is in and acted on later")
    do_later = word(WordKind.HOOK, "(node, now): does what was put off")
    post_later = word(WordKind.HOOK, "(node, row, due): has a row that sends post its message then")
    is_acknowledged = word(WordKind.HOOK, "(node, ref, now): is told of a message's last acknowledgement, if it counts")
