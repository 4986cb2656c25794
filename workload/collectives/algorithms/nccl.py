"""NCCL: rings, trees, NVLS, PAT and CollNet as its model chooses, protocols, PXN (docs/explanation/nccl.md)."""

from typing import Any

from workload.collectives.nccl import (
    collnet_plans,
    nvls_plans,
    pat_plans,
    point_to_point,
    pxn_plans,
    ring_plans,
    tree_plans,
)
from workload.collectives.nccl.generations import AUTO, generations
from workload.collectives.nccl.overrides import ALGORITHMS, PROTOCOLS
from workload.collectives.nccl.tuning import COLLNET_DIRECT, CPUS, NVLS, NVLS_TREE, PAT, TREE
from workload.collectives.nccl.ways import CHUNKS, MOST_CHANNELS, PACINGS, PLANNED, NcclParameters, host_of, way_of
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Plans
from workload.collectives.trees.aggregators import IF_ANY
from workload.collectives.uneven.all_to_all_v import Units
from workload.shape import Shape

NAME = "nccl"
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all")
NEEDS_SHAPE = True
ESTIMATE = True
PARAMETERS: dict[str, int | bool | str] = {**NcclParameters._field_defaults, "pxn": True}
LIMITS = {
    "algo": ALGORITHMS,
    "proto": PROTOCOLS,
    "channels": (0, MOST_CHANNELS),
    "generation": (AUTO, *sorted(generations())),
    "pacing": PACINGS,
    "cpu": CPUS,
    "chunks": CHUNKS,
}


def TREES(*, generation: str, collnet: bool, **_others: object) -> str:  # noqa: N802 - what the registry asks for
    """Trees over NVSwitches where there may be NVLS, and over rails where the network may sum."""
    if generation != AUTO and not generations()[generation].nvls_efficiency:
        return ""
    return IF_ANY + ("hosts and rails" if collnet else "hosts")


def plan(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> Plans:  # noqa: ANN401 - see size_class
    """Lanes for each channel, or for each head of NVLS.

    Raises:
        WorkloadError: overrides that are none, or too large a table.
    """
    own = NcclParameters(**asked)
    if kind == "all-to-all":
        return pxn_plans.plan(shape, _communicator(shape, own), size_bytes, pxn=pxn, proto=own.proto)
    way = way_of(kind, shape, size_bytes, own)
    if way.algorithm in {NVLS, NVLS_TREE}:
        return nvls_plans.plan(kind, shape, size_bytes, way)
    if way.algorithm == COLLNET_DIRECT:
        return collnet_plans.plan(shape, size_bytes, way)
    if way.algorithm == PAT:
        return pat_plans.plan(kind, shape, way)
    return tree_plans.plan(shape, way) if way.algorithm == TREE else ring_plans.plan(kind, shape, way)


def extent(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> PlanExtent:  # noqa: ANN401
    """Steps and lanes of `plan`."""
    if kind == "all-to-all":
        return pxn_plans.extent(shape, pxn=pxn)
    way = way_of(kind, shape, size_bytes, NcclParameters(**asked))
    if way.algorithm in {NVLS, NVLS_TREE}:
        return nvls_plans.extent(kind, shape, size_bytes, way)
    if way.algorithm == COLLNET_DIRECT:
        return collnet_plans.extent(shape, size_bytes)
    if way.algorithm == PAT:
        return pat_plans.extent(shape)
    return tree_plans.extent(shape, way) if way.algorithm == TREE else ring_plans.extent(kind, shape, way)


def closed_form(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> float:  # noqa: ANN401
    """On links of the shape's rates and latencies, headers and acknowledgements left out; not NCCL's own estimate."""
    own = NcclParameters(**asked)
    if kind == "all-to-all":
        return pxn_plans.closed_form(shape, _communicator(shape, own), size_bytes, pxn=pxn, proto=own.proto)
    way = way_of(kind, shape, size_bytes, own)
    if way.algorithm in {NVLS, NVLS_TREE}:
        return nvls_plans.closed_form(kind, shape, size_bytes, way)
    if way.algorithm == COLLNET_DIRECT:
        return collnet_plans.closed_form(shape, size_bytes, way)
    if way.algorithm == PAT:
        return pat_plans.closed_form(shape, size_bytes, way)
    if way.algorithm == TREE:
        return tree_plans.closed_form(shape, size_bytes, way)
    return ring_plans.closed_form(kind, shape, size_bytes, way)


def describe(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> str:  # noqa: ANN401
    """What is taken for a size, and by which constants: "nvls simple, 16 channels, h100"."""
    own = NcclParameters(**asked)
    made = host_of(shape, own).generation.name
    if kind == "all-to-all":
        several = len(set(shape.host)) > 1
        group, size = _communicator(shape, own), size_bytes / shape.members
        sent = point_to_point.message(group, size, between_hosts=several, proto=own.proto)
        channels = f"{sent.channels} channel{'s' * (sent.channels > 1)} a peer"
        return f"send and receive {sent.protocol}{' over PXN' if pxn and several else ''}, {channels}, {made}"
    way = way_of(kind, shape, size_bytes, own)
    return f"{way.algorithm} {way.protocol}, {way.channels} channels, {made}"


def size_class(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    pxn: bool,  # noqa: ARG001 - all parameters are handed to all functions
    **asked: Any,  # noqa: ANN401 - the fields of Asked, as the registry read them
) -> int:
    """Sizes that get the same algorithm, protocol, channels and number of chunks share a plan."""
    own = NcclParameters(**asked)
    if kind == "all-to-all":
        return _send_class(shape, size_bytes, own)
    way = way_of(kind, shape, size_bytes, own)
    if way.algorithm in {NVLS, NVLS_TREE}:
        return way.number << 20 | nvls_plans.size_class(shape, size_bytes, way)
    return way.number << 20 | (collnet_plans.size_class(shape, size_bytes) if way.algorithm == COLLNET_DIRECT else 0)


def plan_uneven(cut: Units, shape: Shape, *, pxn: bool, **asked: Any) -> Plans:  # noqa: ANN401 - see size_class
    """Lanes of an all-to-all with another number of bytes for each pair; cut: them in units."""
    own = NcclParameters(**asked)
    return pxn_plans.plan_uneven(shape, _communicator(shape, own), cut, pxn=pxn, proto=own.proto)


def communicator(shape: Shape, *, pxn: bool, **asked: Any) -> point_to_point.Communicator:  # noqa: ANN401, ARG001
    """By which sends and receives of a group go."""
    return _communicator(shape, NcclParameters(**asked))


def _communicator(shape: Shape, own: NcclParameters) -> point_to_point.Communicator:
    return point_to_point.communicator(host_of(shape, own), own.channels, paced=own.pacing == PLANNED)


def _send_class(shape: Shape, size_bytes: int, own: NcclParameters) -> int:
    """Sizes whose messages have the same protocol and channels, inside hosts, between them, and to relays."""
    group, size = _communicator(shape, own), size_bytes / shape.members
    found = 0
    for far in (False, True):
        sent = point_to_point.message(group, size, between_hosts=far, proto=own.proto)
        found = found << 10 | sent.channels << 2 | PROTOCOLS.index(sent.protocol)
    return found
