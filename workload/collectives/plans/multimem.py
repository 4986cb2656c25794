"""What members of a host and the aggregator of its NVSwitch do with multicast memory: ld_reduce and st (multimem).

Of g members each owns a share of the buffer, cut into chunks. The switch reads a chunk from all members and hands its
owner the sum; what the owner writes the switch copies to all. In lanes: a member's lane DATA sends all chunks, SUMS
takes sums of the own ones, RESULTS writes them, OTHERS + o takes those of owner o. The aggregator has a lane for the
data of each member, one for sums, and one for the results of each owner. Reads and writes do not wait for each other:
they go over connections of their own.
"""

from collections.abc import Sequence
from typing import NamedTuple

from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import AT_ONCE, MOST_STEPS, Lane
from workload.errors import WorkloadError

_CHUNK_BYTES = 4096
_MANY_CHUNKS = 512
_LARGE_CHUNK_BYTES = 256 * 1024
"""Sums and results of chunks queue up before a member, and acknowledgements of what it sends behind them: chunks as
large as a connection's window then stop its data (docs/explanation/collectives.md)."""
_USUAL_STEPS = 1 << 20
DATA, SUMS, RESULTS, OTHERS = range(4)


class MultimemPace(NamedTuple):
    """By which connections a member sends to its switch, and at which shares of the link's rate.

    Attributes:
        data: connection of what is summed.
        data_shares: it is driven at 1 / that of the line rate.
        results: connection of what is spread.
        result_shares: likewise.
    """

    data: int = 0
    data_shares: float = 1
    results: int = 1
    result_shares: float = 1


AT_LINE_RATE = MultimemPace()


def chunks_of_share(name: str, groups: int, size: int, size_bytes: int, chunks: int) -> int:
    """Into how many chunks a share is cut.

    Args:
        name: of the algorithm.
        groups: of members behind one NVSwitch.
        size: members of each.
        size_bytes: the whole buffer.
        chunks: as the user says; 0 = one for each 4 KiB, 512 at most, but more where that keeps one within
            256 KiB, as far as steps go.

    Raises:
        WorkloadError: more steps than memory is for.
    """
    steps = 4 * groups * size * size
    if chunks * steps > MOST_STEPS or steps > MOST_STEPS:
        raise WorkloadError(
            f"algorithm {name} for {groups * size} members: {max(1, chunks)} chunks; expected fewer chunks or members"
        )
    wanted = max(_MANY_CHUNKS, -(-size_bytes // (size * _LARGE_CHUNK_BYTES)))
    most = max(1, min(wanted, _USUAL_STEPS // steps))
    return chunks or max(1, min(most, size_bytes // (size * _CHUNK_BYTES)))


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
    """Lanes of one member.

    Args:
        members: of the host, by their numbers in the group.
        place: the member's in the host.
        aggregator: number of the switch's.
        count: chunks of a share.
        reduces: members have data to be summed.
        copies: all get the results.
        complete: lane and step that must be done before each result is written; () = the sum has come.
        pace: at which data and results go.
    """
    size = len(members)
    data = Lane(connection=pace.data, shares=pace.data_shares)
    results = Lane(connection=pace.results, shares=pace.result_shares)
    sums, others = Lane(), [Lane() for _ in range(size)]
    for k in range(count):
        for owner in range(size):
            if reduces:
                data.step(send_to=aggregator, to_lane=place, send=owner * count + k)
            if copies:
                others[owner].step(receive_from=aggregator, receive=owner * count + k)
        own = place * count + k
        if reduces:
            sums.step(receive_from=aggregator, receive=own)
        if copies:
            after = (SUMS, k) if reduces else AT_ONCE
            results.step(
                send_to=aggregator, to_lane=size + 1 + place, send=own, after=complete[k] if complete else after
            )
    return [data, sums, results, *others]


def extent(groups: int, size: int, count: int, *, ways: int = 2) -> PlanExtent:
    """Steps and lanes of members and aggregators: `groups` of `size` members; ways: 1 where they only sum or copy."""
    steps, of_member, of_switch = 2 * count * size * (size + 1) * ways, size + OTHERS, 2 * size + 1
    lanes = size * of_member + of_switch
    return PlanExtent(groups * steps, groups * lanes, groups * (size + 1), max(of_switch, of_member))


def aggregator_lanes(members: Sequence[int], count: int, *, reduces: bool = True, copies: bool = True) -> list[Lane]:
    """Lanes of the switch's aggregator; the arguments are those of `member_lanes`."""
    size = len(members)
    data, sums, results = [Lane() for _ in members], Lane(connection=1), [Lane() for _ in members]
    for k in range(count):
        for owner, its_number in enumerate(members):
            chunk, turn = owner * count + k, k * size + owner
            if reduces:
                for place, member in enumerate(members):
                    after = (place - 1, turn) if place else AT_ONCE
                    data[place].step(receive_from=member, receive=chunk, reduce=place > 0, after=after)
                sums.step(send_to=its_number, to_lane=SUMS, send=chunk, after=(size - 1, turn))
            if copies:
                results[owner].step(receive_from=its_number, receive=chunk)
                for member in members:
                    results[owner].step(send_to=member, to_lane=OTHERS + owner, send=chunk)
    return [*data, sums, *results]
