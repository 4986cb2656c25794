"""Two binary trees, each for one half of the buffer; only the root is an inner node of both.

Members 1 .. n-1 are in both trees; member 0 feeds them. In the first tree, in the order of the members, every second
one is a leaf; the second tree is its mirror image, or the same shifted by one, so that those leaves are inner nodes
there. Data moves up and down in chunks (Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35, 2009; as in NCCL, all-reduce is the reduction and, one chunk behind, the
broadcast).
"""

from typing import NamedTuple

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import NONE, Lane, Plans, each_its_own

KINDS = ("all-reduce", "broadcast", "reduce")
PARAMETERS = {"chunks": 8}
LIMITS = {"chunks": (1, 4096)}
LOWER_BOUND = True

_TREES = 2
# Lanes of a tree: from two children, to the parent, from the parent, to two children
_UP, _TO_PARENT, _DOWN, _TO_CHILDREN, _LANES = 0, 2, 3, 4, 6


def plan(kind: str, members: int, chunks: int = 8) -> Plans:
    """Return six lanes per tree for each member; lanes that a member does not need have one step that does nothing.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        chunks: The number of chunks of each half of the buffer.
    """
    if members == 1:
        return each_its_own(_TREES * chunks, [[Lane(blocking=True)]])
    trees = [_Tree.of(members, mirrored=mirrored) for mirrored in (False, True)]
    lanes = [
        [lane for number, tree in enumerate(trees) for lane in _lanes(kind, tree, me, number, chunks)]
        for me in range(members)
    ]
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
    trees = [_Tree.of(members, mirrored=mirrored) for mirrored in (False, True)]
    down_ps = [tree.down_ps(latency_ps, chunk_ps) for tree in trees]
    if kind == "broadcast":
        return (2 * chunks - 2) * chunk_ps + max(t * chunk_ps + way_ps for t, way_ps in enumerate(down_ps))
    depth = min(round(tree.down_ps(1.0, 0.0)) for tree in trees)  # hops of latency 1 and empty chunks
    up_ps = depth * (latency_ps + chunk_ps) + (2 * chunks - 1) * chunk_ps
    if kind == "reduce":
        return up_ps
    links = [sum(len(tree.children[me]) + (me > 0) for tree in trees) for me in range(members)]
    return max(up_ps + min(down_ps), max(links) * chunks * chunk_ps + latency_ps)


class _Tree(NamedTuple):
    """Parent of each member, -1 for member 0, and its children, two at most."""

    parent: tuple[int, ...]  # parent of each member, -1 for member 0
    children: tuple[tuple[int, ...], ...]  # children of each member, two at most

    @classmethod
    def of(cls, members: int, *, mirrored: bool) -> "_Tree":
        """Return the tree of members 1 .. n-1 with member 0 on top.

        Args:
            members: The number of members of the group, n.
            mirrored: Whether this is the second tree, whose inner nodes are the leaves of the first one.
        """
        inner = members - 1
        place = list(range(1, members))
        if mirrored:
            # For an even number of nodes the mirror image swaps leaves and inner nodes; for an odd one, a shift by one
            # does
            place = place[::-1] if inner % 2 == 0 else place[1:] + place[:1]
        # NCCL builds its second tree in the same way, over all ranks (src/graph/trees.cc, ncclGetDtree)
        member = dict(zip(place, range(1, members), strict=True)) | {0: 0}
        parent = (NONE, *(member[in_order_parent(node, members)] for node in place))
        children: list[list[int]] = [[] for _ in range(members)]
        for child in range(1, members):
            children[parent[child]].append(child)
        return cls(parent, tuple(map(tuple, children)))

    def down_ps(self, latency_ps: float, chunk_ps: float) -> float:
        """Return the time in picoseconds from when member 0 begins to send a chunk until the last member has it.

        Args:
            latency_ps: The time of an empty message on an idle network in picoseconds.
            chunk_ps: The time that a chunk keeps its sender busy, in picoseconds.
        """
        # `waiting` grows while the loop reads it: breadth first, so that a parent's time is known first
        has_ps = {0: 0.0}
        waiting = [0]
        for member in waiting:
            for i, child in enumerate(self.children[member]):
                has_ps[child] = has_ps[member] + latency_ps + (i + 1) * chunk_ps
                waiting.append(child)
        return max(has_ps.values())


def in_order_parent(node: int, nodes: int) -> int:
    """Return the parent of a node in an in-order tree, where odd nodes are leaves; -1 for node 0, the top.

    Args:
        node: The number of the node, 0 .. nodes-1.
        nodes: The number of nodes of the tree.
    """
    if node == 0:
        return NONE
    # The lowest set bit is the height of a node; its parent has the next higher bit as its lowest one
    bit = node & -node
    # Of nodes 0 .. 6: 1 and 3 are below 2, 5 is below 6, 2 and 6 are below 4, and 4 is below 0. Without node 6, node 5
    # takes its place and is below 4.
    above = (node ^ bit) | (bit << 1)
    return above if above < nodes else node ^ bit


def _lanes(kind: str, tree: _Tree, member: int, tree_number: int, chunks: int) -> list[Lane]:
    """Return the lanes of a member in one of the two trees, for chunks of one half of the buffer."""
    base, first = tree_number * _LANES, tree_number * chunks
    children, parent = tree.children[member], tree.parent[member]
    lanes = [Lane(blocking=True) for _ in range(_LANES)]
    place = tree.children[parent].index(member) if parent != NONE else 0
    for chunk in range(chunks):
        # gathered: the step after which this member has the sum of its subtree, which its parent waits for. turned: the
        # step after which the chunk may go down. At the root of an all-reduce both are the last addition; elsewhere the
        # chunk turns when the parent's copy has arrived.
        gathered = turned = (NONE, NONE)
        if kind != "broadcast":
            for i, child in enumerate(children):
                lanes[_UP + i].step(receive_from=child, receive=first + chunk, reduce=True, after=gathered)
                gathered = turned = (base + _UP + i, chunk)
            if parent != NONE:
                to_lane = base + _UP + place
                lanes[_TO_PARENT].step(send_to=parent, to_lane=to_lane, send=first + chunk, after=gathered)
        if kind != "reduce":
            if parent != NONE:
                lanes[_DOWN].step(receive_from=parent, receive=first + chunk)
                turned = (base + _DOWN, chunk)
            for i, child in enumerate(children):
                lanes[_TO_CHILDREN + i].step(send_to=child, to_lane=base + _DOWN, send=first + chunk, after=turned)
    for lane in lanes:
        if not lane.steps:
            lane.step()
    return lanes
