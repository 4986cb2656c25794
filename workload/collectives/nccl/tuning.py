"""NCCL's three protocols, and its choice of algorithm and protocol for a collective.

LL stores 4 bytes of data with 4 bytes of flag, so that the receiver polls the data itself. LL128 does that with 8 bytes
of flag per 128. Simple moves plain data and posts a flag for each complete slice. A connection has a buffer of
NCCL_STEPS = 8 slots. A ring's chunk fills one slot, except with Simple in kinds that go round the ring: there it fills
four slots and moves in two slices of two slots, none smaller than 1/32 of that (*_CHUNKSTEPS, *_SLICESTEPS, NCCL_LL_*
and NCCL_LL128_* in src/include/collectives.h and src/include/device.h of NCCL; src/device/prims_simple.h).
"""

import math
from typing import NamedTuple

from nadi.inputs.units import KIB, PS_PER_US
from nadi.workload.collectives.nccl import channel_orders
from nadi.workload.collectives.nccl.generations import Generation, KernelTimes
from nadi.workload.collectives.nccl.site import CITED, SiteFactors
from nadi.workload.collectives.nccl.tables import TABLES
from nadi.workload.shape import GroupShape

_ONE_SLOT = frozenset({"broadcast", "reduce"})
_SLICES_OF_LEAST = 32  # ratio of a full slice to the smallest one


class Protocol(NamedTuple):
    """The constants of one of NCCL's protocols."""

    name: str  # name as in NCCL_PROTO, in lower case
    wire: tuple[int, int]  # (numerator, denominator) of bytes on the wire per byte of data
    slot_bytes: int  # data bytes of a slot of the connection's buffer
    slots: int  # number of slots of a ring's chunk
    slices: int  # number of slices of such a chunk
    least_bytes: int  # minimum chunk of a tree, to which chunks are halved to fill the pipeline
    threads: int  # number of threads of a channel
    thread_bytes: int  # minimum data per thread for a channel to be used

    def wire_bytes(self, data_bytes: float) -> float:
        """Return the bytes on the wire of some data, not rounded.

        Args:
            data_bytes: The amount of data in bytes.
        """
        return data_bytes * self.wire[0] / self.wire[1]

    def chunk_bytes(self, kind: str) -> int:
        """Return the maximum bytes that one step of a channel moves.

        Args:
            kind: The kind of collective.
        """
        return self.slot_bytes * (1 if kind in _ONE_SLOT else self.slots)

    def slices_of(self, kind: str, chunk_bytes: float) -> int:
        """Return the number of slices of a ring's chunk.

        Args:
            kind: The kind of collective.
            chunk_bytes: The size of the chunk in bytes.
        """
        least_bytes = self.slot_bytes * self.slots / self.slices / _SLICES_OF_LEAST
        return 1 if kind in _ONE_SLOT or chunk_bytes <= least_bytes else self.slices


LL = Protocol("ll", (2, 1), 512 * 8 * 8, 1, 1, 4 * KIB, 512, 8)
LL128 = Protocol("ll128", (16, 15), 640 * 120 * 8 * 15 // 16, 1, 1, 16 * KIB, 640, 8)
SIMPLE = Protocol("simple", (1, 1), 512 * KIB, 4, 2, 32 * KIB, 512, 64)

PROTOCOLS = {protocol.name: protocol for protocol in (LL, LL128, SIMPLE)}


# NCCL's choice of algorithm and protocol: the pair with the smallest estimate latency + bytes / bandwidth.
#
# Formulas, and the tables of tuning.toml, are those of NCCL 2.30 (src/tuning/, in earlier versions
# src/graph/tuning.cc), in microseconds and GB/s. `workload.collectives.nccl.channel_orders` gives the channels that
# NCCL's search finds.


RING, TREE = "ring", "tree"
NVLS, NVLS_TREE, PAT = "nvls", "nvls-tree", "pat"
COLLNET_DIRECT = "collnet-direct"
ALGORITHMS = (RING, TREE, NVLS, NVLS_TREE, PAT, COLLNET_DIRECT)
NVLINK, PCI, NET = "nvlink", "pci", "net"
CPUS = ("auto", "intel", "amd")
NIC_PATHS = ("switch", "cpu")
KINDS_OF = {
    RING: frozenset({"all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all"}),
    TREE: frozenset({"all-reduce"}),
    NVLS: frozenset({"all-reduce", "all-gather", "reduce-scatter"}),
    NVLS_TREE: frozenset({"all-reduce"}),
    PAT: frozenset({"all-gather", "reduce-scatter"}),
    COLLNET_DIRECT: frozenset({"all-reduce"}),
}

_BASE_US: dict[str, list[float]] = TABLES["base_us"]
_STEP_US: dict[str, dict[str, list[float]]] = TABLES["step_us"]
_POST_US: dict[str, float] = TABLES["post_us"]
_SIMPLE_POSTS = 3  # times that Simple posts
_PLATEAU_BYTES = 64  # bytes per channel and member from which the ring's Simple latency grows (Generation.plateau)
PAT_LINEAR_US = 2.8  # latency of PAT per member
PAT_LATENCY_PARTS = 3.5  # divisor of PAT's latency per network step
_ARITY_US = 0.4  # latency of CollNet direct per peer in the host
_FEW_HOSTS = 2  # number of hosts up to which the model takes a tree's speed inside hosts
_MAX_DIRECT = 8  # maximum number of peers in the host of CollNet direct
_INTEL_OVERHEAD = 6 / 5  # of PCIe that a flow takes through an Intel CPU (INTEL_P2P_OVERHEAD in src/graph/search.cc)

_TREE_EFFICIENCY: dict[str, list[float]] = TABLES["tree_efficiency"]
_SIZES_OF_TREES, _SIZES_OF_NVLS_TREES = 23, 24  # number of powers of two from 64 B on for which the factor holds


class TuningInput(NamedTuple):
    """A group and its hosts, as NCCL's model sees them."""

    generation: Generation  # GPU generation of the NPUs
    plan: channel_orders.GroupChannels  # channels that NCCL's search finds
    members: int  # number of members n
    cpu: str  # CPU vendor of the hosts, "intel" or "amd"
    collnet: bool  # whether switches between hosts can sum (SHARP), and NCCL may use them (NCCL_COLLNET_ENABLE)
    site: SiteFactors = CITED  # factors of the site on times of steps; those of kernels are in `generation`

    @property
    def column(self) -> int:
        """The index in a triple for 1, 2 and more hosts."""
        return min(self.plan.hosts, 3) - 1

    @property
    def kernel(self) -> KernelTimes | None:
        """Times of the kernels if all members are in one NVLink domain and the generation has them."""
        return self.generation.kernel if self.plan.hosts == 1 and self.plan.nvlink else None

    @property
    def inside(self) -> str:
        """The hardware that connects the members of a host."""
        return NVLINK if self.plan.nvlink else PCI


def host_of(shape: GroupShape, generation: Generation, cpu: str, nic_path: str, *, collnet: bool) -> TuningInput:
    """Return the input of NCCL's tuning model for a group.

    Args:
        shape: The positions of the group's members on the fabric.
        generation: The constants of NCCL for the GPUs of the group.
        cpu: The CPU vendor of the hosts, one of CPUS; "auto" = the usual one of the GPU generation.
        nic_path: What connects a GPU with its NIC, one of NIC_PATHS.
        collnet: Whether switches between hosts can sum, and NCCL may use them.
    """
    vendor = generation.cpu if cpu == "auto" else cpu
    if (vendor, nic_path) == ("intel", "cpu"):
        generation = generation.model_copy(update={"pcie": generation.pcie / _INTEL_OVERHEAD})
    return TuningInput(generation, channel_orders.planned(shape, generation), shape.members, vendor, collnet)


def base_ps(algorithm: str, protocol: str, site: SiteFactors = CITED) -> int:
    """Return the time from the launch to the first step in picoseconds.

    Args:
        algorithm: The name of NCCL's algorithm, one of tuning.ALGORITHMS.
        protocol: The name of NCCL's protocol: "ll", "ll128" or "simple".
        site: The factors of the site.
    """
    return round(_BASE_US.get(algorithm, (0.0, 0.0, 0.0))[column_of(protocol)] * site.launch * PS_PER_US)


def step_ps(host: TuningInput, algorithm: str, protocol: str, *, between_hosts: bool) -> int:
    """Return the time of a step without data in picoseconds, inside a host or between hosts, path included.

    Args:
        host: The group and its hosts, as NCCL's tuning model sees them.
        algorithm: The name of NCCL's algorithm, one of tuning.ALGORITHMS.
        protocol: The name of NCCL's protocol: "ll", "ll128" or "simple".
        between_hosts: Whether sender and receiver are in different hosts.
    """
    # In a ring over hosts, no step is shorter than posting to a NIC. With one member per host nothing hides the
    # network's latency, which then is that of trees.
    several = host.plan.hosts > 1
    alone = several and host.plan.per_host == 1 and algorithm == RING
    by_protocol = _STEP_US[NET if between_hosts else host.inside][TREE if alone and between_hosts else algorithm]
    step_us = by_protocol[column_of(protocol)] * (host.site.nic if between_hosts else host.site.hop)
    if several and not between_hosts and algorithm == RING:
        posts_us = _POST_US[host.cpu] * (_SIMPLE_POSTS if protocol == SIMPLE.name else 1)
        step_us = max(step_us, posts_us * host.site.nic)
    return round(step_us * PS_PER_US)


def message_hop_ps(host: TuningInput, protocol: str, *, between_hosts: bool) -> int:
    """Return the time of an empty send and its receive in picoseconds: NCCL's ring hop without launch, with path.

    Args:
        host: The group and its hosts, as NCCL's tuning model sees them.
        protocol: The name of NCCL's protocol: "ll", "ll128" or "simple".
        between_hosts: Whether sender and receiver are in different hosts.
    """
    hardware = NET if between_hosts else host.inside
    factor = host.site.nic if between_hosts else host.site.hop
    return round(_STEP_US[hardware][RING][column_of(protocol)] * factor * PS_PER_US)


def ring_steps(kind: str, count: int) -> int:
    """Return the number of steps of a ring; like NCCL, kinds with a root count the root too.

    Args:
        kind: The kind of collective.
        count: The number of members of the ring.
    """
    return {"all-reduce": 2 * (count - 1), "broadcast": count, "reduce": count}.get(kind, count - 1)


def model_ps(kind: str, host: TuningInput, size_bytes: int, algorithm: str, protocol: str) -> float:
    """Return NCCL's estimate of a collective in picoseconds; infinite if NCCL does not support this choice.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
        size_bytes: The size of the whole buffer in bytes.
        algorithm: The name of NCCL's algorithm, one of tuning.ALGORITHMS.
        protocol: The name of NCCL's protocol: "ll", "ll128" or "simple".
    """
    if not is_supported(kind, host, algorithm, protocol):
        return math.inf
    gb_per_s = bandwidth(kind, host, algorithm, protocol)
    if gb_per_s <= 0:
        return math.inf
    latency_ps = _latency_ps(kind, host, algorithm, protocol)
    if algorithm == RING and protocol == SIMPLE.name:
        latency_ps *= _plateau(kind, host, size_bytes)
    gb_per_s *= _tree_efficiency(host, size_bytes, algorithm, protocol)
    return latency_ps + size_bytes / gb_per_s * 1e3


def is_supported(kind: str, host: TuningInput, algorithm: str, protocol: str) -> bool:
    """Return whether NCCL supports an algorithm and protocol for a kind on such hosts.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
        algorithm: The name of NCCL's algorithm, one of tuning.ALGORITHMS.
        protocol: The name of NCCL's protocol: "ll", "ll128" or "simple".
    """
    plan = host.plan
    if kind not in KINDS_OF[algorithm]:
        return False
    if algorithm in {RING, TREE}:
        return protocol != LL128.name or bool(plan.nvlink)
    if protocol != SIMPLE.name:
        return False
    several, heads_fit = plan.hosts > 1, kind == "all-reduce" or plan.per_host <= channel_orders.MAX_HEADS
    return {
        NVLS: plan.nvls is not None and heads_fit and (not several or (host.collnet and kind == "all-reduce")),
        NVLS_TREE: plan.nvls is not None and several,
        PAT: plan.per_host == 1 and host.members == plan.hosts,
        COLLNET_DIRECT: host.collnet and several and 1 < plan.per_host <= _MAX_DIRECT + 1,
    }[algorithm]


def best(kind: str, host: TuningInput, size_bytes: int, algorithm: str, protocol: str) -> tuple[str, str]:
    """Return the algorithm and protocol with the smallest estimate, among those that "auto" leaves open.

    A named algorithm or protocol is used, as with NCCL_ALGO and NCCL_PROTO, unless the kind or the fabric does not
    support it: then a ring is used.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
        size_bytes: The size of the whole buffer in bytes.
        algorithm: The algorithm that the user names, or "auto".
        protocol: The protocol that the user names, or "auto".
    """
    algorithms = ALGORITHMS if algorithm == "auto" else (algorithm,)
    protocols = tuple(PROTOCOLS) if protocol == "auto" else (protocol,)
    pairs = [(a, p) for a in algorithms for p in protocols if kind in KINDS_OF[a]]
    if len(pairs) == 1 and pairs[0][0] in {RING, TREE}:
        return pairs[0]
    pairs = [pair for pair in pairs if is_supported(kind, host, *pair)]
    if (
        not pairs
        and algorithm not in {"auto", RING, TREE}
        and any(is_supported(kind, host, algorithm, p) for p in PROTOCOLS)
    ):
        return algorithm, SIMPLE.name
    if not pairs:
        pairs = [(RING, p) for p in protocols]
    cited = host._replace(site=CITED)  # NCCL does not know the site
    return min(pairs, key=lambda pair: model_ps(kind, cited, size_bytes, *pair))


def bandwidth(kind: str, host: TuningInput, algorithm: str, protocol: str) -> float:
    """Return NCCL's estimate of the bandwidth over all channels of a group's hosts, in GB/s of the whole buffer.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
        algorithm: The name of NCCL's algorithm, one of tuning.ALGORITHMS.
        protocol: The name of NCCL's protocol: "ll", "ll128" or "simple".
    """
    if algorithm == RING:
        return _ring_bandwidth(kind, host, protocol)
    if algorithm == TREE:
        return _tree_bandwidth(host, protocol)
    plan = host.plan
    if algorithm in {NVLS, NVLS_TREE}:
        return nvls_bandwidth(kind, host, algorithm)
    if algorithm == PAT:
        return min(plan.tree.between, plan.tree.inside) * plan.tree.channels * 0.75
    factor = plan.per_host / plan.ring.channels  # CollNet, the algorithm that is left
    # Full speed needs a head per GPU; NCCL counts half of the excess of GPUs over channels
    factor -= (factor - 1) / 2
    bandwidth_gb_per_s = plan.ring.inside * plan.ring.channels / factor
    return bandwidth_gb_per_s / 2 * (0.85 if host.generation.compute_capability >= channel_orders.HOPPER else 1.0)


def nvls_bandwidth(kind: str, host: TuningInput, algorithm: str) -> float:
    """Return the bandwidth of all heads by NCCL's model, in GB/s of the whole buffer; 0 without NVSwitches that sum.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
        algorithm: The name of NCCL's algorithm, one of tuning.ALGORITHMS.
    """
    graph = host.plan.nvls
    if graph is None or graph.channels < 2:
        return 0.0
    between = graph.between * (2 if host.plan.hosts <= 2 and algorithm == NVLS_TREE else 1)
    bus_gb_per_s = min(_pulled(kind, host, algorithm, graph.inside, graph.channels), between)
    return bus_gb_per_s * graph.channels * host.members / ring_steps(kind, host.members)


def nvls_pace(kind: str, host: TuningInput) -> float:
    """Return the rate in GB/s at which a head pulls, sums and copies its share: NCCL's plan for the head on NVLink.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
    """
    # Several hosts use the plan of one host too: the fabric models the NICs, whose time is simulated. The tuning
    # model's maximum of a tree over hosts only ranks algorithms: two hosts of 8 H200 reach 259 GB/s where it has 246.
    nvls = host.plan.nvls
    if nvls is None:
        return math.inf
    heads = channel_orders.heads_of(1, host.plan.per_host, host.plan.nics)
    return _pulled(kind, host, NVLS, nvls.alone, heads) * host.members / ring_steps(kind, host.members)


def empty_all_reduce_ps(host: TuningInput, algorithm: str) -> int:
    """Return the time of an all-reduce without data in picoseconds, kernel launch included.

    Args:
        host: The group and its hosts, as NCCL's tuning model sees them.
        algorithm: The name of NCCL's algorithm, one of tuning.ALGORITHMS.
    """
    return round(_latency_ps("all-reduce", host, algorithm, SIMPLE.name))


def _pulled(kind: str, host: TuningInput, algorithm: str, channel_gb_per_s: float, heads: int) -> float:
    """Return the bus bandwidth in GB/s of one of so many heads of NVLS that is planned for a speed."""
    per_host = host.plan.per_host
    inside = channel_gb_per_s * host.generation.nvls_efficiency * (heads - 1) / heads
    inside *= 2 if kind == "all-reduce" else (per_host - 1) / per_host
    return min(inside, host.generation.nvls_tree[host.column] if algorithm == NVLS_TREE else math.inf)


def _ring_bandwidth(kind: str, host: TuningInput, protocol: str) -> float:
    """Return the bandwidth of a ring over all channels, in GB/s of the whole buffer."""
    ring, generation = host.plan.ring, host.generation
    inside = host.plan.hosts == 1 or (host.plan.hosts == 2 and generation.compute_capability < channel_orders.BLACKWELL)
    bus = ring.channels * (ring.inside if inside else ring.between)
    bus_gb_per_s = {
        LL.name: min(_max_ll_gb_per_s(host), bus / 2),
        LL128.name: min(bus * 0.92, generation.ring_ll128[host.column] * ring.channels),
        SIMPLE.name: bus,
    }[protocol]
    return bus_gb_per_s * host.members / ring_steps(kind, host.members)


def _tree_bandwidth(host: TuningInput, protocol: str) -> float:
    """Return the bandwidth of a tree over all channels, in GB/s of the whole buffer."""
    tree, generation = host.plan.tree, host.generation
    # On two hosts a tree's data cross a NIC once, and NVLinks twice: NCCL counts the speed inside hosts (up to 2.30.7)
    bus = (tree.inside if host.plan.hosts <= _FEW_HOSTS else tree.between) * tree.channels
    bus = min(bus * 0.92, generation.tree[host.column] * tree.channels)
    bus_gb_per_s = {
        LL.name: min(bus / 3.8, _max_ll_gb_per_s(host)),
        LL128.name: min(
            bus * (7 / 9 if host.plan.hosts == 1 else 120 / 128), generation.tree_ll128[host.column] * tree.channels
        ),
        SIMPLE.name: bus,
    }[protocol]
    return bus_gb_per_s / 2 * (0.85 if host.plan.per_host == 1 else 1.0)


def _max_ll_gb_per_s(host: TuningInput) -> float:
    return (
        host.generation.ll if host.plan.hosts == 1 else TABLES["ll_over_hosts"][host.cpu][min(host.plan.hosts, 3) - 2]
    )


def _latency_ps(kind: str, host: TuningInput, algorithm: str, protocol: str) -> float:
    """Return NCCL's latency of a collective without data in picoseconds, launch included."""
    if algorithm == RING:
        return _ring_latency_ps(kind, host, protocol)
    plan = host.plan
    height, others = plan.hosts.bit_length() - 1, host.members // plan.hosts - 1
    between = step_ps(host, algorithm, protocol, between_hosts=plan.hosts > 1)
    inside = step_ps(host, algorithm, protocol, between_hosts=False)
    arity_ps = _ARITY_US * PS_PER_US
    return (
        base_ps(algorithm, protocol, host.site)
        + {
            TREE: 2 * (others * inside + height * between),
            NVLS: inside + (between if plan.hosts > 1 else 0),
            NVLS_TREE: inside + 2 * height * between,
            PAT: height * between / PAT_LATENCY_PARTS + host.members * PAT_LINEAR_US * PS_PER_US,
            COLLNET_DIRECT: 2 * (min(1, others) * inside + others * arity_ps) + between,
        }[algorithm]
    )


def _ring_latency_ps(kind: str, host: TuningInput, protocol: str) -> float:
    """Return NCCL's latency of a ring without data in picoseconds, launch included."""
    plan, steps = host.plan, ring_steps(kind, host.members)
    base = base_ps(RING, protocol)
    if kind in {"broadcast", "reduce"}:
        hardware = NET if plan.hosts > 1 else host.inside
        hop = _STEP_US[hardware][TREE if protocol == SIMPLE.name else RING][column_of(protocol)]
        return base + steps * hop * PS_PER_US
    between, inside = (step_ps(host, RING, protocol, between_hosts=far) for far in (plan.hosts > 1, False))
    crossing = ring_steps(kind, plan.hosts) if plan.hosts > 1 else 0
    return base + (steps - crossing) * inside + crossing * between


def _tree_efficiency(host: TuningInput, size_bytes: int, algorithm: str, protocol: str) -> float:
    """Return the fraction of a tree's bandwidth that a size reaches; for NVLS trees from Blackwell on."""
    of_nvls = algorithm == NVLS_TREE and host.generation.compute_capability >= channel_orders.BLACKWELL
    power = (size_bytes // 64).bit_length() - 1
    sizes = _SIZES_OF_TREES if algorithm == TREE else _SIZES_OF_NVLS_TREES if of_nvls else 0
    return _TREE_EFFICIENCY[protocol][power] if 0 <= power < sizes else 1.0


def _plateau(kind: str, host: TuningInput, size_bytes: int) -> float:
    """Return the factor on the latency of a ring with Simple, which NCCL 2.29 has for all-reduces over hosts."""
    piece_bytes = size_bytes // (host.plan.used * host.members)
    grows = kind == "all-reduce" and host.plan.hosts > 1 and piece_bytes >= _PLATEAU_BYTES
    return host.generation.plateau if grows else 1.0


def column_of(protocol: str) -> int:
    """Return the index of a protocol in triples of LL, LL128 and Simple.

    Args:
        protocol: The name of NCCL's protocol: "ll", "ll128" or "simple".
    """
    return tuple(PROTOCOLS).index(protocol)
