"""Rows of the state that workers share."""

from pdes.core.rows.row import Row, WordKind, word

LINE_WORDS = 16
"""Words between the data of different writers: two cache lines, since processors prefetch lines in pairs."""
APART = "unused: the next words have other writers or other times, so they have a pair of cache lines of their own"


class ParcelHeader(Row, words=8, written_by="workers.other_teams"):
    """Header of the parcel that one team sends to another after a window (pdes/workers/parcels.py): one cache line."""

    records = word(WordKind.COUNT, "packets in the parcel; workers that pack some add to it, so it is the first word")
    soonest_ps = word(WordKind.TIME, "earliest event of the sending team, as far as it knows")
    exact = word(WordKind.FLAG, "soonest_ps is final; else it is the begin of a window that must follow, or INF")
    hops = word(WordKind.COUNT, "packet-hops of the team before this window")
    rows_left = word(WordKind.COUNT, "trace rows of the team not finished before this window, minus all of them")


class MpiCalls(Row, words=16, written_by="workers.exchange workers.other_teams"):
    """Addresses and handles with which the first worker of a process calls MPI (pdes/workers/other_teams.py)."""

    isend = word(WordKind.ADDRESS, "address of MPI_Isend, 0 = Python calls MPI")
    start_all = word(WordKind.ADDRESS, "address of MPI_Startall")
    test_all = word(WordKind.ADDRESS, "address of MPI_Testall")
    wait_all = word(WordKind.ADDRESS, "address of MPI_Waitall")
    allreduce = word(WordKind.ADDRESS, "address of MPI_Allreduce")
    statuses = word(WordKind.ADDRESS, "address of statuses that nobody reads")
    agreement = word(WordKind.ADDRESS, "address of an Allreduce's value, followed by the minimum of all teams' values")
    parcels = word(WordKind.ADDRESS, "address of the words of the parcels")
    handle_bytes = word(WordKind.BYTES, "size of a request's handle")
    type = word(WordKind.CODE, "MPI's handle of int64")
    least = word(WordKind.CODE, "MPI's handle of the operation minimum")
    communicator = word(WordKind.CODE, "MPI's handle of all ranks")
    leaders = word(WordKind.CODE, "MPI's handle of the first ranks of all teams")
    agreed = word(WordKind.COUNT, "windows whose begin was not known from the parcels")
    error = word(WordKind.CODE, "MPI error code, 0 = no error")


class ParcelHooks(Row, words=8, written_by="workers.other_teams"):
    """Addresses of functions that workers call if there are other teams, 0 without (pdes/workers/other_teams.py).

    A meaning begins with the arguments that follow the address of the Meeting.
    """

    unpack_parcels = word(WordKind.HOOK, "(lp, number): unpacks the packets for an LP, before its window")
    pack_parcels = word(WordKind.HOOK, "(lp, number): packs the packets that an LP sends, after its window")
    send_parcels = word(WordKind.HOOK, "(worker): sends the worker's parcels")
    help_along = word(WordKind.HOOK, "(worker): lets MPI make progress with the parcels under way")
    take_parcels = word(WordKind.HOOK, "(worker): receives the worker's parcels of other teams")
    agree = word(WordKind.HOOK, "(number): finds the earliest event of all teams, in the first worker")


class TeamState(
    Row,
    words=64,
    written_by="workers.crew workers.exchange workers.other_teams workers.processes workers.team",
):
    """State of all workers that share memory (pdes/workers/team.py).

    The first worker writes it; any worker that fails sets `abort`.
    """

    cell_ps = word(WordKind.DURATION, "length of a cell; windows begin at multiples of it")
    window_ps = word(WordKind.DURATION, "length of a window")
    before_abort = word(WordKind.COUNT, APART, many=LINE_WORDS - 2)
    abort = word(WordKind.FLAG, "a worker has failed: stop")
    before_published = word(WordKind.COUNT, APART, many=LINE_WORDS - 1)
    published = word(WordKind.COUNT, "windows whose begin is known")
    begin_ps = word(WordKind.TIME, "begin of the last of them, INF = no event is left")
    before_sums = word(WordKind.COUNT, APART, many=LINE_WORDS - 2)
    soonest_ps = word(WordKind.TIME, "earliest event of the team, and of all teams once they have exchanged theirs")
    hops = word(WordKind.COUNT, "packet-hops of the team")
    rows_left = word(WordKind.COUNT, "trace rows of the team not finished, minus all of them")
    said_ps = word(WordKind.TIME, "earliest event as written to parcels")
    exact = word(WordKind.FLAG, "flag `exact` as written to parcels")
    agreed = word(WordKind.COUNT, "windows after which all teams have agreed on the earliest event")
    all_hops = word(WordKind.COUNT, "packet-hops of all teams")
    all_rows_left = word(WordKind.COUNT, "trace rows that no team has finished, minus all of them")


class Worker(
    Row,
    words=16,
    written_by="workers.crew workers.exchange workers.other_teams workers.team",
):
    """State of one worker of a team, which only that worker writes; others read its first cache line."""

    arrived = word(WordKind.COUNT, "windows done")
    packed = word(WordKind.COUNT, "windows whose packets for other teams are all packed")
    soonest_ps = word(WordKind.TIME, "earliest event of the LPs that it has done in this window")
    hops = word(WordKind.COUNT, "packet-hops of the worker")
    rows_left = word(WordKind.COUNT, "trace rows that it has finished, negative")
    known_ps = word(WordKind.TIME, "earliest event of its LPs, as far as it knew when `packed` was written")
    parts = word(WordKind.COUNT, "LPs that it had done in part at that time")
    stage = word(WordKind.CODE, "stage within the window (pdes/workers/team.py)")
    lp = word(WordKind.PLACE, "current LP, as its index in the process, -1 none")
    rest = word(WordKind.PLACE, "LP done in part, -1 none; `rest` of its crew holds the next")
    begin_ps = word(WordKind.TIME, "begin of the window")
    window = word(WordKind.COUNT, "number of the window")
    leads = word(WordKind.FLAG, "first worker of its process, which orders the LPs of its crew and exchanges parcels")
    events = word(WordKind.COUNT, "events of the LPs that it has done")
    waited_ns = word(WordKind.COUNT, "nanoseconds of waiting for other workers and for parcels of other teams")
    lasted_ns = word(WordKind.COUNT, "nanoseconds from its start to its end")


class LpTurn(Row, words=16, written_by="workers.team"):
    """State of an LP in windows of even, or of odd, number; its workers write it."""

    taken = word(WordKind.COUNT, "workers that have asked for the LP in the window: the first gets it")
