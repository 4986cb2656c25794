"""Pairwise exchange: in step k every member sends to the member k places on and receives from the one k before.

A step waits for the message of the previous one, so that each member has one message on its way at a time (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, sections 4.2 and 4.4).
"""

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Lane, Plans, everyone_alike

KINDS = ("all-to-all", "reduce-scatter")


def plan(kind: str, members: int) -> Plans:
    """Return the steps of each member: a lane per step, because the peers differ.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    to_all = kind == "all-to-all"
    lanes = [
        Lane().step(
            send_to=k,
            to_lane=k - 1,
            send=k,
            receive_from=members - k,
            receive=members + members - k if to_all else 0,
            reduce=not to_all,
            # The step of the previous lane has received its message before this one sends
            after=(k - 2, 0) if k > 1 else (-1, -1),
        )
        for k in range(1, members)
    ]
    return everyone_alike(members, members, lanes, regions=2 if to_all else 1)


def extent(_kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        _kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    return PlanExtent(members - 1, members - 1)


def closed_form(_kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Return the ps (n-1)(a + S/nB) of n members, a latency a and S bytes at a rate B.

    Args:
        _kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
    """
    return (members - 1) * (latency_ps + size_bytes / members / bytes_per_s * PS_PER_S)
