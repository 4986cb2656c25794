"""PAT inside NCCL's choice: the lanes of algorithm `pat` with NCCL's latencies, one NPU a host."""

from workload.collectives.nccl.hops import hop_ps, lane_ps, link_ps
from workload.collectives.nccl.ways import NcclDecision
from workload.collectives.plans import spreading
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Plans
from workload.collectives.plans.spreading import far_first, gathered, reduced
from workload.shape import Shape


def plan(kind: str, shape: Shape, way: NcclDecision) -> Plans:
    """A lane for each distance; each of its steps waits as long as a step of NCCL's."""
    made = (gathered if kind == "all-gather" else reduced)(shape.members, far_first(shape.members, shape.members))
    wait_ps = lane_ps(shape, way, between_hosts=True)
    attributes = tuple(
        tuple(one._replace(latency_ps=wait_ps) for one in made.attributes_of(i)) for i in range(len(made.plans))
    )
    return made._replace(attributes=attributes, launch_ps=way.launch_ps)


def extent(shape: Shape) -> PlanExtent:
    """Steps and lanes of `plan`."""
    return spreading.extent(shape.members, far_first(shape.members, shape.members))


def closed_form(shape: Shape, size_bytes: int, way: NcclDecision) -> float:
    """Launch, a hop for each distance, and what a NIC sends."""
    rounds = (shape.members - 1).bit_length()
    sent_bytes = size_bytes * (shape.members - 1) / shape.members
    return (
        way.launch_ps
        + rounds * hop_ps(shape, way, between_hosts=True)
        + link_ps(shape, sent_bytes, way, between_hosts=True)
    )
