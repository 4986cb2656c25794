"""NCCL: rings, trees, NVLS, PAT and CollNet as its model chooses, protocols, PXN (docs/explanation/nccl.md)."""

from typing import Any

from nadi.workload.collectives.nccl import channel_plans, point_to_point, pxn_plans, switch_plans, time_parts
from nadi.workload.collectives.nccl.decision import (
    CHUNKS,
    MAX_CHANNELS,
    NAMED_ALGORITHMS,
    NAMED_PROTOCOLS,
    PACINGS,
    PLANNED,
    NcclParameters,
    host_of,
    nccl_decision,
)
from nadi.workload.collectives.nccl.generations import AUTO, generations
from nadi.workload.collectives.nccl.site import FACTOR_RANGE, SiteFactors
from nadi.workload.collectives.nccl.tuning import COLLNET_DIRECT, CPUS, NIC_PATHS, NVLS, NVLS_TREE, PAT, RING, TREE
from nadi.workload.collectives.plans.extent import PlanExtent, in_stripes
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.collectives.trees import IF_ANY
from nadi.workload.collectives.uneven import Units
from nadi.workload.shape import GroupShape

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all")
NEEDS_SHAPE = True
OWN_CONNECTIONS = True
ESTIMATE = True
OWN_TIMES = True
PARAMETERS: dict[str, int | float | bool | str] = {**NcclParameters._field_defaults, "pxn": True}
LIMITS = {
    "algo": NAMED_ALGORITHMS,
    "proto": NAMED_PROTOCOLS,
    "channels": (0, MAX_CHANNELS),
    "generation": (AUTO, *sorted(generations())),
    "pacing": PACINGS,
    "cpu": CPUS,
    "nic_path": NIC_PATHS,
    "chunks": CHUNKS,
    **{f"{name}_factor": FACTOR_RANGE for name in SiteFactors._fields},
}

_LANES = {  # what makes the lanes of each of NCCL's algorithms
    RING: channel_plans.RINGS,
    TREE: channel_plans.TREES,
    NVLS: switch_plans.NVLS_LANES,
    NVLS_TREE: switch_plans.NVLS_LANES,
    PAT: channel_plans.PAT,
    COLLNET_DIRECT: switch_plans.COLLNET,
}


def TREES(*, generation: str, collnet: bool, nvls: bool, **_others: object) -> str:  # noqa: N802 - the name in the registry
    """Return the names of the aggregation trees that NCCL may use.

    These are trees over NVSwitches if the GPU generation may have NVLS, and over rails if the network may sum.

    Args:
        generation: The name of the GPU generation whose constants apply; AUTO = that of the fabric's accelerator.
        collnet: Whether NCCL may use reductions in the network (CollNet).
        nvls: Whether NCCL may use NVSwitches that sum (NVLS).
        **_others: The other values of PARAMETERS, on which the trees do not depend.
    """
    has_nvls = generation == AUTO or generations()[generation].nvls_efficiency
    if not has_nvls or not (nvls or collnet):
        return ""
    return IF_ANY + ("hosts and rails" if collnet else "hosts")


# The arguments `parameters` are the fields of NcclParameters and `pxn`, as the registry read them.


def plan(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> Plans:  # noqa: ANN401
    """Return the steps of each member: lanes per channel, or per head of NVLS.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    if kind == "all-to-all":
        return in_stripes(pxn_plans.plan(_sends(shape, **parameters), size_bytes), kind, shape.stripes)
    decision = nccl_decision(kind, shape, size_bytes, _parameters(**parameters))
    return _LANES[decision.algorithm].plan(kind, shape, size_bytes, decision)


def extent(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> PlanExtent:  # noqa: ANN401
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    if kind == "all-to-all":
        return pxn_plans.extent(_sends(shape, **parameters)).in_parts(shape.stripes)
    decision = nccl_decision(kind, shape, size_bytes, _parameters(**parameters))
    return _LANES[decision.algorithm].extent(kind, shape, size_bytes, decision)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> float:  # noqa: ANN401
    """Return the time in picoseconds on links of the shape, without headers and acknowledgements; not NCCL's own.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    if kind == "all-to-all":
        return pxn_plans.closed_form(_sends(shape, **parameters), size_bytes)
    decision = nccl_decision(kind, shape, size_bytes, _parameters(**parameters))
    return _LANES[decision.algorithm].closed_form(kind, shape, size_bytes, decision)


def describe(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> str:  # noqa: ANN401
    """Return NCCL's choice for a size and the constants used: "nvls simple, 16 channels, h100".

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    own = _parameters(**parameters)
    generation = host_of(shape, own).generation.name
    if kind == "all-to-all":
        several = len(set(shape.host)) > 1
        sent = _sends(shape, **parameters).message(size_bytes / shape.members, between_hosts=several)
        over = " over PXN" if parameters["pxn"] and several else ""
        channels = f"{sent.channels} channel{'s' * (sent.channels > 1)} a peer"
        return f"send and receive {sent.protocol}{over}, {channels}, {generation}"
    decision = nccl_decision(kind, shape, size_bytes, own)
    return f"{decision.algorithm} {decision.protocol}, {decision.channels} channels, {generation}"


def size_class(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> int:  # noqa: ANN401
    """Return a number, equal for sizes of a buffer with equal lanes; the time before their first step may differ.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    if kind == "all-to-all":
        number, group = 0, _sends(shape, **parameters)
        for far in (False, True):
            sent = group.message(size_bytes / shape.members, between_hosts=far)
            # Channels, protocol and time of a hop of messages within and between hosts determine the lanes
            number = number << 10 | sent.channels << 2 | NAMED_PROTOCOLS.index(sent.protocol)
            number = number << 48 | sent.hop_ps
        return number
    decision = nccl_decision(kind, shape, size_bytes, _parameters(**parameters))._replace(launch_ps=0)
    chunks = 0
    if decision.algorithm in {NVLS, NVLS_TREE}:
        chunks = switch_plans.lanes_class(shape, size_bytes, decision)
        decision = decision._replace(pieces=1)  # loops that chunks have no part in
    elif decision.algorithm == COLLNET_DIRECT:
        chunks = switch_plans.collnet_size_class(shape, size_bytes)
    return decision.number << 22 | chunks


def is_coarse(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> bool:  # noqa: ANN401
    """Return whether plans of such large groups have chunks so much larger than NCCL's that the closed form is nearer.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    if kind == "all-to-all":
        return False
    decision = nccl_decision(kind, shape, size_bytes, _parameters(**parameters))
    coarse = channel_plans.is_coarse if decision.algorithm == TREE else switch_plans.is_coarse
    return coarse(shape, size_bytes, decision)


def launch_ps(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> int | None:  # noqa: ANN401
    """Return the picoseconds before the first step; of an all-to-all, they are part of its class.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    if kind == "all-to-all":
        return None
    return nccl_decision(kind, shape, size_bytes, _parameters(**parameters)).launch_ps


def parts_of_time(kind: str, shape: GroupShape, size_bytes: int, **parameters: Any) -> dict[str, float]:  # noqa: ANN401
    """Return the fraction of the closed form that each of `time_parts.PARTS` takes.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    if kind == "all-to-all":
        return time_parts.of_messages(_sends(shape, **parameters), size_bytes)
    decision = nccl_decision(kind, shape, size_bytes, _parameters(**parameters))
    return time_parts.of_decision(_LANES[decision.algorithm].closed_form, kind, shape, size_bytes, decision)


def shift(shape: GroupShape, size_bytes: int, **parameters: Any) -> time_parts.ShiftTime:  # noqa: ANN401
    """Return the time of a shift, in which every member sends a message to the next one and receives one.

    Args:
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of each message in bytes.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    return time_parts.of_shift(communicator(shape, **parameters), shape, size_bytes)


def plan_uneven(cut: Units, shape: GroupShape, **parameters: Any) -> Plans:  # noqa: ANN401
    """Return the lanes of an all-to-all with a number of bytes for each pair.

    Args:
        cut: The bytes of each pair of members as whole numbers of a common unit.
        shape: The positions of the group's members on the fabric.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    return pxn_plans.plan_uneven(_sends(shape, **parameters), cut)


def communicator(shape: GroupShape, **parameters: Any) -> point_to_point.Communicator:  # noqa: ANN401
    """Return the communicator of a group's sends and receives, which has their channels and rates.

    Args:
        shape: The positions of the group's members on the fabric.
        **parameters: The values of PARAMETERS by name, as the user gave them (`decision.NcclParameters` and `pxn`).
    """
    own = _parameters(**parameters)
    return point_to_point.communicator(host_of(shape, own), own.channels, is_paced=own.pacing == PLANNED)


def _parameters(*, pxn: bool, **parameters: Any) -> NcclParameters:  # noqa: ANN401, ARG001
    return NcclParameters(**parameters)


def _sends(shape: GroupShape, **parameters: Any) -> pxn_plans.SendGroup:  # noqa: ANN401
    """Return the group for sends and receives."""
    return pxn_plans.SendGroup(shape, communicator(shape, **parameters), parameters["proto"], parameters["pxn"])
