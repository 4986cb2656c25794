"""The orders of the members in NCCL's channels: rings over all members, and double binary trees over the hosts.

All members of a host are consecutive in a ring. Channel c enters and leaves a host over rail c or a neighbour of it. If
there are as many channels as rails, each uses each NIC once per direction, and a hop between hosts stays on its rail
(as in SimAI, and in NCCL without NCCL_CROSS_NIC).

A tree has a chain inside each host, as in NCCL 2.4 and later. An inner node of one tree is a leaf of the other, so that
two trees with half of the data each load all hosts equally (Sanders, Speck and Traeff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009, section 3).
"""

from itertools import pairwise
from typing import NamedTuple

from nadi.workload.collectives.algorithms.double_binary_tree import in_order_parent
from nadi.workload.shape import GroupShape

Hosts = tuple[tuple[int, ...], ...]  # the members of each host, by place


def hosts_of(shape: GroupShape) -> Hosts:
    """Return the members of each host of a group, in the order of their NPUs."""
    members_of_host: list[list[int]] = [[] for _ in range(max(shape.host) + 1)]
    for member in sorted(range(shape.members), key=lambda m: shape.place[m]):
        members_of_host[shape.host[member]].append(member)
    return tuple(tuple(own) for own in members_of_host)


def rails_of(shape: GroupShape, hosts: Hosts) -> tuple[int, ...]:
    """Return the places that are occupied in every host."""
    return tuple(sorted(set.intersection(*({shape.place[m] for m in own} for own in hosts))))


def _on_rail(shape: GroupShape, hosts: Hosts, rails: tuple[int, ...], host: int, rail_number: int) -> int:
    """Return a host's member on the rail of a number (modulo); without common rails, its member of that number."""
    own = hosts[host]
    if not rails:
        return own[rail_number % len(own)]
    return next(m for m in own if shape.place[m] == rails[rail_number % len(rails)])


def ring(shape: GroupShape, channel: int) -> tuple[int, ...]:
    """Return the members of a group in the order of a channel's ring."""
    # If hosts share fewer than two rails, or fewer than three for an odd number of hosts, some hop changes its rail:
    # the ring must leave a host by another NPU than the one by which it enters.
    hosts = hosts_of(shape)
    if len(hosts) == 1:
        return tuple(_turned(hosts[0], hosts[0][channel % len(hosts[0])]))
    rails, order = rails_of(shape, hosts), []
    # 0 and 1 in alternation, 2 for the last of an odd number, so that neighbouring hosts differ
    turns = [2 if host == len(hosts) - 1 and len(hosts) % 2 else host % 2 for host in range(len(hosts))]
    for host, own in enumerate(hosts):
        entry = _on_rail(shape, hosts, rails, host, channel + turns[host])
        leave = _on_rail(shape, hosts, rails, host, channel + turns[(host + 1) % len(hosts)])
        members = _turned(own, entry)
        if leave != entry:
            members.remove(leave)
            members.append(leave)
        order += members
    return tuple(order)


def _turned(members: tuple[int, ...], first_member: int) -> list[int]:
    """Return the members of a host in their order, but from first_member on."""
    begin = members.index(first_member)
    return [*members[begin:], *members[:begin]]


class ChannelTree(NamedTuple):
    """The tree of one channel."""

    channel: int  # number of the channel
    parent: tuple[int, ...]  # parent of each member, -1 = the root
    children: tuple[tuple[int, ...], ...]  # children of each member

    def up(self, member: int) -> list[int]:
        """Return the path from a member to the root, both included."""
        path = [member]
        while self.parent[path[-1]] >= 0:
            path.append(self.parent[path[-1]])
        return path

    @property
    def depth(self) -> int:
        """Number of hops from the root to the farthest member."""
        return max(len(self.up(member)) for member in range(len(self.parent))) - 1


def tree(shape: GroupShape, channel: int, channels: int) -> ChannelTree:
    """Return the tree of a channel of `channels`: the first half of the channels use one tree, the second the other."""
    hosts = hosts_of(shape)
    rails = rails_of(shape, hosts)
    half = (channels + 1) // 2
    heads = [_on_rail(shape, hosts, rails, host, channel % half) for host in range(len(hosts))]
    parent = [-1] * shape.members
    for host, own in enumerate(hosts):
        for above, below in pairwise(_turned(own, heads[host])):
            parent[below] = above
        up = host_parent(host, len(hosts), in_second=channel >= half)
        parent[heads[host]] = heads[up] if up >= 0 else -1
    children: list[list[int]] = [[] for _ in range(shape.members)]
    for member, above in enumerate(parent):
        if above >= 0:
            children[above].append(member)
    return ChannelTree(channel, tuple(parent), tuple(map(tuple, children)))


def host_parent(host: int, host_count: int, *, in_second: bool) -> int:
    """Return the parent of host number `host`, -1 for the root; the second tree is mirrored, or shifted if odd."""
    if not in_second:
        return in_order_parent(host, host_count)
    if host_count % 2 == 0:
        up = in_order_parent(host_count - 1 - host, host_count)
        return -1 if up < 0 else host_count - 1 - up
    up = in_order_parent((host - 1) % host_count, host_count)
    return -1 if up < 0 else (up + 1) % host_count
