"""What members of a host and the aggregator of its NVSwitch do with multicast memory: ld_reduce and st (multimem).

Of g members each owns a share of the buffer, cut into chunks. The switch reads a chunk from all members and hands its
owner the sum; what the owner writes the switch copies to all. In lanes: a member's lane DATA sends all chunks, SUMS
takes sums of the own ones, RESULTS writes them, OTHERS + o takes those of owner o. The aggregator has a lane for the
data of each member, one for sums, and one for the results of each owner.
"""

from collections.abc import Sequence

from workload.plans import Lane

DATA, SUMS, RESULTS, OTHERS = range(4)
AT_ONCE = (-1, -1)


def member_lanes(
    members: Sequence[int],
    place: int,
    aggregator: int,
    count: int,
    *,
    reduces: bool = True,
    copies: bool = True,
    complete: Sequence[tuple[int, int]] = (),
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
    """
    size = len(members)
    data, sums, results, others = Lane(blocking=True), Lane(), Lane(), [Lane() for _ in range(size)]
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


def aggregator_lanes(members: Sequence[int], count: int, *, reduces: bool = True, copies: bool = True) -> list[Lane]:
    """Lanes of the switch's aggregator; the arguments are those of `member_lanes`."""
    size = len(members)
    data, sums, results = [Lane() for _ in members], Lane(), [Lane() for _ in members]
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
