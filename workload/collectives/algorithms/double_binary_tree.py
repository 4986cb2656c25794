"""Two binary trees, each for one half of the buffer; only the root is an inner node of both.

Members 1 .. n-1 are in both trees; member 0 feeds them. In the first tree, in the order of the members, every second
one is a leaf; the second tree is its mirror image, or the same shifted by one, so that those leaves are inner nodes
there. Data moves up and down in chunks (Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35, 2009; as in NCCL, all-reduce is the reduction and, one chunk behind, the
broadcast).
"""

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import NONE, Lane, Plans, each_its_own
from nadi.workload.collectives.plans.rings_and_trees import MemberTree, TreeLaneNumbers, in_order_parent, tree_lanes

KINDS = ("all-reduce", "broadcast", "reduce")
PARAMETERS = {"chunks": 8}
LIMITS = {"chunks": (1, 4096)}
LOWER_BOUND = True

_TREES = 2
_LANES = 6  # lanes of a tree: from two children, to the parent, from the parent, to two children


def plan(kind: str, members: int, chunks: int = 8) -> Plans:
    """Return six lanes per tree for each member; lanes that a member does not need have one step that does nothing.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        chunks: The number of chunks of each half of the buffer.
    """
    if members == 1:
        return each_its_own(_TREES * chunks, [[Lane(blocking=True)]])
    lanes: list[list[Lane]] = [[] for _ in range(members)]
    for number, mirrored in enumerate((False, True)):
        tree, base = _tree(members, mirrored=mirrored), number * _LANES
        numbers = [TreeLaneNumbers(base, base + 2, base + 3, base + 4)] * members
        for me, own in enumerate(lanes):
            own_chunks = range(number * chunks, (number + 1) * chunks)
            made = tree_lanes(kind, tree, numbers, me, own_chunks, lambda _to: Lane(blocking=True))
            own += [made.get(base + lane) or Lane(blocking=True).step() for lane in range(_LANES)]
    return each_its_own(_TREES * chunks, lanes)


def extent(kind: str, members: int, chunks: int = 8) -> PlanExtent:
    """Return the number of steps and lanes of `plan`: both ends of each link per direction, and the unused lanes.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        chunks: The number of chunks of each half of the buffer.
    """
    if members == 1:
        return PlanExtent(0, 1)
    ends = _TREES * (members - 1) * (4 if kind == "all-reduce" else 2)
    lanes = members * _TREES * _LANES
    return PlanExtent(ends * chunks + lanes - ends, lanes, members)


def closed_form(
    kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float, chunks: int = 8
) -> float:
    """Return a lower bound in picoseconds, for large buffers about a + S/B, and a + 2 S/B for all-reduce.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
        chunks: The number of chunks of each half of the buffer.
    """
    # With b = S/2kB for k chunks of each half: member 0 feeds the trees alternately, and each member its children, so
    # that chunk c of tree t follows after (2c + t) b, and a hop takes a + b or a + 2b to a first or second child.
    # Upwards the deepest chunk takes a + b per hop, and member 0 receives the others one after another. The busiest
    # member of all-reduce sends to its parents and children. Waits of messages for those of the other tree that arrive
    # just then are omitted, since they depend on a/b: in a broadcast at most a chunk per level, and up to half of the
    # bound in the other kinds.
    chunk_ps = size_bytes / (_TREES * chunks) / bytes_per_s * PS_PER_S
    trees = [_tree(members, mirrored=mirrored) for mirrored in (False, True)]
    down_ps = [tree.down_ps(latency_ps, chunk_ps) for tree in trees]
    if kind == "broadcast":
        return (2 * chunks - 2) * chunk_ps + max(t * chunk_ps + way_ps for t, way_ps in enumerate(down_ps))
    depth = min(tree.depth for tree in trees)
    up_ps = depth * (latency_ps + chunk_ps) + (2 * chunks - 1) * chunk_ps
    if kind == "reduce":
        return up_ps
    links = [sum(len(tree.children[me]) + (me > 0) for tree in trees) for me in range(members)]
    return max(up_ps + min(down_ps), max(links) * chunks * chunk_ps + latency_ps)


def _tree(members: int, *, mirrored: bool) -> MemberTree:
    """Return the tree of members 1 .. n-1 with member 0 on top; the inner nodes of the second are leaves of the first.

    Args:
        members: The number of members of the group, n.
        mirrored: Whether this is the second tree.
    """
    place = list(range(1, members))
    if mirrored:
        # For an even number of nodes the mirror image swaps leaves and inner nodes; for an odd one, a shift by one does
        place = place[::-1] if members % 2 else place[1:] + place[:1]
    # NCCL builds its second tree in the same way, over all ranks (src/graph/trees.cc, ncclGetDtree)
    member = dict(zip(place, range(1, members), strict=True)) | {0: 0}
    return MemberTree.of([NONE, *(member[in_order_parent(node, members)] for node in place)])
