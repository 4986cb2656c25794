"""The time of a hop: the protocol's time of a step, which includes the latency of the fabric's path."""

from inputs.units import PS_PER_BYTE_AT_1_BPS
from workload.collectives.nccl.decision import NcclDecision
from workload.shape import Shape


def lane_ps(shape: Shape, way: NcclDecision, *, between_hosts: bool) -> int:
    """Return the time from when a step is ready until its send: NCCL's time of a step less the latency of the path."""
    path_ps = shape.outside_ps if between_hosts else shape.inside_ps
    return max(0, (way.between_ps if between_hosts else way.inside_ps) - path_ps)


def hop_ps(shape: Shape, way: NcclDecision, *, between_hosts: bool) -> int:
    """Return the time of a step without data: NCCL's time, or the path's latency if that is longer."""
    path_ps = shape.outside_ps if between_hosts else shape.inside_ps
    return path_ps + lane_ps(shape, way, between_hosts=between_hosts)


def hop_of(shape: Shape, way: NcclDecision, sender: int, receiver: int) -> int:
    """Return lane_ps between two members."""
    return lane_ps(shape, way, between_hosts=shape.host[sender] != shape.host[receiver])


def link_ps(shape: Shape, data_bytes: float, way: NcclDecision, *, between_hosts: bool) -> float:
    """Return the time in picoseconds that data_bytes take on one member's links."""
    rate_bps = shape.outside_bps if between_hosts else shape.inside_bps
    return (
        data_bytes * way.transport.wire[0] / way.transport.wire[1] * PS_PER_BYTE_AT_1_BPS / rate_bps
        if rate_bps
        else 0.0
    )
