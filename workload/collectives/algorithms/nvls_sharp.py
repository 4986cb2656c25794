"""NVLS in each host and SHARP between hosts (NCCL's CollNet): NVSwitches sum and copy, a switch tree per rail adds up.

As in `nvls-tree`, but the switches of a rail (trees) sum the shares of all hosts: in hosts of g members a
NIC sends and receives S/g once.
"""

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives import trees
from nadi.workload.collectives.plans import multimem
from nadi.workload.collectives.plans.extent import PlanExtent, total
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own
from nadi.workload.collectives.trees import ROOT, AggregatorBranch
from nadi.workload.shape import GroupShape

NAME = "nvls-sharp"
KINDS = ("all-reduce",)
NEEDS_SHAPE = True
OWN_CONNECTIONS = True
TREES = "hosts and rails"
PARAMETERS = {"chunks": 0}
LIMITS = {"chunks": (0, 4096)}


def plan(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> Plans:
    """Return the lanes of plans.multimem, plus one lane up a rail's tree and one for totals, for each member.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    return make(shape, size_class(kind, shape, size_bytes, chunks))


def make(
    shape: GroupShape, count: int, *, pace: multimem.MultimemPace = multimem.AT_LINE_RATE, launch_ps: int = 0
) -> Plans:
    """Return the lanes of all members and aggregators.

    Args:
        shape: The positions of the group's members on the fabric.
        count: The number of chunks of a member's share.
        pace: The connections on which members send to their NVSwitch, and the divisors of their rates.
        launch_ps: The time in picoseconds before the first step.
    """
    hosts, rails = hosts_and_rails(shape)
    size = len(hosts[0].members)
    lanes: dict[int, list[Lane]] = {}
    # A result is written when the rail's total has arrived, in the second lane after those of plans.multimem
    complete = [(multimem.OTHERS + size + 1, k) for k in range(count)]
    for host in hosts:
        for place, member in enumerate(host.members):
            lanes[member] = multimem.member_lanes(host.members, place, host.first, count, complete=complete, pace=pace)
        lanes[host.first] = multimem.aggregator_lanes(host.members, count)
    ready = [(multimem.SUMS, k) for k in range(count)]
    for place, rail in enumerate(rails):
        flows = trees.flows_of_all(rail, range(place * count, (place + 1) * count))
        # Each rail works on the share of its place in the hosts, once the NVSwitch has summed it there
        for node, own in enumerate(trees.tree_lanes(rail, flows, multimem.OTHERS + size + 1, ready)):
            lanes.setdefault(rail.number(node), []).extend(own)
    in_order, aggregators = [lanes[m] for m in sorted(lanes)], len(lanes) - shape.members
    return each_its_own(size * count, in_order, aggregators=aggregators, launch_ps=launch_ps)


def extent(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    return extent_of(shape, size_class(kind, shape, size_bytes, chunks))


def extent_of(shape: GroupShape, count: int) -> PlanExtent:
    """Return the number of steps and lanes of `make`.

    Args:
        shape: The positions of the group's members on the fabric.
        count: The number of chunks of a member's share.
    """
    hosts, rails = hosts_and_rails(shape)
    inside = multimem.extent(len(hosts), len(hosts[0].members), count)
    between = [trees.extent(rail.tree, count) for rail in rails]
    aggregators = sum(of_rail.plans - len(hosts) for of_rail in between)
    return total([inside, *between], shape.members + len(hosts) + aggregators)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> float:
    """Return a chunk's ps to the NVSwitch, up and down its rail, back and to all, plus the others behind it.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    hosts, rails = hosts_and_rails(shape)
    count, size, tree = size_class(kind, shape, size_bytes, chunks), len(hosts[0].members), hosts[0].tree
    bits = PS_PER_BYTE_AT_1_BPS * size_bytes / (size * count)
    inside_ps, both_ways_ps = bits / min(tree.rate_bps[:size]), bits / min(tree.both_ways_bps[:size])
    rail = rails[0].tree
    edges = [edge for edge, parent in enumerate(rail.parent) if parent != ROOT]
    way_ps = max(sum(rail.latency_ps[e] + bits / rail.rate_bps[e] for e in rail.up(m)) for m in range(len(hosts)))
    # Chunks follow each other at the pace of the busier of a member's NVLink and the links of a rail
    behind_ps = max((size + 1) * both_ways_ps, *(bits / rail.both_ways_bps[edge] for edge in edges))
    return 4 * max(tree.latency_ps[:size]) + 4 * inside_ps + 2 * way_ps + (count - 1) * behind_ps + size * inside_ps


def size_class(_kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> int:
    """Return the number of chunks of a share; sizes with equally many chunks share a plan.

    Args:
        _kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    hosts, rails = hosts_and_rails(shape)
    return multimem.chunks_of_share(NAME, len(hosts), len(rails), size_bytes, chunks)


def hosts_and_rails(shape: GroupShape) -> tuple[tuple[AggregatorBranch, ...], tuple[AggregatorBranch, ...]]:
    """Return the trees of the hosts and of the rails; there are as many rails as a host has members.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    branches = shape.branches()
    rails = len(branches[0].members)
    # trees.trees_of lists the trees of hosts first, then one rail per place in a host
    return branches[:-rails], branches[-rails:]
