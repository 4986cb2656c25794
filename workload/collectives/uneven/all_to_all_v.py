"""All-to-all with a separate number of bytes for each pair (all-to-all-v), such as tokens sent to their experts.

A chunk is one unit, the greatest common divisor of all sizes. In a collective of `buffer_bytes` every message therefore
has exactly the bytes of the matrix. Blocks are ordered by receiver in the input and by sender in the output.

Hierarchically, a member gives the member in place p of its own host all its data for members in place p of any host;
that member sends each host's share to the member in its own place there. Thus only messages between equal places leave
a host, one per other host.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi.et.arrays import Int64
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own
from nadi.workload.errors import WorkloadError

NAME = "all-to-all-v"
ALGORITHMS = ("direct", "pairwise", "hierarchical")

_MAX_CHUNKS = 1 << 28  # maximum number of units in a buffer: chunk numbers over all regions must fit into int32
# Regions: output, data by receiving place, data received from the own host, the same sorted by host, and data received
# from other hosts
_OUTPUT, _TO_PLACES, _GIVEN, _TO_HOSTS, _COME = 1, 2, 3, 4, 5


class Units(NamedTuple):
    """A matrix of sizes in units."""

    unit_bytes: int  # size of a unit, which is one chunk
    chunks: int  # number of chunks of the fullest buffer, the size of all buffers
    sent: Int64  # int64[n, n], units from member to member


def units(matrix_bytes: ArrayLike) -> Units:
    """Return a matrix of bytes, int64[n, n] from member (row) to member (column), in units.

    Raises WorkloadError: a matrix that is not square, not integer or negative, or more than 2^28 units in a buffer.
    """
    try:
        matrix = np.asarray(matrix_bytes)
    except ValueError:
        raise WorkloadError("all-to-all-v: rows of unlike lengths, expected a square matrix of bytes") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        shape = " x ".join(map(str, matrix.shape)) or "one number"
        raise WorkloadError(f"all-to-all-v: a matrix of {shape}, expected a square one of bytes")
    if not np.issubdtype(matrix.dtype, np.integer):
        raise WorkloadError(f"all-to-all-v: a matrix of {matrix.dtype}, expected whole numbers of bytes")
    if matrix.min() < 0:
        src, dst = np.unravel_index(matrix.argmin(), matrix.shape)
        raise WorkloadError(f"all-to-all-v: {matrix.min()} B from member {src} to {dst}, expected 0 or more")
    sizes = matrix.astype(np.int64)
    unit_bytes = math.gcd(*sizes.reshape(-1).tolist()) or 1
    count = sizes // unit_bytes
    chunks = max(1, int(count.sum(axis=0).max()), int(count.sum(axis=1).max()))
    if chunks > _MAX_CHUNKS:
        raise WorkloadError(
            f"all-to-all-v: {chunks} units of {unit_bytes} B in a buffer, expected at most {_MAX_CHUNKS}"
        )
    return Units(unit_bytes, chunks, count)


def all_to_all_v(matrix_bytes: ArrayLike, algorithm: str, hosts: Sequence[int] | None = None) -> Plans:
    """Return the steps of each member; matrix_bytes: int[n, n], from member (row, copies its own) to member (column).

    algorithm: direct (all messages at once), pairwise (step k sends to the member k further on and receives from the
    one k before, one step at a time), or hierarchical (first to the member of the own host in the receiver's place,
    then all data of a host for a receiver at once); hosts: host of each member, for hierarchical, each with equally
    many members.
    """
    if algorithm not in ALGORITHMS:
        raise WorkloadError(f"algorithm {algorithm!r} for {NAME}: expected one of {', '.join(ALGORITHMS)}")
    split = units(matrix_bytes)
    if algorithm == "hierarchical":
        return _by_hosts(split.sent, split.chunks, _places_of(hosts, len(split.sent)))._replace(uneven=True)
    lanes = (_member(me, split, at_once=algorithm == "direct") for me in range(len(split.sent)))
    return each_its_own(split.chunks, lanes, regions=2)._replace(uneven=True)


def buffer_bytes(plans: Plans, matrix_bytes: ArrayLike) -> int:
    """Return the size at which a collective of these plans moves the bytes of the matrix."""
    return plans.chunks * units(matrix_bytes).unit_bytes


def _member(member: int, split: Units, *, at_once: bool) -> list[Lane]:
    """Return a member's lanes: one that sends and one that receives all messages at once; else one per step."""
    # The first lane begins with a copy of the member's own block, or with a step that does nothing.
    n, sent = len(split.sent), split.sent
    inputs, outputs = (
        np.cumsum(sent[member]) - sent[member],
        split.chunks + np.cumsum(sent[:, member]) - sent[:, member],
    )
    own = Lane()
    if sent[member, member]:
        own.copy(int(inputs[member]), to=int(outputs[member]), count=int(sent[member, member]))
    else:
        own.step()
    lanes = [own, Lane()] if at_once else [own]
    for far in range(1, n):
        to, source = (member + far) % n, (member - far) % n
        sends = _send(to, 1 if at_once else far, int(inputs[to]), int(sent[member, to]))
        receives = _receive(source, int(outputs[source]), int(sent[source, member]))
        if at_once:
            own.step(**sends)
            lanes[1].step(**receives)
        else:
            lanes.append(Lane().step(after=(far - 1, len(lanes[-1].steps) - 1), **sends, **receives))
    return lanes


def _places_of(hosts: Sequence[int] | None, members: int) -> Int64:
    """Return int64[hosts, places], members of equal hosts; hosts: host of each member. WorkloadError for others."""
    if hosts is None or len(hosts) != members:
        count = "none" if hosts is None else len(hosts)
        raise WorkloadError(f"all-to-all-v, hierarchical: hosts of {count} members, expected of {members}")
    names, sizes = np.unique(np.asarray(hosts), return_counts=True)
    if sizes.min() != sizes.max():
        raise WorkloadError(
            f"all-to-all-v, hierarchical: hosts of {sizes.min()} to {sizes.max()} members, expected as many on each"
        )
    return np.stack([np.flatnonzero(np.asarray(hosts) == name) for name in names]).astype(np.int64)


def _by_hosts(sent: Int64, chunks: int, member_at: Int64) -> Plans:
    """Return plans by hosts (members int64[hosts, places]); sent: int64[n, n]; chunks: those of the fullest buffer."""
    # a member holds what the members of its host have for its place of all hosts
    max_given = max(int(sent[np.ix_(own, member_at[:, place])].sum()) for own in member_at for place in range(len(own)))
    region_chunks = max(chunks, max_given)
    lanes = {
        int(member_at[at]): _member_by_hosts(sent, region_chunks, member_at, *at) for at in np.ndindex(*member_at.shape)
    }
    return each_its_own(region_chunks, [lanes[me] for me in range(len(sent))], regions=6)


class _Region:
    """A region with consecutive blocks; size: int64[rows, columns], chunks of each block."""

    def __init__(self, number: int, region_chunks: int, size: Int64) -> None:
        self.size = size
        self.first = (number * region_chunks + np.cumsum(size) - size.reshape(-1)).reshape(size.shape)

    def row(self, row: int) -> tuple[int, int]:
        """Return the first chunk and the number of chunks of a row of blocks."""
        return int(self.first[row, 0]), int(self.size[row].sum())


def _member_by_hosts(sent: Int64, region_chunks: int, member_at: Int64, host: int, place: int) -> list[Lane]:
    """Return the lanes of the member in a place of a host: packing, a lane per mate, sorting, a lane per other host."""
    # sent: int64[n, n] chunks; region_chunks: chunks of a region; member_at: int64[hosts, places].
    (hosts, places), me = member_at.shape, int(member_at[host, place])
    to_places = _Region(_TO_PLACES, region_chunks, sent[me, member_at.T])  # [places, hosts], for each member
    given = _Region(_GIVEN, region_chunks, sent[np.ix_(member_at[host], member_at[:, place])])  # [mates, hosts]
    to_hosts = _Region(_TO_HOSTS, region_chunks, given.size.T)  # [hosts, mates]
    come = _Region(_COME, region_chunks, sent[member_at, me])  # [hosts, places], from each member
    inputs, outputs = np.cumsum(sent[me]) - sent[me], np.cumsum(sent[:, me]) - sent[:, me]

    def unpack(lane: Lane, source: int) -> None:
        """Copy the blocks from a host to the output."""
        for mate, sender in enumerate(member_at[source]):
            output = _OUTPUT * region_chunks + int(outputs[sender])
            _copy(lane, int(come.first[source, mate]), output, int(come.size[source, mate]))

    # order the input by receiving place, and copy the own place's blocks to the data received from mates
    pack = Lane()
    for at in np.ndindex(places, hosts):
        _copy(pack, int(inputs[member_at.T[at]]), int(to_places.first[at]), int(to_places.size[at]))
    own, count = to_places.row(place)
    _copy(pack, own, given.row(place)[0], count)
    packed = (0, len(pack.steps))
    lanes = [pack.step()]
    # exchange with all mates at once
    for far in range(1, places):
        to, source = (place + far) % places, (place - far) % places
        ways = _send(int(member_at[host, to]), far, *to_places.row(to))
        ways |= _receive(int(member_at[host, source]), *given.row(source))
        lanes.append(Lane().step(after=packed, **ways))
    # sort the data of all mates by host, and copy the own host's blocks to the output
    sort = Lane()
    for far in range(1, places):
        sort.step(after=(far, 0))
    sort.step(after=packed)
    for at in np.ndindex(hosts, places):
        _copy(sort, int(given.first.T[at]), int(to_hosts.first[at]), int(to_hosts.size[at]))
    own, count = to_hosts.row(host)
    _copy(sort, own, come.row(host)[0], count)
    unpack(sort, host)
    lanes.append(sort)
    # exchange with the same place of the other hosts
    for far in range(1, hosts):
        to, source = (host + far) % hosts, (host - far) % hosts
        ways = _send(int(member_at[to, place]), places + far, *to_hosts.row(to))
        ways |= _receive(int(member_at[source, place]), *come.row(source))
        lanes.append(Lane().step(after=(places, len(sort.steps) - 1), **ways))
        unpack(lanes[-1], source)
    return lanes


def _copy(lane: Lane, chunk: int, to: int, count: int) -> None:
    """Add to a lane a copy of `count` chunks, if there are any, from number `chunk` to number `to`."""
    if count:
        lane.copy(chunk, to=to, count=count)


def _send(peer: int, to_lane: int, chunk: int, count: int) -> dict[str, Any]:
    """Return the arguments of `Lane.step` for a send; none if it has no chunks."""
    return {"send_to": peer, "to_lane": to_lane, "send": chunk, "send_count": count} if count else {}


def _receive(peer: int, chunk: int, count: int) -> dict[str, Any]:
    """Return the arguments of `Lane.step` for a receive; none if it has no chunks."""
    return {"receive_from": peer, "receive": chunk, "receive_count": count} if count else {}
