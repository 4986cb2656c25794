"""Exchange of batches with the workers of other nodes of a cluster, by MPI."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from nadi.pdes.core import Int64
from nadi.pdes.core.jit import call_hook, clock_ns, hook, inline, jit_enabled, load_unaligned, store_unaligned
from nadi.pdes.core.packet import WORD_BYTES
from nadi.pdes.core.state import DONE, INF
from nadi.pdes.workers.batches import BATCH, BATCH_HEADER, MessageBatches, batch_words, pack, unpack
from nadi.pdes.workers.team import ALL, BUSY, EXCHANGE, PACKED, RECEIVED, Team, await_all, context_at

# Exchange of batches between teams by MPI: one message from each team to each other team in every window.
#
# Receives are persistent, with room for everything that links can carry; they start as soon as those of the previous
# window are complete. A batch is sent at its actual length. Batches also carry what teams must know of each other (the
# earliest event, their progress), and a reduction follows only if that does not determine the next window's begin.

FUNCTIONS = {
    "isend": "MPI_Isend",
    "start_all": "MPI_Startall",
    "test_all": "MPI_Testall",
    "wait_all": "MPI_Waitall",
    "allreduce": "MPI_Allreduce",
}  # word of MpiCalls -> function of MPI


def mpi_functions(mpi: Any) -> dict[str, int]:
    """Return the addresses of FUNCTIONS in the library of `mpi` (mpi4py.MPI); {} if compiled code cannot call them."""
    if not jit_enabled():
        return {}
    try:
        # mpi4py's module is linked with the MPI library, so its symbols are found through it, whatever the library's
        # name
        library = ctypes.CDLL(mpi.__file__)
        found = {word: ctypes.cast(getattr(library, name), ctypes.c_void_p) for word, name in FUNCTIONS.items()}
    except (OSError, AttributeError):
        return {}
    addresses = {word: pointer.value or 0 for word, pointer in found.items()}
    # a library that lacks one of them is called by Python
    return addresses if all(addresses.values()) else {}


class BatchExchange:
    """The exchange of batches by the first worker of a process, with the teams that this process answers."""

    # Compiled code does it (`pdes.workers.other_teams`); where that is impossible, the worker calls this object.

    def __init__(
        self, mpi: Any, communicator: Any, leaders: Any, team: Team, worker: int, batches: MessageBatches, rooms: Int64
    ) -> None:
        """Prepare the exchange by worker number `worker` of the process's team; mpi: the module mpi4py.MPI."""
        # communicator: of all ranks; leaders: of the first ranks of all teams, used on these only; batches: of the team
        # rooms: int64[3 x other teams], lengths in words of the batches to each, and of the two from each
        self._mpi = mpi
        self._communicator, self._leaders = communicator, leaders
        self._team, self._worker = team, worker
        self._batches = batches
        answers, others = batches.answers, len(batches.outgoing)
        # [2, answers]: for windows of even and of odd number, the begin in `words` of the batch from each team
        begins = batches.incoming.reshape(-1, 2)[answers].T.tolist()
        lengths = rooms[others::2][answers].tolist()
        self._receives = [
            [
                communicator.Recv_init([batches.words[begin : begin + length], mpi.INT64_T], rank, BATCH)
                for rank, begin, length in zip(batches.ranks.tolist(), begins_of_half, lengths, strict=True)
            ]
            for begins_of_half in begins
        ]
        self._be_called(mpi_functions(mpi))
        mpi.Prequest.Startall(self._receives[0])

    def _be_called(self, mpi_addresses: dict[str, int]) -> None:
        """Pass the addresses of MPI's functions, by name, and its handles to compiled code."""
        mpi, batches, calls, count = self._mpi, self._batches, self._batches.calls[0], len(self._batches.answers)
        for name, address in mpi_addresses.items():
            calls[name] = address
        if not mpi_addresses:
            return
        calls.handle_bytes = size = mpi._sizeof(mpi.Request)  # noqa: SLF001 - mpi4py offers no public way
        calls.type, calls.least = map(self._handle, (mpi.INT64_T, mpi.MIN))
        calls.communicator, calls.leaders = map(self._handle, (self._communicator, self._leaders))
        # MPI_Request is an int in MPICH and a pointer in Open MPI: an array of handles needs items of that size
        kind = np.uint32 if size == np.uint32().nbytes else np.uint64
        null = [self._handle(mpi.REQUEST_NULL)] * count
        rows = [null + [self._handle(request) for request in receives] for receives in self._receives]
        self._handles = np.array(rows, np.int64).astype(kind)  # the upper half is only the sign
        self._statuses = np.zeros(2 * count * mpi._sizeof(mpi.Status), np.int8)  # noqa: SLF001
        self._agreement = np.zeros(2, np.int64)
        calls.statuses = self._statuses.ctypes.data
        calls.agreement = self._agreement.ctypes.data
        calls.batches = batches.words.ctypes.data
        batches.requests[:] = [row.ctypes.data for row in self._handles]

    def _handle(self, mpi_object: Any) -> int:
        """Return the handle of an MPI object in C, as a word."""
        return ctypes.c_int64(self._mpi._handleof(mpi_object)).value  # noqa: SLF001 - mpi4py offers no public way

    def __call__(self) -> None:
        """Send this window's batches and take those of others; after all work is done, agree on the next event."""
        state, worker, calls = self._team.state, self._team.workers[self._worker], self._batches.calls[0]
        if calls.error != 0:
            raise self._mpi.Exception(int(calls.error))
        if worker.stage == ALL:
            # minimum over all teams: the first workers of all call this in the same window, or none does
            state.soonest_ps = self._leaders.allreduce(int(state.soonest_ps), self._mpi.MIN)
            state.agreed = worker.window + 1
            return
        half = int(worker.window) & 1
        # sends have the actual length, receives that of the room
        words, size = self._batches.words, int(self._batches.shape.record_words)
        sends = [
            self._communicator.Isend([words[at : at + batch_words(words[at], size)], self._mpi.INT64_T], rank, BATCH)
            for at, rank in zip(
                self._batches.outgoing[self._batches.answers].tolist(), self._batches.ranks.tolist(), strict=True
            )
        ]
        self._mpi.Request.Waitall(sends + self._receives[half])
        # the next window's receives are ready before others can send
        self._mpi.Prequest.Startall(self._receives[1 - half])
        worker.stage = RECEIVED

    def close(self) -> None:
        """Cancel the receives of the next window and free all requests, after the last window or a snapshot."""
        worker = self._team.workers[self._worker]
        # those of the next window were started in advance, and nobody will send
        for request in self._receives[int(worker.window) + int(worker.stage == ALL) & 1]:
            request.Cancel()
            request.Wait()
        for request in self._receives[0] + self._receives[1]:
            request.Free()


# Work of a team with other teams: batches are packed and sent, those of others are taken.
#
# These functions are hooks, so that they are compiled only in runs with several teams. Each process has their
# addresses in its message batches, and passes them the address of its WorkerContext. They call MPI by a few functions
# of its library and arrays of request handles; if those are not available, Python does all of it
# (`BatchExchange`).

CODE_BITS = (1 << 32) - 1  # bits of the register that a C function with an int result defines


@inline
def send_all(batches, window_number):
    """Begin to send a window's batches, each at its actual length. Return MPI's error code, 0 without error.

    Args:
        batches: Message batches of the team (`MessageBatches`).
        window_number: Number of the window.
    """
    calls = batches.calls[0]
    for place in range(batches.answers.shape[0]):
        batch = batches.outgoing[batches.answers[place]]
        # the receive is posted with room for all that links carry; MPI accepts a shorter message
        length = batch_words(batches.headers[batch // BATCH_HEADER].records, batches.shape.record_words)
        code = call_hook(
            calls.isend,
            calls.batches + WORD_BYTES * batch,
            length,
            calls.type,
            batches.ranks[place],
            BATCH,
            calls.communicator,
            batches.requests[window_number & 1] + place * calls.handle_bytes,
        )
        if code & CODE_BITS != 0:
            return code & CODE_BITS
    return 0


@inline
def take_all(batches, window_number):
    """Wait for a window's batches, and begin to receive the next ones. Return MPI's error code, 0 without error.

    Args:
        batches: Message batches of the team (`MessageBatches`).
        window_number: Number of the window.
    """
    calls = batches.calls[0]
    count = batches.answers.shape[0]
    code = call_hook(calls.wait_all, 2 * count, batches.requests[window_number & 1], calls.statuses) & CODE_BITS
    if code == 0:
        # the next window's receives are ready before others can send
        receives = batches.requests[1 - (window_number & 1)] + count * calls.handle_bytes
        code = call_hook(calls.start_all, count, receives) & CODE_BITS
    return code


@hook
def unpack_batches(context_address, lp, window_number):
    """Unpack the packets for an LP of a process, before its window.

    Args:
        context_address: Address of the directory of the process's `WorkerContext`.
        lp: Index of the LP in the process.
        window_number: Number of the window.
    """
    unpack(context_at(context_address).batches, lp, window_number)
    return DONE


@hook
def pack_batches(context_address, lp, window_number):
    """Pack the packets that an LP of a process sends, after its window.

    Args:
        context_address: Address of the directory of the process's `WorkerContext`.
        lp: Index of the LP in the process.
        window_number: Number of the window.
    """
    context = context_at(context_address)
    pack(context.batches, context.addresses[lp], lp, window_number, context.team.state.begin_ps)
    return DONE


@hook
def send_batches(context_address, worker):
    """Send a worker's batches, once all workers have packed theirs. Return DONE, ABORTED or WAITING.

    Args:
        context_address: Address of the directory of the process's `WorkerContext`.
        worker: Number of the worker in the team.
    """
    context = context_at(context_address)
    team, batches = context.team, context.batches
    state, worker_row = team.state, team.workers[worker]
    # only the first worker of a process, which runs in its main thread, calls MPI
    if worker_row.leads == 0 or batches.answers.shape[0] == 0:
        return DONE
    number = worker_row.window
    status = await_all(team, PACKED, worker_row, number)
    if status != DONE:
        return status
    # the team's earliest event as far as known: it is final unless LPs have stopped in the middle of the window
    known, parts, signs = INF, np.int64(0), np.int64(0)
    for number_of_other in range(team.workers.shape[0]):
        other = team.workers[number_of_other]
        known = min(known, other.known_ps)
        parts += other.parts
        signs |= other.signs
    exact = np.int64(parts == 0)
    for place in range(batches.answers.shape[0]):
        header = batches.headers[batches.outgoing[batches.answers[place]] // BATCH_HEADER]
        # with the packets, so that teams know of each other's next event without a message of its own
        header.soonest_ps = known
        header.exact = exact
        header.hops = state.hops
        header.rows_left = state.rows_left
        header.begin_ps = state.begin_ps
        header.snapshot_point = state.said_snapshot_point
        header.signs = signs
    begun = clock_ns()
    if worker == 0:
        state.said_ps = known
        state.exact = exact
    if batches.calls[0].isend != 0:
        batches.calls[0].error = send_all(batches, number)
        worker_row.waited_ns += clock_ns() - begun
    return DONE


@hook
def help_along(context_address, worker):
    """Let MPI make progress with a worker's batches: some transfers need calls of the library.

    Args:
        context_address: Address of the directory of the process's `WorkerContext`.
        worker: Number of the worker in the team.
    """
    context = context_at(context_address)
    batches, worker_row = context.batches, context.team.workers[worker]
    calls = batches.calls[0]
    if calls.isend != 0 and worker_row.leads == 1:
        count = 2 * batches.answers.shape[0]
        # most libraries move large messages only inside calls; the result is not needed
        call_hook(calls.test_all, count, batches.requests[worker_row.window & 1], calls.agreement, calls.statuses)
    return DONE


@hook
def take_batches(context_address, worker):
    """Receive a worker's batches. Return DONE, or EXCHANGE if Python must do it or MPI has failed.

    Args:
        context_address: Address of the directory of the process's `WorkerContext`.
        worker: Number of the worker in the team.
    """
    context = context_at(context_address)
    batches, worker_row = context.batches, context.team.workers[worker]
    calls = batches.calls[0]
    if worker_row.leads == 0:
        return DONE
    if calls.isend == 0 or calls.error != 0:
        return EXCHANGE
    begun = clock_ns()
    calls.error = take_all(batches, worker_row.window)
    worker_row.waited_ns += clock_ns() - begun
    return DONE if calls.error == 0 else EXCHANGE


@hook
def agree(context_address, window_number):
    """Find the earliest event of all teams. Return DONE, or EXCHANGE if Python must do it or MPI has failed.

    Args:
        context_address: Address of the directory of the process's `WorkerContext`.
        window_number: Number of the window.
    """
    # The batches contain it if no team had LPs that stopped in the middle of the window. Otherwise it is known if any
    # team announces that the next window begins at the end of this one: nothing is earlier. Otherwise a reduction
    # follows.
    context = context_at(context_address)
    batches, state, worker_row = context.batches, context.team.state, context.team.workers[0]
    calls = batches.calls[0]
    if state.agreed > window_number:
        return DONE
    # the first worker of the team reads the headers for all of its processes
    soonest = INF
    exact = state.exact
    state.all_hops = state.hops
    state.all_rows_left = state.rows_left
    for team in range(batches.outgoing.shape[0]):
        batches.headers[batches.outgoing[team] // BATCH_HEADER].records = 0  # the batch has been sent
        header = batches.headers[batches.incoming[2 * team + (window_number & 1)] // BATCH_HEADER]
        soonest = min(soonest, header.soonest_ps)
        exact &= header.exact
        # the strongest request of any team, which all know from this window on, so that they stop before the same one
        state.snapshot_point = max(state.snapshot_point, header.snapshot_point)
        state.signs |= header.signs
        state.all_hops += header.hops
        state.all_rows_left += header.rows_left
    if exact == 0:
        state.signs |= BUSY  # for all teams: the signs of some are not those after the window
    end = worker_row.begin_ps + state.window_ps
    if exact == 1:
        state.soonest_ps = min(state.soonest_ps, soonest)
    # Some LPs have stopped in the middle, but somebody's event within a cell of the end is known: the next window
    # begins at the end whatever else there is, as nothing can be earlier.
    elif min(state.said_ps, soonest) < end + state.cell_ps:
        state.soonest_ps = end
    elif calls.isend == 0:
        return EXCHANGE
    else:
        begun = clock_ns()
        minimum = calls.agreement + WORD_BYTES
        store_unaligned(calls.agreement, state.soonest_ps)
        code = call_hook(calls.allreduce, calls.agreement, minimum, 1, calls.type, calls.least, calls.leaders)
        calls.error = code & CODE_BITS
        calls.agreed += 1
        state.soonest_ps = load_unaligned(minimum)
        worker_row.waited_ns += clock_ns() - begun
    state.agreed = window_number + 1
    return DONE if calls.error == 0 else EXCHANGE


_HOOKS = unpack_batches, pack_batches, send_batches, help_along, take_batches, agree
OTHER_TEAMS: dict[str, Callable[..., Any]] = {hook.__name__: hook for hook in _HOOKS}  # name (of `BatchHooks`) -> hook
