"""What a hop costs: the protocol's time for a step, of which the fabric's own path is a part."""

from inputs.units import PS_PER_BYTE_AT_1_BPS
from workload.collectives.nccl.ways import NcclDecision
from workload.shape import Shape


def lane_ps(shape: Shape, way: NcclDecision, *, between_hosts: bool) -> int:
    """From when a step is ready until its send is posted: NCCL's figure without what the path takes by itself."""
    path_ps = shape.outside_ps if between_hosts else shape.inside_ps
    return max(0, (way.between_ps if between_hosts else way.inside_ps) - path_ps)


def hop_ps(shape: Shape, way: NcclDecision, *, between_hosts: bool) -> int:
    """A step with no data: NCCL's figure, or the path's latency where that is longer."""
    path_ps = shape.outside_ps if between_hosts else shape.inside_ps
    return path_ps + lane_ps(shape, way, between_hosts=between_hosts)


def hop_of(shape: Shape, way: NcclDecision, sender: int, receiver: int) -> int:
    """lane_ps between two members."""
    return lane_ps(shape, way, between_hosts=shape.host[sender] != shape.host[receiver])


def link_ps(shape: Shape, data_bytes: float, way: NcclDecision, *, between_hosts: bool) -> float:
    """What data_bytes take on the wire on one member's links."""
    rate_bps = shape.outside_bps if between_hosts else shape.inside_bps
    return (
        data_bytes * way.transport.wire[0] / way.transport.wire[1] * PS_PER_BYTE_AT_1_BPS / rate_bps
        if rate_bps
        else 0.0
    )
