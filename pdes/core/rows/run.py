"""Rows that exist once per logical process: scalars, counters, constants and hooks."""

from pdes.core.rows.row import INF, Kind, Row, word


class Scalars(
    Row,
    words=48,
    written_by="build.growth build.simulation build.worlds core.fifo core.world messages.events messages.message_loop "
    "messages.whole network.batch network.boundary network.faults network.link network.pause network.shared_switch "
    "nic.transport npu.collective npu.npu_window npu.trace window",
):
    """Scalars that all kernels of an LP share."""

    free_blocks = word(Kind.COUNT, "free blocks of records")
    free_messages = word(Kind.COUNT, "free rows of `msg`")
    free_instances = word(Kind.COUNT, "free rows of `inst`")
    queue_pairs = word(Kind.COUNT, "sending queue pairs in use")
    receivers = word(Kind.COUNT, "receiving queue pairs in use")
    flows_out = word(Kind.COUNT, "rows of `flow_out` in use")
    flows_in = word(Kind.COUNT, "rows of `flow_in` in use")
    resume_node = word(Kind.NODE, "node whose batch was interrupted, -1 none", begins=-1)
    resume_at = word(Kind.COUNT, "packets of its batch that are done")
    batch = word(Kind.COUNT, "packets in the batch")
    rows_left = word(Kind.COUNT, "trace rows not finished, all NPUs")
    need = word(Kind.CODE, "pool that was too small (NEED_*)")
    now_ps = word(Kind.TIME, "start of the cell")
    finish_ps = word(Kind.TIME, "time at which the last trace row finished")
    failed_queue_pair = word(Kind.QUEUE_PAIR, "queue pair that gave up, -1 none", begins=-1)
    batch_freed = word(Kind.COUNT, "blocks that the batch has emptied")
    window_open = word(Kind.FLAG, "a window was interrupted")
    check = word(Kind.FLAG, "a pool other than the blocks was used since the last call of `short_of`", begins=1)
    side = word(Kind.CODE, "which of a node's inboxes is for this cell")
    soonest_ps = word(Kind.TIME, "earliest arrival among the packets that wait on links", begins=INF)
    pending = word(Kind.FLAG, "an inbox of this side is not empty", many=4)
    begin_ps = word(Kind.TIME, "start of the window")
    parity = word(Kind.CODE, "parity of the window's number, which selects a half of each outbox")
    cell_open = word(Kind.FLAG, "a cell was interrupted")
    far_soonest_ps = word(Kind.TIME, "earliest arrival among the packets that wait on links to other LPs", begins=INF)
    out_soonest_ps = word(Kind.TIME, "earliest arrival among the packets sent to other LPs in this window", begins=INF)
    in_neighbour = word(Kind.NEIGHBOUR, "neighbour whose packets are being taken in")
    in_at = word(Kind.COUNT, "packets of that neighbour that are in")
    next_ps = word(Kind.TIME, "earliest event of this LP after the window")
    cost = word(Kind.COUNT, "packet-hops of the last window")
    events = word(Kind.COUNT, "future events of a message-level model")
    outer_done = word(Kind.FLAG, "switches that send to other teams have acted in this cell")
    fault_ps = word(Kind.TIME, "time of the next change of the schedule, INF none", begins=INF)
    fault_at = word(Kind.PLACE, "row of the next change in `change`")
    depth_ps = word(Kind.DURATION, "width of the columns of `depth`", begins=1_000_000)
    pauses = word(Kind.COUNT, "pauses and resumes that took effect, logged or not")


class Counters(
    Row,
    words=24,
    written_by="harvest.gathering messages.fidelity.* messages.message_loop messages.whole network.batch network.link "
    "network.shared_switch nic.port nic.selective_receiver nic.transport npu.npu_window npu.trace "
    "window",
):
    """Counters of a run; sums over LPs are results."""

    hops = word(Kind.COUNT, "packets sent over links")
    events = word(Kind.COUNT, "events of NPUs")
    windows = word(Kind.COUNT, "windows done")
    data_packets = word(Kind.COUNT, "data packets sent by NPUs")
    ack_packets = word(Kind.COUNT, "acknowledgements sent by NPUs")
    consumed_packets = word(Kind.COUNT, "packets that reached their destination")
    dropped_packets = word(Kind.COUNT, "packets lost at a port, for lack of room or by a fault")
    retransmitted_packets = word(Kind.COUNT, "packets sent again")
    sent_bytes = word(Kind.BYTES, "bytes sent by NPUs")
    received_bytes = word(Kind.BYTES, "bytes that reached their destination")
    dropped_bytes = word(Kind.BYTES, "bytes dropped or lost")
    flows = word(Kind.COUNT, "completed messages")
    timeouts = word(Kind.COUNT, "timeouts of retransmission timers")
    trace_rows = word(Kind.COUNT, "finished trace rows")
    digest_a = word(Kind.PACKED, "sum of a hash of every completion")
    digest_b = word(Kind.PACKED, "sum of a second hash")
    payload_bytes = word(Kind.BYTES, "payload of completed messages")
    lost_packets = word(Kind.COUNT, "dropped packets that errors and failures of links lost")
    marked_packets = word(Kind.COUNT, "packets sent with a congestion mark")
    pause_frames = word(Kind.COUNT, "pause frames sent")
    trimmed_packets = word(Kind.COUNT, "packets cut to their headers")
    congestion_notifications = word(Kind.COUNT, "congestion notifications sent")


class Constants(Row, words=64, written_by="build.constants build.schedule build.simulation build.worlds"):
    """Constants of a run."""

    seed = word(Kind.PACKED, "seed of all hashes")
    mtu_bytes = word(Kind.BYTES, "payload of a full packet")
    header_bytes = word(Kind.BYTES, "header of a data packet")
    ack_bytes = word(Kind.BYTES, "size of an acknowledgement on the wire")
    window_packets = word(Kind.COUNT, "packets that may be unacknowledged")
    queue_limit_bytes = word(Kind.BYTES, "limit of a queue, 0 none")
    window_fixed = word(Kind.FLAG, "no congestion control changes the window, or paces queue pairs without a share")
    rto_ps = word(Kind.DURATION, "retransmission timeout, 0 none")
    cell_ps = word(Kind.DURATION, "length of a cell: no link of the fabric is shorter")
    homes = word(Kind.COUNT, "home columns of an NPU")
    lookahead_ps = word(Kind.DURATION, "length of a window: whole cells, and no link to another LP is shorter")
    npus = word(Kind.COUNT, "NPUs of this LP")
    nodes = word(Kind.COUNT, "nodes of this LP")
    lane_stride = word(Kind.COUNT, "rows of lanes per active collective, one more than the maximum number of lanes")
    reserve_blocks = word(Kind.COUNT, "blocks that one action may use")
    reserve_messages = word(Kind.COUNT, "rows of `msg` that one action may use")
    reserve_queue_pairs = word(Kind.COUNT, "queue pairs that one action may open")
    serial_collectives = word(Kind.FLAG, "collectives of a group run one after another")
    record_nodes = word(Kind.FLAG, "times of trace rows are kept")
    record_flows = word(Kind.FLAG, "times of messages are kept")
    max_retries = word(Kind.COUNT, "consecutive timeouts after which a queue pair gives up")
    dimensions = word(Kind.COUNT, "number of the fabric's coordinates")
    cut_bytes = word(Kind.BYTES, "bytes for which a cut-through switch waits")
    neighbours = word(Kind.COUNT, "LPs that own links lead to")
    address = word(Kind.ADDRESS, "address of this world's directory")
    base_rtt_ps = word(Kind.DURATION, "idle round trip of a full packet over the longest path")
    cnp_interval_ps = word(Kind.DURATION, "minimum time between two congestion notifications of a queue pair")
    pause_frame_bytes = word(Kind.BYTES, "size of a pause frame on the wire")
    pfc = word(Kind.FLAG, "switches pause senders (PFC); otherwise they drop")
    alpha_1024ths = word(Kind.RATIO, "factor of dynamic thresholds")
    resume_offset_bytes = word(Kind.BYTES, "bytes below the threshold at which a pause ends")
    ecn = word(Kind.FLAG, "switches mark packets (ECN)")
    trim = word(Kind.FLAG, "switches that do not pause cut packets to their headers")
    class_weights = word(Kind.PACKED, "weight of class 0 | of class 1 << 16 in packets, 0: strict priority of class 0")
    p2p_class = word(Kind.CODE, "data class of point-to-point messages")
    p2p_shares = word(Kind.RATIO, "messages to other hosts have SHARE_UNITS / this of the line rate, 0: all of it")
    crossing_words = word(Kind.COUNT, "words of a packet in an outbox")
    carries_send_time = word(Kind.FLAG, "packets carry their send time")
    reorder_packets = word(Kind.COUNT, "reordering in packets beyond which a packet counts as lost")
    flowlet_gap_ps = word(Kind.DURATION, "gap between packets after which a flow may take another link")
    epochs = word(Kind.COUNT, "number of sets of routing tables")
    pit = word(Kind.LINK, "`tx` row of a link that loses all packets, for destinations without a route; 0 none")
    depths = word(Kind.COUNT, "columns of `depth`, 0: queues are not sampled")
    endpoint_delay_ps = word(
        Kind.DURATION, "delay of a collective's first step, and of a receiver's action on a message"
    )
    reduces = word(Kind.FLAG, "a reduction takes time")
    resolution_ps = word(Kind.DURATION, "unit to which transfers at message level, and reductions, are rounded down")
    tokens = word(Kind.COUNT, "phases that an NPU runs in a dimension at a time, 0 = no limit")
    gated_dimensions = word(Kind.COUNT, "dimensions in which phases need tokens")
    phase_stride = word(Kind.COUNT, "rows of phases per active collective")
    scheduling = word(Kind.CODE, "order of the phases that wait (pdes/npu/tokens.py)")
    rendezvous_bytes = word(Kind.BYTES, "minimum size of a message with rendezvous, INF none")
    control_bytes = word(Kind.BYTES, "payload of a request or its answer")
    collectives_in_flight = word(Kind.COUNT, "collectives that an NPU runs at a time, 0 = no limit")
    compute_slow_1000ths = word(Kind.RATIO, "factor on compute time during a collective, 0: no slowdown")
    handshakes = word(Kind.FLAG, "some messages use rendezvous, or members of collectives call each other")
    send_latency_ps = word(Kind.DURATION, "time from when a message is posted until its first packet may be sent")
    outer = word(Kind.NODE, "first of the switches that act before NPUs and other switches")
    splits = word(Kind.FLAG, "only these send to other teams: the cell pauses between them and the other nodes")
    back = word(Kind.ADDRESS, "address of a world of the whole fabric, whose routes acknowledgements take")


class ControlParameters(Row, words=16, written_by="build.worlds"):
    """Parameters of the run's congestion control; each file of pdes/nic/congestion declares its own."""


class Hooks(Row, words=32, written_by="build.simulation"):
    """Addresses of functions that kernels call, for optional parts of the engine.

    A meaning begins with the arguments that follow the address of the world.
    """

    congestion_control = word(Kind.HOOK, "(q, event, now, a, b, c): pdes/nic/congestion")
    shared_switches = word(Kind.HOOK, "(begin, end, first, last): switches that share their buffer; 0: output queues")
    telemetry = word(Kind.HOOK, "(operation, at): moves telemetry; 0: packets carry no telemetry")
    balancing = word(Kind.HOOK, "(node, first, count, w1, w2, now): chooses one of several equal links, 0: ECMP")
    notify = word(Kind.HOOK, "(node, now, w1, w2, row): sends notifications of marks, 0: acknowledgements echo them")
    first_allowed = word(
        Kind.HOOK, "(node, link, now): finds the queue pair that may send at a port, 0: all that take turns may"
    )
    selective_sender = word(
        Kind.HOOK, "(operation, q, a, b, trimmed): the sender's side of selective repeat, 0: go back N"
    )
    selective_receiver = word(Kind.HOOK, "(node, now, w1, w2, w3, rx, flag): the receiver's side")
    pace = word(Kind.HOOK, "(link, q, now, seq, size, flag): paces a queue pair after a packet")
    route = word(Kind.HOOK, "(node, dst, w2): routes at switches by several rows, 0: one row and one home")
    choose_port = word(Kind.HOOK, "(node, dst, w2): chooses among the ports of an NPU, 0: NPUs have one")
    make_changes = word(Kind.HOOK, "(): makes the changes of the schedule that are due")
    post = word(
        Kind.HOOK,
        "(node, dst, connection, tag, size, ref, now): posts a message at message level (pdes/messages/whole.py), or "
        "one that is sent later or whose acknowledgement counts (pdes/npu/endpoints.py)",
    )
    act = word(Kind.HOOK, "(message, now): moves messages (pdes/messages/fidelity), 0: they travel as packets")
    ask = word(Kind.HOOK, "(node, dst, group, tag, size, ref, now): sends a request")
    expect = word(Kind.HOOK, "(node, inst, number, lane, step, now): acts for a lane that waits for a message")
    may_start = word(Kind.HOOK, "(node, row): holds collectives back")
    message_by_kind = word(Kind.HOOK, "(node, w1, w3): takes messages that may be requests, answers or calls")
    running = word(Kind.HOOK, "(node, row, by, now): counts collectives as they begin and end")
    begin_message = word(Kind.HOOK, "(q, now): prepares the next message of a driven queue pair")
    is_in = word(Kind.HOOK, "(node, now, w1, w2, w3): takes a message that has arrived and is acted on later")
    do_later = word(Kind.HOOK, "(node, now): does the actions that are due")
    post_later = word(Kind.HOOK, "(node, row, due): posts the message of a row that sends at that time")
    is_acknowledged = word(Kind.HOOK, "(node, ref, now): handles a message's last acknowledgement, if it counts")
