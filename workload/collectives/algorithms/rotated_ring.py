"""Rotated rings: as many rings as a host has members, each of which enters every host at another member.

Ring c visits the members of a host from member c on, and then the next host, so that all network interfaces of a host
share the traffic between hosts: the channels that SimAI makes for NCCL's rings (MockNcclGroup::gen_local_ring). A hop
between hosts goes from member c - 1 to member c, from rail to rail. Each ring moves an equal share of every chunk.
There is one ring within one host, where all would be the same, and if hosts have different numbers of members.
"""

from typing import Any

from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.workload.collectives.nccl.channel_orders import hosts_of
from nadi.workload.collectives.nccl.channel_plans import round_plans
from nadi.workload.collectives.nccl.tuning import ring_steps
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import MAX_CONNECTIONS, Lane, Plans
from nadi.workload.shape import GroupShape

KINDS = ("all-reduce", "reduce-scatter", "all-gather")
NEEDS_SHAPE = True
OWN_CONNECTIONS = True
NAMED_ONLY = True
ESTIMATE = True


def plan(kind: str, shape: GroupShape, size_bytes: int) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return the steps of each member: a lane per ring.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
    """
    return round_plans(kind, _rings(shape), _lane)


def extent(kind: str, shape: GroupShape, size_bytes: int) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
    """
    rings = len(_rings(shape))
    return PlanExtent(rings * ring_steps(kind, shape.members), rings)


def closed_form(kind: str, shape: GroupShape, size_bytes: int) -> float:
    """Return the steps times latency and the slower of a host's links and its network interfaces, in picoseconds.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
    """
    rings, hosts = len(_rings(shape)), len(set(shape.host))
    chunk_bits = size_bytes / (shape.members * rings) * BITS_PER_BYTE
    # A member sends on every ring: on one of them to the next host if there are several, on the others inside its host
    inside = (rings - (hosts > 1)) * chunk_bits / shape.inside_bps if shape.inside_bps else 0.0
    outside = chunk_bits / shape.outside_bps if hosts > 1 else 0.0
    latency_ps = max(shape.inside_ps, shape.outside_ps)
    return ring_steps(kind, shape.members) * (latency_ps + max(inside, outside) * PS_PER_S)


def size_class(_kind: str, _shape: GroupShape, _size_bytes: int) -> int:
    """Return 0: all sizes share a plan.

    Args:
        _kind: The kind of collective, one of KINDS.
        _shape: The positions of the group's members on the fabric.
        _size_bytes: Not used: all sizes share a plan.
    """
    return 0


def _rings(shape: GroupShape) -> list[tuple[int, ...]]:
    """Return the members in the order of each ring."""
    hosts = hosts_of(shape)
    turns = len(hosts[0]) if len(hosts) > 1 and len({len(own) for own in hosts}) == 1 else 1
    return [tuple(member for own in hosts for member in (*own[turn:], *own[:turn])) for turn in range(turns)]


def _lane(channel: int, **attributes: Any) -> Lane:  # noqa: ANN401 - of plans.plan.Lane
    return Lane(connection=channel % MAX_CONNECTIONS, **attributes)
