"""Exchange of batches between teams by MPI: one message from each team to each other team in every window.

Receives are persistent, with room for everything that links can carry; they start as soon as those of the previous
window are complete. A batch is sent at its actual length. Batches also carry what teams must know of each other (the
earliest event, their progress), and a reduction follows only if that does not determine the next window's begin.
"""

import ctypes
from typing import Any

import numpy as np

from nadi.pdes.core.inputs import Int64
from nadi.pdes.core.jit import jit_enabled
from nadi.pdes.workers.batches import BATCH, MessageBatches, batch_words
from nadi.pdes.workers.team import ALL, RECEIVED, Team

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
