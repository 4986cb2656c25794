"""Which algorithm and protocol NCCL takes: for each the time latency + bytes / bandwidth, and the least of them.

The tables are those of src/graph/tuning.cc of NCCL 2.19 and later, microseconds and GB/s; the bandwidth inside a host
and between hosts is the fabric's.
"""

import math

from workload.nccl.generations import Generation
from workload.nccl.protocols import LL, LL128, PROTOCOLS, SIMPLE
from workload.shape import Shape

RING, TREE = "ring", "tree"
NVLINK, PCI, NET = "nvlink", "pci", "net"

_PS_PER_US = 1e6
_BASE_US = {RING: (6.6, 14.0, 8.4), TREE: (6.8, 14.0, 8.4)}
_STEP_US = {
    (NVLINK, RING): (0.6, 1.9, 3.4),
    (NVLINK, TREE): (0.6, 1.25, 4.0),
    (PCI, RING): (1.0, 2.5, 5.7),
    (PCI, TREE): (1.0, 1.9, 4.0),
    (NET, RING): (2.7, 4.0, 14.0),
    (NET, TREE): (5.0, 8.5, 14.0),
}
_LL_INSIDE_OF_SEVERAL_HOSTS = 1.8
_PLATEAU_BYTES = 64

# what a tree reaches of its bandwidth, by the size from 64 B on in powers of two
_TREE_REACHES = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "ll128": (
        1,
        1,
        1,
        1,
        1,
        0.9,
        0.8,
        0.8,
        0.8,
        0.7,
        0.6,
        0.6,
        0.6,
        0.5,
        0.6,
        0.6,
        0.7,
        0.7,
        0.8,
        0.9,
        0.9,
        0.92,
        0.92,
    ),
    "simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}


def base_ps(algorithm: str, protocol: str) -> int:
    """From the launch to the first step."""
    return round(_BASE_US[algorithm][_column(protocol)] * _PS_PER_US)


def step_ps(shape: Shape, algorithm: str, protocol: str, *, between_hosts: bool) -> int:
    """A step with no data, inside a host or between hosts, the time of the path included."""
    several = len(set(shape.host)) > 1
    hardware = NET if between_hosts else NVLINK if shape.inside_bps else PCI
    scale = _LL_INSIDE_OF_SEVERAL_HOSTS if several and not between_hosts and protocol == LL.name else 1.0
    return round(_STEP_US[hardware, algorithm][_column(protocol)] * scale * _PS_PER_US)


def ring_steps(kind: str, count: int) -> int:
    """Steps round a ring of `count`; what starts at a root counts it too, as NCCL does."""
    return {"all-reduce": 2 * (count - 1), "broadcast": count, "reduce": count}.get(kind, count - 1)


def model_ps(
    kind: str, shape: Shape, size_bytes: int, generation: Generation, channels: int, algorithm: str, protocol: str
) -> float:
    """NCCL's estimate of a collective; infinite where it would not take this algorithm or protocol at all."""
    if algorithm == TREE and kind != "all-reduce":
        return math.inf
    if protocol == LL128.name and not shape.inside_bps:
        return math.inf
    reached = _bandwidth(kind, shape, generation, channels, algorithm, protocol)
    latency_ps = _latency_ps(kind, shape, algorithm, protocol)
    if algorithm == TREE:
        row = _TREE_REACHES[protocol]
        reached *= row[min(max(size_bytes // 64, 1).bit_length() - 1, len(row) - 1)]
    elif protocol == SIMPLE.name and kind == "all-reduce" and len(set(shape.host)) > 1:
        on_plateau = size_bytes / (channels * shape.members) >= _PLATEAU_BYTES
        latency_ps *= generation.plateau if on_plateau else 1.0
    return latency_ps + size_bytes / reached * 1e3


def best(
    kind: str, shape: Shape, size_bytes: int, generation: Generation, channels: int, algorithm: str, protocol: str
) -> tuple[str, str]:
    """Algorithm and protocol of the least time, among those that "auto" leaves open.

    One that is asked for is taken, as NCCL_ALGO and NCCL_PROTO would, except trees for what has none.
    """
    algorithms = (RING, TREE) if algorithm == "auto" else (algorithm,)
    if kind != "all-reduce":
        algorithms = (RING,)
    protocols = tuple(PROTOCOLS) if protocol == "auto" else (protocol,)
    pairs = [(a, p) for a in algorithms for p in protocols]
    if len(pairs) == 1:
        return pairs[0]
    return min(pairs, key=lambda pair: model_ps(kind, shape, size_bytes, generation, channels, *pair))


def bus_bytes_per_s(shape: Shape, generation: Generation) -> float:
    """What all channels together can move past a member or out of a host."""
    inside = shape.inside_bps / 8 * generation.nvlink_payload
    if not shape.outside_bps:
        return inside
    counts = [shape.host.count(host) for host in set(shape.host)]
    outside = shape.outside_bps / 8 * min(counts)
    return min(inside, outside) if inside else outside


def _bandwidth(kind: str, shape: Shape, generation: Generation, channels: int, algorithm: str, protocol: str) -> float:
    """GB/s of the buffer."""
    hosts = len(set(shape.host))
    column = min(hosts, 3) - 1
    bus = bus_bytes_per_s(shape, generation) / 1e9
    bus = min(bus, generation.bus_cap or bus)
    if algorithm == RING:
        reached = {
            LL.name: min(generation.ll[column], bus / 2),
            LL128.name: min(bus * 0.92, generation.ring_ll128[column] * channels),
            SIMPLE.name: bus,
        }[protocol]
        return reached * shape.members / ring_steps(kind, shape.members)
    bus = min(bus * 0.92, generation.tree[column] * channels)
    reached = {
        LL.name: min(bus / 3.8, generation.ll[column]),
        LL128.name: min(bus * (7 / 9 if hosts == 1 else 120 / 128), generation.tree_ll128[column] * channels),
        SIMPLE.name: bus,
    }[protocol]
    return reached / 2


def _latency_ps(kind: str, shape: Shape, algorithm: str, protocol: str) -> float:
    hosts = len(set(shape.host))
    inside, between = (step_ps(shape, algorithm, protocol, between_hosts=between) for between in (False, True))
    base = base_ps(algorithm, protocol)
    if algorithm == TREE:
        return base + 2 * ((shape.members // hosts - 1) * inside + (hosts.bit_length() - 1) * between)
    steps = ring_steps(kind, shape.members)
    if kind in {"broadcast", "reduce"}:
        return base + steps * (between if hosts > 1 else inside)
    crossing = ring_steps(kind, hosts) if hosts > 1 else 0
    return base + (steps - crossing) * inside + crossing * between


def _column(protocol: str) -> int:
    return tuple(PROTOCOLS).index(protocol)
