"""All that NCCL decides for a collective of a size: algorithm, protocol, channels, and into how many chunks."""

import functools
from typing import NamedTuple

from inputs.units import PS_PER_US
from workload.collectives.nccl import nvls_loops, tuning
from workload.collectives.nccl.generations import generation_of
from workload.collectives.nccl.overrides import overrides_of
from workload.collectives.nccl.protocols import LL128, PROTOCOLS, Protocol
from workload.collectives.nccl.trees import tree
from workload.collectives.nccl.tuning import TuningInput
from workload.collectives.plans.plan import MAX_SHARES, SHARE_STEP
from workload.shape import Shape

MOST_CHANNELS = 32
UNDRIVEN_CONNECTIONS = 25
"""Number of connections for channels that take their port's whole rate; more channels share them."""
UNDRIVEN_CONNECTIONS_OF_ONE_HOST = 9
"""The same for trees in one host, where the connections from 9 to 24 are those of NVLS (nvls_plans)."""
MOST_SLICES = max(protocol.slices for protocol in PROTOCOLS.values())
MOST_STEPS = 1024
"""Of a lane. Where a buffer would take more, its chunks grow beyond what NCCL's buffers hold."""
PLANNED = "planned"
"""Pacing: a channel drives no more than the part of NVLink that NCCL plans for it."""
PACINGS = (PLANNED, "none")
EVEN, GRAINS = "even", "grains"
CHUNKS = ("auto", EVEN, GRAINS)
"""How a buffer is dealt out to channels: evenly (NCCL 2.20 and later), or in chunks of a grain or more (before)."""
NVLINK_PAYLOAD = 128 / 160
"""Of an NVLink's rate, as the fabric frames it (pdes.network.framing): shares are counted of that."""
_LL128_GRAIN_BYTES = LL128.threads * 60 // 2
"""The least chunk of LL128 in a ring (minChunkSize of runRing in NCCL's src/device/all_reduce.h up to 2.19)."""


_SHARES_BITS = round(MAX_SHARES / SHARE_STEP).bit_length()


class NcclParameters(NamedTuple):
    """The parameters of `algorithms.nccl` by which a user chooses how a collective runs.

    Attributes:
        algo: algorithm, or "auto".
        proto: protocol, or "auto".
        channels: of a group, 0 = as NCCL.
        generation: of the NPUs, or "auto".
        overrides: algorithm and protocol by size.
        pacing: one of PACINGS.
        cpu: one of tuning.CPUS.
        chunks: one of CHUNKS.
        collnet: whether switches between hosts may sum.
        registered: whether NVLS works on the user's buffers, so that nothing is copied.
    """

    algo: str = "auto"
    proto: str = "auto"
    channels: int = 0
    generation: str = "auto"
    overrides: str = ""
    pacing: str = PLANNED
    cpu: str = "auto"
    chunks: str = "auto"
    collnet: bool = False
    registered: bool = False


class NcclDecision(NamedTuple):
    """What is decided; sizes of one way have one plan.

    Attributes:
        algorithm: one of tuning.ALGORITHMS.
        protocol: ll, ll128 or simple.
        channels: that are used.
        pieces: loops over the buffer of a ring that goes round or of NVLS, chunks of a channel else.
        slices: in which a chunk of a ring moves.
        shares: a channel of a ring or chain, or a head of NVLS, drives 1 / shares of its port's line rate.
        launch_ps: from when the collective is ready until its first step.
        inside_ps: NCCL's figure of a step inside a host.
        between_ps: the same between hosts.
    """

    algorithm: str
    protocol: str
    channels: int
    pieces: int
    slices: int
    shares: float
    launch_ps: int
    inside_ps: int
    between_ps: int

    @property
    def transport(self) -> Protocol:
        """The protocol itself."""
        return PROTOCOLS[self.protocol]

    @property
    def number(self) -> int:
        """A number that no other way of the same group has."""
        names = tuple(PROTOCOLS)
        kind = tuple(tuning.ALGORITHMS).index(self.algorithm) * len(names) + names.index(self.protocol)
        count = (self.pieces * (MOST_CHANNELS + 1) + self.channels) * MOST_SLICES + self.slices - 1
        number = (count * len(names) * len(tuning.ALGORITHMS) + kind << 48) + self.launch_ps
        return number << _SHARES_BITS | round(self.shares / SHARE_STEP)


@functools.lru_cache(maxsize=64)
def host_of(shape: Shape, asked: NcclParameters) -> TuningInput:
    """What NCCL's model is asked about the group."""
    made = generation_of(asked.generation, shape.accelerator, shape.lines_bps[0])
    rails = len(shape.trees) > len(set(shape.host))
    return tuning.host_of(shape, made, asked.cpu, collnet=asked.collnet and rails)


def way_of(kind: str, shape: Shape, size_bytes: int, asked: NcclParameters) -> NcclDecision:
    """What is decided for a size.

    Raises:
        WorkloadError: overrides that are none.
    """
    algo, proto = asked.algo, asked.proto
    for part in reversed(overrides_of(asked.overrides)):
        if part.fits(size_bytes):
            algo, proto = part.algorithm, part.protocol
    host = host_of(shape, asked)
    algorithm, protocol = tuning.best(kind, host, size_bytes, algo, proto)
    inside_ps, between_ps = (tuning.step_ps(host, algorithm, protocol, between_hosts=far) for far in (False, True))
    way = NcclDecision(algorithm, protocol, 1, 1, 1, 1, tuning.base_ps(algorithm, protocol), inside_ps, between_ps)
    if algorithm in {tuning.NVLS, tuning.NVLS_TREE}:
        blocks = asked.channels or host.generation.nvls_channels[host.plan.hosts > 1]
        cut = nvls_loops.cut_of(size_bytes, blocks, host.plan.per_host, host.plan.hosts, algorithm)
        launch_ps = nvls_loops.launch_ps(kind, shape, size_bytes, host, algorithm, cut, registered=asked.registered)
        shares = _port(shape) / tuning.nvls_pace(kind, host, algorithm) if asked.pacing == PLANNED else 1.0
        if algorithm == tuning.NVLS and asked.pacing == PLANNED:
            shares *= nvls_loops.slower(kind, host, cut)
        pieces = min(cut.loops, MOST_STEPS)
        return way._replace(channels=blocks, pieces=pieces, shares=max(1.0, shares), launch_ps=launch_ps)
    if algorithm == tuning.COLLNET_DIRECT:
        path_ps = 2 * shape.inside_ps + shape.outside_ps
        return way._replace(launch_ps=max(0, tuning.whole_latency_ps(host, algorithm) - path_ps))
    if algorithm == tuning.PAT:
        linear_ps = round(tuning.PAT_LINEAR_US * PS_PER_US * shape.members)
        step_ps = round(between_ps / tuning.PAT_LATENCY_PARTS)
        return way._replace(launch_ps=way.launch_ps + linear_ps, between_ps=step_ps)
    used = asked.channels or _used(kind, shape, size_bytes, host, asked, way)
    way = way._replace(channels=used, shares=_shares(shape, host) if _is_paced(shape, asked, algorithm) else 1)
    way = way._replace(slices=_slices(kind, shape, size_bytes, way))
    return way._replace(pieces=_pieces(kind, shape, size_bytes, way))


def _is_paced(shape: Shape, asked: NcclParameters, algorithm: str) -> bool:
    """What NCCL plans between hosts depends on how its search matches NICs with NVLinks; the NIC is the slower."""
    return asked.pacing == PLANNED and algorithm == tuning.RING and len(set(shape.host)) == 1


def _shares(shape: Shape, host: TuningInput) -> float:
    """In one host NCCL plans all channels for an equal part of NVLink, also where fewer are used."""
    ring = host.plan.ring
    channel = ring.inside * ring.channels / host.plan.used
    return max(1.0, _port(shape) / channel) if host.plan.nvlink else 1.0


def _port(shape: Shape) -> float:
    """GB/s of payload that a member's NVLinks carry."""
    return shape.lines_bps[0] / 8e9 * NVLINK_PAYLOAD


def _used(kind: str, shape: Shape, size_bytes: int, host: TuningInput, asked: NcclParameters, way: NcclDecision) -> int:
    """Channels that have enough to do: with LL in a ring each thread for each member, and LL128 whole grains."""
    protocol, around = way.transport, way.algorithm == tuning.RING
    members = shape.members if around and protocol.name == "ll" else 1
    used = min(host.plan.used, size_bytes // (protocol.threads * protocol.thread_bytes * members))
    if around and protocol.name == LL128.name and _in_grains(host, asked):
        parts = 1 if kind in {"broadcast", "reduce"} else shape.members
        used = min(used, -(-size_bytes // (parts * _LL128_GRAIN_BYTES)))
    return max(1, used)


def _in_grains(host: TuningInput, asked: NcclParameters) -> bool:
    """Up to Ampere the releases of its time are meant, unless told otherwise."""
    return asked.chunks == GRAINS or (asked.chunks == "auto" and host.generation.in_grains)


def _slices(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> int:
    """Of a chunk, 1 where a lane would get too many steps. With several loops chunks are large."""
    steps = tuning.ring_steps(kind, shape.members)
    slices = way.transport.slices_of(kind, size_bytes / (way.channels * shape.members))
    return slices if way.algorithm == tuning.RING and steps * slices <= MOST_STEPS else 1


def _pieces(kind: str, shape: Shape, size_bytes: int, way: NcclDecision) -> int:
    chunk_bytes = way.transport.chunk_bytes(kind)
    if way.algorithm == tuning.TREE:
        return _tree_chunks(shape, size_bytes, way)
    if kind in {"broadcast", "reduce"}:
        return max(1, min(-(-size_bytes // (way.channels * chunk_bytes)), MOST_STEPS))
    loops = -(-size_bytes // (way.channels * shape.members * chunk_bytes))
    return max(1, min(loops, MOST_STEPS // (tuning.ring_steps(kind, shape.members) * way.slices)))


def _tree_chunks(shape: Shape, size_bytes: int, way: NcclDecision) -> int:
    """Of a channel: a slot each, but smaller ones where a tree of this depth would not be filled."""
    depth = max(tree(shape, channel, way.channels).depth for channel in {0, way.channels - 1})
    chunk_bytes, share_bytes = way.transport.slot_bytes, -(-size_bytes // way.channels)
    while share_bytes < depth * chunk_bytes and chunk_bytes // 2 >= way.transport.least_bytes:
        chunk_bytes //= 2
    return max(1, min(-(-share_bytes // chunk_bytes), MOST_STEPS))
