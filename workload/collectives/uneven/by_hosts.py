"""All-to-all-v by hosts: first within a host, then between members of equal place, with one message per host.

A member gives the member in place p of its own host all its data for members in place p of any host; that member sends
each host's share to the member in its own place there. Thus only messages between equal places leave a host.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload.collectives.plans.plan import Lane, Plans, each_its_own
from workload.errors import WorkloadError

Int64 = NDArray[np.int64]

# Regions: output, data by receiving place, data received from the own host, the same sorted by host, and data received
# from other hosts
_OUTPUT, _TO_PLACES, _GIVEN, _TO_HOSTS, _COME = 1, 2, 3, 4, 5


def places_of(hosts: Sequence[int] | None, members: int) -> Int64:
    """Return int64[hosts, places]: the members of each host; hosts: host of each member.

    Raises WorkloadError: not one host per member, or hosts of unequal sizes.
    """
    if hosts is None or len(hosts) != members:
        count = "none" if hosts is None else len(hosts)
        raise WorkloadError(f"all-to-all-v, hierarchical: hosts of {count} members, expected of {members}")
    names, sizes = np.unique(np.asarray(hosts), return_counts=True)
    if sizes.min() != sizes.max():
        raise WorkloadError(
            f"all-to-all-v, hierarchical: hosts of {sizes.min()} to {sizes.max()} members, expected as many on each"
        )
    return np.stack([np.flatnonzero(np.asarray(hosts) == name) for name in names]).astype(np.int64)


def by_hosts(count: Int64, chunks: int, member: Int64) -> Plans:
    """Return the plans for count: int64[n, n] chunks from member to member, and member: int64[hosts, places].

    The fullest input or output has `chunks` chunks.
    """
    table = _Table(count, member)
    max_given = max(int(table.given(*at).sum()) for at in np.ndindex(*member.shape))
    region_chunks = max(chunks, max_given)
    lanes: dict[int, list[Lane]] = {
        int(member[at]): _Member(table, region_chunks, *at).lanes() for at in np.ndindex(*member.shape)
    }
    return each_its_own(region_chunks, [lanes[me] for me in range(len(count))], regions=6)


class _Table(NamedTuple):
    """Chunks from member to member, and the member in each place of each host."""

    sent: Int64
    member: Int64

    def to_places(self, host: int, place: int) -> Int64:
        """Return int64[places, hosts]: chunks that a member sends to each member."""
        return self.sent[self.member[host, place], self.member.T]

    def given(self, host: int, place: int) -> Int64:
        """Return int64[mates, hosts]: chunks that each member of the host has for a place of each host."""
        return self.sent[np.ix_(self.member[host], self.member[:, place])]

    def come(self, host: int, place: int) -> Int64:
        """Return int64[hosts, places]: chunks that each member has for one member."""
        return self.sent[self.member, self.member[host, place]]


class _Member:
    """Builds the lanes of a member: packing, a lane per mate, sorting, a lane per other host."""

    def __init__(self, table: _Table, chunks: int, host: int, place: int) -> None:
        self.table, self.chunks, self.host, self.place = table, chunks, host, place
        self.hosts, self.places = table.member.shape
        self.to_places = table.to_places(host, place)
        self.given = table.given(host, place)
        self.come = table.come(host, place)

    def lanes(self) -> list[Lane]:
        mates = [self._mate(far) for far in range(1, self.places)]
        sort = self._sort()
        return [self._pack(), *mates, sort, *(self._other(far, len(sort.steps) - 1) for far in range(1, self.hosts))]

    def _pack(self) -> Lane:
        """Order the input by receiving place, and copy the own place's blocks to the data received from mates."""
        lane, size = Lane(), self.to_places
        inputs = _before(self.table.sent[self.table.member[self.host, self.place]])
        for place, host in np.ndindex(*size.shape):
            at = self._at(_TO_PLACES, size, place, host)
            _copy(lane, int(inputs[self.table.member[host, place]]), at, int(size[place, host]))
        own = self._at(_TO_PLACES, size, self.place, 0), self._at(_GIVEN, self.given, self.place, 0)
        _copy(lane, *own, int(size[self.place].sum()))
        return lane.step()

    def _mate(self, far: int) -> Lane:
        """Exchange with the mates `far` places on and before, all at once."""
        to, source = (self.place + far) % self.places, (self.place - far) % self.places
        ways = send(int(self.table.member[self.host, to]), far, *self._row(_TO_PLACES, self.to_places, to))
        ways |= receive(int(self.table.member[self.host, source]), *self._row(_GIVEN, self.given, source))
        return Lane().step(after=(0, self._packed()), **ways)

    def _sort(self) -> Lane:
        """Wait for the data of all mates, sort it by host, and copy the own host's blocks to the output."""
        lane = Lane()
        for far in range(1, self.places):
            lane.step(after=(far, 0))
        lane.step(after=(0, self._packed()))
        size = self.given.T
        for host, mate in np.ndindex(*size.shape):
            source = self._at(_GIVEN, self.given, mate, host)
            _copy(lane, source, self._at(_TO_HOSTS, size, host, mate), int(size[host, mate]))
        own = self._at(_TO_HOSTS, size, self.host, 0), self._at(_COME, self.come, self.host, 0)
        _copy(lane, *own, int(size[self.host].sum()))
        self._unpack(lane, self.host)
        return lane

    def _other(self, far: int, last: int) -> Lane:
        """Exchange with the own place of the hosts `far` on and before; last: last step of the sorting lane."""
        to, source = (self.host + far) % self.hosts, (self.host - far) % self.hosts
        peer = int(self.table.member[to, self.place])
        ways = send(peer, self.places + far, *self._row(_TO_HOSTS, self.given.T, to))
        ways |= receive(int(self.table.member[source, self.place]), *self._row(_COME, self.come, source))
        lane = Lane().step(after=(self.places, last), **ways)
        self._unpack(lane, source)
        return lane

    def _unpack(self, lane: Lane, host: int) -> None:
        """Copy the blocks from a host to the output."""
        outputs = _before(self.table.sent[:, self.table.member[self.host, self.place]])
        for mate, member in enumerate(self.table.member[host]):
            to = _OUTPUT * self.chunks + int(outputs[member])
            _copy(lane, self._at(_COME, self.come, host, mate), to, int(self.come[host, mate]))

    def _packed(self) -> int:
        """Return the number of the last step of the packing lane."""
        return int(np.count_nonzero(self.to_places)) + int(self.to_places[self.place].any())

    def _at(self, region: int, size: Int64, row: int, column: int) -> int:
        """Return the first chunk of a block, for consecutive blocks of these sizes."""
        return region * self.chunks + int(_before(size.reshape(-1))[row * size.shape[1] + column])

    def _row(self, region: int, size: Int64, row: int) -> tuple[int, int]:
        """Return the first chunk and the number of chunks of a row of blocks."""
        return self._at(region, size, row, 0), int(size[row].sum())


def _before(count: Int64) -> Int64:
    return np.cumsum(count) - count


def _copy(lane: Lane, chunk: int, to: int, count: int) -> None:
    if count:
        lane.copy(chunk, to=to, count=count)


def send(peer: int, to_lane: int, chunk: int, count: int) -> dict[str, Any]:
    """Return the arguments of `Lane.step` for a send; none if it has no chunks."""
    return {"send_to": peer, "to_lane": to_lane, "send": chunk, "send_count": count} if count else {}


def receive(peer: int, chunk: int, count: int) -> dict[str, Any]:
    """Return the arguments of `Lane.step` for a receive; none if it has no chunks."""
    return {"receive_from": peer, "receive": chunk, "receive_count": count} if count else {}
