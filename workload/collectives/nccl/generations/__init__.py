"""Constants of NCCL by GPU generation: one module each with GENERATION, found by looking here."""

import functools
import importlib
import math
import pkgutil
from typing import NamedTuple

Triple = tuple[float, float, float]


class Generation(NamedTuple):
    """What NCCL's graph search (src/graph/search.cc, topo.h, topo.cc) and tuning model (src/graph/tuning.cc) know.

    Bandwidths in GB/s; triples are for 1, 2 and more hosts.

    Attributes:
        name: as users write it.
        compute_capability: 80 is 8.0.
        nvlink_bps: an NPU's NVLinks together, each direction, as its flagship has them: by it a fabric's generation is
            guessed.
        nvlink_payload: what the search counts of an NVLink's rate, both directions loaded alike (SM70_NVLINK_BW 20.0
            of 25, SM90_NVLINK_BW 20.6 of 25, SM100_NVLINK_BW 40.1 of 50).
        nvlink_line: GB/s of one NVLink in each direction: 25, Blackwell 50.
        pcie: between a NIC and its GPU, as the search counts it: 16 lanes of the generation's PCIe.
        inside_speeds: of a channel, which the search tries in this order where there is no NIC.
        between_speeds: the same where there are NICs.
        cpu: of its usual hosts, "intel" or "amd".
        ll: the most that LL reaches in one host, all channels together.
        ring_ll128: the most of LL128 in a ring, per channel.
        tree_ll128: the same in a tree.
        tree: the most of Simple in a tree, per channel.
        nvls_tree: the most of an NVLS tree, per channel.
        nvls_efficiency: what NVLS reaches of the planned speed; 0 = there is no NVLS.
        nvls_channels: blocks that do NVLS, in one host and in several.
        in_grains: the releases of its time dealt out LL128 in whole grains (workload.collectives.nccl.ways.CHUNKS).
        plateau: by how much ring and Simple grow in latency where the buffer is cut into pieces of 64 bytes or more.
    """

    name: str
    compute_capability: int
    nvlink_bps: int
    nvlink_payload: float
    nvlink_line: float
    pcie: float
    inside_speeds: tuple[float, ...]
    between_speeds: tuple[float, ...]
    cpu: str
    ll: float
    ring_ll128: Triple
    tree_ll128: Triple
    tree: Triple
    nvls_tree: Triple
    nvls_efficiency: float
    nvls_channels: tuple[int, int]
    in_grains: bool
    plateau: float


AUTO = "auto"
"""As a generation: the fabric's."""


@functools.cache
def generations() -> dict[str, Generation]:
    """All generations by name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.GENERATION.name: module.GENERATION for module in modules if hasattr(module, "GENERATION")}


def generation_of(name: str, accelerator: str, inside_bps: int) -> Generation:
    """The generation that is meant.

    Args:
        name: of it, or AUTO.
        accelerator: the fabric's, "" = it names none.
        inside_bps: what a member can send to another of its host, 0 = no host has two members.

    With AUTO it is the accelerator's, else that whose NVLinks have the nearest rate; without NVLink a100.
    """
    made = generations()
    wanted = accelerator if name == AUTO else name
    if wanted in made:
        return made[wanted]
    if not inside_bps:
        return made["a100"]
    return min(made.values(), key=lambda one: abs(math.log(inside_bps / one.nvlink_bps)))
