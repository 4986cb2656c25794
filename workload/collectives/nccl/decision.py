"""All of NCCL's decisions for a collective of a size: algorithm, protocol, channels, and number of chunks.

The user may name algorithm and protocol by size: `0-64KiB/tree/ll;64KiB-4MiB/auto/ll128;4MiB-/ring/simple`. Each part
is FROM-TO/ALGORITHM/PROTOCOL, for sizes from FROM up to, but not including, TO; an empty bound is open. The first part
that contains the size applies; for other sizes the parameters algo and proto apply.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from nadi.inputs.errors import InputError
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS, PS_PER_US, parse_bytes
from nadi.workload.collectives.nccl import host_threads, nvls_loops, tuning
from nadi.workload.collectives.nccl.channel_orders import tree
from nadi.workload.collectives.nccl.generations import ROUND, KernelTimes, generation_of
from nadi.workload.collectives.nccl.site import CITED, SiteFactors, at_site
from nadi.workload.collectives.nccl.tuning import LL, LL128, PROTOCOLS, SIMPLE, Protocol, TuningInput, column_of
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import MAX_SHARES, SHARE_STEP, Plans
from nadi.workload.errors import WorkloadError
from nadi.workload.shape import GroupShape

MAX_CHANNELS = 32  # maximum number of channels of a communicator that users may ask for
# Number of connections for channels that use their port's whole rate; further channels share them
UNLIMITED_CONNECTIONS = 25
# The same number for trees in one host, where NVLS uses the connections 9 to 24 (switch_plans)
UNLIMITED_CONNECTIONS_OF_ONE_HOST = 9
MAX_SLICES = max(protocol.slices for protocol in PROTOCOLS.values())
MAX_STEPS = 1024  # maximum number of steps of a lane. A larger buffer gets chunks that are larger than NCCL's.
COARSE = 0.05  # fraction of its time that a plan may take longer because of chunks that are larger than NCCL's
PLANNED = "planned"  # pacing in which a channel uses no more than the part of NVLink that NCCL plans for it
PACINGS = (PLANNED, "none")
EVEN, GRAINS = "even", "grains"
NAMED_ALGORITHMS = ("auto", *tuning.ALGORITHMS)
NAMED_PROTOCOLS = ("auto", *PROTOCOLS)
# Cuts of a buffer: evenly over channels, and in slots of a tree (NCCL 2.20 and later), or in chunks of a grain or more,
# and for trees in chunks that fill their depth (before)
CHUNKS = ("auto", EVEN, GRAINS)
# Payload fraction of an NVLink's rate, as the fabric frames it (pdes.network.framing); shares refer to it
NVLINK_PAYLOAD = 128 / 160
# Minimum chunk of LL128 in a ring (minChunkSize of runRing in NCCL's src/device/all_reduce.h up to 2.19)
_LL128_GRAIN_BYTES = LL128.threads * 60 // 2
# Fraction of a block's warps that send to a peer (nSendWarpPerWork in NCCL's src/device/sendrecv.h) or pass a tree's
# data in one direction (runTreeSplit in src/device/all_reduce.h)
HALF_A_BLOCK = 0.5
_HOSTS_WITH_TWO_CHILDREN = 4  # number of hosts from which a host of a binary tree has two children
_SHARES_BITS = round(MAX_SHARES / SHARE_STEP).bit_length()


class NcclParameters(NamedTuple):
    """The parameters of `algorithms.nccl` with which a user tunes a collective."""

    algo: str = "auto"  # algorithm, or "auto"
    proto: str = "auto"  # protocol, or "auto"
    channels: int = 0  # number of channels of a group, 0 = NCCL's choice
    generation: str = "auto"  # GPU generation of the NPUs, or "auto"
    overrides: str = ""  # algorithm and protocol by size (overrides_of)
    pacing: str = PLANNED  # one of PACINGS
    cpu: str = "auto"  # one of tuning.CPUS
    nic_path: str = "switch"  # what connects a GPU with its NIC, one of tuning.NIC_PATHS
    chunks: str = "auto"  # one of CHUNKS
    collnet: bool = False  # whether switches between hosts may sum
    nvls: bool = True  # whether NVSwitches may sum and copy (NCCL_NVLS_ENABLE)
    registered: bool = False  # whether NVLS works on the user's buffers, so that no data is copied
    # factors of the site on cited constants (`SiteFactors`)
    launch_factor: float = CITED.launch
    hop_factor: float = CITED.hop
    block_factor: float = CITED.block
    nvlink_factor: float = CITED.nvlink
    nic_factor: float = CITED.nic

    @property
    def site(self) -> SiteFactors:
        """The factors of the site on cited constants."""
        own = self.launch_factor, self.hop_factor, self.block_factor, self.nvlink_factor, self.nic_factor
        return SiteFactors(*own)


class TuningOverride(NamedTuple):
    """Algorithm and protocol for a range of buffer sizes."""

    first_bytes: int  # minimum size of a buffer
    end_bytes: int | None  # smallest size above the range; None = no upper bound
    algorithm: str  # one of NAMED_ALGORITHMS
    protocol: str  # one of NAMED_PROTOCOLS

    def fits(self, size_bytes: int) -> bool:
        """Return whether the part applies to a buffer of this size.

        Args:
            size_bytes: The size of the whole buffer in bytes.
        """
        return self.first_bytes <= size_bytes and (self.end_bytes is None or size_bytes < self.end_bytes)


class NcclDecision(NamedTuple):
    """NCCL's decisions for a size; sizes with equal decisions share a plan."""

    algorithm: str  # one of tuning.ALGORITHMS
    protocol: str  # "ll", "ll128" or "simple"
    channels: int  # number of channels in use
    pieces: int  # number of loops over the buffer (rings, NVLS), or of chunks of a channel (trees, chains)
    slices: int  # number of slices of a ring's chunk
    shares: float  # divisor of the port's line rate that limits a channel of a ring or chain, or a head of NVLS
    launch_ps: int  # time from when the collective is ready until its first step
    inside_ps: int  # NCCL's time of a step inside a host
    between_ps: int  # NCCL's time of a step between hosts

    @property
    def transport(self) -> Protocol:
        """The protocol's constants."""
        return PROTOCOLS[self.protocol]

    @property
    def number(self) -> int:
        """A number that differs between decisions of the same group."""
        names = tuple(PROTOCOLS)
        kind = tuple(tuning.ALGORITHMS).index(self.algorithm) * len(names) + names.index(self.protocol)
        # Mixed radix: every field gets its own range of digits, so that numbers differ if any field does
        count = (self.pieces * (MAX_CHANNELS + 1) + self.channels) * MAX_SLICES + self.slices - 1
        number = (count * len(names) * len(tuning.ALGORITHMS) + kind << 48) + self.launch_ps
        number = number << 48 | self.inside_ps
        return number << _SHARES_BITS | round(self.shares / SHARE_STEP)

    def wait_ps(self, shape: GroupShape, *, far: bool) -> int:
        """Return the time that a send waits: NCCL's time of a step, less the path's latency, which the fabric adds.

        Args:
            shape: The positions of the group's members on the fabric.
            far: Whether the receiver is in another host.
        """
        return max(0, self.between_ps - shape.outside_ps if far else self.inside_ps - shape.inside_ps)

    def wait_of(self, shape: GroupShape, sender: int, receiver: int) -> int:
        """Return wait_ps between two members.

        Args:
            shape: The positions of the group's members on the fabric.
            sender: The number of the sending member.
            receiver: The number of the receiving member.
        """
        return self.wait_ps(shape, far=shape.host[sender] != shape.host[receiver])

    def hop_ps(self, shape: GroupShape, *, far: bool) -> int:
        """Return the time of a step without data: NCCL's time, or the path's latency if that is longer.

        Args:
            shape: The positions of the group's members on the fabric.
            far: Whether the receiver is in another host.
        """
        return max(self.between_ps, shape.outside_ps) if far else max(self.inside_ps, shape.inside_ps)

    def link_ps(self, shape: GroupShape, data_bytes: float, *, between_hosts: bool) -> float:
        """Return the ps that data with the protocol's flags takes on a member's links in a host or between hosts.

        Args:
            shape: The positions of the group's members on the fabric.
            data_bytes: The amount of data in bytes, without flags.
            between_hosts: Whether sender and receiver are in different hosts.
        """
        rate_bps = shape.outside_bps if between_hosts else shape.inside_bps
        return self.transport.wire_bytes(data_bytes) * PS_PER_BYTE_AT_1_BPS / rate_bps if rate_bps else 0.0


class NcclLanes(NamedTuple):
    """The functions that make the lanes of one of NCCL's algorithms."""

    plan: Callable[[str, GroupShape, int, NcclDecision], Plans]  # of the kind, shape, bytes of the buffer, and decision
    extent: Callable[[str, GroupShape, int, NcclDecision], PlanExtent]  # number of steps and lanes of the plan
    closed_form: Callable[[str, GroupShape, int, NcclDecision], float]  # time in picoseconds


@functools.lru_cache(maxsize=64)
def host_of(shape: GroupShape, parameters: NcclParameters) -> TuningInput:
    """Return the input of NCCL's tuning model for a group.

    Args:
        shape: The positions of the group's members on the fabric.
        parameters: The parameters with which the user tunes NCCL.
    """
    generation = generation_of(parameters.generation, shape.accelerator, shape.lines_bps[0])
    rails = len(shape.trees) > len(set(shape.host))
    host = tuning.host_of(shape, generation, parameters.cpu, parameters.nic_path, collnet=parameters.collnet and rails)
    if parameters.site != CITED:
        host = host._replace(generation=at_site(host.generation, parameters.site), site=parameters.site)
    return host if parameters.nvls else host._replace(plan=host.plan._replace(nvls=None))


def nccl_decision(kind: str, shape: GroupShape, size_bytes: int, parameters: NcclParameters) -> NcclDecision:
    """Return NCCL's decisions for a collective.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        parameters: The parameters with which the user tunes NCCL.
    """
    algo, proto = parameters.algo, parameters.proto
    for part in reversed(overrides_of(parameters.overrides)):
        if part.fits(size_bytes):
            algo, proto = part.algorithm, part.protocol
    host = host_of(shape, parameters)
    algorithm, protocol = tuning.best(kind, host, size_bytes, algo, proto)
    inside_ps, between_ps = (tuning.step_ps(host, algorithm, protocol, between_hosts=far) for far in (False, True))
    base_ps = tuning.base_ps(algorithm, protocol, host.site)
    decision = NcclDecision(algorithm, protocol, 1, 1, 1, 1, base_ps, inside_ps, between_ps)
    if algorithm in {tuning.NVLS, tuning.NVLS_TREE}:
        blocks = parameters.channels or host.generation.nvls_channels[host.plan.hosts > 1]
        cut = nvls_loops.cut_of(size_bytes, blocks, shape, algorithm)
        launch_ps = nvls_loops.launch_ps(
            kind, shape, size_bytes, host, algorithm, cut, _reached(shape, host), registered=parameters.registered
        )
        shares = 1.0
        if parameters.pacing == PLANNED:
            pace_gb_per_s = nvls_loops.pace_gb_per_s(kind, host, algorithm, cut, _reached(shape, host))
            shares = _port(shape) / pace_gb_per_s
        pieces = min(cut.loops, MAX_STEPS)
        return decision._replace(channels=blocks, pieces=pieces, shares=max(1.0, shares), launch_ps=launch_ps)
    if algorithm == tuning.COLLNET_DIRECT:
        path_ps = 2 * shape.inside_ps + shape.outside_ps
        return decision._replace(launch_ps=max(0, tuning.empty_all_reduce_ps(host, algorithm) - path_ps))
    if algorithm == tuning.PAT:
        linear_ps = round(tuning.PAT_LINEAR_US * PS_PER_US * shape.members)
        step_ps = round(between_ps / tuning.PAT_LATENCY_PARTS)
        return decision._replace(launch_ps=decision.launch_ps + linear_ps, between_ps=step_ps)
    return _with_channels(kind, shape, size_bytes, host, parameters, decision)


def _with_channels(
    kind: str, shape: GroupShape, size_bytes: int, host: TuningInput, parameters: NcclParameters, decision: NcclDecision
) -> NcclDecision:
    """Return the decision for a ring, tree or chain with its number of channels and chunks."""
    algorithm, used = (
        decision.algorithm,
        parameters.channels or _used(kind, shape, size_bytes, host, parameters, decision),
    )
    shares = 1.0
    # between hosts NCCL's plan depends on how its search matches NICs with NVLinks, and the NIC is the slower one
    if parameters.pacing == PLANNED and algorithm == tuning.RING and host.plan.hosts == 1 and host.plan.nvlink:
        # NCCL plans an equal part of NVLink for each channel, used or not
        channel_gb_per_s = host.plan.ring.inside * host.plan.ring.channels / host.plan.used * host.site.nvlink
        shares = max(1.0, _port(shape) / channel_gb_per_s)
    decision = decision._replace(channels=used, shares=shares)
    decision = decision._replace(slices=_slices(kind, shape, size_bytes, decision))
    whole_slots = algorithm == tuning.TREE and decision.protocol == SIMPLE.name and not _in_grains(host, parameters)
    decision = decision._replace(pieces=_pieces(kind, shape, size_bytes, decision, whole_slots=whole_slots))
    if algorithm == tuning.TREE and decision.protocol == SIMPLE.name and parameters.pacing == PLANNED:
        decision = _timed_tree(shape, size_bytes, host, decision)
    kernel = host.generation.kernel if host.plan.nvlink and parameters.pacing == PLANNED else None
    if algorithm == tuning.TREE and host.plan.hosts > 1:
        return _over_parts(host, decision._replace(launch_ps=decision.launch_ps + host_threads.tree_ps(host)))
    if algorithm != tuning.RING or kind not in ROUND or kernel is None:
        return _over_parts(host, decision) if host.plan.hosts > 1 else decision
    if host.plan.hosts == 1:
        return _timed_ring(kind, shape, size_bytes, host, kernel, decision)
    message_bytes = size_bytes / (used * decision.pieces * decision.slices * shape.members)
    ring = host_threads.timed(
        *(kind, shape, host, kernel, decision.transport),
        *(used, decision.slices, message_bytes),
    )
    inside_ps, between_ps = ring.wait_ps + shape.inside_ps, ring.wait_ps + shape.outside_ps
    decision = decision._replace(inside_ps=inside_ps, between_ps=between_ps)
    return _over_parts(host, decision._replace(launch_ps=ring.launch_ps, shares=ring.shares))


def _over_parts(host: TuningInput, decision: NcclDecision) -> NcclDecision:
    """Return the decision with each channel cut into as many as members share a NIC, which each use their part of it.

    NCCL's channels use the whole NIC through one or two of these members; on the fabric each has a part of its own.
    """
    return decision._replace(channels=decision.channels * host.plan.members_per_nic)


def _slices(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> int:
    """Return the number of slices of a chunk, 1 if a lane would get too many steps."""
    slices = decision.transport.slices_of(kind, size_bytes / (decision.channels * shape.members))
    return (
        slices
        if decision.algorithm == tuning.RING and tuning.ring_steps(kind, shape.members) * slices <= MAX_STEPS
        else 1
    )


def _pieces(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision, *, whole_slots: bool) -> int:
    """Return the number of chunks that a channel moves one after the other, at most what MAX_STEPS allows."""
    # whole_slots: whether a tree's chunk fills a slot however few chunks there are
    if decision.algorithm == tuning.TREE:
        return _tree_chunks(shape, size_bytes, decision, whole_slots=whole_slots)
    chunk_bytes = decision.transport.chunk_bytes(kind)
    if kind in {"broadcast", "reduce"}:
        return max(1, min(-(-size_bytes // (decision.channels * chunk_bytes)), MAX_STEPS))
    loops = -(-size_bytes // (decision.channels * shape.members * chunk_bytes))
    return max(1, min(loops, MAX_STEPS // (tuning.ring_steps(kind, shape.members) * decision.slices)))


def _tree_chunks(shape: GroupShape, size_bytes: int, decision: NcclDecision, *, whole_slots: bool) -> int:
    """Return the number of chunks of a channel: one slot each, or smaller ones that keep a deep tree busy."""
    chunk_bytes, share_bytes = decision.transport.slot_bytes, -(-size_bytes // decision.channels)
    if not whole_slots:
        depth = max(tree(shape, channel, decision.channels).depth for channel in {0, decision.channels - 1})
        # A channel with fewer chunks than levels of the tree leaves most levels idle: NCCL halves the chunks
        while share_bytes < depth * chunk_bytes and chunk_bytes // 2 >= decision.transport.least_bytes:
            chunk_bytes //= 2
    return max(1, min(-(-share_bytes // chunk_bytes), MAX_STEPS))


def _timed_tree(shape: GroupShape, size_bytes: int, host: TuningInput, decision: NcclDecision) -> NcclDecision:
    """Return the decision for a tree with Simple, with the times that a chunk takes in thread blocks.

    Half of a block's warps pass sums up, the other half passes totals down (runTreeSplit of NCCL's
    src/device/all_reduce.h), and a chunk goes on when all of it has come. So a hop inside a host takes NCCL's time of a
    step and the chunk at the rate of half a block. Between hosts the next chunk follows after that time, while the NIC
    sends the last one. Where hosts have two children, which begins with four hosts, a tree is no faster than the
    maximum that NCCL has for its channels there (perChMaxTreeBws, N4), if that is less than what NICs leave them; three
    hosts exceed it (nccl issue 1801).
    """
    chunk_bytes = size_bytes / (decision.channels * decision.pieces)
    copy_ps = chunk_bytes / (HALF_A_BLOCK * host.generation.message_block_gb_per_s) * 1e3
    beside_link_ps = copy_ps - chunk_bytes / _port(shape) * 1e3 if host.plan.nvlink else copy_ps
    between_ps = max(decision.between_ps, decision.inside_ps + copy_ps + shape.outside_ps)
    max_gb_per_s, of_tree = host.generation.tree[host.column], host.plan.tree
    if host.plan.hosts >= _HOSTS_WITH_TWO_CHILDREN and max_gb_per_s < of_tree.between:
        # the maximum is one of the bus, on which a tree's data count twice
        gb_per_s = max_gb_per_s * of_tree.channels / 2
        between_ps = max(between_ps, chunk_bytes * host.plan.used / gb_per_s * 1e3 + shape.outside_ps)
    inside_ps = decision.inside_ps + max(0, round(beside_link_ps))
    return decision._replace(inside_ps=inside_ps, between_ps=round(between_ps))


def _timed_ring(
    kind: str, shape: GroupShape, size_bytes: int, host: TuningInput, kernel: KernelTimes, decision: NcclDecision
) -> NcclDecision:
    """Return the decision with the launch and step times of the kernel of a ring in one NVLink domain."""
    message_bytes = size_bytes / (decision.channels * decision.pieces * decision.slices * shape.members)
    steps, port_gb_per_s = tuning.ring_steps(kind, shape.members), _port(shape)
    gb_per_s = port_gb_per_s / decision.shares, _reached(shape, host) / decision.channels
    step_ps = _ring_step_ps(kernel, kind, decision.protocol, steps, decision.slices, message_bytes, *gb_per_s)
    data_ps = (
        decision.link_ps(shape._replace(inside_bps=round(port_gb_per_s * 8e9)), message_bytes, between_hosts=False)
        * decision.shares
    )
    return decision._replace(
        launch_ps=round(kernel.launch_us[tuning.column_of(decision.protocol)] * PS_PER_US),
        inside_ps=max(0, round(step_ps - data_ps)),
    )


def _port(shape: GroupShape) -> float:
    """Return the payload rate of a member's NVLinks in GB/s."""
    return shape.lines_bps[0] / 8e9 * NVLINK_PAYLOAD


def _reached(shape: GroupShape, host: TuningInput) -> float:
    """Return the payload rate that kernels of the site reach on a member's NVLinks, in GB/s."""
    return _port(shape) * host.site.nvlink


def _used(
    kind: str, shape: GroupShape, size_bytes: int, host: TuningInput, parameters: NcclParameters, decision: NcclDecision
) -> int:
    """Return the number of channels with enough data: LL in a ring per thread and member, LL128 in whole grains."""
    protocol, is_ring = decision.transport, decision.algorithm == tuning.RING
    members = shape.members if is_ring and protocol.name == "ll" else 1
    used = min(host.plan.used, size_bytes // (protocol.threads * protocol.thread_bytes * members))
    if is_ring and protocol.name == LL128.name and _in_grains(host, parameters):
        parts = 1 if kind in {"broadcast", "reduce"} else shape.members
        used = min(used, -(-size_bytes // (parts * _LL128_GRAIN_BYTES)))
    return max(1, used)


def _in_grains(host: TuningInput, parameters: NcclParameters) -> bool:
    """Return whether NCCL cuts buffers as before 2.20: by default up to Ampere, whose releases did so."""
    return parameters.chunks == GRAINS or (parameters.chunks == "auto" and host.generation.in_grains)


def overrides_of(text: str) -> tuple[TuningOverride, ...]:
    """Return the overrides of a user's text. Raises WorkloadError: an invalid part.

    Args:
        text: Parts FROM-TO/ALGORITHM/PROTOCOL, separated by ";"; "" = no overrides.
    """
    return tuple(_part(part.strip()) for part in text.split(";")) if text.strip() else ()


def _part(override: str) -> TuningOverride:
    """Return an override of a user's text "FROM-TO/ALGORITHM/PROTOCOL"."""
    sizes, *names = (word.strip() for word in override.split("/"))
    first, dash, end = (word.strip() for word in sizes.partition("-"))
    if not dash or len(names) != 2 or names[0] not in NAMED_ALGORITHMS or names[1] not in NAMED_PROTOCOLS:
        choices = f"{'|'.join(NAMED_ALGORITHMS)}/{'|'.join(NAMED_PROTOCOLS)}"
        raise WorkloadError(f"algorithm nccl: overrides has {override!r}, expected FROM-TO/{choices}")
    try:
        bounds = parse_bytes(first) if first else 0, parse_bytes(end) if end else None
    except InputError as error:
        raise WorkloadError(f"algorithm nccl: overrides has {override!r}: {error}") from None
    if bounds[1] is not None and bounds[1] <= bounds[0]:
        raise WorkloadError(f"algorithm nccl: overrides has {override!r}, expected FROM below TO")
    return TuningOverride(*bounds, *names)


def _ring_step_ps(
    kernel: KernelTimes,
    kind: str,
    protocol: str,
    steps: int,
    slices: int,
    message_bytes: float,
    planned_gb_per_s: float,
    used_gb_per_s: float,
) -> float:
    """Return the time in ps of a step of a ring's loop over NVLink, by the kernel times of the GPU generation.

    A block (a channel's thread block) moves data at its own rate or at its part of NVLink, whichever is less. LL: the
    block's rate, half of it if each step also keeps a copy (all-gather), or NVLink shared by the used channels; LL128:
    the block's rate, or NVLink shared likewise; Simple: the part of NVLink that NCCL plans for a channel. A loop has
    one step more than sends: the last only moves data in the own memory (directRecv of src/device/all_gather.h and
    all_reduce.h, recvReduceCopy of reduce_scatter.h). It takes the time of a step at the block's rate with LL and
    LL128, with Simple the part `local_step` of one. Its time is spread over the steps.
    """
    # steps: of a loop; slices: of a chunk; message_bytes: data of a slice; planned_gb_per_s: part of NVLink's payload
    # in GB/s that NCCL plans for a channel; used_gb_per_s: the same if only the used channels share NVLink.
    wire_bytes = PROTOCOLS[protocol].wire_bytes(message_bytes)
    hop_us = kernel.hop_us[column_of(protocol)]
    if protocol == SIMPLE.name:
        stretch = 1 + kernel.local_step[ROUND.index(kind)] / steps
        data_us = stretch * wire_bytes / planned_gb_per_s / 1e3
        return max(data_us + stretch * hop_us, (kernel.flight_us + data_us) / slices) * PS_PER_US
    block_gb_per_s = kernel.block_gb_per_s
    if protocol == LL.name:
        block_gb_per_s = kernel.ll_block_gb_per_s / (2 if kind == "all-gather" else 1)
        used_gb_per_s *= kernel.ll_wire
    data_us = wire_bytes * (1 / min(block_gb_per_s, used_gb_per_s) + 1 / block_gb_per_s / steps) / 1e3
    return (hop_us + data_us) * PS_PER_US
