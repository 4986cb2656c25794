"""Rows of what workers share."""

from pdes.core.rows.row import Row, WordKind, word

LINE_WORDS = 16
"""Words between what different workers write: two cache lines, since lines are fetched in pairs."""
APART = "unused: what follows is written by others or at other times, so it is on a pair of cache lines of its own"


class ParcelHeader(Row, words=8, written_by="nadi.studies.benchmarks.instruments.parcel_costs workers.other_teams"):
    """Of what one team sends to another after a window (pdes/workers/parcels.py): one cache line."""

    records = word(WordKind.COUNT, "packets in the parcel; workers that put some in add to it, so it is the first word")
    soonest_ps = word(WordKind.TIME, "earliest event of the team that sends, as far as it knows")
    exact = word(WordKind.FLAG, "it knows; else it is the begin of a window that must follow, or INF")
    hops = word(WordKind.COUNT, "packet-hops that it has done before this window")
    rows_left = word(WordKind.COUNT, "trace rows that it had not finished before this window, less all of them")


class MpiCalls(Row, words=16, written_by="workers.exchange workers.other_teams"):
    """What the first worker of a process needs to call MPI from compiled code (pdes/workers/other_teams.py)."""

    isend = word(WordKind.ADDRESS, "of MPI_Isend, 0 = Python calls MPI")
    start_all = word(WordKind.ADDRESS, "of MPI_Startall")
    test_all = word(WordKind.ADDRESS, "of MPI_Testall")
    wait_all = word(WordKind.ADDRESS, "of MPI_Waitall")
    allreduce = word(WordKind.ADDRESS, "of MPI_Allreduce")
    statuses = word(WordKind.ADDRESS, "where MPI writes what nobody reads")
    agreement = word(
        WordKind.ADDRESS, "where an Allreduce finds its value and leaves the least of all teams' behind it"
    )
    parcels = word(WordKind.ADDRESS, "where the words of the parcels begin")
    handle_bytes = word(WordKind.BYTES, "of a request's handle")
    type = word(WordKind.CODE, "MPI's handle of int64")
    least = word(WordKind.CODE, "MPI's handle of the least of several")
    communicator = word(WordKind.CODE, "MPI's handle of all ranks")
    leaders = word(WordKind.CODE, "MPI's handle of the first ranks of all teams")
    agreed = word(WordKind.COUNT, "windows whose begin was not known from the parcels")
    error = word(WordKind.CODE, "of MPI, 0 = all is well")


class ParcelHooks(Row, words=8, written_by="workers.other_teams"):
    """Addresses of what workers call where there are other teams, 0 = there are none (pdes/workers/other_teams.py).

    A meaning begins with what is passed on behind the address of the Meeting.
    """

    unpack_parcels = word(WordKind.HOOK, "(lp, number): takes out what came for an LP, before its window")
    pack_parcels = word(WordKind.HOOK, "(lp, number): puts in what an LP sends, after its window")
    send_parcels = word(WordKind.HOOK, "(worker): has a worker send those for which it answers")
    help_along = word(WordKind.HOOK, "(worker): has MPI look after those under way")
    take_parcels = word(WordKind.HOOK, "(worker): has a worker take those of other teams for which it answers")
    agree = word(WordKind.HOOK, "(number): has the first worker find the earliest event of all teams")


class TeamState(
    Row,
    words=64,
    written_by=(
        "nadi.studies.benchmarks.instruments.others nadi.studies.benchmarks.instruments.recording workers.crew "
        "workers.exchange workers.other_teams workers.processes workers.team"
    ),
):
    """Of all workers that share memory (pdes/workers/team.py); the first writes it, and `abort` is set by who fails."""

    cell_ps = word(WordKind.DURATION, "cell of the grid that windows begin on")
    window_ps = word(WordKind.DURATION, "length of a window")
    before_abort = word(WordKind.COUNT, APART, many=LINE_WORDS - 2)
    abort = word(WordKind.FLAG, "stop: a worker has failed")
    before_published = word(WordKind.COUNT, APART, many=LINE_WORDS - 1)
    published = word(WordKind.COUNT, "windows whose begin is known")
    begin_ps = word(WordKind.TIME, "begin of the last of them, INF = nothing is left")
    before_sums = word(WordKind.COUNT, APART, many=LINE_WORDS - 2)
    soonest_ps = word(WordKind.TIME, "earliest event of the team, and of others once they have said theirs")
    hops = word(WordKind.COUNT, "packet-hops that the team has done")
    rows_left = word(WordKind.COUNT, "trace rows that the team has not finished, less all of them")
    said_ps = word(WordKind.TIME, "earliest event as it stands on parcels")
    exact = word(WordKind.FLAG, "likewise")
    agreed = word(WordKind.COUNT, "windows after which all teams have agreed on the earliest event")
    all_hops = word(WordKind.COUNT, "packet-hops of all teams")
    all_rows_left = word(WordKind.COUNT, "trace rows that no team has finished, less all of them")


class Worker(
    Row,
    words=16,
    written_by=(
        "nadi.studies.benchmarks.instruments.meeting_costs workers.crew workers.exchange workers.other_teams "
        "workers.team"
    ),
):
    """Of one worker of a team, and written by it alone. What others read stands on its first cache line."""

    arrived = word(WordKind.COUNT, "windows done")
    packed = word(WordKind.COUNT, "windows in which all has gone out that goes to other teams")
    soonest_ps = word(WordKind.TIME, "earliest event of the LPs that it has done in this window")
    hops = word(WordKind.COUNT, "packet-hops that it has done")
    rows_left = word(WordKind.COUNT, "trace rows that it has finished, negative")
    known_ps = word(WordKind.TIME, "earliest event of its LPs, as far as it knew when `packed` was written")
    parts = word(WordKind.COUNT, "LPs that it had done in part then")
    stage = word(WordKind.CODE, "how far it is in the window (pdes/workers/team.py)")
    lp = word(WordKind.PLACE, "LP in hand, by its place in the process, -1 none")
    rest = word(WordKind.PLACE, "LP that it has done in part, -1 none; `rest` of its crew has the next")
    begin_ps = word(WordKind.TIME, "begin of the window")
    window = word(WordKind.COUNT, "number of the window")
    leads = word(WordKind.FLAG, "the first of its process: orders the LPs of its crew, sends and takes parcels")
    events = word(WordKind.COUNT, "events of the LPs that it has done")
    waited_ns = word(WordKind.COUNT, "nanoseconds in which it waited for others, and for parcels of other teams")
    lasted_ns = word(WordKind.COUNT, "nanoseconds from its begin to its end")


class LpTurn(Row, words=16, written_by="workers.team"):
    """Of an LP in windows of even number, or of odd number; its workers write it."""

    taken = word(WordKind.COUNT, "workers that have asked for it in the window: the first has it")
