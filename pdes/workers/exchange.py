"""Parcels between teams, by MPI: one message from each team to each other after every window.

What parcels hold varies, but requests are persistent: there are some for each of a few lengths, and what does not fit
follows in a second message. That is rare, since both ends choose a length by how much the parcel held that went as many
windows before as outboxes reach ahead: in one of these LPs put out what waited (pdes.network.link).
Receives are begun as soon as the window before is over. What teams must know of each other (the earliest event, how far
they are) stands on the parcels, so there is no reduction beside them.
"""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from pdes.core.inputs import Int64
from pdes.core.state import INF
from pdes.network.boundary import FAR_WINDOWS
from pdes.workers.mpi_calls import mpi_functions
from pdes.workers.parcels import BLOCK, PARCEL_HEADER, TURNS, Parcels, parcel_words
from pdes.workers.team import Team

STEPS = 4
"""Lengths between one and its double."""
LEAST_STEP = 5 * STEPS
ROOM = 1.15
"""A length is chosen for so many times what the last parcel held, and kept while"""
FULL, EMPTY = 0.95, 0.5
"""parcels take no more of it than the one and no less than the other."""
PARCEL, REST = range(2)
"""Tags of messages."""


class _Line:
    """One direction between two teams.

    Args:
        words: that hold the parcels.
        begins: of the parcels after windows of even and of odd number.
        most_words: length of a parcel.
        record_words: see Parcels.
        ask: buffer -> persistent request.

    Attributes:
        least, most: numbers of records after which the next message has the same length as the last.
        fits: records of a message.
    """

    def __init__(
        self, words: Int64, begins: Sequence[int], most_words: int, record_words: int, ask: Callable[[Int64], Any]
    ) -> None:
        self._words = words
        self._begins = begins
        self._record_words = record_words
        self._most = (most_words - PARCEL_HEADER) // (BLOCK * (1 + record_words)) * BLOCK
        self._ask = ask
        self._requests: dict[tuple[int, int], Any] = {}
        self.choose(0)

    def choose(self, records: int) -> None:
        """After a parcel of so many records: the length of the next message."""
        step = max(LEAST_STEP, math.ceil(STEPS * math.log2(max(1.0, ROOM * records))))
        fits = -(-round(2 ** (step / STEPS)) // BLOCK) * BLOCK
        self.fits = min(fits, self._most)
        self.most = FULL * fits
        self.least = EMPTY * fits if step > LEAST_STEP else 0.0

    def request(self, half: int) -> Any:
        """The persistent request for the next message."""
        key = half, self.fits
        if key not in self._requests:
            begin = self._begins[half]
            length = parcel_words(self.fits, self._record_words)
            self._requests[key] = self._ask(self._words[begin : begin + length])
        return self._requests[key]

    def rest(self, half: int, records: int) -> Int64:
        """What of a parcel of so many records did not fit."""
        begin = self._begins[half]
        first, last = (begin + parcel_words(each, self._record_words) for each in (self.fits, records))
        return self._words[first:last]

    def close(self) -> None:
        """Give the requests back."""
        for request in self._requests.values():
            request.Free()


class Exchange:
    """Has the parcels of a team sent after every window, and those of others taken, by the first rank of each team.

    Compiled code does it (`pdes.workers.mpi_calls`) and calls this for the rest: what a message had no room for, and
    other lengths. Where it cannot, all of it is done here.

    Args:
        mpi: mpi4py.MPI.
        leaders: communicator of the first ranks of all teams.
        team: see pdes.workers.team.
        parcels: of the team.
        rooms: int64[3 x other teams], lengths of the parcels to each, and of the two from each.
    """

    def __init__(self, mpi: Any, leaders: Any, team: Team, parcels: Parcels, rooms: Int64) -> None:
        self._mpi = mpi
        self._leaders = leaders
        self._team = team
        self._parcels = parcels
        self._words = words = parcels.words
        me, record_words = leaders.Get_rank(), int(parcels.record_words[0])
        self._others = [other for other in range(leaders.Get_size()) if other != me]
        self._begins = begins = parcels.incoming.reshape(-1, 2)
        count = len(self._others)
        out, into = (list(zip(self._others, each.tolist(), strict=True)) for each in (parcels.outgoing, begins))
        self._lines = [
            [
                _Line(words, [begin] * 2, room, record_words, self._sender(other))
                for (other, begin), room in zip(out, rooms[:count].tolist(), strict=True)
            ]
            + [
                _Line(words, begin, room, record_words, self._receiver(other))
                for (other, begin), room in zip(into, rooms[count::2].tolist(), strict=True)
            ]
            for _ in range(FAR_WINDOWS)
        ]
        self._requests: list[list[Any]] = [[] for _ in range(TURNS)]
        self._be_called()
        for kind in range(FAR_WINDOWS):
            self._take_requests(kind)
        self._receive(0)

    def _sender(self, other: int) -> Callable[[Int64], Any]:
        return lambda buffer: self._leaders.Send_init([buffer, self._mpi.INT64_T], other, PARCEL)

    def _receiver(self, other: int) -> Callable[[Int64], Any]:
        return lambda buffer: self._leaders.Recv_init([buffer, self._mpi.INT64_T], other, PARCEL)

    def _be_called(self) -> None:
        """Tell compiled code how to call MPI."""
        parcels, calls, count = self._parcels, self._parcels.calls[0], len(self._others)
        functions = mpi_functions(self._mpi)
        calls.start_all, calls.wait_all, calls.others = *functions, count
        self._handles: np.ndarray | None = None
        if functions.start_all != 0:
            calls.handle_bytes = size = self._mpi._sizeof(self._mpi.Request)  # noqa: SLF001 - so mpi4py tells it
            self._handles = np.zeros((TURNS, 2 * count), np.uint32 if size == np.uint32().nbytes else np.uint64)
            self._statuses = np.zeros(2 * count * self._mpi._sizeof(self._mpi.Status), np.int8)  # noqa: SLF001
            calls.statuses = self._statuses.ctypes.data
            parcels.requests[:] = [row.ctypes.data for row in self._handles]

    def _take_requests(self, kind: int) -> None:
        """Of the lengths chosen for windows of one kind of FAR_WINDOWS."""
        lines, parcels = self._lines[kind], self._parcels
        own = slice(kind * len(lines), (kind + 1) * len(lines))
        parcels.least[own] = [math.ceil(line.least) for line in lines]
        parcels.most[own] = [math.floor(line.most) for line in lines]
        for turn in range(kind, TURNS, FAR_WINDOWS):
            self._requests[turn] = requests = [line.request(turn & 1) for line in lines]
            if self._handles is not None:
                handles = [self._mpi._handleof(request) for request in requests]  # noqa: SLF001 - as above
                self._handles[turn] = np.array(handles, np.uint64)  # whose upper half is no more than a sign

    def _receive(self, turn: int) -> None:
        """Be ready for the parcels of a window."""
        self._mpi.Prequest.Startall(self._requests[turn][len(self._others) :])

    def __call__(self) -> None:
        """Send the parcels of this window and take those of all other teams, or what compiled code has left of it."""
        window = int(self._team.state.asked) - 1
        turn, half, calls = window % TURNS, window & 1, self._parcels.calls[0]
        if calls.error != 0:
            raise self._mpi.Exception(int(calls.error))
        if calls.traded == 0:
            self._mpi.Prequest.Startall(self._requests[turn][: len(self._others)])
            self._mpi.Request.Waitall(self._requests[turn])
        calls.traded = 0
        begins = [*self._parcels.outgoing, *self._begins[:, half]]
        records = self._words[begins].tolist()
        lines = self._lines[turn % FAR_WINDOWS]
        if any(not line.least <= of <= line.most for line, of in zip(lines, records, strict=True)):
            self._settle(turn, records)
        said = self._parcels.headers.soonest_ps[self._begins[:, half] // PARCEL_HEADER]
        if min(int(self._team.state.soonest_ps), int(said.min())) < INF:
            self._receive((turn + 1) % TURNS)

    def _settle(self, turn: int, said: list[int]) -> None:
        """Send and take what did not fit, and choose other lengths."""
        count, kind = len(self._others), turn % FAR_WINDOWS
        rests = []
        for i, (line, records) in enumerate(zip(self._lines[kind], said, strict=True)):
            if records > line.fits:
                buffer, other = [line.rest(turn & 1, records), self._mpi.INT64_T], self._others[i % count]
                ask = self._leaders.Isend if i < count else self._leaders.Irecv
                rests.append(ask(buffer, other, REST))
            if not line.least <= records <= line.most:
                line.choose(records)
        self._mpi.Request.Waitall(rests)
        self._take_requests(kind)

    def close(self) -> None:
        """When the last window is over."""
        for line in chain(*self._lines):
            line.close()
