"""Lanes of NCCL's NVLS and CollNet, whose switches sum and copy."""

from collections.abc import Sequence

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives.algorithms import nvls, nvls_sharp, nvls_tree
from nadi.workload.collectives.algorithms.nvls_sharp import hosts_and_rails
from nadi.workload.collectives.nccl.decision import (
    COARSE,
    UNLIMITED_CONNECTIONS,
    UNLIMITED_CONNECTIONS_OF_ONE_HOST,
    NcclDecision,
    NcclLanes,
)
from nadi.workload.collectives.nccl.nvls_loops import CHUNKS_BYTES, cut_of
from nadi.workload.collectives.nccl.tuning import NVLS_TREE
from nadi.workload.collectives.plans import multimem
from nadi.workload.collectives.plans.extent import PlanExtent, total
from nadi.workload.collectives.plans.multimem import AT_LINE_RATE, MultimemPace, chunks_of_share
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own
from nadi.workload.collectives.trees import AggregatorBranch, extent as tree_extent, flows_of_all, tree_lanes
from nadi.workload.shape import GroupShape

# NVLS as NCCL chooses it: the lanes of `plans.multimem` at the rates that NCCL plans, and trees over hosts.
#
# A head is the member that owns a share of the buffer: its NVSwitch sums the share and copies the result, at the rate
# that NCCL plans for a head times the efficiency of NVLS (`NcclDecision.shares`). Members send their data for all heads
# at the total rate of the heads.

# First of the 16 connections of NVLS, for a group in one host and for a group over several hosts. A connection has one
# rate. The rate of NVLS depends on whether the collective is an all-reduce, on the size of its chunks, and on the
# direction: data to be summed, or results to be copied.
_FIRST_OF_ONE_HOST, _FIRST_OF_SEVERAL_HOSTS = UNLIMITED_CONNECTIONS_OF_ONE_HOST, UNLIMITED_CONNECTIONS


def nvls_plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:
    """Return lanes of the members and of the NVSwitches' aggregators.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts = hosts_of(shape)
    count = nvls_size_class(shape, size_bytes, decision)
    loops = cut_of(size_bytes, decision.channels, shape, decision.algorithm)
    pace = _pace(kind, hosts, decision, loops.chunk_bytes)
    if decision.algorithm == NVLS_TREE:
        return nvls_tree.make(shape, hosts, count, pace=pace, launch_ps=decision.launch_ps)
    if len(hosts) > 1:
        return nvls_sharp.make(shape, count, pace=pace, launch_ps=decision.launch_ps)
    return nvls.make(kind, shape.members, count, pace=pace, launch_ps=decision.launch_ps)


def nvls_extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:
    """Return the number of steps and lanes of `nvls_plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts, count = hosts_of(shape), nvls_size_class(shape, size_bytes, decision)
    if decision.algorithm == NVLS_TREE:
        return nvls_tree.extent_of(shape, hosts, count)
    if len(hosts) > 1:
        return nvls_sharp.extent_of(shape, count)
    n = shape.members
    return multimem.extent(1, n, count, ways=2 if kind == "all-reduce" else 1)


def nvls_closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:
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
    # The first chunk passes NVLink, then the NICs of each level of the tree up and down. A host with two children
    # receives two chunks at a time, and sends two.
    loops = cut_of(size_bytes, decision.channels, shape, decision.algorithm).loops
    fill_ps = (max(link_ps, head_ps) + 2 * height * outside_ps) / (nvls_tree.HALVES * loops)
    return fixed_ps + 2 * height * shape.outside_ps + max(link_ps, head_ps, outside_ps) + fill_ps


def hosts_of(shape: GroupShape) -> tuple[AggregatorBranch, ...]:
    """Return the trees of the hosts, without trees of rails.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    count = len(set(shape.host))
    return shape.branches()[:count]


def nvls_size_class(shape: GroupShape, size_bytes: int, decision: NcclDecision) -> int:
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


def is_coarse(shape: GroupShape, size_bytes: int, decision: NcclDecision) -> bool:
    """Return whether the steps of an NVLS tree take longer by more than COARSE because its chunks are too large.

    The sum of a chunk passes NVLink and the levels of the tree before the next one's sum follows, so that a buffer of c
    chunks takes 1 + (1 + levels) / c times as long as its data. NCCL has more chunks than a plan if many members would
    make too many steps of them.

    Args:
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    if decision.algorithm != NVLS_TREE:
        return False
    hosts = hosts_of(shape)
    stages = 1 + len(hosts).bit_length() - 1
    loops = cut_of(size_bytes, decision.channels, shape, decision.algorithm).loops
    return stages / _loops(hosts, size_bytes, decision) - stages / (nvls_tree.HALVES * loops) > COARSE


def lanes_class(shape: GroupShape, size_bytes: int, decision: NcclDecision) -> int:
    """Return a number below 2^22, equal for sizes with as many chunks of a share on the same connections.

    Args:
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    loops = cut_of(size_bytes, decision.channels, shape, decision.algorithm)
    return nvls_size_class(shape, size_bytes, decision) * len(CHUNKS_BYTES) + CHUNKS_BYTES.index(loops.chunk_bytes)


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


# CollNet direct as NCCL chooses it: hosts distribute data over NVLink, the network sums per rail.
#
# Each member of a host is the head of a share: it adds up the shares that the others send, sends the sum up the tree of
# switches of its rail (SHARP), receives the total and sends it to the others of its host (NCCL's
# src/device/all_reduce.h, NCCL_ALGO_COLLNET_DIRECT). Chunks pass through all stages as a pipeline.


def collnet_plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return lanes of the members and of the rails' aggregators; NVSwitches sum nothing.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts, rails = hosts_and_rails(shape)
    count, size = collnet_size_class(shape, size_bytes), len(hosts[0].members)
    aggregators = sum(len(branch.tree.parent) - len(branch.members) for branch in shape.branches())
    lanes: list[list[Lane]] = [[Lane()] for _ in range(shape.members + aggregators)]
    # A share goes up its rail when the last of the host's other members has been added, in lane size - 1
    ready = [(size - 1, k) if size > 1 else AT_ONCE for k in range(count)]
    for place, rail in enumerate(rails):
        flows = flows_of_all(rail, range(place * count, (place + 1) * count))
        for node, own in enumerate(tree_lanes(rail, flows, size + 1, ready)):
            number = rail.number(node)
            is_member = number < shape.members
            lanes[number] = _member(hosts[shape.host[number]].members, place, count, own) if is_member else own
    return each_its_own(size * count, lanes, aggregators=aggregators, launch_ps=decision.launch_ps)


def collnet_extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `collnet_plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts, rails = hosts_and_rails(shape)
    count, size = collnet_size_class(shape, size_bytes), len(hosts[0].members)
    through = [tree_extent(rail.tree, count) for rail in rails]
    idle = sum(len(host.tree.parent) - len(host.members) for host in hosts)
    # Each member sends each chunk of a share to the g-1 others and gets it from them, before the rail and after it. Of
    # its 2g + 2 lanes two belong to the rail, whose extent counts them.
    inside = PlanExtent(4 * shape.members * (size - 1) * count, 2 * shape.members * size + idle, 1, 2 * size + 2)
    return total([inside, *through], idle + sum(of_rail.plans for of_rail in through))


def collnet_closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:  # noqa: ARG001 - one interface for all algorithms
    """Return an estimate in picoseconds: launch, latencies, and the time of NVLinks or a NIC for all chunks.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts, (rail, *_) = hosts_and_rails(shape)
    size = len(hosts[0].members)
    share_bits = PS_PER_BYTE_AT_1_BPS * size_bytes / size
    inside_ps = share_bits * 2 * (size - 1) / shape.inside_bps if shape.inside_bps else 0.0
    outside_ps = share_bits / min(rate for rate in rail.tree.both_ways_bps if rate)
    ways_ps = 2 * shape.inside_ps + 2 * max(sum(rail.tree.latency_ps[e] for e in rail.tree.up(m)) for m in range(2))
    return decision.launch_ps + ways_ps + max(inside_ps, outside_ps)


def collnet_size_class(shape: GroupShape, size_bytes: int) -> int:
    """Return the number of chunks of a share of the buffer; sizes with equally many share a plan.

    Args:
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
    """
    hosts = len(set(shape.host))
    return chunks_of_share("nccl", hosts, shape.members // hosts, size_bytes, 0)


def _member(members: Sequence[int], place: int, count: int, rail_lanes: list[Lane]) -> list[Lane]:
    """Return the lanes of the member at a place of its host; count: chunks of a share; rail_lanes: of its rail."""
    size = len(members)
    others = [q for q in range(size) if q != place]
    deal, adds, spread, takes = Lane(), [Lane() for _ in others], Lane(), [Lane() for _ in others]
    first_take = size + 3
    for k in range(count):
        for number, peer in enumerate(others):
            # The index of this member among the others of its peer, which numbers the peer's lanes
            mine = place if place < peer else place - 1
            deal.step(send_to=members[peer], to_lane=1 + mine, send=peer * count + k)
            after = (number, k) if number else AT_ONCE
            adds[number].step(receive_from=members[peer], receive=place * count + k, reduce=True, after=after)
            spread.step(send_to=members[peer], to_lane=first_take + mine, send=place * count + k, after=(size + 1, k))
            takes[number].step(receive_from=members[peer], receive=peer * count + k)
    # In hosts of g members: lane 0 deals, 1 .. g-1 add, g sends up the rail, g+1 receives totals, g+2 spreads them, and
    # the lanes from g+3 on take those of the others
    return [deal, *adds, *rail_lanes, spread, *takes]


NVLS_LANES = NcclLanes(nvls_plan, nvls_extent, nvls_closed_form)
COLLNET = NcclLanes(collnet_plan, collnet_extent, collnet_closed_form)
