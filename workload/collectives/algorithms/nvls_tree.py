"""NVLS in each host and trees between hosts (NCCL's NVLSTree): NVSwitches sum and copy, trees add up over hosts.

Each member of a host owns a share. Its NVSwitch gives it the sum of its host's data; a double binary tree over the
members in the same place of all hosts adds these up and returns the total, half of the chunks on each tree; then the
NVSwitch copies it to all members of the host.
"""

import numpy as np

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives.nccl.channel_orders import host_parent
from nadi.workload.collectives.plans import multimem
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own
from nadi.workload.collectives.trees import AggregatorBranch
from nadi.workload.errors import WorkloadError
from nadi.workload.shape import GroupShape

NAME = "nvls-tree"
KINDS = ("all-reduce",)
NEEDS_SHAPE = True
OWN_CONNECTIONS = True
TREES = "hosts"
LOWER_BOUND = True
PARAMETERS = {"chunks": 0}
LIMITS = {"chunks": (0, 4096)}

HALVES = 2  # number of trees of a rail, each for an equal part of the chunks
_UP, _TOTAL, _DOWN, _LANES = range(2, 6)


def plan(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> Plans:
    """Return the lanes of plans.multimem, plus the lanes of two trees over hosts.

    Raises WorkloadError: one host, or too many steps to fit into memory.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share, rounded up to an even number; 0 = by size
            (`multimem.chunks_of_share`).
    """
    hosts, count = shape.branches(), size_class(kind, shape, size_bytes, chunks)
    if len(hosts) < 2:
        raise WorkloadError(f"algorithm nvls-tree for {kind} of {shape.members}: one host, expected two or more")
    return make(shape, hosts, count)


def make(
    shape: GroupShape,
    hosts: tuple[AggregatorBranch, ...],
    count: int,
    *,
    pace: multimem.MultimemPace = multimem.AT_LINE_RATE,
    launch_ps: int = 0,
) -> Plans:
    """Return the lanes of all members and of the NVSwitches' aggregators.

    Args:
        shape: The positions of the group's members on the fabric.
        hosts: The aggregation tree of each host: its members and its NVSwitch.
        count: The number of chunks of a member's share, an even number.
        pace: The connections on which members send to their NVSwitch, and the divisors of their rates.
        launch_ps: The time in picoseconds before the first step.
    """
    size = len(hosts[0].members)
    aggregators = sum(len(branch.tree.parent) - len(branch.members) for branch in shape.branches())
    lanes: list[list[Lane]] = [[] for _ in range(shape.members + aggregators)]
    numbers = range(len(hosts))
    parents = [[host_parent(host, len(hosts), in_second=half > 0) for host in numbers] for half in range(HALVES)]
    for number, host in enumerate(hosts):
        for place, member in enumerate(host.members):
            lanes[member] = _member(hosts, parents, number, place, count, pace)
        lanes[host.first] = multimem.aggregator_lanes(host.members, count)
    return each_its_own(size * count, [own or [Lane()] for own in lanes], aggregators=aggregators, launch_ps=launch_ps)


def extent(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share, rounded up to an even number; 0 = by size
            (`multimem.chunks_of_share`).
    """
    return extent_of(shape, shape.branches(), size_class(kind, shape, size_bytes, chunks))


def extent_of(shape: GroupShape, hosts: tuple[AggregatorBranch, ...], count: int) -> PlanExtent:
    """Return the number of steps and lanes of `make`.

    Args:
        shape: The positions of the group's members on the fabric.
        hosts: The aggregation tree of each host: its members and its NVSwitch.
        count: The number of chunks of a member's share, an even number.
    """
    size, links = len(hosts[0].members), len(hosts) - 1
    inside = multimem.extent(len(hosts), size, count)
    aggregators = sum(len(branch.tree.parent) - len(branch.members) for branch in shape.branches())
    return PlanExtent(
        inside.steps + size * count * (4 * links + 1),
        inside.lanes + HALVES * _LANES * shape.members + aggregators - len(hosts),
        shape.members + aggregators,
        inside.widest + HALVES * _LANES,
    )


def closed_form(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> float:
    """Return a lower bound: the busier of NVLink, S (n+1)/n, and of the network, where inner hosts move two shares.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share, rounded up to an even number; 0 = by size
            (`multimem.chunks_of_share`).
    """
    hosts, count = shape.branches(), size_class(kind, shape, size_bytes, chunks)
    size, tree = len(hosts[0].members), hosts[0].tree
    share_bits = PS_PER_BYTE_AT_1_BPS * size_bytes / size
    inside_ps = share_bits * (size + 1) / min(tree.both_ways_bps[:size])
    # An inner host of one tree receives half a share from each of two children and half from its parent there, and, as
    # a leaf of the other tree, half from its parent: two shares. Two hosts exchange one share only.
    outside_ps = share_bits * (2 if len(hosts) > 2 else 1) / shape.outside_bps
    first_ps = share_bits / count * (4 / min(tree.rate_bps[:size]) + 2 / shape.outside_bps)
    return max(inside_ps, outside_ps) + first_ps + 4 * max(tree.latency_ps[:size]) + 2 * shape.outside_ps


def size_class(_kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> int:
    """Return the number of chunks of a share, an even number; sizes with equally many chunks share a plan.

    Args:
        _kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share, rounded up to an even number; 0 = by size
            (`multimem.chunks_of_share`).
    """
    hosts = shape.branches()
    chunks_per_share = multimem.chunks_of_share(NAME, len(hosts), len(hosts[0].members), size_bytes, chunks)
    return chunks_per_share + chunks_per_share % HALVES


def _member(
    hosts: tuple[AggregatorBranch, ...],
    parents: list[list[int]],
    host_number: int,
    place: int,
    count: int,
    pace: multimem.MultimemPace,
) -> list[Lane]:
    """Return the lanes of the member at a place of a host; those of the trees come last."""
    # parents: of each tree the parent of each host, -1 = root; count: chunks per share.
    own = hosts[host_number]
    first = multimem.OTHERS + len(own.members)
    complete = [(first + k % HALVES * _LANES + _TOTAL, k // HALVES) for k in range(count)]
    lanes = multimem.member_lanes(own.members, place, own.first, count, complete=complete, pace=pace)
    for half, above in enumerate(parents):
        lanes += _in_tree(hosts, above, host_number, place, half, count)
    return lanes


def _in_tree(
    hosts: tuple[AggregatorBranch, ...], above: list[int], host_number: int, place: int, half: int, count: int
) -> list[Lane]:
    """Return a member's lanes in a tree: one for each of two children, which adds theirs; sums up; totals; down."""
    # above: parent of each host; half: number of the tree, 0 or 1; place: index of the member in its host; count:
    # chunks per share.
    first = multimem.OTHERS + len(hosts[host_number].members) + half * _LANES
    below = [host for host, up in enumerate(above) if up == host_number]
    lanes = [Lane(connection=half) for _ in range(_LANES)]
    # The two trees take alternate chunks, so that both are busy from the beginning
    of_tree = np.arange(half, count, HALVES)
    steps, chunk = len(of_tree), place * count + of_tree
    turn = np.arange(steps)
    last = (multimem.SUMS, of_tree)
    for lane, child in enumerate(below):
        lanes[lane].several(steps, receive_from=hosts[child].members[place], receive=chunk, reduce=True, after=last)
        last = (first + lane, turn)
    if above[host_number] >= 0:
        parent = hosts[above[host_number]].members[place]
        to_lane = first + [host for host, up in enumerate(above) if up == above[host_number]].index(host_number)
        lanes[_UP].several(steps, send_to=parent, to_lane=to_lane, send=chunk, after=last)
        lanes[_TOTAL].several(steps, receive_from=parent, receive=chunk)
    else:
        # The root has no parent that returns the total: a copy onto itself marks when its sum is complete
        for own, step in zip(chunk.tolist(), last[1].tolist(), strict=True):
            lanes[_TOTAL].copy(own, to=own, after=(last[0], step))
    if below:
        lanes[_DOWN].several(
            steps * len(below),
            send_to=np.tile([hosts[child].members[place] for child in below], steps),
            to_lane=first + _TOTAL,
            send=np.repeat(chunk, len(below)),
            after=(first + _TOTAL, np.repeat(turn, len(below))),
        )
    return lanes
