"""Steps of a host's members and of its NVSwitch's aggregator with multicast memory: ld_reduce and st (multimem).

Each of g members owns a share of the buffer, cut into chunks. The switch reads a chunk from all members and returns the
sum to the owner; the switch copies what the owner writes to all members. A member's lane DATA sends all chunks, SUMS
receives the sums of its own chunks, RESULTS writes them, and OTHERS + o receives those of owner o. The aggregator has a
lane for the data of each member, one for sums, and one for the results of each owner. Reads and writes do not wait for
each other, so they use separate connections.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import AT_ONCE, MAX_STEPS, NONE, Lane
from nadi.workload.errors import WorkloadError

_CHUNK_BYTES = 4096  # default size of a chunk, as long as a share has at most _MANY_CHUNKS of them
_MANY_CHUNKS = 512
# Maximum size of a default chunk. Sums and results of chunks queue up in front of a member, and acknowledgements of its
# sends behind them: chunks as large as a connection's window would stop its data (docs/explanation/collectives.md).
_LARGE_CHUNK_BYTES = 256 * 1024
_USUAL_STEPS = 1 << 20  # number of steps up to which the default number of chunks may grow
DATA, SUMS, RESULTS, OTHERS = range(4)


class MultimemPace(NamedTuple):
    """The connections on which a member sends to its switch, and the divisors of the link rate that limit them."""

    data: int = 0  # connection of data to be summed
    data_shares: float = 1  # divisor of the line rate of that connection
    results: int = 1  # connection of results to be copied to all members
    result_shares: float = 1  # divisor of the line rate of that connection


AT_LINE_RATE = MultimemPace()


def chunks_of_share(name: str, groups: int, size: int, size_bytes: int, chunks: int) -> int:
    """Return the number of chunks of a share. Raises WorkloadError: too many steps to fit into memory.

    Args:
        name: The name of the algorithm, for errors.
        groups: The number of sets of members that share an NVSwitch.
        size: The number of members of each set.
        size_bytes: The size of the whole buffer in bytes.
        chunks: The number of chunks that the user asks for; 0 = one per 4 KiB of the buffer, at most 512, or more to
            keep a chunk within 256 KiB as far as the number of steps allows.
    """
    steps = 4 * groups * size * size
    if chunks * steps > MAX_STEPS or steps > MAX_STEPS:
        raise WorkloadError(
            f"algorithm {name} for {groups * size} members: {max(1, chunks)} chunks; expected fewer chunks or members"
        )
    # Large buffers get more chunks, so that none is larger than _LARGE_CHUNK_BYTES, as far as the steps fit
    wanted = max(_MANY_CHUNKS, -(-size_bytes // (size * _LARGE_CHUNK_BYTES)))
    most_chunks = max(1, min(wanted, _USUAL_STEPS // steps))
    return chunks or max(1, min(most_chunks, size_bytes // (size * _CHUNK_BYTES)))


def member_lanes(
    members: Sequence[int],
    place: int,
    aggregator: int,
    count: int,
    *,
    reduces: bool = True,
    copies: bool = True,
    complete: Sequence[tuple[int, int]] = (),
    pace: MultimemPace = AT_LINE_RATE,
) -> list[Lane]:
    """Return the lanes of one member of a host.

    Args:
        members: The number in the group of each member of the host.
        place: The index of this member in `members`.
        aggregator: The number in the group of the aggregator in the host's NVSwitch.
        count: The number of chunks of a member's share of the buffer.
        reduces: Whether members have data to be summed.
        copies: Whether all members receive the results.
        complete: The (lane, step) of this member that must be done before each result is written; () = the sum has
            arrived.
        pace: The connections of data and results, and the divisors of the line rate that limit them.
    """
    size = len(members)
    data = Lane(connection=pace.data, shares=pace.data_shares)
    results = Lane(connection=pace.results, shares=pace.result_shares)
    sums, others = Lane(), [Lane() for _ in range(size)]
    chunk = np.arange(size * count).reshape(size, count)  # of each share
    own = chunk[place]
    if reduces:
        # Chunk k of every owner comes before chunk k + 1 of any, so that all owners are busy from the beginning
        data.several(size * count, send_to=aggregator, to_lane=place, send=chunk.T.reshape(-1))
        sums.several(count, receive_from=aggregator, receive=own)
    if copies:
        for owner in range(size):
            others[owner].several(count, receive_from=aggregator, receive=chunk[owner])
        # Without `complete`, a result may leave when the sum from the switch has arrived: step k of SUMS for chunk k
        after: tuple[ArrayLike, ArrayLike] = (SUMS, np.arange(count)) if reduces else AT_ONCE
        if complete:
            after = ([lane for lane, _ in complete[:count]], [step for _, step in complete[:count]])
        results.several(count, send_to=aggregator, to_lane=size + 1 + place, send=own, after=after)
    return [data, sums, results, *others]


def extent(groups: int, size: int, count: int, *, ways: int = 2) -> PlanExtent:
    """Return the number of steps and lanes of members and aggregators.

    Args:
        groups: The number of sets of members that share an NVSwitch.
        size: The number of members of each set.
        count: The number of chunks of a member's share of the buffer.
        ways: 1 = members only get sums or only copies, 2 = both.
    """
    # For each direction and each of size * count chunks: both ends of `size` messages (data of all members, or copies
    # to all) and of one more (the sum, or the result)
    steps, of_member, of_switch = 2 * count * size * (size + 1) * ways, size + OTHERS, 2 * size + 1
    lanes = size * of_member + of_switch
    return PlanExtent(groups * steps, groups * lanes, groups * (size + 1), max(of_switch, of_member))


def aggregator_lanes(members: Sequence[int], count: int, *, reduces: bool = True, copies: bool = True) -> list[Lane]:
    """Return the lanes of the aggregator in a host's NVSwitch.

    Args:
        members: The number in the group of each member of the host.
        count: The number of chunks of a member's share of the buffer.
        reduces: Whether members have data to be summed.
        copies: Whether all members receive the results.
    """
    size = len(members)
    data, sums, results = [Lane() for _ in members], Lane(connection=1), [Lane() for _ in members]
    chunk = np.arange(size * count).reshape(size, count)  # of each share
    turns, each_chunk = np.arange(size * count), chunk.T.reshape(-1)
    if reduces:
        for place, member in enumerate(members):
            after = (place - 1, turns) if place else AT_ONCE
            # A member's data is added after that of the member before it, so that sums have one order
            data[place].several(len(turns), receive_from=member, receive=each_chunk, reduce=place > 0, after=after)
        owners = np.tile(members, count)
        sums.several(len(turns), send_to=owners, to_lane=SUMS, send=each_chunk, after=(size - 1, turns))
    if copies:
        for owner, owner_number in enumerate(members):  # each chunk comes from its owner and goes to all members
            come, go = np.full(1 + size, NONE), np.array([NONE, *members])
            come[0] = owner_number
            # 1 + size steps per chunk: the first receives it from its owner, the others send it to one member each. For
            # members 4 and 5 and owner 4, receive_from is 4, -1, -1 and send_to is -1, 4, 5.
            results[owner].several(
                count * (1 + size),
                receive_from=np.tile(come, count),
                receive=np.repeat(chunk[owner], 1 + size),
                send_to=np.tile(go, count),
                to_lane=OTHERS + owner,
                send=np.repeat(chunk[owner], 1 + size),
            )
    return [*data, sums, *results]
