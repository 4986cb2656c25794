"""Rows of the state that workers share."""

from pdes.core.rows.row import Kind, Row, word

LINE_WORDS = 16
"""Words between the data of different writers: two cache lines, since processors prefetch lines in pairs."""
APART = "unused: the next words have other writers or other times, so they have a pair of cache lines of their own"


class ParcelHeader(Row, words=8, written_by="nadi.studies.benchmarks.instruments.parcel_costs workers.other_teams"):
    """Header of the parcel that one team sends to another after a window (pdes/workers/parcels.py): one cache line."""

    records = word(Kind.COUNT, "packets in the parcel; workers that pack some add to it, so it is the first word")
    soonest_ps = word(Kind.TIME, "earliest event of the sending team, as far as it knows")
    exact = word(Kind.FLAG, "soonest_ps is final; else it is the begin of a window that must follow, or INF")
    hops = word(Kind.COUNT, "packet-hops of the team before this window")
    rows_left = word(Kind.COUNT, "trace rows of the team not finished before this window, minus all of them")


class MpiCalls(Row, words=16, written_by="workers.exchange workers.other_teams"):
    """Addresses and handles with which the first worker of a process calls MPI (pdes/workers/other_teams.py)."""

    isend = word(Kind.ADDRESS, "address of MPI_Isend, 0 = Python calls MPI")
    start_all = word(Kind.ADDRESS, "address of MPI_Startall")
    test_all = word(Kind.ADDRESS, "address of MPI_Testall")
    wait_all = word(Kind.ADDRESS, "address of MPI_Waitall")
    allreduce = word(Kind.ADDRESS, "address of MPI_Allreduce")
    statuses = word(Kind.ADDRESS, "address of statuses that nobody reads")
    agreement = word(Kind.ADDRESS, "address of an Allreduce's value, followed by the minimum of all teams' values")
    parcels = word(Kind.ADDRESS, "address of the words of the parcels")
    handle_bytes = word(Kind.BYTES, "size of a request's handle")
    type = word(Kind.CODE, "MPI's handle of int64")
    least = word(Kind.CODE, "MPI's handle of the operation minimum")
    communicator = word(Kind.CODE, "MPI's handle of all ranks")
    leaders = word(Kind.CODE, "MPI's handle of the first ranks of all teams")
    agreed = word(Kind.COUNT, "windows whose begin was not known from the parcels")
    error = word(Kind.CODE, "MPI error code, 0 = no error")


class ParcelHooks(Row, words=8, written_by="workers.other_teams"):
    """Addresses of functions that workers call if there are other teams, 0 without (pdes/workers/other_teams.py).

    A meaning begins with the arguments that follow the address of the Meeting.
    """

    unpack_parcels = word(Kind.HOOK, "(lp, number): unpacks the packets for an LP, before its window")
    pack_parcels = word(Kind.HOOK, "(lp, number): packs the packets that an LP sends, after its window")
    send_parcels = word(Kind.HOOK, "(worker): sends the worker's parcels")
    help_along = word(Kind.HOOK, "(worker): lets MPI make progress with the parcels under way")
    take_parcels = word(Kind.HOOK, "(worker): receives the worker's parcels of other teams")
    agree = word(Kind.HOOK, "(number): finds the earliest event of all teams, in the first worker")


class TeamState(
    Row,
    words=64,
    written_by=(
        "nadi.studies.benchmarks.instruments.others nadi.studies.benchmarks.instruments.recording workers.crew "
        "workers.exchange workers.other_teams workers.processes workers.team"
    ),
):
    """State of all workers that share memory (pdes/workers/team.py).

    The first worker writes it; any worker that fails sets `abort`.
    """

    cell_ps = word(Kind.DURATION, "length of a cell; windows begin at multiples of it")
    window_ps = word(Kind.DURATION, "length of a window")
    before_abort = word(Kind.COUNT, APART, many=LINE_WORDS - 2)
    abort = word(Kind.FLAG, "a worker has failed: stop")
    before_published = word(Kind.COUNT, APART, many=LINE_WORDS - 1)
    published = word(Kind.COUNT, "windows whose begin is known")
    begin_ps = word(Kind.TIME, "begin of the last of them, INF = no event is left")
    before_sums = word(Kind.COUNT, APART, many=LINE_WORDS - 2)
    soonest_ps = word(Kind.TIME, "earliest event of the team, and of all teams once they have exchanged theirs")
    hops = word(Kind.COUNT, "packet-hops of the team")
    rows_left = word(Kind.COUNT, "trace rows of the team not finished, minus all of them")
    said_ps = word(Kind.TIME, "earliest event as written to parcels")
    exact = word(Kind.FLAG, "flag `exact` as written to parcels")
    agreed = word(Kind.COUNT, "windows after which all teams have agreed on the earliest event")
    all_hops = word(Kind.COUNT, "packet-hops of all teams")
    all_rows_left = word(Kind.COUNT, "trace rows that no team has finished, minus all of them")


class Worker(
    Row,
    words=16,
    written_by=(
        "nadi.studies.benchmarks.instruments.meeting_costs workers.crew workers.exchange workers.other_teams "
        "workers.team"
    ),
):
    """State of one worker of a team, which only that worker writes; others read its first cache line."""

    arrived = word(Kind.COUNT, "windows done")
    packed = word(Kind.COUNT, "windows whose packets for other teams are all packed")
    soonest_ps = word(Kind.TIME, "earliest event of the LPs that it has done in this window")
    hops = word(Kind.COUNT, "packet-hops of the worker")
    rows_left = word(Kind.COUNT, "trace rows that it has finished, negative")
    known_ps = word(Kind.TIME, "earliest event of its LPs, as far as it knew when `packed` was written")
    parts = word(Kind.COUNT, "LPs that it had done in part at that time")
    stage = word(Kind.CODE, "stage within the window (pdes/workers/team.py)")
    lp = word(Kind.PLACE, "current LP, as its index in the process, -1 none")
    rest = word(Kind.PLACE, "LP done in part, -1 none; `rest` of its crew holds the next")
    begin_ps = word(Kind.TIME, "begin of the window")
    window = word(Kind.COUNT, "number of the window")
    leads = word(Kind.FLAG, "first worker of its process, which orders the LPs of its crew and exchanges parcels")
    events = word(Kind.COUNT, "events of the LPs that it has done")
    waited_ns = word(Kind.COUNT, "nanoseconds of waiting for other workers and for parcels of other teams")
    lasted_ns = word(Kind.COUNT, "nanoseconds from its start to its end")


class LpTurn(Row, words=16, written_by="workers.team"):
    """State of an LP in windows of even, or of odd, number; its workers write it."""

    taken = word(Kind.COUNT, "workers that have asked for the LP in the window: the first gets it")
