"""NCCL as it runs: rings and trees over rails, protocols LL, LL128 and Simple, its tuning model, PXN (docs/nccl.md)."""

from typing import TypedDict, Unpack

from workload.nccl import pxn_plans, ring_plans, tree_plans
from workload.nccl.generations import generations
from workload.nccl.overrides import ALGORITHMS, PROTOCOLS
from workload.nccl.tuning import TREE
from workload.nccl.ways import MOST_CHANNELS, PACINGS, PLANNED, Way, way_of
from workload.plans import Plans
from workload.shape import Shape

NAME = "nccl"
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all")
NEEDS_SHAPE = True
ESTIMATE = True
PARAMETERS: dict[str, int | bool | str] = {
    "algo": "auto",
    "proto": "auto",
    "channels": 0,
    "pxn": True,
    "generation": "a100",
    "overrides": "",
    "pacing": PLANNED,
}
LIMITS = {
    "algo": ALGORITHMS,
    "proto": PROTOCOLS,
    "channels": (0, MOST_CHANNELS),
    "generation": tuple(sorted(generations())),
    "pacing": PACINGS,
}

_SMALL_MESSAGE_BYTES = 16 * 1024  # all-to-all's messages up to this go by LL


class _Asked(TypedDict):
    """The parameters that say which way a collective goes."""

    algo: str
    proto: str
    channels: int
    generation: str
    overrides: str
    pacing: str


def plan(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    pxn: bool,
    **asked: Unpack[_Asked],
) -> Plans:
    """Lanes for each channel.

    Raises:
        WorkloadError: overrides that are none, or too large a table.
    """
    way = _way(kind, shape, size_bytes, **asked)
    if kind == "all-to-all":
        return pxn_plans.plan(shape, way, pxn=pxn)
    return tree_plans.plan(shape, way) if way.algorithm == TREE else ring_plans.plan(kind, shape, way)


def closed_form(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    pxn: bool,
    **asked: Unpack[_Asked],
) -> float:
    """On links of the shape's rates and latencies, headers and acknowledgements left out; not NCCL's own estimate."""
    way = _way(kind, shape, size_bytes, **asked)
    if kind == "all-to-all":
        return pxn_plans.closed_form(shape, size_bytes, way, pxn=pxn)
    if way.algorithm == TREE:
        return tree_plans.closed_form(shape, size_bytes, way)
    return ring_plans.closed_form(kind, shape, size_bytes, way)


def size_class(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    pxn: bool,  # noqa: ARG001 - all parameters are handed to all functions
    **asked: Unpack[_Asked],
) -> int:
    """Sizes that get the same algorithm, protocol, channels and number of chunks share a plan."""
    return _way(kind, shape, size_bytes, **asked).number


def _way(kind: str, shape: Shape, size_bytes: int, **asked: Unpack[_Asked]) -> Way:
    """How it goes; messages of an all-to-all are whole, and small ones go by LL unless told otherwise."""
    if kind != "all-to-all":
        return way_of(kind, shape, size_bytes, **asked)
    if asked["proto"] == "auto":
        asked["proto"] = "ll" if size_bytes <= _SMALL_MESSAGE_BYTES * shape.members else "simple"
    return way_of(kind, shape, size_bytes, **asked)._replace(pieces=1)
