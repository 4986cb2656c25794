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
from workload.collectives.nccl.decision import CHUNKS, MAX_CHANNELS, PACINGS, PLANNED, NcclParameters, host_of, way_of
from workload.collectives.nccl.generations import AUTO, generations
from workload.collectives.nccl.overrides import ALGORITHMS, PROTOCOLS
from workload.collectives.nccl.tuning import COLLNET_DIRECT, CPUS, NVLS, NVLS_TREE, PAT, RING, TREE
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
    "channels": (0, MAX_CHANNELS),
    "generation": (AUTO, *sorted(generations())),
    "pacing": PACINGS,
    "cpu": CPUS,
    "chunks": CHUNKS,
}

_LANES = {  # module that makes the lanes of each of NCCL's algorithms
    RING: ring_plans,
    TREE: tree_plans,
    NVLS: nvls_plans,
    NVLS_TREE: nvls_plans,
    PAT: pat_plans,
    COLLNET_DIRECT: collnet_plans,
}


def TREES(*, generation: str, collnet: bool, **_others: object) -> str:  # noqa: N802 - the name in the registry
    """Return trees over NVSwitches if the generation may have NVLS, and over rails if the network may sum."""
    if generation != AUTO and not generations()[generation].nvls_efficiency:
        return ""
    return IF_ANY + ("hosts and rails" if collnet else "hosts")


def plan(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> Plans:  # noqa: ANN401 - see size_class
    """Return lanes per channel, or per head of NVLS."""
    own = NcclParameters(**asked)
    if kind == "all-to-all":
        return pxn_plans.plan(shape, _communicator(shape, own), size_bytes, pxn=pxn, proto=own.proto)
    way = way_of(kind, shape, size_bytes, own)
    return _LANES[way.algorithm].plan(kind, shape, size_bytes, way)


def extent(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> PlanExtent:  # noqa: ANN401
    """Return the number of steps and lanes of `plan`."""
    if kind == "all-to-all":
        return pxn_plans.extent(shape, pxn=pxn)
    way = way_of(kind, shape, size_bytes, NcclParameters(**asked))
    return _LANES[way.algorithm].extent(kind, shape, size_bytes, way)


def closed_form(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> float:  # noqa: ANN401
    """Return the time in picoseconds on links of the shape, without headers and acknowledgements; not NCCL's own."""
    own = NcclParameters(**asked)
    if kind == "all-to-all":
        return pxn_plans.closed_form(shape, _communicator(shape, own), size_bytes, pxn=pxn, proto=own.proto)
    way = way_of(kind, shape, size_bytes, own)
    return _LANES[way.algorithm].closed_form(kind, shape, size_bytes, way)


def describe(kind: str, shape: Shape, size_bytes: int, *, pxn: bool, **asked: Any) -> str:  # noqa: ANN401
    """Return NCCL's choice for a size and the constants used: "nvls simple, 16 channels, h100"."""
    own = NcclParameters(**asked)
    generation = host_of(shape, own).generation.name
    if kind == "all-to-all":
        several = len(set(shape.host)) > 1
        group, size = _communicator(shape, own), size_bytes / shape.members
        sent = point_to_point.message(group, size, between_hosts=several, proto=own.proto)
        channels = f"{sent.channels} channel{'s' * (sent.channels > 1)} a peer"
        return f"send and receive {sent.protocol}{' over PXN' if pxn and several else ''}, {channels}, {generation}"
    way = way_of(kind, shape, size_bytes, own)
    return f"{way.algorithm} {way.protocol}, {way.channels} channels, {generation}"


def size_class(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    pxn: bool,  # noqa: ARG001 - all parameters are handed to all functions
    **asked: Any,  # noqa: ANN401 - the fields of NcclParameters, as the registry read them
) -> int:
    """Return a class of sizes with equal algorithm, protocol, channels and number of chunks."""
    own = NcclParameters(**asked)
    if kind == "all-to-all":
        return _send_class(shape, size_bytes, own)
    way = way_of(kind, shape, size_bytes, own)
    if way.algorithm in {NVLS, NVLS_TREE}:
        return way.number << 20 | nvls_plans.size_class(shape, size_bytes, way)
    return way.number << 20 | (collnet_plans.size_class(shape, size_bytes) if way.algorithm == COLLNET_DIRECT else 0)


def plan_uneven(cut: Units, shape: Shape, *, pxn: bool, **asked: Any) -> Plans:  # noqa: ANN401 - see size_class
    """Return lanes of an all-to-all with a number of bytes per pair; cut: the sizes in units."""
    own = NcclParameters(**asked)
    return pxn_plans.plan_uneven(shape, _communicator(shape, own), cut, pxn=pxn, proto=own.proto)


def communicator(shape: Shape, *, pxn: bool, **asked: Any) -> point_to_point.Communicator:  # noqa: ANN401, ARG001
    """Return the communicator of a group's sends and receives."""
    return _communicator(shape, NcclParameters(**asked))


def _communicator(shape: Shape, own: NcclParameters) -> point_to_point.Communicator:
    return point_to_point.communicator(host_of(shape, own), own.channels, paced=own.pacing == PLANNED)


def _send_class(shape: Shape, size_bytes: int, own: NcclParameters) -> int:
    """Return a class of sizes with equal protocols and channels of messages inside and between hosts and to relays."""
    group, size = _communicator(shape, own), size_bytes / shape.members
    size_class_number = 0
    for far in (False, True):
        sent = point_to_point.message(group, size, between_hosts=far, proto=own.proto)
        size_class_number = size_class_number << 10 | sent.channels << 2 | PROTOCOLS.index(sent.protocol)
    return size_class_number
