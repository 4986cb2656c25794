"""Double binary trees over the hosts, with a chain inside each host, as in NCCL 2.4 and later.

Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009, section 3. An
inner node of one tree is a leaf of the other, so that two trees with half of the data each load all hosts equally.
"""

from itertools import pairwise
from typing import NamedTuple

from workload.collectives.nccl.rings import hosts_of, on_rail, rails_of
from workload.shape import Shape


class ChannelTree(NamedTuple):
    """The tree of one channel."""

    channel: int  # number of the channel
    parent: tuple[int, ...]  # parent of each member, -1 = the root
    children: tuple[tuple[int, ...], ...]  # children of each member

    @property
    def depth(self) -> int:
        """Number of hops from the root to the farthest member."""
        return max(self._above(member) for member in range(len(self.parent)))

    def _above(self, member: int) -> int:
        hops = 0
        while self.parent[member] >= 0:
            member, hops = self.parent[member], hops + 1
        return hops


def tree(shape: Shape, channel: int, channels: int) -> ChannelTree:
    """Return the tree of a channel: the first half of the channels use one tree, the second half the other."""
    hosts = hosts_of(shape)
    rails = rails_of(shape, hosts)
    half = (channels + 1) // 2
    number = channel % half
    heads = [on_rail(shape, hosts, rails, h, number) for h in range(len(hosts))]
    parent = [-1] * shape.members
    for host, own in enumerate(hosts):
        at = own.index(heads[host])
        chain = [*own[at:], *own[:at]]
        for above, below in pairwise(chain):
            parent[below] = above
        up = host_parent(host, len(hosts), second=channel >= half)
        parent[heads[host]] = heads[up] if up >= 0 else -1
    children: list[list[int]] = [[] for _ in range(shape.members)]
    for member, above in enumerate(parent):
        if above >= 0:
            children[above].append(member)
    return ChannelTree(channel, tuple(parent), tuple(map(tuple, children)))


def host_parent(host: int, hosts: int, *, second: bool) -> int:
    """Return the parent of a host, -1 for the root; the second tree is mirrored, or shifted if hosts are odd."""
    if not second:
        return _parent(host, hosts)
    if hosts % 2 == 0:
        up = _parent(hosts - 1 - host, hosts)
        return -1 if up < 0 else hosts - 1 - up
    up = _parent((host - 1) % hosts, hosts)
    return -1 if up < 0 else (up + 1) % hosts


def _parent(host: int, hosts: int) -> int:
    """Return the parent in an in-order binary tree: host 0 on top, hosts with lowest set bit b at the height of b."""
    if host == 0:
        return -1
    bit = host & -host
    up = (host ^ bit) | (bit << 1)
    return up if up < hosts else host ^ bit
