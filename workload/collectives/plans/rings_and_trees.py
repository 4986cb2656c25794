"""Steps of rings, chains and trees that several algorithms share, in lanes with each algorithm's own transport."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.workload.collectives.plans.plan import AT_ONCE, NONE, Lane


def add_ring_steps(
    lane: Lane,
    lane_number: int,
    kind: str,
    members: int,
    chunks_of_member: int,
    pieces: Int64,
    *,
    direction: int = 1,
) -> Lane:
    """Add to a relative lane the steps of a ring, and return the lane.

    Args:
        lane: The lane to which the steps are added.
        lane_number: The number of the lane in each member, to which neighbours send.
        kind: "all-reduce", "reduce-scatter" or "all-gather".
        members: The number of members of the ring, n.
        chunks_of_member: The number of chunks of a member's part of the buffer.
        pieces: The chunks of each part that the ring moves, int64[loops, 1, slices] or fewer dimensions: a loop goes
            round completely before the next one begins, and the slices of a loop follow each other in each step.
        direction: 1 if a member sends to the next one, -1 if it sends to the previous one.
    """
    # A chunk is sent by its owner in step 0 of an all-gather, and by the owner's successor in step 0 of a reduction
    first = 0 if kind == "all-gather" else 1
    k = np.arange(first, first + (members - 1) * (2 if kind == "all-reduce" else 1)).reshape(-1, 1)
    # In step k a member sends the chunk of the member k places before it, and receives that of the one before. Shapes:
    # k int[steps, 1]; its sum with the pieces int[loops, steps, slices], flattened in this order.
    send, receive = (-distance * direction % members * chunks_of_member + pieces for distance in (k, k + 1))
    # Steps 1 .. n-1 sum. The later steps of an all-reduce, from n on, distribute the sums.
    reduce = np.broadcast_to((k < members) & (kind != "all-gather"), send.shape)
    return lane.several(
        send.size,
        send_to=direction % members,
        to_lane=lane_number,
        send=send.reshape(-1),
        receive_from=-direction % members,
        receive=receive.reshape(-1),
        reduce=reduce.reshape(-1),
    )


def add_chain_steps(lane: Lane, lane_number: int, before: int, after: int, chunks: range, *, reduce: bool) -> None:
    """Add to a lane the steps of a chain's member, which forwards each chunk while it receives the next.

    Args:
        lane: The lane to which the steps are added.
        lane_number: The number of the lane in each member, to which neighbours send.
        before: The number of the member before this one in the chain; NONE at its beginning.
        after: The number of the member after this one in the chain; NONE at its end.
        chunks: The consecutive numbers of the chunks that the chain moves.
        reduce: Whether received data is added to the chunk instead of replacing it.
    """
    if NONE in {before, after}:
        for chunk in chunks:
            lane.step(send_to=after, to_lane=lane_number, send=chunk, receive_from=before, receive=chunk, reduce=reduce)
        return
    lane.step(receive_from=before, receive=chunks[0], reduce=reduce)
    for chunk in chunks[1:]:
        lane.step(send_to=after, to_lane=lane_number, send=chunk - 1, receive_from=before, receive=chunk, reduce=reduce)
    lane.step(send_to=after, to_lane=lane_number, send=chunks[-1])


class MemberTree(NamedTuple):
    """A tree over the members of a group."""

    parent: tuple[int, ...]  # parent of each member, -1 = the root
    children: tuple[tuple[int, ...], ...]  # children of each member

    @classmethod
    def of(cls, parent: Sequence[int]) -> "MemberTree":
        """Return the tree of members with these parents.

        Args:
            parent: The parent of each member; -1 = the root.
        """
        children: list[list[int]] = [[] for _ in parent]
        for member, above in enumerate(parent):
            if above != NONE:
                children[above].append(member)
        return cls(tuple(parent), tuple(map(tuple, children)))

    def up(self, member: int) -> list[int]:
        """Return the path from a member to the root, both included.

        Args:
            member: The number of the member.
        """
        path = [member]
        while self.parent[path[-1]] != NONE:
            path.append(self.parent[path[-1]])
        return path

    @property
    def depth(self) -> int:
        """Number of hops from the root to the farthest member."""
        return max(len(self.up(member)) for member in range(len(self.parent))) - 1

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


class TreeLaneNumbers(NamedTuple):
    """The first lane of each direction of a member in a tree."""

    up: int  # lanes that add a child's data
    to_parent: int  # lane that sends sums to the parent; it may be the last of those that add
    down: int  # lane that receives results from the parent
    to_children: int  # lanes that send results to a child


def tree_lanes(
    kind: str,
    tree: MemberTree,
    numbers: Sequence[TreeLaneNumbers],
    member: int,
    chunks: range,
    lane_of: Callable[[int], Lane],
) -> dict[int, Lane]:
    """Return the lanes of a member of a tree by number: sums go up chunk by chunk, and the root's result comes down.

    Args:
        kind: "all-reduce", "broadcast" or "reduce".
        tree: The tree.
        numbers: The numbers of the lanes of each member.
        member: The number of the member.
        chunks: The consecutive numbers of the chunks that the tree moves.
        lane_of: A function that returns an empty lane that sends to a member; NONE = it sends nothing.
    """
    own, parent, children = numbers[member], tree.parent[member], tree.children[member]
    lanes: dict[int, Lane] = {}
    gathered = NONE  # lane that has the data of all children, or the parent's result
    if kind != "broadcast":
        to_lane = numbers[parent].up + tree.children[parent].index(member) if parent != NONE else 0
        for number, child in enumerate(children, own.up):
            # The sum of a chunk leaves while the next one arrives, if one lane does both
            to = parent if number == own.to_parent else NONE
            lane = lanes[number] = lane_of(to)
            for step, chunk in enumerate(chunks):
                lane.step(
                    send_to=to if step else NONE,
                    to_lane=to_lane,
                    send=chunk - 1,
                    receive_from=child,
                    receive=chunk,
                    reduce=True,
                    after=AT_ONCE if gathered == NONE else (gathered, step),
                )
            if to != NONE:
                lane.step(send_to=to, to_lane=to_lane, send=chunks[-1])
            gathered = number
        if parent != NONE and own.to_parent not in lanes:
            lanes[own.to_parent] = _sends(lane_of(parent), parent, to_lane, chunks, gathered)
    if kind != "reduce":
        # A chunk may go down when the parent's result has arrived, at the root when the last child's data is added
        if parent != NONE:
            gathered, lane = own.down, lane_of(NONE)
            lanes[own.down] = lane
            for chunk in chunks:
                lane.step(receive_from=parent, receive=chunk)
        for number, child in enumerate(children, own.to_children):
            lanes[number] = _sends(lane_of(child), child, numbers[child].down, chunks, gathered)
    return lanes


def _sends(lane: Lane, to: int, to_lane: int, chunks: range, after: int) -> Lane:
    """Add to a lane a send of each chunk to a lane of member `to` once lane `after` has it, and return the lane."""
    for step, chunk in enumerate(chunks):
        lane.step(send_to=to, to_lane=to_lane, send=chunk, after=AT_ONCE if after == NONE else (after, step))
    return lane
