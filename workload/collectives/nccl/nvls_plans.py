"""NVLS as NCCL chooses it: the lanes of `plans.multimem` at the rates that NCCL plans, and trees over hosts.

A head is the member that owns a share of the buffer: its NVSwitch sums the share and copies the result, at the rate
that NCCL plans for a head times the efficiency of NVLS (`NcclDecision.shares`). Members send their data for all heads
at the total rate of the heads.
"""

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives.algorithms import nvls, nvls_sharp, nvls_tree
from nadi.workload.collectives.nccl.decision import UNDRIVEN_CONNECTIONS, UNDRIVEN_CONNECTIONS_OF_ONE_HOST, NcclDecision
from nadi.workload.collectives.nccl.nvls_loops import CHUNKS_BYTES, cut_of
from nadi.workload.collectives.nccl.tuning import NVLS_TREE
from nadi.workload.collectives.plans import multimem
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.multimem import AT_LINE_RATE, MultimemPace, chunks_of_share
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.collectives.trees import AggregatorBranch
from nadi.workload.shape import GroupShape

# First of the 16 connections of NVLS, for a group in one host and for a group over several hosts. A connection has one
# rate. The rate of NVLS depends on whether the collective is an all-reduce, on the size of its chunks, and on the
# direction: data to be summed, or results to be copied.
_FIRST_OF_ONE_HOST, _FIRST_OF_SEVERAL_HOSTS = UNDRIVEN_CONNECTIONS_OF_ONE_HOST, UNDRIVEN_CONNECTIONS


def plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:
    """Return lanes of the members and of the NVSwitches' aggregators.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts = hosts_of(shape)
    count = size_class(shape, size_bytes, decision)
    loops = cut_of(size_bytes, decision.channels, len(hosts[0].members), len(hosts), decision.algorithm)
    pace = _pace(kind, hosts, decision, loops.chunk_bytes)
    if decision.algorithm == NVLS_TREE:
        return nvls_tree.make(shape, hosts, count, pace=pace, launch_ps=decision.launch_ps)
    if len(hosts) > 1:
        return nvls_sharp.make(shape, count, pace=pace, launch_ps=decision.launch_ps)
    return nvls.make(kind, shape.members, count, pace=pace, launch_ps=decision.launch_ps)


def extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts, count = hosts_of(shape), size_class(shape, size_bytes, decision)
    if decision.algorithm == NVLS_TREE:
        return nvls_tree.extent_of(shape, hosts, count)
    if len(hosts) > 1:
        return nvls_sharp.extent_of(shape, count)
    n = shape.members
    return multimem.extent(1, n, count, ways=2 if kind == "all-reduce" else 1)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:
    """Return an estimate in picoseconds: launch, latency to and from the switch, and the busiest head, link or NIC.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts = hosts_of(shape)
    size = len(hosts[0].members)
    tree = hosts[0].tree
    share_bits = PS_PER_BYTE_AT_1_BPS * size_bytes / size
    link_ps = share_bits * (size + (kind == "all-reduce")) / min(tree.both_ways_bps[:size])
    head_ps = share_bits * decision.shares / min(tree.both_ways_bps[:size])
    ways = 4 if kind == "all-reduce" else 2
    fixed_ps = decision.launch_ps + ways * max(tree.latency_ps[:size])
    if len(hosts) == 1:
        return fixed_ps + max(link_ps, head_ps)
    shares = 2 if len(hosts) > 2 else 1
    height = len(hosts).bit_length() - 1
    outside_ps = share_bits * shares / shape.outside_bps
    fill_ps = max(link_ps, head_ps) / _loops(hosts, size_bytes, decision) * (1 + height)
    return fixed_ps + 2 * height * shape.outside_ps + max(link_ps, head_ps, outside_ps) + fill_ps


def hosts_of(shape: GroupShape) -> tuple[AggregatorBranch, ...]:
    """Return the trees of the hosts, without trees of rails.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    count = len(set(shape.host))
    return shape.branches()[:count]


def size_class(shape: GroupShape, size_bytes: int, decision: NcclDecision) -> int:
    """Return the number of chunks of a share; sizes with equal decisions and equally many chunks share a plan.

    Args:
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts = hosts_of(shape)
    if decision.algorithm == NVLS_TREE:
        return _loops(hosts, size_bytes, decision)
    return chunks_of_share("nccl", len(hosts), len(hosts[0].members), size_bytes, 0)


def lanes_class(shape: GroupShape, size_bytes: int, decision: NcclDecision) -> int:
    """Return a number below 2^22, equal for sizes with as many chunks of a share on the same connections.

    Args:
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts = hosts_of(shape)
    loops = cut_of(size_bytes, decision.channels, len(hosts[0].members), len(hosts), decision.algorithm)
    return size_class(shape, size_bytes, decision) * len(CHUNKS_BYTES) + CHUNKS_BYTES.index(loops.chunk_bytes)


def _loops(hosts: tuple[AggregatorBranch, ...], size_bytes: int, decision: NcclDecision) -> int:
    """Return the number of chunks of a share that cross the network: one per tree and loop over the buffer."""
    max_chunks = chunks_of_share("nccl", len(hosts), len(hosts[0].members), size_bytes, 0)
    return nvls_tree.HALVES * max(1, min(decision.pieces, max_chunks // nvls_tree.HALVES))


def _pace(kind: str, hosts: tuple[AggregatorBranch, ...], decision: NcclDecision, chunk_bytes: int) -> MultimemPace:
    """Return the rates of the two connections; members send for all heads at `heads` times the rate of one head."""
    # hosts: trees of the hosts; chunk_bytes: bytes per block and head.
    if decision.shares <= 1:
        return AT_LINE_RATE
    first = _FIRST_OF_ONE_HOST if len(hosts) == 1 else _FIRST_OF_SEVERAL_HOSTS
    first += 2 * (CHUNKS_BYTES.index(chunk_bytes) + len(CHUNKS_BYTES) * (kind == "all-reduce"))
    return MultimemPace(first, max(1.0, decision.shares / len(hosts[0].members)), first + 1, decision.shares)
