"""Parcels between teams, by MPI: one message from each team to each other after every window.

What parcels hold varies, but requests are persistent: there are some for each of a few lengths, and what does not fit
follows in a second message. That is rare, since both ends choose the next length by how much the last parcel held.
Receives are begun as soon as the window before is over. What teams must know of each other (the earliest event, how far
they are) stands on the parcels, so there is no reduction beside them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from pdes.core.inputs import Int64
from pdes.core.rows.workers import ParcelHeader
from pdes.core.state import INF
from pdes.workers.parcels import BLOCK, PARCEL_HEADER, Parcels, parcel_words
from pdes.workers.team import Team

STEPS = 4
"""Lengths between one and its double."""
LEAST_STEP = 5 * STEPS
ROOM = 1.15
"""A length is chosen for so many times what the last parcel held, and kept while"""
FULL, EMPTY = 0.95, 0.7
"""parcels take no more of it than the one and no less than the other."""
SOONEST_AT = ParcelHeader.place("soonest_ps")
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
    """Called after every window by the first rank of each team: its parcels are sent, and those of others taken.

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
        self._words = words = parcels.words
        me, record_words = leaders.Get_rank(), int(parcels.record_words[0])
        self._others = [other for other in range(leaders.Get_size()) if other != me]
        begins = parcels.incoming.reshape(-1, 2)
        count = len(self._others)
        self._lines = [
            _Line(words, [begin] * 2, room, record_words, self._sender(other))
            for other, begin, room in zip(self._others, parcels.outgoing.tolist(), rooms[:count].tolist(), strict=True)
        ] + [
            _Line(words, begin, room, record_words, self._receiver(other))
            for other, begin, room in zip(self._others, begins.tolist(), rooms[count::2].tolist(), strict=True)
        ]
        self._heads = [[*parcels.outgoing, *begins[:, half], *(begins[:, half] + SOONEST_AT)] for half in range(2)]
        self._number = 0
        self._now: list[tuple[list[Any], list[Any], list[Any]] | None] = [None, None]
        self._receive(0)

    def _sender(self, other: int) -> Callable[[Int64], Any]:
        return lambda buffer: self._leaders.Send_init([buffer, self._mpi.INT64_T], other, PARCEL)

    def _receiver(self, other: int) -> Callable[[Int64], Any]:
        return lambda buffer: self._leaders.Recv_init([buffer, self._mpi.INT64_T], other, PARCEL)

    def _receive(self, half: int) -> None:
        """Be ready for the parcels of the next window."""
        count = len(self._others)
        now = self._now[half]
        if now is None:
            requests = [line.request(half) for line in self._lines]
            self._now[half] = now = requests[:count], requests[count:], requests
        self._mpi.Prequest.Startall(now[1])

    def __call__(self) -> None:
        """Send the parcels of this window and take those of all other teams."""
        half = self._number & 1
        self._number += 1
        now = self._now[half]
        assert now is not None, "its receives have begun"  # noqa: S101 - for the reader
        sends, _, requests = now
        self._mpi.Prequest.Startall(sends)
        self._mpi.Request.Waitall(requests)
        said = self._words[self._heads[half]].tolist()
        lines = self._lines
        if any(not line.least <= records <= line.most for line, records in zip(lines, said, strict=False)):
            self._settle(half, said)
        if min(int(self._team.state.soonest_ps), *said[len(lines) :]) < INF:
            self._receive(1 - half)

    def _settle(self, half: int, said: list[int]) -> None:
        """Send and take what did not fit, and choose other lengths."""
        count = len(self._others)
        rests = []
        for i, (line, records) in enumerate(zip(self._lines, said, strict=False)):
            if records > line.fits:
                buffer, other = [line.rest(half, records), self._mpi.INT64_T], self._others[i % count]
                ask = self._leaders.Isend if i < count else self._leaders.Irecv
                rests.append(ask(buffer, other, REST))
            if not line.least <= records <= line.most:
                line.choose(records)
        self._mpi.Request.Waitall(rests)
        self._now = [None, None]

    def close(self) -> None:
        """When the last window is over."""
        for line in self._lines:
            line.close()
