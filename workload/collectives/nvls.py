"""NVLS: the NVSwitch of one host sums up and multicasts (NVLink SHARP, NCCL's NVLS algorithm).

Each member owns a share of the buffer. For it the switch reads the share from every member and hands over the sum
(multimem.ld_reduce); the member writes the result once, and the switch copies it to all (multimem.st). An all-reduce
so moves S (n+1)/n bytes over each link in each direction, of the ring's 2 S (n-1)/n; its bus bandwidth is 2 (n-1)/(n+1)
of the link's rate. What the switch reads is modelled as sent by the members: requests to read are not there.
"""

from workload.errors import WorkloadError
from workload.plans import Lane, Plans, each_its_own
from workload.shape import Shape

NAME = "nvls"
KINDS = ("all-reduce", "reduce-scatter", "all-gather")
NEEDS_SHAPE = True
NEEDS_TREE = True
PARAMETERS = {"chunks": 0}
LIMITS = {"chunks": (0, 4096)}

_CHUNK_BYTES = 65_536
_MOST_CHUNKS = 64
_MOST_STEPS = 6_000_000


def plan(kind: str, shape: Shape, size_bytes: int, chunks: int) -> Plans:
    """Lanes of the members and of the aggregator.

    A member's lane 0 sends all shares, chunk after chunk, so that results go between them; lane 1 takes the sums of its
    own one, lane 2 writes results, lane 3 + o takes those of member o. The aggregator has a lane for each member's data, one
    for sums, and one for each member's results.

    chunks: of each share; 0 = one for each 64 KiB, 64 at most.

    Raises:
        WorkloadError: the members are not on one switch.
    """
    n, count = shape.members, _count(shape, size_bytes, chunks)
    if len(shape.tree_or_error().parent) != n + 1:
        raise WorkloadError(f"algorithm nvls for {kind} of {n}: members on several switches; expected one NVSwitch")
    if 4 * n * n * count > _MOST_STEPS:
        raise WorkloadError(f"algorithm nvls for {kind} of {n}: {count} chunks; expected fewer chunks or members")
    members = [_member_lanes(kind, n, count, member) for member in range(n)]
    return each_its_own(n * count, [*members, _switch_lanes(kind, n, count)], aggregators=1)


def closed_form(kind: str, shape: Shape, size_bytes: int, chunks: int) -> float:
    """The busier direction of a member's link, and the ways into the switch and back before and after it."""
    tree, n = shape.tree_or_error(), shape.members
    count = _count(shape, size_bytes, chunks)
    rate_bps = min(tree.rate_bps[:n] if kind != "all-reduce" else tree.both_ways_bps[:n])
    chunk_ps, latency_ps = 8e12 * size_bytes / (n * count) / rate_bps, max(tree.latency_ps[:n])
    if kind == "reduce-scatter":
        return 2 * latency_ps + (n * count + 1) * chunk_ps
    if kind == "all-gather":
        return 2 * latency_ps + (n * count + 1) * chunk_ps
    return 4 * latency_ps + (n + 1) * count * chunk_ps + 3 * chunk_ps


def size_class(_kind: str, shape: Shape, size_bytes: int, chunks: int) -> int:
    """Sizes of as many chunks have one plan."""
    return _count(shape, size_bytes, chunks)


def _count(shape: Shape, size_bytes: int, chunks: int) -> int:
    """Chunks of a share."""
    return chunks or max(1, min(_MOST_CHUNKS, size_bytes // (shape.members * _CHUNK_BYTES)))


def _member_lanes(kind: str, n: int, count: int, member: int) -> list[Lane]:
    data, sums, results, others = Lane(blocking=True), Lane(), Lane(), [Lane() for _ in range(n)]
    for k in range(count):
        for owner in range(n):
            if kind != "all-gather":
                data.step(send_to=n, to_lane=member, send=owner * count + k)
            if kind != "reduce-scatter":
                others[owner].step(receive_from=n, receive=owner * count + k)
        own = member * count + k
        if kind != "all-gather":
            sums.step(receive_from=n, receive=own)
        if kind != "reduce-scatter":
            after = (1, k) if kind == "all-reduce" else (-1, -1)
            results.step(send_to=n, to_lane=n + 1 + member, send=own, after=after)
    return [data, sums, results, *others]


def _switch_lanes(kind: str, n: int, count: int) -> list[Lane]:
    data, sums, results = [Lane() for _ in range(n)], Lane(), [Lane() for _ in range(n)]
    for k in range(count):
        for owner in range(n):
            chunk = owner * count + k
            if kind != "all-gather":
                for member in range(n):
                    after = (member - 1, k * n + owner) if member else (-1, -1)
                    data[member].step(receive_from=member, receive=chunk, reduce=member > 0, after=after)
                sums.step(send_to=owner, to_lane=1, send=chunk, after=(n - 1, k * n + owner))
            if kind != "reduce-scatter":
                results[owner].step(receive_from=owner, receive=chunk)
                for member in range(n):
                    results[owner].step(send_to=member, to_lane=3 + owner, send=chunk)
    return [*data, sums, *results]
