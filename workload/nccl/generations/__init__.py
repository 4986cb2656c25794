"""Constants of NCCL's tuning model by GPU generation: one module each with GENERATION, found by looking here."""

import functools
import importlib
import pkgutil
from typing import NamedTuple

Triple = tuple[float, float, float]


class Generation(NamedTuple):
    """Bandwidths of the tuning model (NCCL, src/graph/tuning.cc), in GB/s; triples are for 1, 2 and more hosts.

    Attributes:
        name: as users write it.
        ll: the most that LL reaches.
        ring_ll128: the most of LL128 in a ring, per channel.
        tree_ll128: the same in a tree.
        tree: the most of a tree, per channel.
        nvlink_payload: payload per byte that an NVLink can carry, both directions loaded alike.
        bus_cap: the most that any algorithm reaches; 0 = none.
        channels: within one host.
        plateau: by how much ring and Simple grow in latency where the buffer is cut into pieces of 64 bytes or more.
    """

    name: str
    ll: Triple
    ring_ll128: Triple
    tree_ll128: Triple
    tree: Triple
    nvlink_payload: float
    bus_cap: float
    channels: int
    plateau: float


@functools.cache
def generations() -> dict[str, Generation]:
    """All generations by name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.GENERATION.name: module.GENERATION for module in modules}
