"""CollNet direct as NCCL chooses it: hosts distribute data over NVLink, the network sums per rail.

Each member of a host is the head of a share: it adds up the shares that the others send, sends the sum up the tree of
switches of its rail (SHARP), receives the total and sends it to the others of its host (NCCL's src/device/all_reduce.h,
NCCL_ALGO_COLLNET_DIRECT). Chunks pass through all stages as a pipeline.
"""

from collections.abc import Sequence

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives.algorithms.nvls_sharp import hosts_and_rails
from nadi.workload.collectives.nccl.decision import NcclDecision
from nadi.workload.collectives.plans.extent import PlanExtent, total
from nadi.workload.collectives.plans.multimem import chunks_of_share
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own
from nadi.workload.collectives.trees import extent as tree_extent
from nadi.workload.collectives.trees import flows_of_all, tree_lanes
from nadi.workload.shape import GroupShape


def plan(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> Plans:  # noqa: ARG001 - one interface for all algorithms
    """Return lanes of the members and of the rails' aggregators; NVSwitches sum nothing.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts, rails = hosts_and_rails(shape)
    count, size = size_class(shape, size_bytes), len(hosts[0].members)
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


def extent(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> PlanExtent:  # noqa: ARG001 - one interface for all algorithms
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size: algorithm, protocol, channels, chunks and times.
    """
    hosts, rails = hosts_and_rails(shape)
    count, size = size_class(shape, size_bytes), len(hosts[0].members)
    through = [tree_extent(rail.tree, count) for rail in rails]
    idle = sum(len(host.tree.parent) - len(host.members) for host in hosts)
    # Each member sends each chunk of a share to the g-1 others and gets it from them, before the rail and after it. Of
    # its 2g + 2 lanes two belong to the rail, whose extent counts them.
    inside = PlanExtent(4 * shape.members * (size - 1) * count, 2 * shape.members * size + idle, 1, 2 * size + 2)
    return total([inside, *through], idle + sum(of_rail.plans for of_rail in through))


def closed_form(kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision) -> float:  # noqa: ARG001 - one interface for all algorithms
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


def size_class(shape: GroupShape, size_bytes: int) -> int:
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
