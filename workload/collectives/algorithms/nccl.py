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
from workload.collectives.nccl.decision import (
    CHUNKS,
    MAX_CHANNELS,
    NAMED_ALGORITHMS,
    NAMED_PROTOCOLS,
    PACINGS,
    PLANNED,
    NcclParameters,
    host_of,
    way_of,
)
from workload.collectives.nccl.generations import AUTO, generations
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
    "algo": NAMED_ALGORITHMS,
    "proto": NAMED_PROTOCOLS,
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


# The arguments `asked` are the fields of NcclParameters and `pxn`, as the registry read them.


def plan(kind: str, shape: Shape, size_bytes: int, **asked: Any) -> Plans:  # noqa: ANN401
    """Return lanes per channel, or per head of NVLS."""
    if kind == "all-to-all":
        return pxn_plans.plan(_sends(shape, **asked), size_bytes)
    way = way_of(kind, shape, size_bytes, _parameters(**asked))
    return _LANES[way.algorithm].plan(kind, shape, size_bytes, way)


def extent(kind: str, shape: Shape, size_bytes: int, **asked: Any) -> PlanExtent:  # noqa: ANN401
    """Return the number of steps and lanes of `plan`."""
    if kind == "all-to-all":
        return pxn_plans.extent(_sends(shape, **asked))
    way = way_of(kind, shape, size_bytes, _parameters(**asked))
    return _LANES[way.algorithm].extent(kind, shape, size_bytes, way)


def closed_form(kind: str, shape: Shape, size_bytes: int, **asked: Any) -> float:  # noqa: ANN401
    """Return the time in picoseconds on links of the shape, without headers and acknowledgements; not NCCL's own."""
    if kind == "all-to-all":
        return pxn_plans.closed_form(_sends(shape, **asked), size_bytes)
    way = way_of(kind, shape, size_bytes, _parameters(**asked))
    return _LANES[way.algorithm].closed_form(kind, shape, size_bytes, way)


def describe(kind: str, shape: Shape, size_bytes: int, **asked: Any) -> str:  # noqa: ANN401
    """Return NCCL's choice for a size and the constants used: "nvls simple, 16 channels, h100"."""
    own = _parameters(**asked)
    generation = host_of(shape, own).generation.name
    if kind == "all-to-all":
        several = len(set(shape.host)) > 1
        sent = _sends(shape, **asked).message(size_bytes / shape.members, far=several)
        over = " over PXN" if asked["pxn"] and several else ""
        channels = f"{sent.channels} channel{'s' * (sent.channels > 1)} a peer"
        return f"send and receive {sent.protocol}{over}, {channels}, {generation}"
    way = way_of(kind, shape, size_bytes, own)
    return f"{way.algorithm} {way.protocol}, {way.channels} channels, {generation}"


def size_class(kind: str, shape: Shape, size_bytes: int, **asked: Any) -> int:  # noqa: ANN401
    """Return a class of sizes with equal algorithm, protocol, channels and number of chunks."""
    if kind == "all-to-all":
        number, group = 0, _sends(shape, **asked)
        for far in (False, True):
            sent = group.message(size_bytes / shape.members, far=far)
            number = number << 10 | sent.channels << 2 | NAMED_PROTOCOLS.index(sent.protocol)
            number = number << 48 | sent.hop_ps
        return number
    way = way_of(kind, shape, size_bytes, _parameters(**asked))
    chunks = 0
    if way.algorithm in {NVLS, NVLS_TREE}:
        chunks = nvls_plans.size_class(shape, size_bytes, way)
    elif way.algorithm == COLLNET_DIRECT:
        chunks = collnet_plans.size_class(shape, size_bytes)
    return way.number << 20 | chunks


def plan_uneven(cut: Units, shape: Shape, **asked: Any) -> Plans:  # noqa: ANN401
    """Return lanes of an all-to-all with a number of bytes per pair; cut: the sizes in units."""
    return pxn_plans.plan_uneven(_sends(shape, **asked), cut)


def communicator(shape: Shape, **asked: Any) -> point_to_point.Communicator:  # noqa: ANN401
    """Return the communicator of a group's sends and receives."""
    own = _parameters(**asked)
    return point_to_point.communicator(host_of(shape, own), own.channels, paced=own.pacing == PLANNED)


def _parameters(*, pxn: bool, **asked: Any) -> NcclParameters:  # noqa: ANN401, ARG001
    return NcclParameters(**asked)


def _sends(shape: Shape, **asked: Any) -> pxn_plans.SendGroup:  # noqa: ANN401
    """Return the group for sends and receives."""
    return pxn_plans.SendGroup(shape, communicator(shape, **asked), asked["proto"], asked["pxn"])
