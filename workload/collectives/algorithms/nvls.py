"""NVLS: the NVSwitch of one host sums and multicasts (NVLink SHARP, NCCL's NVLS algorithm).

Each member owns a share of the buffer. The switch reads the share from every member and returns the sum to the owner
(multimem.ld_reduce); the owner writes the result once, and the switch copies it to all (multimem.st). An all-reduce
thus moves S (n+1)/n bytes over each link and direction, against a ring's 2 S (n-1)/n; its bus bandwidth is 2
(n-1)/(n+1) of the link's rate. The model lets members send the data that the switch reads, and has no read requests.
"""

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives.plans import multimem
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans, each_its_own
from nadi.workload.errors import WorkloadError
from nadi.workload.shape import GroupShape

NAME = "nvls"
KINDS = ("all-reduce", "reduce-scatter", "all-gather")
NEEDS_SHAPE = True
OWN_CONNECTIONS = True
TREES = "all"
PARAMETERS = {"chunks": 0}
LIMITS = {"chunks": (0, 4096)}


def plan(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> Plans:
    """Return the lanes of plans.multimem for members of one NVSwitch. Raises WorkloadError: several switches.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    n, count = shape.members, size_class(kind, shape, size_bytes, chunks)
    if len(shape.branches()[0].tree.parent) != n + 1:
        raise WorkloadError(f"algorithm nvls for {kind} of {n}: members on several switches; expected one NVSwitch")
    return make(kind, n, count)


def make(
    kind: str, members: int, count: int, *, pace: multimem.MultimemPace = multimem.AT_LINE_RATE, launch_ps: int = 0
) -> Plans:
    """Return the lanes of the members and of their NVSwitch's aggregator.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        count: The number of chunks of a member's share of the buffer.
        pace: The connections on which members send to the switch, and the divisors of their rates.
        launch_ps: The time in picoseconds before the first step.
    """
    reduces, copies = kind != "all-gather", kind != "reduce-scatter"
    lanes = [
        multimem.member_lanes(range(members), m, members, count, reduces=reduces, copies=copies, pace=pace)
        for m in range(members)
    ]
    switch = multimem.aggregator_lanes(range(members), count, reduces=reduces, copies=copies)
    return each_its_own(members * count, [*lanes, switch], aggregators=1, launch_ps=launch_ps)


def extent(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    n, ways = shape.members, 2 if kind == "all-reduce" else 1
    return multimem.extent(1, n, size_class(kind, shape, size_bytes, chunks), ways=ways)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> float:
    """Return the ps of the busier direction of a member's link, plus the latency to and from the switch.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    tree, n = shape.branches()[0].tree, shape.members
    count = size_class(kind, shape, size_bytes, chunks)
    bits, latency_ps = PS_PER_BYTE_AT_1_BPS * size_bytes / (n * count), max(tree.latency_ps[:n])
    chunk_ps, both_ways_ps = bits / min(tree.rate_bps[:n]), bits / min(tree.both_ways_bps[:n])
    if kind == "all-reduce":
        # A member's link carries n shares of data and one of results; the first chunk goes up and down twice
        return 4 * latency_ps + (n + 1) * count * both_ways_ps + 3 * chunk_ps
    return 2 * latency_ps + (n * count + 1) * chunk_ps + count * (both_ways_ps - chunk_ps)


def size_class(_kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> int:
    """Return the number of chunks of a share; sizes with equally many share a plan.

    Args:
        _kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of a member's share that the user asks for; 0 = by size
            (`multimem.chunks_of_share`).
    """
    return multimem.chunks_of_share(NAME, 1, shape.members, size_bytes, chunks)
