"""Rows of the state that workers share."""

from nadi.pdes.core.rows.row import Row, word

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
    snapshot_point = word("code", "what the team asks of all after this window (pdes/workers/snapshot_points.py)")


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
    asked = word("code", "what a process of the team asks of all workers (pdes/workers/snapshot_points.py)")
    before_published = word("count", APART, many=LINE_WORDS - 2)
    published = word("count", "windows whose begin is known")
    begin_ps = word("time", "begin of the last of them, INF = no event is left")
    snapshot_point = word("code", "what all workers do before that window (pdes/workers/snapshot_points.py)")
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
    mark = word("count", "trace rows left of the watched NPU from which the team stops at a quiescent moment, -1 never")
    looked_ps = word("time", "earliest event of all at the quiescent moment at which the team stopped last")
    watched_lp = word("place", "LP of the watched NPU, as its index in the process")
    watched_npu = word("node", "the watched NPU")


class Worker(Row, words=16):
    """State of one worker of a team, which only that worker writes; others read its first cache line."""

    # `window` and `stage` say where a worker continues when it has left the kernel in the middle of a window
    arrived = word("count", "windows done")
    packed = word("count", "windows whose packets for other teams are all packed")
    soonest_ps = word("time", "earliest event of the LPs that it has done in this window")
    hops = word("count", "packet-hops of the worker")
    rows_left = word("count", "trace rows that it has finished, negative")
    known_ps = word("time", "earliest event of its LPs, as far as it knew when `packed` was written")
    parts = word("count", "LPs that it had done in part at that time")
    stage = word("code", "stage within the window (pdes/workers/team.py)")
    lp = word("place", "current LP, as its index in the process, -1 none")
    rest = word("place", "LP done in part, -1 none; `rest` of its pool holds the next")
    begin_ps = word("time", "begin of the window")
    window = word("count", "number of the window")
    leads = word("flag", "first worker of its process, which orders the LPs of its pool and exchanges batches")
    events = word("count", "events of the LPs that it has done")
    waited_ns = word("count", "nanoseconds of waiting for other workers and for batches of other teams")
    lasted_ns = word("count", "nanoseconds from its start to its end")


class LpTurn(Row, words=16):
    """State of an LP in windows of even, or of odd, number; its workers write it."""

    taken = word("count", "workers that have asked for the LP in the window: the first gets it")
