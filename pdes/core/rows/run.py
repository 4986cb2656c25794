"""Rows that exist once per logical process: scalars, counters, constants and hooks."""

from pdes.core.rows.row import INF, Row, WordKind, word


class Scalars(
    Row,
    words=48,
    written_by="build.growth build.simulation build.worlds core.fifo core.world messages.events messages.message_loop "
    "messages.whole network.batch network.boundary network.faults network.link network.pause network.shared_switch "
    "nic.transport npu.collective npu.npu_window npu.trace window",
):
    """Scalars that all kernels of an LP share."""

    free_blocks = word(WordKind.COUNT, "free blocks of records")
    free_messages = word(WordKind.COUNT, "free rows of `msg`")
    free_instances = word(WordKind.COUNT, "free rows of `inst`")
    queue_pairs = word(WordKind.COUNT, "sending queue pairs in use")
    receivers = word(WordKind.COUNT, "receiving queue pairs in use")
    flows_out = word(WordKind.COUNT, "rows of `flow_out` in use")
    flows_in = word(WordKind.COUNT, "rows of `flow_in` in use")
    resume_node = word(WordKind.NODE, "node whose batch was interrupted, -1 none", begins=-1)
    resume_at = word(WordKind.COUNT, "packets of its batch that are done")
    batch = word(WordKind.COUNT, "packets in the batch")
    rows_left = word(WordKind.COUNT, "trace rows not finished, all NPUs")
    need = word(WordKind.CODE, "pool that was too small (NEED_*)")
    now_ps = word(WordKind.TIME, "start of the cell")
    finish_ps = word(WordKind.TIME, "time at which the last trace row finished")
    failed_queue_pair = word(WordKind.QUEUE_PAIR, "queue pair that gave up, -1 none", begins=-1)
    batch_freed = word(WordKind.COUNT, "blocks that the batch has emptied")
    window_open = word(WordKind.FLAG, "a window was interrupted")
    check = word(WordKind.FLAG, "a pool other than the blocks was used since the last call of `short_of`", begins=1)
    side = word(WordKind.CODE, "which of a node's inboxes is for this cell")
    soonest_ps = word(WordKind.TIME, "earliest arrival among the packets that wait on links", begins=INF)
    pending = word(WordKind.FLAG, "an inbox of this side is not empty", many=4)
    begin_ps = word(WordKind.TIME, "start of the window")
    parity = word(WordKind.CODE, "parity of the window's number, which selects a half of each outbox")
    cell_open = word(WordKind.FLAG, "a cell was interrupted")
    far_soonest_ps = word(
        WordKind.TIME, "earliest arrival among the packets that wait on links to other LPs", begins=INF
    )
    out_soonest_ps = word(
        WordKind.TIME, "earliest arrival among the packets sent to other LPs in this window", begins=INF
    )
    in_neighbour = word(WordKind.NEIGHBOUR, "neighbour whose packets are being taken in")
    in_at = word(WordKind.COUNT, "packets of that neighbour that are in")
    next_ps = word(WordKind.TIME, "earliest event of this LP after the window")
    cost = word(WordKind.COUNT, "packet-hops of the last window")
    events = word(WordKind.COUNT, "future events of a message-level model")
    outer_done = word(WordKind.FLAG, "switches that send to other teams have acted in this cell")
    fault_ps = word(WordKind.TIME, "time of the next change of the schedule, INF none", begins=INF)
    fault_at = word(WordKind.PLACE, "row of the next change in `change`")
    depth_ps = word(WordKind.DURATION, "width of the columns of `depth`", begins=1_000_000)
    pauses = word(WordKind.COUNT, "pauses and resumes that took effect, logged or not")


class Counters(
    Row,
    words=24,
    written_by="harvest.gathering messages.fidelity.* messages.message_loop messages.whole network.batch network.link "
    "network.shared_switch nic.port nic.selective_receiver nic.transport npu.npu_window npu.trace "
    "window",
):
    """Counters of a run; sums over LPs are results."""

    hops = word(WordKind.COUNT, "packets sent over links")
    events = word(WordKind.COUNT, "events of NPUs")
    windows = word(WordKind.COUNT, "windows done")
    data_packets = word(WordKind.COUNT, "data packets sent by NPUs")
    ack_packets = word(WordKind.COUNT, "acknowledgements sent by NPUs")
    consumed_packets = word(WordKind.COUNT, "packets that reached their destination")
    dropped_packets = word(WordKind.COUNT, "packets lost at a port, for lack of room or by a fault")
    retransmitted_packets = word(WordKind.COUNT, "packets sent again")
    sent_bytes = word(WordKind.BYTES, "bytes sent by NPUs")
    received_bytes = word(WordKind.BYTES, "bytes that reached their destination")
    dropped_bytes = word(WordKind.BYTES, "bytes dropped or lost")
    flows = word(WordKind.COUNT, "completed messages")
    timeouts = word(WordKind.COUNT, "timeouts of retransmission timers")
    trace_rows = word(WordKind.COUNT, "finished trace rows")
    digest_a = word(WordKind.PACKED, "sum of a hash of every completion")
    digest_b = word(WordKind.PACKED, "sum of a second hash")
    payload_bytes = word(WordKind.BYTES, "payload of completed messages")
    lost_packets = word(WordKind.COUNT, "dropped packets that errors and failures of links lost")
    marked_packets = word(WordKind.COUNT, "packets sent with a congestion mark")
    pause_frames = word(WordKind.COUNT, "pause frames sent")
    trimmed_packets = word(WordKind.COUNT, "packets cut to their headers")
    congestion_notifications = word(WordKind.COUNT, "congestion notifications sent")


class Constants(Row, words=64, written_by="build.constants build.schedule build.simulation build.worlds"):
    """Constants of a run."""

    seed = word(WordKind.PACKED, "seed of all hashes")
    mtu_bytes = word(WordKind.BYTES, "payload of a full packet")
    header_bytes = word(WordKind.BYTES, "header of a data packet")
    ack_bytes = word(WordKind.BYTES, "size of an acknowledgement on the wire")
    window_packets = word(WordKind.COUNT, "packets that may be unacknowledged")
    queue_limit_bytes = word(WordKind.BYTES, "limit of a queue, 0 none")
    window_fixed = word(WordKind.FLAG, "no congestion control changes the window, or paces queue pairs without a share")
    rto_ps = word(WordKind.DURATION, "retransmission timeout, 0 none")
    cell_ps = word(WordKind.DURATION, "length of a cell: no link of the fabric is shorter")
    homes = word(WordKind.COUNT, "home columns of an NPU")
    lookahead_ps = word(WordKind.DURATION, "length of a window: whole cells, and no link to another LP is shorter")
    npus = word(WordKind.COUNT, "NPUs of this LP")
    nodes = word(WordKind.COUNT, "nodes of this LP")
    lane_stride = word(WordKind.COUNT, "rows of lanes per active collective, one more than the maximum number of lanes")
    reserve_blocks = word(WordKind.COUNT, "blocks that one action may use")
    reserve_messages = word(WordKind.COUNT, "rows of `msg` that one action may use")
    reserve_queue_pairs = word(WordKind.COUNT, "queue pairs that one action may open")
    serial_collectives = word(WordKind.FLAG, "collectives of a group run one after another")
    record_nodes = word(WordKind.FLAG, "times of trace rows are kept")
    record_flows = word(WordKind.FLAG, "times of messages are kept")
    max_retries = word(WordKind.COUNT, "consecutive timeouts after which a queue pair gives up")
    dimensions = word(WordKind.COUNT, "number of the fabric's coordinates")
    cut_bytes = word(WordKind.BYTES, "bytes for which a cut-through switch waits")
    neighbours = word(WordKind.COUNT, "LPs that own links lead to")
    address = word(WordKind.ADDRESS, "address of this world's directory")
    base_rtt_ps = word(WordKind.DURATION, "idle round trip of a full packet over the longest path")
    cnp_interval_ps = word(WordKind.DURATION, "minimum time between two congestion notifications of a queue pair")
    pause_frame_bytes = word(WordKind.BYTES, "size of a pause frame on the wire")
    pfc = word(WordKind.FLAG, "switches pause senders (PFC); otherwise they drop")
    alpha_1024ths = word(WordKind.RATIO, "factor of dynamic thresholds")
    resume_offset_bytes = word(WordKind.BYTES, "bytes below the threshold at which a pause ends")
    ecn = word(WordKind.FLAG, "switches mark packets (ECN)")
    trim = word(WordKind.FLAG, "switches that do not pause cut packets to their headers")
    class_weights = word(WordKind.PACKED, "weight of class 0 | of class 1 << 16 in packets")
    p2p_class = word(WordKind.CODE, "data class of point-to-point messages")
    p2p_shares = word(WordKind.RATIO, "messages to other hosts have SHARE_UNITS / this of the line rate, 0: all of it")
    crossing_words = word(WordKind.COUNT, "words of a packet in an outbox")
    carries_send_time = word(WordKind.FLAG, "packets carry their send time")
    reorder_packets = word(WordKind.COUNT, "reordering in packets beyond which a packet counts as lost")
    flowlet_gap_ps = word(WordKind.DURATION, "gap between packets after which a flow may take another link")
    epochs = word(WordKind.COUNT, "number of sets of routing tables")
    pit = word(WordKind.LINK, "`tx` row of a link that loses all packets, for destinations without a route; 0 none")
    depths = word(WordKind.COUNT, "columns of `depth`, 0: queues are not sampled")
    endpoint_delay_ps = word(
        WordKind.DURATION, "delay of a collective's first step, and of a receiver's action on a message"
    )
    reduces = word(WordKind.FLAG, "a reduction takes time")
    resolution_ps = word(
        WordKind.DURATION, "unit to which transfers at message level, and reductions, are rounded down"
    )
    tokens = word(WordKind.COUNT, "phases that an NPU runs in a dimension at a time, 0 = no limit")
    gated_dimensions = word(WordKind.COUNT, "dimensions in which phases need tokens")
    phase_stride = word(WordKind.COUNT, "rows of phases per active collective")
    scheduling = word(WordKind.CODE, "order of the phases that wait (pdes/npu/tokens.py)")
    rendezvous_bytes = word(WordKind.BYTES, "minimum size of a message with rendezvous, INF none")
    control_bytes = word(WordKind.BYTES, "payload of a request or its answer")
    collectives_in_flight = word(WordKind.COUNT, "collectives that an NPU runs at a time, 0 = no limit")
    compute_slow_1000ths = word(WordKind.RATIO, "factor on compute time during a collective, 0: no slowdown")
    handshakes = word(WordKind.FLAG, "some messages use rendezvous, or members of collectives call each other")
    send_latency_ps = word(WordKind.DURATION, "time from when a message is posted until its first packet may be sent")
    outer = word(WordKind.NODE, "first of the switches that act before NPUs and other switches")
    splits = word(WordKind.FLAG, "only these send to other teams: the cell pauses between them and the other nodes")
    back = word(WordKind.ADDRESS, "address of a world of the whole fabric, whose routes acknowledgements take")


class ControlParameters(Row, words=16, written_by="build.worlds"):
    """Parameters of the run's congestion control; each file of pdes/nic/congestion declares its own."""


class Hooks(Row, words=32, written_by="build.simulation"):
    """Addresses of functions that kernels call, for optional parts of the engine.

    A meaning begins with the arguments that follow the address of the world.
    """

    congestion_control = word(WordKind.HOOK, "(q, event, now, a, b, c): pdes/nic/congestion")
    shared_switches = word(
        WordKind.HOOK, "(begin, end, first, last): switches that share their buffer; 0: output queues"
    )
    telemetry = word(WordKind.HOOK, "(operation, at): moves telemetry; 0: packets carry no telemetry")
    balancing = word(WordKind.HOOK, "(node, first, count, w1, w2, now): chooses one of several equal links, 0: ECMP")
    discipline = word(WordKind.HOOK, "(link, ready): chooses the data class that sends next, 0: class 0 if it can")
    notify = word(
        WordKind.HOOK, "(node, now, w1, w2, row): sends notifications of marks, 0: acknowledgements echo them"
    )
    first_allowed = word(
        WordKind.HOOK, "(node, link, now): finds the queue pair that may send at a port, 0: all that take turns may"
    )
    selective_sender = word(
        WordKind.HOOK, "(operation, q, a, b, trimmed): the sender's side of selective repeat, 0: go back N"
    )
    selective_receiver = word(WordKind.HOOK, "(node, now, w1, w2, w3, rx, flag): the receiver's side")
    pace = word(WordKind.HOOK, "(link, q, now, seq, size, flag): paces a queue pair after a packet")
    route = word(WordKind.HOOK, "(node, dst, w2): routes at switches by several rows, 0: one row and one home")
    choose_port = word(WordKind.HOOK, "(node, dst, w2): chooses among the ports of an NPU, 0: NPUs have one")
    make_changes = word(WordKind.HOOK, "(): makes the changes of the schedule that are due")
    post = word(
        WordKind.HOOK,
        "(node, dst, connection, tag, size, ref, now): posts a message at message level (pdes/messages/whole.py), or "
        "one that is sent later or whose acknowledgement counts (pdes/npu/endpoints.py)",
    )
    act = word(WordKind.HOOK, "(message, now): moves messages (pdes/messages/fidelity), 0: they travel as packets")
    ask = word(WordKind.HOOK, "(node, dst, group, tag, size, ref, now): sends a request")
    expect = word(WordKind.HOOK, "(node, inst, number, lane, step, now): acts for a lane that waits for a message")
    may_start = word(WordKind.HOOK, "(node, row): holds collectives back")
    message_by_kind = word(WordKind.HOOK, "(node, w1, w3): takes messages that may be requests, answers or calls")
    running = word(WordKind.HOOK, "(node, row, by, now): counts collectives as they begin and end")
    begin_message = word(WordKind.HOOK, "(q, now): prepares the next message of a driven queue pair")
    is_in = word(WordKind.HOOK, "(node, now, w1, w2, w3): takes a message that has arrived and is acted on later")
    do_later = word(WordKind.HOOK, "(node, now): does the actions that are due")
    post_later = word(WordKind.HOOK, "(node, row, due): posts the message of a row that sends at that time")
    is_acknowledged = word(WordKind.HOOK, "(node, ref, now): handles a message's last acknowledgement, if it counts")
