"""NCCL as it runs: rings and trees over rails, protocols LL, LL128 and Simple, its tuning model, PXN (docs/nccl.md)."""

from workload.nccl import pxn_plans, ring_plans, tree_plans
from workload.nccl.generations import generations
from workload.nccl.overrides import ALGORITHMS, PROTOCOLS
from workload.nccl.tuning import TREE
from workload.nccl.ways import MOST_CHANNELS, Way, way_of
from workload.plans import Plans
from workload.shape import Shape

NAME = "nccl"
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all")
NEEDS_SHAPE = True
PARAMETERS: dict[str, int | bool | str] = {
    "algo": "auto",
    "proto": "auto",
    "channels": 0,
    "pxn": True,
    "generation": "a100",
    "overrides": "",
}
LIMITS = {
    "algo": ALGORITHMS,
    "proto": PROTOCOLS,
    "channels": (0, MOST_CHANNELS),
    "generation": tuple(sorted(generations())),
}

_SMALL_MESSAGE_BYTES = 16 * 1024  # all-to-all's messages up to this go by LL


def plan(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    algo: str,
    proto: str,
    channels: int,
    pxn: bool,
    generation: str,
    overrides: str,
) -> Plans:
    """Lanes for each channel.

    Raises:
        WorkloadError: overrides that are none, or too large a table.
    """
    way = _way(kind, shape, size_bytes, algo, proto, channels, generation, overrides)
    if kind == "all-to-all":
        return pxn_plans.plan(shape, way, pxn=pxn)
    return tree_plans.plan(shape, way) if way.algorithm == TREE else ring_plans.plan(kind, shape, way)


def closed_form(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    algo: str,
    proto: str,
    channels: int,
    pxn: bool,
    generation: str,
    overrides: str,
) -> float:
    """On links of the shape's rates and latencies, headers and acknowledgements left out; not NCCL's own estimate."""
    way = _way(kind, shape, size_bytes, algo, proto, channels, generation, overrides)
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
    algo: str,
    proto: str,
    channels: int,
    pxn: bool,  # noqa: ARG001 - all parameters are handed to all functions
    generation: str,
    overrides: str,
) -> int:
    """Sizes that get the same algorithm, protocol, channels and number of chunks share a plan."""
    return _way(kind, shape, size_bytes, algo, proto, channels, generation, overrides).number


def _way(
    kind: str,
    shape: Shape,
    size_bytes: int,
    algo: str,
    proto: str,
    channels: int,
    generation: str,
    overrides: str,
) -> Way:
    if kind == "all-to-all" and proto == "auto":
        proto = "ll" if size_bytes <= _SMALL_MESSAGE_BYTES * shape.members else "simple"
    way = way_of(
        kind,
        shape,
        size_bytes,
        algo=algo,
        proto=proto,
        channels=channels,
        generation=generation,
        overrides=overrides,
    )
    return way._replace(pieces=1) if kind == "all-to-all" else way
