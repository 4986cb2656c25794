"""In-network reduction: switches sum up what their children send, and send the result on (SHARP).

Every chunk goes up a tree of aggregators in the switches (workload.tree) from the members that contribute to it: each
aggregator sends one sum for all its children. From the root it comes down to the members that need it, copied where
ways part. An all-reduce so moves S over each link in each direction, once, where a ring moves 2 (n-1)/n S (Graham et
al., "Scalable Hierarchical Aggregation Protocol", COM-HPC 2016; streaming aggregation, ISC 2020).
"""

from typing import NamedTuple

from workload.errors import WorkloadError
from workload.plans import Lane, Plans, each_its_own
from workload.shape import Shape
from workload.tree import ROOT, Tree

NAME = "in-network"
KINDS = ("all-reduce", "reduce", "broadcast", "reduce-scatter", "all-gather", "barrier")
NEEDS_SHAPE = True
NEEDS_TREE = True
PARAMETERS = {"chunks": 0}
LIMITS = {"chunks": (0, 4096)}

NOTHING = (-1, -1)

_CHUNK_BYTES = 65_536
_MOST_CHUNKS = 256
_USUAL_STEPS = 2_000_000
_MOST_STEPS = 6_000_000


class Flow(NamedTuple):
    """Who takes part in a chunk.

    Attributes:
        sources: members that send it up.
        targets: members that get the result.
    """

    sources: frozenset[int]
    targets: frozenset[int]


def plan(kind: str, shape: Shape, size_bytes: int, chunks: int) -> Plans:
    """Lanes of members and of aggregators.

    chunks: of the buffer, or of each member's part; 0 = one for each 64 KiB, 256 at most.

    Raises:
        WorkloadError: more steps than memory is for.
    """
    tree, n = shape.tree_or_error(), shape.members
    count = _count(kind, shape, size_bytes, chunks)
    if count * _steps_of_chunk(tree) > _MOST_STEPS:
        raise WorkloadError(f"algorithm in-network for {kind} of {n}: {count} chunks; expected fewer chunks or members")
    flows = [_flow(kind, n, chunk, count) for chunk in range(count)]
    below, children, place = _below(tree, n), tree.children(), tree.places()
    members = [_member_lanes(tree, place, flows, member) for member in range(n)]
    aggregators = [
        _aggregator_lanes(children, tree.parent[node], place[node], flows, below, node)
        for node in range(n, len(tree.parent))
    ]
    return each_its_own(count, members + aggregators, aggregators=len(aggregators))


def closed_form(kind: str, shape: Shape, size_bytes: int, chunks: int) -> float:
    """The first chunk's way up and down, chunk by chunk through each aggregator, and the others behind it."""
    tree, n = shape.tree_or_error(), shape.members
    count = _count(kind, shape, size_bytes, chunks)
    chunk_bits = 8e12 * size_bytes / count
    edges = [e for e, parent in enumerate(tree.parent) if parent != ROOT]
    below = _below(tree, n)
    way_ps = {e: tree.latency_ps[e] + chunk_bits / tree.rate_bps[e] for e in edges}
    to_root = [sum(way_ps[e] for e in tree.up(member)) for member in range(n)]
    up_ps = to_root[0] if kind == "broadcast" else max(to_root)
    down_ps = {"reduce": to_root[0], "reduce-scatter": to_root[n - 1]}.get(kind, max(to_root))
    busiest_ps = 0.0
    for e in edges:
        up, down = _loads(kind, n, count, below[e])
        data_ps, answer_ps = chunk_bits / tree.rate_bps[e], chunk_bits / tree.both_ways_bps[e]
        answer_ps -= data_ps
        busiest_ps = max(
            busiest_ps, up * data_ps + down * answer_ps - data_ps, down * data_ps + up * answer_ps - data_ps
        )
    return up_ps + down_ps + busiest_ps


def _loads(kind: str, n: int, count: int, below: frozenset[int]) -> tuple[int, int]:
    """Chunks that go up and down between a node and its parent; below: members under the node."""
    share = count * len(below) // n
    to_root = count if 0 in below else 0
    return {
        "all-reduce": (count, count),
        "barrier": (count, count),
        "reduce": (count, to_root),
        "broadcast": (to_root, count if below != {0} else 0),
        "reduce-scatter": (count, share),
        "all-gather": (share, count - share if len(below) == 1 else count),
    }[kind]


def size_class(kind: str, shape: Shape, size_bytes: int, chunks: int) -> int:
    """Sizes of as many chunks have one plan."""
    return _count(kind, shape, size_bytes, chunks)


def _count(kind: str, shape: Shape, size_bytes: int, chunks: int) -> int:
    """Into how many chunks the buffer is cut."""
    parts = shape.members if kind in {"reduce-scatter", "all-gather"} else 1
    if kind == "barrier":
        return 1
    if chunks == 0:
        most = min(_MOST_CHUNKS, _USUAL_STEPS // _steps_of_chunk(shape.tree_or_error()))
        chunks = min(-(-size_bytes // _CHUNK_BYTES), most) // parts
    return parts * max(1, chunks)


def _steps_of_chunk(tree: Tree) -> int:
    return 4 * len(tree.parent)


def _flow(kind: str, n: int, chunk: int, count: int) -> Flow:
    everyone, owner = frozenset(range(n)), frozenset({chunk * n // count})
    root = frozenset({0})
    return {
        "all-reduce": Flow(everyone, everyone),
        "barrier": Flow(everyone, everyone),
        "reduce": Flow(everyone, root),
        "broadcast": Flow(root, everyone - root),
        "reduce-scatter": Flow(everyone, owner),
        "all-gather": Flow(owner, everyone - owner),
    }[kind]


def _below(tree: Tree, n: int) -> list[frozenset[int]]:
    """Members below each node of the tree, itself if it is one."""
    found: list[set[int]] = [{node} if node < n else set() for node in range(len(tree.parent))]
    for member in range(n):
        for node in tree.up(member):
            found[tree.parent[node]].add(member)
    return [frozenset(members) for members in found]


def _member_lanes(tree: Tree, place: list[int], flows: list[Flow], member: int) -> list[Lane]:
    """Lane 0 sends what the member contributes, lane 1 takes results."""
    parent = tree.parent[member]
    up, down = Lane(), Lane()
    for chunk, flow in enumerate(flows):
        if member in flow.sources:
            up.step(send_to=parent, to_lane=place[member], send=chunk)
        if member in flow.targets:
            down.step(receive_from=parent, receive=chunk)
    return [up, down]


def _aggregator_lanes(
    children: dict[int, list[int]],
    parent: int,
    place: int,
    flows: list[Flow],
    below: list[frozenset[int]],
    node: int,
) -> list[Lane]:
    """A lane for each child, which adds up in their order; one that sends sums up; one that sends results down.

    place: of the node among its parent's children.
    """
    sums = [Lane() for _ in children[node]]
    up, down = Lane(), Lane()
    for chunk, flow in enumerate(flows):
        last = NOTHING
        for lane, child in enumerate(children[node]):
            if not below[child].isdisjoint(flow.sources):
                sums[lane].step(receive_from=child, receive=chunk, reduce=last != NOTHING, after=last)
                last = (lane, len(sums[lane].steps) - 1)
        if parent != ROOT and last != NOTHING:
            up.step(send_to=parent, to_lane=place, send=chunk, after=last)
        if parent != ROOT and not below[node].isdisjoint(flow.targets):
            down.step(receive_from=parent, receive=chunk)
            last = NOTHING
        for child in children[node]:
            if not below[child].isdisjoint(flow.targets):
                down.step(send_to=child, to_lane=len(children.get(child, ())) + 1, send=chunk, after=last)
                last = NOTHING
    return [*sums, up, down]
