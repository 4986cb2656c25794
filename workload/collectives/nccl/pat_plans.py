"""PAT as NCCL chooses it: the lanes of algorithm `pat` with NCCL's latencies, for one NPU per host."""

from nadi.workload.collectives.algorithms import pat
from nadi.workload.collectives.nccl.decision import NcclDecision
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.shape import GroupShape


def plan(kind: str, shape: GroupShape, size_bytes: int, choice: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return each member's steps: a lane per distance, whose steps wait for NCCL's time of a step.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        choice: NCCL's decisions for this kind and size.
    """
    plans = pat.plan(kind, shape.members)
    wait_ps = choice.wait_ps(shape, far=True)
    attributes = [plans.attributes_of(i) for i in range(len(plans.plans))]
    with_latency = tuple(tuple(lane._replace(latency_ps=wait_ps) for lane in own) for own in attributes)
    return plans._replace(attributes=with_latency, launch_ps=choice.launch_ps)


def extent(kind: str, shape: GroupShape, size_bytes: int, choice: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        choice: NCCL's decisions for this kind and size.
    """
    return pat.extent(kind, shape.members)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, choice: NcclDecision) -> float:  # noqa: ARG001 - one interface for all algorithms
    """Return launch, a hop per distance, and the sending time of a NIC, in picoseconds.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        choice: NCCL's decisions for this kind and size.
    """
    # With one NPU per host every hop crosses the network, and each member sends n-1 of n parts
    rounds = (shape.members - 1).bit_length()
    sent_bytes = size_bytes * (shape.members - 1) / shape.members
    return (
        choice.launch_ps
        + rounds * choice.hop_ps(shape, far=True)
        + choice.link_ps(shape, sent_bytes, between_hosts=True)
    )
