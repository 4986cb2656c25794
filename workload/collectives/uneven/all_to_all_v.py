"""All-to-all with a separate number of bytes for each pair (all-to-all-v), such as tokens sent to their experts.

A chunk is one unit, the greatest common divisor of all sizes. In a collective of `buffer_bytes` every message therefore
has exactly the bytes of the matrix. Blocks are ordered by receiver in the input and by sender in the output.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workload.collectives.plans.plan import Lane, Plans, each_its_own
from workload.collectives.uneven.by_hosts import by_hosts, places_of, receive, send
from workload.errors import WorkloadError

Int64 = NDArray[np.int64]

NAME = "all-to-all-v"
ALGORITHMS = ("direct", "pairwise", "hierarchical")

_MAX_CHUNKS = 1 << 28  # maximum number of units in a buffer: chunk numbers over all regions must fit into int32


class Units(NamedTuple):
    """A matrix of sizes in units."""

    unit_bytes: int  # size of a unit, which is one chunk
    chunks: int  # number of chunks of the fullest buffer, the size of all buffers
    sent: Int64  # int64[n, n], units from member to member


def units(matrix_bytes: ArrayLike) -> Units:
    """Return the matrix in units.

    Args:
        matrix_bytes: int[n, n], bytes from member (row) to member (column).

    Raises:
        WorkloadError: A matrix that is not square, not integer or negative, or more than 2^28 units in a buffer.
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
    """Return the steps of each member.

    Args:
        matrix_bytes: int[n, n], bytes from member (row) to member (column); a member copies the bytes for itself.
        algorithm: direct (all messages at once), pairwise (step k sends to the member k further on and receives from
            the one k before, one step at a time), or hierarchical (first to the member of the own host in the
            receiver's place, then all data of a host for a receiver at once).
        hosts: Host of each member, for hierarchical; all hosts need equally many members.
    """
    if algorithm not in ALGORITHMS:
        raise WorkloadError(f"algorithm {algorithm!r} for {NAME}: expected one of {', '.join(ALGORITHMS)}")
    cut = units(matrix_bytes)
    if algorithm == "hierarchical":
        return by_hosts(cut.sent, cut.chunks, places_of(hosts, len(cut.sent)))._replace(uneven=True)
    make = _direct if algorithm == "direct" else _pairwise
    return each_its_own(cut.chunks, [make(me, cut) for me in range(len(cut.sent))], regions=2)._replace(uneven=True)


def buffer_bytes(plans: Plans, matrix_bytes: ArrayLike) -> int:
    """Return the size at which a collective of these plans moves the bytes of the matrix."""
    return plans.chunks * units(matrix_bytes).unit_bytes


def _direct(me: int, cut: Units) -> list[Lane]:
    """Return a lane that sends and a lane that receives; both begin with the nearest peer."""
    n, sends, sink = len(cut.sent), _own(me, cut), Lane()
    for far in range(1, n):
        to, source = (me + far) % n, (me - far) % n
        sends.step(**send(to, 1, _input(cut, me, to), int(cut.sent[me, to])))
        sink.step(**receive(source, cut.chunks + _output(cut, source, me), int(cut.sent[source, me])))
    return [sends, sink]


def _pairwise(me: int, cut: Units) -> list[Lane]:
    """Return a lane per step; the first copies the member's own block."""
    n = len(cut.sent)
    lanes = [_own(me, cut)]
    for far in range(1, n):
        ways = _exchange(me, (me + far) % n, (me - far) % n, cut, to_lane=far)
        lanes.append(Lane().step(after=(far - 1, len(lanes[-1].steps) - 1), **ways))
    return lanes


def _own(me: int, cut: Units) -> Lane:
    """Return a lane that copies the member's own block, and has a step even if the block is empty."""
    count, to = int(cut.sent[me, me]), cut.chunks + _output(cut, me, me)
    return Lane().copy(_input(cut, me, me), to=to, count=count) if count else Lane().step()


def _exchange(me: int, to: int, source: int, cut: Units, to_lane: int) -> dict[str, Any]:
    """Return the arguments of a step that sends the block for one member and receives the block from another."""
    sends = send(to, to_lane, _input(cut, me, to), int(cut.sent[me, to]))
    return sends | receive(source, cut.chunks + _output(cut, source, me), int(cut.sent[source, me]))


def _input(cut: Units, src: int, dst: int) -> int:
    """Return the first chunk of the block for dst in the input of src."""
    return int(cut.sent[src, :dst].sum())


def _output(cut: Units, src: int, dst: int) -> int:
    """Return the first chunk of the block from src in the output of dst."""
    return int(cut.sent[:src, dst].sum())
