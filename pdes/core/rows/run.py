"""Rows of a run: those that exist once per logical process, and the state that workers share."""

from nadi.pdes.core.rows import INF, Row, word


class Scalars(
    Row,
    words=48,
):
    """Scalars that all kernels of an LP share."""

    # Life of a logical process in a run: its world is built once, and its kernel is called for each window. A window
    # takes in what neighbours have sent in the one before (`in_list`, `in_at`) and then does cell after cell until its
    # end: links release packets, switches and NPUs process the cell's arrivals. When a pool is too small, the kernel
    # returns FULL at a point where it can continue: `window_open`, `cell_open`, `outer_done`, `resume_node` and
    # `resume_at` say where. After the window, `next_ps` tells the workers when its next event is. It ends when no LP
    # has an event left.
    free_blocks = word("count", "free blocks of records")
    free_messages = word("count", "free rows of `msg`")
    free_instances = word("count", "free rows of `inst`")
    queue_pairs = word("count", "sending queue pairs in use", rest="same")
    receivers = word("count", "receiving queue pairs in use", rest="same")
    flows_out = word("count", "rows of `flow_out` in use")
    flows_in = word("count", "rows of `flow_in` in use")
    resume_node = word("node", "node whose batch was interrupted, -1 none", begins=-1)
    resume_at = word("count", "packets of its batch that are done")
    batch = word("count", "packets in the batch")
    rows_left = word("count", "trace rows not finished, all NPUs")
    need = word("code", "pool that was too small (NEED_*)")
    now_ps = word("time", "start of the cell")
    finish_ps = word("time", "time at which the last trace row finished")
    failed_queue_pair = word("queue_pair", "queue pair that gave up, -1 none", begins=-1)
    batch_freed = word("count", "blocks that the batch has emptied")
    window_open = word("flag", "a window was interrupted")
    check = word("flag", "a pool other than the blocks was used since the last call of `short_of`", begins=1)
    # inboxes of the current cell and the next three are a ring: `side` + k, modulo SIDES, is that of the k-th next cell
    side = word("code", "which of a node's inboxes is for this cell")
    # minima of the lists that only a search would find: an LP without packets on links need not look at them
    soonest_ps = word("time", "earliest arrival among the packets that wait on links", begins=INF)
    pending = word("flag", "an inbox of this side is not empty", many=4)
    begin_ps = word("time", "start of the window")
    parity = word("code", "parity of the window's number, which selects a half of each outbox")
    cell_open = word("flag", "a cell was interrupted")
    far_soonest_ps = word("time", "earliest arrival among the packets that wait on links to other LPs", begins=INF)
    out_soonest_ps = word("time", "earliest arrival among the packets sent to other LPs in this window", begins=INF)
    in_list = word("list", "list of neighbours whose packets are being taken in")
    in_at = word("count", "packets of that list that are in")
    next_ps = word("time", "earliest event of this LP after the window")
    cost = word("count", "packet-hops of the last window")
    events = word("count", "future events of a message-level model")
    outer_done = word("flag", "switches that send to other teams have acted in this cell")
    # the schedule of faults is read in order: one comparison per cell tells whether a change is due
    fault_ps = word("time", "time of the next change of the schedule, INF none", begins=INF)
    fault_at = word("place", "row of the next change in `change`")
    depth_ps = word("duration", "width of the columns of `depth`", begins=1_000_000)
    pauses = word("count", "pauses and resumes that took effect, logged or not")
    free_samples = word("count", "free entries of `sample_log`")
    # exact reuse of NVLink domains (pdes/reuse_kernels/domains.py)
    due_replays = word("count", "groups in `due`, for which there is something to replay", rest="begins")
    replay_starts = word("count", "collectives that have waited for their replay")
    cell_ps = word(
        "duration",
        "length of the cell: const.cell_ps, or longer while no packet crosses an NVLink domain's links",
        rest="same",
    )
    packet_rows = word("count", "trace rows under way whose packets cross links of NVLink domains", rest="begins")
    changes_cell = word("flag", "the next cell has the other length", rest="begins")
    retry_ps = word("time", "time from which cells may be long again, INF never", begins=INF, rest="future")
    catch_up_ps = word("time", "time before which only packets are simulated of collectives that were to be replayed")
    is_disturbed = word("flag", "packets met a replayed collective: the run begins again, and replays nothing")


class Counters(
    Row,
    words=24,
):
    """Counters of a run; sums over LPs are results."""

    # sums over LPs do not depend on the division of the fabric, apart from `windows`, which is that of one LP
    hops = word("count", "packets sent over links")
    events = word("count", "events of NPUs")
    windows = word("count", "windows done")
    data_packets = word("count", "data packets sent by NPUs")
    ack_packets = word("count", "acknowledgements sent by NPUs")
    consumed_packets = word("count", "packets that reached their destination")
    dropped_packets = word("count", "packets lost at a port, for lack of room or by a fault")
    retransmitted_packets = word("count", "packets sent again")
    sent_bytes = word("bytes", "bytes sent by NPUs")
    received_bytes = word("bytes", "bytes that reached their destination")
    dropped_bytes = word("bytes", "bytes dropped or lost")
    flows = word("count", "completed messages")
    timeouts = word("count", "timeouts of retransmission timers")
    trace_rows = word("count", "finished trace rows")
    payload_bytes = word("bytes", "payload of completed messages")
    lost_packets = word("count", "dropped packets that errors and failures of links lost")
    marked_packets = word("count", "packets sent with a congestion mark")
    pause_frames = word("count", "pause frames, or frames that return credits, sent")
    trimmed_packets = word("count", "packets cut to their headers")
    congestion_notifications = word("count", "congestion notifications sent")
    credit_packets = word("count", "grants and requests of credit sent")


class Constants(
    Row,
    words=176,
):
    """Constants of a run."""

    # What follows from settings and fabric, so that kernels compute nothing twice. Each LP has a copy.
    seed = word("packed", "seed of all hashes")
    mtu_bytes = word("bytes", "payload of a full packet")
    header_bytes = word("bytes", "header of a data packet")
    ack_bytes = word("bytes", "size of an acknowledgement on the wire")
    window_packets = word("count", "packets that may be unacknowledged")
    queue_limit_bytes = word("bytes", "limit of a queue, 0 none")
    window_fixed = word("flag", "no congestion control changes the window, or paces queue pairs without a share")
    rto_ps = word("duration", "retransmission timeout, 0 none")
    cell_ps = word("duration", "length of a cell: no link of the fabric is shorter")
    long_cell_ps = word("duration", "length of cells in which no packet crosses an NVLink domain's links: whole cells")
    tie_pause_ps = word("duration", "time without ties after which a node begins to count them again")
    homes = word("count", "home columns of an NPU")
    several_nics = word("flag", "1: some NPU has several NICs, which its connections share by their rates")
    lookahead_ps = word("duration", "length of a window: whole cells, and no link to another LP is shorter")
    npus = word("count", "NPUs of this LP")
    nodes = word("count", "nodes of this LP")
    lane_stride = word("count", "rows of lanes per active collective, one more than the maximum number of lanes")
    # bounds of what one action can take from each pool: a kernel looks whether there is that much room before an
    # action, and so never has to undo half of one
    reserve_blocks = word("count", "blocks that one action may use")
    reserve_messages = word("count", "rows of `msg` that one action may use")
    reserve_queue_pairs = word("count", "queue pairs that one action may open")
    serial_collectives = word("flag", "collectives of a group run one after another")
    record_nodes = word("flag", "times of trace rows are kept")
    record_flows = word("flag", "times of messages are kept")
    max_retries = word("count", "consecutive timeouts after which a queue pair gives up")
    max_resends = word("count", "times that a packet is trimmed and sent again after which a queue pair gives up")
    dimensions = word("count", "number of the fabric's coordinates")
    cut_bytes = word("bytes", "bytes for which a cut-through switch waits")
    lists = word("count", "lists of the outbox (pdes/core/packet.py)")
    address = word("address", "address of this world's directory")
    base_rtt_ps = word("duration", "idle round trip of a full packet over the longest path")
    cnp_interval_ps = word("duration", "minimum time between two congestion notifications of a queue pair")
    cnp_delay_ps = word("duration", "time from a marked packet's arrival to its congestion notification")
    pause_frame_bytes = word("bytes", "size of a pause frame on the wire")
    # of switches that share their buffer (pdes/network/shared_switch.py)
    ecn = word("flag", "some switches mark packets (ECN)")
    trim = word("flag", "some switches cut packets to their headers")
    trimmed_bytes = word("bytes", "size of a trimmed packet on the wire")
    classes = word("flags", "data classes of the run")
    strict_classes = word("flags", "data classes without a weight, which a discipline may send first")
    p2p_shares = word("ratio", "messages to other hosts have SHARE_UNITS / this of the line rate, 0: all of it")
    crossing_words = word("count", "words of a packet in an outbox")
    carries_send_time = word("flag", "packets carry their send time")
    reorder_packets = word("count", "reordering in packets beyond which a packet counts as lost")
    credit_window_bytes = word("bytes", "largest credit of a queue pair")
    min_pull_rate = word("float", "oversubscribed control: share of the links' rate that a pacer keeps; 1: none")
    extends_transport = word("flag", "queue pairs repeat selectively, choose paths or wait for receivers' credits")
    by_flight = word("flag", "a window counts the packets in flight, not those from the first unacknowledged one on")
    ack_every_bytes = word("bytes", "bytes after which a receiver acknowledges data; 0: it acknowledges each packet")
    sleek = word("flag", "losses are inferred from the number of packets out of order (SLEEK)")
    flowlet_gap_ps = word("duration", "gap between packets after which a flow may take another link")
    routing_delay_ps = word("duration", "time from a switch's choice of a detour until the packet joins a queue")
    grade_bytes = word("bytes", "thresholds of grades, ascending", many=3)
    epochs = word("count", "number of sets of routing tables")
    circuits_period_ps = word("duration", "period of the windows of circuits, 0: they happen once")
    first_repeated = word("place", "row of `change` from which on changes happen in every period; their number if none")
    pit = word("link", "`tx` row of a link that loses all packets, for destinations without a route; 0 none")
    depths = word("count", "columns of `depth`, 0: queues are not sampled")
    sample_ps = word("duration", "length of the intervals of samples of links, 0: links are not sampled")
    reserve_samples = word("count", "entries of `sample_log` that one action may use")
    # of the system layer: endpoints, reductions, limits on collectives and on phases
    endpoint_delay_ps = word("duration", "delay of a collective's first step, and of a receiver's action on a message")
    reduces = word("flag", "a reduction takes time")
    resolution_ps = word("duration", "unit to which transfers at message level, and reductions, are rounded down")
    tokens = word("count", "phases that an NPU runs in a dimension at a time, 0 = no limit")
    gated_dimensions = word("count", "dimensions in which phases need tokens")
    phase_stride = word("count", "rows of phases per active collective")
    scheduling = word("code", "order of the phases that wait (pdes/npu/agenda.py)")
    rendezvous_bytes = word("bytes", "minimum size of a message with rendezvous, INF none")
    control_bytes = word("bytes", "payload of a request or its answer")
    collectives_in_flight = word("count", "collectives that an NPU runs at a time, 0 = no limit")
    slows_compute = word("flag", "computation of some NPUs is slower during a collective")
    one_at_a_time = word("flag", "NPUs run one row of each kind at a time")
    remote_sharers = word("count", "NPUs that share a remote memory")
    tick_ps = word("duration", "interval at which NPUs notice what has ended, 0: at once")
    handshakes = word("flag", "some messages use rendezvous, or members of collectives call each other")
    send_latency_ps = word("duration", "time from when a message is posted until its first packet may be sent")
    outer = word("node", "first of the switches that act before NPUs and other switches")
    splits = word("flag", "only these send to other teams: the cell pauses between them and the other nodes")
    spreads = word("flag", "flows: packets of a message spread equally over equal links")
    nominal_classes = word("count", "rows of `link_class` from a link's class for packets to its class without flows")
    reserve_hops = word("count", "rows of `hop` that one connection may use")
    jobs = word("count", "rows of `link_bytes` per link, 0: one job, whose bytes are those of the links")
    back = word("address", "address of a world of the whole fabric, whose routes acknowledgements take")
    paths = word("count", "entropies of a queue pair, a power of two, where senders choose")
    probes = word("flag", "senders probe paths that they do not use")
    # of switches with credits (pdes/network/lane_credits.py)
    lanes = word("count", "virtual lanes of a link")
    queues = word("count", "queues of a port, those of its virtual lanes and two of control; 0: no credits")
    credit_bytes = word("bytes", "size of a unit of credit")
    full_units = word("count", "credits of a full packet")
    return_units = word("count", "credits that return together while a lane's buffer is not empty")
    credit_frame_bytes = word("bytes", "size of a frame that returns credits on the wire")
    high_lanes = word("flags", "virtual lanes of high priority")
    rising_lanes = word("flags", "virtual lanes that packets may leave for the next one on their way")
    high_limit_bytes = word("bytes", "bytes of high priority after which waiting low priority has a turn")
    port_rule = word("code", "choice of one port of several for a queue pair: place in PORT_RULES")
    denies = word("flag", "senders may not use some planes, spines or paths")
    planes = word("count", "ports of a NIC over which packets spread")
    turned_ports = word("count", "ports of an NPU to switches that take turns by the entropy")
    uplinks = word("count", "links of a leaf to other switches")
    denied = word("flags", "denied spines: 256 bits per plane, 32 a word; then 256 of denied paths", many=72)


class ClassMarks(Row, words=4):
    """Marking thresholds of a data class, at 25 Gb/s, where they differ by class."""

    kmin_bytes = word("bytes", "queue of the class above which packets are marked with some probability")
    kmax_bytes = word("bytes", "queue from which every packet is marked")
    pmax = word("ratio", "probability of a mark just below kmax_bytes, in units of 2^-32")
    is_own = word("flag", "the class has thresholds of its own; others have those of the link")


class ControlParameters(Row, words=24):
    """Parameters of the run's congestion control; each file of pdes/nic/congestion declares its own."""


class Hooks(Row, words=40):
    """Addresses of functions that kernels call, for optional parts of the engine."""

    # A meaning begins with the arguments that follow the address of the world.

    congestion_control = word("hook", "(q, event, now, a, b, c): pdes/nic/congestion")
    shared_switches = word("hook", "(begin, end, first, last): switches that share their buffer; 0: output queues")
    telemetry = word("hook", "(operation, at): moves telemetry; 0: packets carry no telemetry")
    detour = word("hook", "(node, record, now): port set for a packet that may take a detour, 0: shortest paths")
    publish = word("hook", "(): notes the ports of switches at the begin of a cell, 0: no rule of detours reads others")
    balancing = word("hook", "(node, first, count, w1, w2, now): chooses one of several equal links, 0: ECMP")
    balancing_0 = word("hook", "(node, first, count, w1, w2, now): the rule of all tiers but some, 0: ECMP, or all are")
    balancing_1 = word("hook", "(node, first, count, w1, w2, now): the rule of a tier, 0: ECMP")
    balancing_2 = word("hook", "(node, first, count, w1, w2, now): the rule of a tier, 0: ECMP")
    balancing_3 = word("hook", "(node, first, count, w1, w2, now): the rule of a tier, 0: ECMP")
    discipline = word("hook", "(link, ready): chooses the data class that sends next, 0: class 0 if it can")
    notify = word("hook", "(node, now, w1, w2, row): sends notifications of marks, 0: acknowledgements echo them")
    first_allowed = word("hook", "(node, link, now): finds the queue pair that may send, 0: all that take turns may")
    selective_sender = word("hook", "(operation, q, a, b, trimmed): the sender of selective repeat, 0: go back N")
    selective_receiver = word("hook", "(node, now, w1, w2, w3, rx, flag): the receiver's side")
    pace = word("hook", "(link, q, now, seq, size, flag): paces a queue pair after a packet")
    credits = word("hook", "(operation, node, q, now, a, b, c): credits of receivers, 0: senders need none")
    route = word("hook", "(node, dst, w2): routes at switches by several rows, 0: one row and one home")
    choose_port = word("hook", "(node, dst, w2): chooses among the ports of an NPU, 0: NPUs have one")
    make_changes = word("hook", "(): makes the changes of the schedule that are due")
    post = word(
        "hook",
        "(node, dst, connection, tag, size, ref, now): posts a message at message level (pdes/messages/whole.py), or "
        "one that is sent later or whose acknowledgement counts (pdes/npu/endpoints.py)",
    )
    act = word("hook", "(message, now): moves messages (pdes/fidelity), 0: they travel as packets")
    npus_with_flows = word("hook", "(begin, end): lets NPUs act in order of time, where some messages are flows")
    settle = word("hook", "(kind, now): ends flows and sets rates (pdes/fidelity/flow.py)")
    join = word(
        "hook",
        "(node, row, now): starts a member of a coupled flow (pdes/messages/coupled.py), or lets one wait for "
        "its replay (pdes/reuse_kernels/domains.py), and returns 1; 0: the row sends messages",
    )
    ask = word("hook", "(node, dst, group, tag, size, ref, now): sends a request")
    expect = word("hook", "(node, inst, number, lane, step, now): acts for a lane that waits for a message")
    may_start = word("hook", "(node, row): holds collectives back")
    message_by_kind = word("hook", "(node, w1, w3): takes messages that may be requests, answers or calls")
    running = word("hook", "(node, row, by, now): counts collectives as they begin and end")
    begin_message = word("hook", "(q, now): prepares the next message of a rate-limited queue pair")
    is_in = word("hook", "(node, now, w1, w2, w3): takes a message that has arrived and is acted on later")
    do_later = word("hook", "(node, now): does the actions that are due")
    wait_for_tick = word("hook", "(node, row, now): lets a row that is done finish at the next tick; 0: at once")
    post_later = word("hook", "(node, row, due): posts the message of a row that sends at that time")
    leave_domain = word("hook", "(node, row, now): counts a row that is done and sent packets within an NVLink domain")
    paths = word("hook", "(operation, q, a, b, now): chooses the path of a packet, and learns of answers; 0: one path")
    entropy = word("hook", "(operation, q, path, now): the entropy rule (pdes/nic/entropy)")
    nic_send = word(
        "hook", "(node, link, asked, now, w1, w2, w3): sends by NICs of several ports or with credits; 0: by one port"
    )
    is_acknowledged = word("hook", "(node, ref, now): handles a message's last acknowledgement, if it counts")


# Rows of the state that workers share.

LINE_WORDS = 16  # words between data of different writers: two cache lines, as processors prefetch lines in pairs
APART = "unused: the next words have other writers or other times, so they have a pair of cache lines of their own"


class BatchHeader(Row, words=8):
    """Header of the batch that one team sends to another after a window (pdes/workers/batches.py): one cache line."""

    records = word("count", "records in the batch; workers that pack some add to it, so it is the first word")
    soonest_ps = word("time", "earliest event of the sending team, as far as it knows")
    exact = word("flag", "soonest_ps is final; else it is the begin of a window that must follow, or INF")
    hops = word("count", "packet-hops of the team before this window")
    rows_left = word("count", "trace rows of the team not finished before this window, minus all of them")
    begin_ps = word("time", "begin of this window, from which records count arrivals")
    snapshot_point = word("code", "what the team asks of all after this window (pdes/workers/__init__.py)")
    signs = word("flags", "whether the team's LPs may be at a moment to look at (pdes/workers/team.py)")


class BatchShape(Row, words=8):
    """Format of records in batches, the same in all processes of a run (pdes/workers/batches.py)."""

    record_words = word("count", "words of a record without its first one")
    has_tags = word("flag", "each record has the tag of its packet's message")
    time_bits = word("place", "bits of the first word for the time, and place of the bit for a second record")
    link = word("place", "place of the link in the first word, among those from the team that sends to an LP")
    lp = word("place", "place of the LP in the first word, among those of the team that receives; it ends the word")


class MpiCalls(Row, words=16):
    """Addresses and handles with which the first worker of a process calls MPI (pdes/workers/other_teams.py)."""

    isend = word("address", "address of MPI_Isend, 0 = Python calls MPI")
    start_all = word("address", "address of MPI_Startall")
    test_all = word("address", "address of MPI_Testall")
    wait_all = word("address", "address of MPI_Waitall")
    allreduce = word("address", "address of MPI_Allreduce")
    statuses = word("address", "address of statuses that nobody reads")
    agreement = word("address", "address of an Allreduce's value, followed by the minimum of all teams' values")
    batches = word("address", "address of the words of the batches")
    handle_bytes = word("bytes", "size of a request's handle")
    type = word("code", "MPI's handle of int64")
    least = word("code", "MPI's handle of the operation minimum")
    communicator = word("code", "MPI's handle of all ranks")
    leaders = word("code", "MPI's handle of the first ranks of all teams")
    agreed = word("count", "windows whose begin was not known from the batches")
    error = word("code", "MPI error code, 0 = no error")


class BatchHooks(Row, words=8):
    """Addresses of functions that workers call if there are other teams, 0 without (pdes/workers/other_teams.py)."""

    # A meaning begins with the arguments that follow the address of the WorkerContext.

    unpack_batches = word("hook", "(lp, number): unpacks the packets for an LP, before its window")
    pack_batches = word("hook", "(lp, number): packs the packets that an LP sends, after its window")
    send_batches = word("hook", "(worker): sends the worker's batches")
    help_along = word("hook", "(worker): lets MPI make progress with the batches under way")
    take_batches = word("hook", "(worker): receives the worker's batches of other teams")
    agree = word("hook", "(number): finds the earliest event of all teams, in the first worker")


class TeamState(
    Row,
    words=64,
):
    """State of all workers that share memory (pdes/workers/team.py)."""

    # The first worker writes it; any worker that fails sets `abort`.

    # Life of a window: the first worker publishes its begin, the last line of the grid of cells before the earliest
    # event of all LPs (`begin_ps`, then `published`). Workers take LPs until none is free; then each writes its
    # earliest event and `arrived`. A window is no longer than the lookahead: what an LP sends in it reaches another one
    # at its end or later, so LPs need nothing from each other within it (conservative synchronisation; the begin is the
    # lower bound on time stamps). When all workers have arrived, `settle` finds the earliest event, with other teams if
    # there are any.
    cell_ps = word("duration", "length of a cell; windows begin at multiples of it")
    window_ps = word("duration", "length of a window")
    # words written at different times share no pair of cache lines: a write would take the line from every reader
    before_abort = word("count", APART, many=LINE_WORDS - 2)
    abort = word("flag", "a worker has failed: stop")
    asked = word("code", "what a process of the team asks of all workers (pdes/workers/__init__.py)")
    before_published = word("count", APART, many=LINE_WORDS - 2)
    published = word("count", "windows whose begin is known")
    begin_ps = word("time", "begin of the last of them, INF = no event is left")
    snapshot_point = word("code", "what all workers do before that window (pdes/workers/__init__.py)")
    before_sums = word("count", APART, many=LINE_WORDS - 3)
    soonest_ps = word("time", "earliest event of the team, and of all teams once they have exchanged theirs")
    hops = word("count", "packet-hops of the team")
    rows_left = word("count", "trace rows of the team not finished, minus all of them")
    said_ps = word("time", "earliest event as written to batches")
    exact = word("flag", "flag `exact` as written to batches")
    agreed = word("count", "windows after which all teams have agreed on the earliest event")
    all_hops = word("count", "packet-hops of all teams")
    all_rows_left = word("count", "trace rows that no team has finished, minus all of them")
    said_snapshot_point = word("code", "`snapshot_point` as written to batches")
    signs = word("flags", "those of its workers, and of all teams once they have exchanged theirs")
    look_hops = word("count", "packet-hops of the team from which it stops at the end of a window, INF never")


class Worker(Row, words=32):
    """State of one worker of a team, which only that worker writes; others read its first cache line."""

    # `window` and `stage` say where a worker continues when it has left the kernel in the middle of a window
    arrived = word("count", "windows done")
    packed = word("count", "windows whose packets for other teams are all packed")
    soonest_ps = word("time", "earliest event of the LPs that it has done in this window")
    hops = word("count", "packet-hops of the worker")
    rows_left = word("count", "trace rows that it has finished, negative")
    known_ps = word("time", "earliest event of its LPs, as far as it knew when `packed` was written")
    parts = word("count", "LPs that it had done in part at that time")
    signs = word("flags", "of the LPs that it has done in this window (pdes/workers/team.py)")
    stage = word("code", "stage within the window (pdes/workers/team.py)")
    lp = word("place", "current LP, as its index in the process, -1 none")
    rest = word("place", "LP done in part, -1 none; `rest` of its pool holds the next")
    begin_ps = word("time", "begin of the window")
    window = word("count", "number of the window")
    leads = word("flag", "first worker of its process, which orders the LPs of its pool and exchanges batches")
    events = word("count", "events of the LPs that it has done")
    waited_ns = word("count", "nanoseconds of waiting for other workers and for batches of other teams")
    lasted_ns = word("count", "nanoseconds from its start to its end")


class WatchedNpu(Row, words=8):
    """The NPU of a process that is watched for moments at which the state of a run may recur."""

    mark = word("count", "trace rows that it has left from which all look at the next quiescent moment, -1 never")
    lp = word("place", "its LP, as its index in the process, -1 = it is in another process")
    npu = word("node", "the NPU")


class LpTurn(Row, words=16):
    """State of an LP in windows of even, or of odd, number; its workers write it."""

    taken = word("count", "workers that have asked for the LP in the window: the first gets it")
