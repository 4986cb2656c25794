"""Parcels between teams, by MPI: one message from each team to each other team in every window.

Receives are persistent, and have room for all that links can carry; they are begun as soon as those of the window
before are over. A parcel is sent as long as it is. What teams must know of each other (the earliest event, how far they
are) stands on the parcels, and only where that does not say when the next window begins is there a reduction.
"""

import ctypes
from typing import Any

import numpy as np

from pdes.core.inputs import Int64
from pdes.core.jit import jit_enabled
from pdes.workers.parcels import PARCEL, Parcels, parcel_words
from pdes.workers.team import ALL, RECEIVED, Team

FUNCTIONS = {
    "isend": "MPI_Isend",
    "start_all": "MPI_Startall",
    "test_all": "MPI_Testall",
    "wait_all": "MPI_Waitall",
    "allreduce": "MPI_Allreduce",
}


def mpi_functions(mpi: Any) -> dict[str, int]:
    """Addresses of FUNCTIONS in the library behind `mpi` (mpi4py.MPI); empty: compiled code cannot call them."""
    if not jit_enabled():
        return {}
    try:
        library = ctypes.CDLL(mpi.__file__)
        found = {word: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for word, name in FUNCTIONS.items()}
    except (OSError, AttributeError):
        return {}
    return {word: address or 0 for word, address in found.items()} if all(found.values()) else {}


class ParcelExchange:
    """Has parcels of a team sent in every window, and those of others taken, by the first worker of a process.

    That is for the teams for which the process answers. Compiled code does it (`pdes.workers.other_teams`); where it
    cannot, this is called for it.

    Args:
        mpi: mpi4py.MPI.
        communicator: of all ranks.
        leaders: of the first ranks of all teams, for the first of these.
        team: see pdes.workers.team.
        worker: number in it of the first of this process.
        parcels: of the team.
        rooms: int64[3 x other teams], lengths of the parcels to each, and of the two from each.
    """

    def __init__(
        self, mpi: Any, communicator: Any, leaders: Any, team: Team, worker: int, parcels: Parcels, rooms: Int64
    ) -> None:
        self._mpi = mpi
        self._communicator, self._leaders = communicator, leaders
        self._team, self._worker = team, worker
        self._parcels = parcels
        answers, others = parcels.answers, len(parcels.outgoing)
        begins = parcels.incoming.reshape(-1, 2)[answers].T.tolist()
        lengths = rooms[others::2][answers].tolist()
        self._receives = [
            [
                communicator.Recv_init([parcels.words[begin : begin + length], mpi.INT64_T], rank, PARCEL)
                for rank, begin, length in zip(parcels.ranks.tolist(), begins_of_half, lengths, strict=True)
            ]
            for begins_of_half in begins
        ]
        self._be_called(mpi_functions(mpi))
        mpi.Prequest.Startall(self._receives[0])

    def _be_called(self, functions: dict[str, int]) -> None:
        """Tell compiled code how to call MPI."""
        mpi, parcels, calls, count = self._mpi, self._parcels, self._parcels.calls[0], len(self._parcels.answers)
        for name, address in functions.items():
            calls[name] = address
        if not functions:
            return
        calls.handle_bytes = size = mpi._sizeof(mpi.Request)  # noqa: SLF001 - so mpi4py tells it
        calls.type, calls.least = map(self._handle, (mpi.INT64_T, mpi.MIN))
        calls.communicator, calls.leaders = map(self._handle, (self._communicator, self._leaders))
        kind = np.uint32 if size == np.uint32().nbytes else np.uint64
        none = [self._handle(mpi.REQUEST_NULL)] * count
        rows = [none + [self._handle(request) for request in receives] for receives in self._receives]
        self._handles = np.array(rows, np.int64).astype(kind)  # whose upper half is no more than a sign
        self._statuses = np.zeros(2 * count * mpi._sizeof(mpi.Status), np.int8)  # noqa: SLF001
        self._agreement = np.zeros(2, np.int64)
        calls.statuses = self._statuses.ctypes.data
        calls.agreement = self._agreement.ctypes.data
        calls.parcels = parcels.words.ctypes.data
        parcels.requests[:] = [row.ctypes.data for row in self._handles]

    def _handle(self, thing: Any) -> int:
        """What stands for a thing of MPI in C, as a word."""
        return ctypes.c_int64(self._mpi._handleof(thing)).value  # noqa: SLF001 - so mpi4py tells it

    def __call__(self) -> None:
        """Send parcels of this window and take those of others; once the worker has done all, agree on what follows."""
        state, worker, calls = self._team.state, self._team.workers[self._worker], self._parcels.calls[0]
        if calls.error != 0:
            raise self._mpi.Exception(int(calls.error))
        if worker.stage == ALL:
            state.soonest_ps = self._leaders.allreduce(int(state.soonest_ps), self._mpi.MIN)
            state.agreed = worker.window + 1
            return
        half = int(worker.window) & 1
        words, size = self._parcels.words, int(self._parcels.record_words[0])
        sends = [
            self._communicator.Isend([words[at : at + parcel_words(words[at], size)], self._mpi.INT64_T], rank, PARCEL)
            for at, rank in zip(
                self._parcels.outgoing[self._parcels.answers].tolist(), self._parcels.ranks.tolist(), strict=True
            )
        ]
        self._mpi.Request.Waitall(sends + self._receives[half])
        self._mpi.Prequest.Startall(self._receives[1 - half])
        worker.stage = RECEIVED

    def close(self) -> None:
        """When the last window is over: call off the receives of the next, and give all back."""
        for request in self._receives[int(self._team.workers[self._worker].window) + 1 & 1]:
            request.Cancel()
            request.Wait()
        for request in self._receives[0] + self._receives[1]:
            request.Free()
