"""PAT as NCCL chooses it: the lanes of algorithm `pat` with NCCL's latencies, for one NPU per host."""

from workload.collectives.nccl.decision import NcclDecision
from workload.collectives.nccl.hops import hop_ps, lane_ps, link_ps
from workload.collectives.plans import spreading
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Plans
from workload.collectives.plans.spreading import far_first, gathered, reduced
from workload.shape import Shape


def plan(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return a lane per distance; each of its steps waits for NCCL's time of a step."""
    plans = (gathered if kind == "all-gather" else reduced)(shape.members, far_first(shape.members, shape.members))
    wait_ps = lane_ps(shape, way, between_hosts=True)
    with_latency = tuple(
        tuple(attributes._replace(latency_ps=wait_ps) for attributes in plans.attributes_of(i))
        for i in range(len(plans.plans))
    )
    return plans._replace(attributes=with_latency, launch_ps=way.launch_ps)


def extent(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `plan`."""
    return spreading.extent(shape.members, far_first(shape.members, shape.members))


def closed_form(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> float:  # noqa: ARG001 - one interface for all algorithms
    """Return launch, a hop per distance, and the sending time of a NIC, in picoseconds."""
    rounds = (shape.members - 1).bit_length()
    sent_bytes = size_bytes * (shape.members - 1) / shape.members
    return (
        way.launch_ps
        + rounds * hop_ps(shape, way, between_hosts=True)
        + link_ps(shape, sent_bytes, way, between_hosts=True)
    )
