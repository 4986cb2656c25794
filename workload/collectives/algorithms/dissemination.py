"""Dissemination barrier: in round k every member notifies the member 2^k places on.

After ceil(log2 n) rounds each member has heard, through others, from all (Hensgen, Finkel and Manber, "Two algorithms
for barrier synchronization", 1988). Messages carry no bytes.
"""

from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Lane, Plans, everyone_alike

KINDS = ("barrier",)


def plan(_kind: str, members: int) -> Plans:
    """Return each member's steps: a lane per round, as the peers differ, which begins after the one before.

    Args:
        _kind: The kind of collective, always "barrier".
        members: The number of members of the group, n.
    """
    lanes = []
    for k in range(_rounds(members)):
        distance = 1 << k
        after = (k - 1, 0) if k else (-1, -1)
        # The message adds what its sender has heard to what the receiver has heard. It has no bytes, but the oracle
        # sees from these sums that every member has heard from all others.
        step = Lane().step(send_to=distance, to_lane=k, receive_from=members - distance, reduce=True, after=after)
        lanes.append(step)
    return everyone_alike(members, 1, lanes)


def extent(_kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        _kind: The kind of collective, always "barrier".
        members: The number of members of the group, n.
    """
    return PlanExtent(_rounds(members), _rounds(members))


def closed_form(_kind: str, members: int, _size_bytes: int, latency_ps: float, _bytes_per_s: float) -> float:
    """Return the ps ceil(log2 n) a of n members and a latency a.

    Args:
        _kind: The kind of collective, always "barrier".
        members: The number of members of the group, n.
        _size_bytes: Not used: messages of a barrier carry no bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        _bytes_per_s: Not used: messages of a barrier carry no bytes.
    """
    return _rounds(members) * latency_ps


def _rounds(members: int) -> int:
    return (members - 1).bit_length()
