"""In-network reduction: switches sum the data of their children and send the result on (SHARP).

Every chunk moves up a tree of aggregators in the switches (trees) from the contributing members: each
aggregator sends one sum for all its children. From the root it moves down to the members that need it, copied where
paths part. An all-reduce thus moves S over each link and direction once, where a ring moves 2 (n-1)/n S (Graham et al.,
"Scalable Hierarchical Aggregation Protocol", COM-HPC 2016; streaming aggregation, ISC 2020).
"""

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives import trees
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import MAX_STEPS, Plans, each_its_own
from nadi.workload.errors import WorkloadError
from nadi.workload.shape import GroupShape

KINDS = ("all-reduce", "reduce", "broadcast", "reduce-scatter", "all-gather", "barrier")
NEEDS_SHAPE = True
OWN_CONNECTIONS = True
TREES = "all"
PARAMETERS = {"chunks": 0}
LIMITS = {"chunks": (0, 4096)}

_IN_PARTS = ("reduce-scatter", "all-gather")

_CHUNK_BYTES = 4096  # default size of a chunk, up to _MAX_CHUNKS chunks and about _USUAL_STEPS steps
_MAX_CHUNKS = 256
_USUAL_STEPS = 2_000_000


def plan(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> Plans:
    """Return the lanes of members and aggregators. Raises WorkloadError: more than MAX_STEPS steps.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of the buffer, or of a member's part of it; 0 = one per 4 KiB, at most 256.
    """
    branch, n = shape.branches()[0], shape.members
    count = size_class(kind, shape, size_bytes, chunks)
    if count * _steps_of_chunk(branch.tree) > MAX_STEPS:
        raise WorkloadError(f"algorithm in-network for {kind} of {n}: {count} chunks; expected fewer chunks or members")
    parts = n if kind in _IN_PARTS else 1
    order = (part * (count // parts) + k for k in range(count // parts) for part in range(parts))  # parts in rotation
    # Parts take turns: with consecutive ones, an owner's link would carry its part first and then idle
    flows = {chunk: _flow(kind, n, chunk, count) for chunk in order}
    lanes = trees.tree_lanes(branch, flows, result_lane=1)
    return each_its_own(count, lanes, aggregators=len(lanes) - n)


def extent(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`: both ends of each link that a chunk uses.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of the buffer, or of a member's part of it; 0 = one per 4 KiB, at most 256.
    """
    tree, n = shape.branches()[0].tree, shape.members
    count = size_class(kind, shape, size_bytes, chunks)
    below = trees.members_below(tree, n)
    links = [sum(_loads(kind, n, count, below[e])) for e, parent in enumerate(tree.parent) if parent != trees.ROOT]
    return trees.extent(tree, count)._replace(steps=2 * sum(links))


def closed_form(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> float:
    """Return the first chunk's time up and down, chunk by chunk through each aggregator, plus the chunks behind it.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of the buffer, or of a member's part of it; 0 = one per 4 KiB, at most 256.
    """
    tree, n = shape.branches()[0].tree, shape.members
    count = size_class(kind, shape, size_bytes, chunks)
    chunk_bits = PS_PER_BYTE_AT_1_BPS * size_bytes / count
    edges = [e for e, parent in enumerate(tree.parent) if parent != trees.ROOT]
    below = trees.members_below(tree, n)
    way_ps = {e: tree.latency_ps[e] + chunk_bits / tree.rate_bps[e] for e in edges}
    to_root = [sum(way_ps[e] for e in tree.up(member)) for member in range(n)]
    # Member 0 is the root of a broadcast and of a reduce. The last chunk of a reduce-scatter belongs to member n - 1,
    # since parts are in rotation.
    up_ps = to_root[0] if kind == "broadcast" else max(to_root)
    down_ps = {"reduce": to_root[0], "reduce-scatter": to_root[n - 1]}.get(kind, max(to_root))
    busiest_ps = 0.0
    for e in edges:
        up, down = _loads(kind, n, count, below[e])
        data_ps = chunk_bits / tree.rate_bps[e]
        # What a chunk in one direction costs the other direction: its acknowledgements
        answer_ps = chunk_bits / tree.both_ways_bps[e] - data_ps
        for out, back in ((up, down), (down, up)):
            # The first chunk is part of up_ps and down_ps already, hence the subtraction of one
            busiest_ps = max(busiest_ps, out * data_ps + back * answer_ps - data_ps)
    return up_ps + down_ps + busiest_ps


def _loads(kind: str, members: int, count: int, below: frozenset[int]) -> tuple[int, int]:
    """Return the number of chunks, of `count`, up and down between a node and its parent; below: members under it."""
    # Chunks whose owners are below the node, in kinds in which each member owns a part
    share = count * len(below) // members
    to_root = count if 0 in below else 0
    return {
        "all-reduce": (count, count),
        "barrier": (count, count),
        "reduce": (count, to_root),
        "broadcast": (to_root, count if below != {0} else 0),
        "reduce-scatter": (count, share),
        # An owner does not get its own part back. Over a link to several members it still comes down, for the others.
        "all-gather": (share, count - share if len(below) == 1 else count),
    }[kind]


def size_class(kind: str, shape: GroupShape, size_bytes: int, chunks: int) -> int:
    """Return the number of chunks of the buffer; sizes with equally many chunks share a plan.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        chunks: The number of chunks of the buffer, or of a member's part of it; 0 = one per 4 KiB, at most 256.
    """
    parts = shape.members if kind in _IN_PARTS else 1
    if kind == "barrier":
        return 1
    if chunks == 0:
        max_chunks = min(_MAX_CHUNKS, _USUAL_STEPS // _steps_of_chunk(shape.branches()[0].tree))
        chunks = min(-(-size_bytes // _CHUNK_BYTES), max_chunks) // parts
    return parts * max(1, chunks)


def _steps_of_chunk(tree: trees.AggregatorTree) -> int:
    return 4 * len(tree.parent)


def _flow(kind: str, members: int, chunk: int, count: int) -> trees.ChunkFlow:
    """Return the members that send and receive chunk number `chunk` of `count`."""
    everyone, owner = frozenset(range(members)), frozenset({chunk * members // count})
    root = frozenset({0})
    return {
        "all-reduce": trees.ChunkFlow(everyone, everyone),
        "barrier": trees.ChunkFlow(everyone, everyone),
        "reduce": trees.ChunkFlow(everyone, root),
        "broadcast": trees.ChunkFlow(root, everyone - root),
        "reduce-scatter": trees.ChunkFlow(everyone, owner),
        "all-gather": trees.ChunkFlow(owner, everyone - owner),
    }[kind]
