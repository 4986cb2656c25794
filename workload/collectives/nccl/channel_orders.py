"""NCCL's channels: their number and speed, and the rings and double binary trees that they form over the members.

All members of a host are consecutive in a ring. Channel c enters and leaves a host over rail c or a neighbour of it. If
there are as many channels as rails, each uses each NIC once per direction, and a hop between hosts stays on its rail
(as in SimAI, and in NCCL without NCCL_CROSS_NIC).

A tree has a chain inside each host, as in NCCL 2.4 and later. An inner node of one tree is a leaf of the other, so that
two trees with half of the data each load all hosts equally (Sanders, Speck and Traeff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009, section 3).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from nadi.workload.collectives.nccl.generations import Generation
from nadi.workload.collectives.plans.rings_and_trees import MemberTree, in_order_parent
from nadi.workload.shape import GroupShape

Hosts = tuple[tuple[int, ...], ...]  # the members of each host, by place


def hosts_of(shape: GroupShape) -> Hosts:
    """Return the members of each host of a group, in the order of their NPUs.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    members_of_host: list[list[int]] = [[] for _ in range(max(shape.host) + 1)]
    for member in sorted(range(shape.members), key=lambda m: shape.place[m]):
        members_of_host[shape.host[member]].append(member)
    return tuple(tuple(own) for own in members_of_host)


def rails_of(shape: GroupShape, hosts: Hosts) -> tuple[int, ...]:
    """Return the places that are occupied in every host.

    Args:
        shape: The positions of the group's members on the fabric.
        hosts: The members of each host, by place.
    """
    return tuple(sorted(set.intersection(*({shape.place[m] for m in own} for own in hosts))))


def _on_rail(shape: GroupShape, hosts: Hosts, rails: tuple[int, ...], host: int, rail_number: int) -> int:
    """Return a host's member on the rail of a number (modulo); without common rails, its member of that number."""
    own = hosts[host]
    if not rails:
        return own[rail_number % len(own)]
    return next(m for m in own if shape.place[m] == rails[rail_number % len(rails)])


def ring(shape: GroupShape, channel: int) -> tuple[int, ...]:
    """Return the members of a group in the order of a channel's ring.

    If hosts share fewer than two rails, or fewer than three for an odd number of hosts, some hop changes its rail: the
    ring must leave a host by another NPU than where it enters.

    Args:
        shape: The positions of the group's members on the fabric.
        channel: The number of the channel.
    """
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


def tree(shape: GroupShape, channel: int, channels: int) -> MemberTree:
    """Return the tree of a channel: the first half of the channels use one tree, the second half the other.

    Args:
        shape: The positions of the group's members on the fabric.
        channel: The number of the channel.
        channels: The number of channels.
    """
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
    return MemberTree.of(parent)


def host_parent(host: int, host_count: int, *, in_second: bool) -> int:
    """Return a host's parent in a tree over hosts, -1 for the root; the second tree is mirrored, or shifted if odd.

    Args:
        host: The number of the host.
        host_count: The number of hosts.
        in_second: Whether the tree is the second one.
    """
    if not in_second:
        return in_order_parent(host, host_count)
    if host_count % 2 == 0:
        # The first tree, mirrored
        up = in_order_parent(host_count - 1 - host, host_count)
        return -1 if up < 0 else host_count - 1 - up
    # The first tree, shifted by one host
    up = in_order_parent((host - 1) % host_count, host_count)
    return -1 if up < 0 else (up + 1) % host_count


# NCCL's graph search for a group: the number of channels, and their speeds (src/graph/search.cc).
#
# NCCL searches the links of a host for channels that all have one speed out of a list, the largest sum of speeds first.
# On a host whose NVSwitch connects all GPUs equally and whose NICs are distributed evenly, the search reduces to
# counting: a channel takes its speed from every link that it crosses. `planned` counts; a test walks the links one by
# one. Several NICs of an NPU count as one with the rates of all, as NCCL merges the ports of a NIC
# (NCCL_NET_MERGE_LEVEL).


_MAX_CHANNELS = 16  # maximum number of channels of a search (MAXCHANNELS / 2); the communicator then uses each twice
MAX_HEADS = 32  # maximum number of NPUs that pull from NVSwitches (NCCL_MAX_NVLS_ARITY)
_MIN_TO_DOUBLE = 25.0  # minimum speed in GB/s of a channel that is split into two (ncclTopoDupChannels)
# After Ampere, more than _MANY channels are split only from this speed in GB/s on (ncclTopoDupChannels)
_MIN_OF_MANY = 50.0
_MANY = 4
_STOPS_BELOW = 0.49  # fraction of the best speed so far below which the search stops
_ROUNDING = 1e-6  # tolerance of comparisons of speeds in GB/s
_FEW_CHANNELS = 16
# From Hopper on, fewer than _FEW_CHANNELS channels between hosts are doubled twice above this (ncclTopoPostset)
_MIN_TO_QUADRUPLE = 45.0
AMPERE, HOPPER, BLACKWELL = 80, 90, 100


class ChannelGraph(NamedTuple):
    """The channels of one algorithm."""

    channels: int  # number of channels that the search finds
    inside: float  # speed of a channel in a host, in GB/s
    between: float  # speed of a channel between hosts in GB/s; in one host, the search's value for it
    alone: float = 0.0  # value of `inside` without NICs, for NVLS, in GB/s; 0 = not used


class GroupChannels(NamedTuple):
    """The channels of a group."""

    hosts: int  # number of hosts that hold at least one member
    per_host: int  # minimum number of members of a host
    ring: ChannelGraph  # channels of rings
    tree: ChannelGraph  # channels of trees
    nvls: ChannelGraph | None  # channels of NVLS, one per head; None = no NVSwitches that sum
    used: int  # number of channels of the communicator: those of the ring, each used twice
    nvlink: float  # GB/s that the search counts for all NVLinks of a member; 0 = no NVLink
    net: float  # GB/s that the search counts for a member's NICs, or for its part of a NIC that members share
    nics: int  # number of NICs of a host; several NICs of one member count as one

    @property
    def members_per_nic(self) -> int:
        """The number of members of a host that share a NIC."""
        return max(1, self.per_host // self.nics)


def planned(shape: GroupShape, generation: Generation) -> GroupChannels:
    """Return the channels that the search finds for a group.

    Args:
        shape: The positions of the group's members on the fabric.
        generation: The constants of NCCL for the GPUs of the group.
    """
    counts = shape.host_members
    hosts, per_host = len(counts), min(counts)
    inside_bps, outside_bps = shape.lines_bps
    nvlink = inside_bps / 8e9 * generation.nvlink_payload
    nics = min(shape.nics, per_host)
    sharing = max(1, per_host // nics)  # members of a NIC, each of which has an equal part of it
    nic = min(outside_bps / 8e9 * sharing, generation.pcie)
    if hosts == 1:
        # each ring takes its speed from every member's links, once per direction
        fastest = _greatest(generation.inside_speeds, nvlink, nvlink, lambda speed: int(nvlink / speed + _ROUNDING))
        ring = _doubled(fastest, generation)
        # A tree of n members has n-1 links, a ring has n: all trees together may use n / (n-1) of a member's links
        tree = _tree(ring.channels, nvlink * per_host / (per_host - 1), generation.inside_speeds, nvlink)
    else:

        def count(speed: float) -> int:
            """Return how many channels of a `speed` fit, which each takes of a NIC both ways and of all NVLinks."""
            through_nics = nics * int(nic / speed + _ROUNDING)
            return min(through_nics, int(nvlink / speed + _ROUNDING)) if nvlink else through_nics

        ring = _doubled(_greatest(generation.between_speeds, nic, nvlink, count), generation)
        in_host_gb_per_s = nvlink * per_host / (per_host - 1) if per_host > 1 else nics * nic
        tree = _tree(ring.channels, min(nics * nic, in_host_gb_per_s), generation.between_speeds, nic)
        tree = _faster_inside(tree, in_host_gb_per_s, generation.between_speeds)
    nvls = None
    if sums_in_switches(shape) and generation.nvls_efficiency:
        nvls = _nvls(hosts, per_host, nics, nic, nvlink, generation)
    # NCCL's communicator uses each channel of the search twice (ncclTopoPostset)
    used = 2 * ring.channels
    hopper = generation.compute_capability >= HOPPER
    if hopper and hosts > 1 and ring.between > _MIN_TO_QUADRUPLE and used < _FEW_CHANNELS:
        used *= 2
    if len(shape.nic_shares) > 1:  # each NIC has two channels or more, as many as its rate says
        # Round up to two channels for each stripe, so that the NICs' shares of the channels are whole numbers
        used = -(-used // (2 * shape.stripes)) * 2 * shape.stripes
    return GroupChannels(hosts, per_host, ring, tree, nvls, min(used, 2 * _MAX_CHANNELS), nvlink, nic / sharing, nics)


def sums_in_switches(shape: GroupShape) -> bool:
    """Return whether each host of a group has an NVSwitch that sums all its members, and more than two members.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    of_host: dict[int, set[int]] = {}
    for member, host in enumerate(shape.host):
        of_host.setdefault(host, set()).add(member)
    summed_sets = [set(branch.members) for branch in shape.trees if all(branch.tree.nvlink[: len(branch.members)])]
    min_members = min(len(own) for own in of_host.values())
    return min_members > 2 and all(own in summed_sets for own in of_host.values())


def _greatest(
    speeds: tuple[float, ...], max_gb_per_s: float, enough_gb_per_s: float, channels_at: Callable[[float], int]
) -> ChannelGraph:
    """Return the channels with the largest sum of speeds, the first of equal ones; slow speeds are not tried."""
    # speeds: in GB/s, the fastest first; max_gb_per_s: of one channel; enough_gb_per_s: sum that ends it; channels_at:
    # function that returns how many channels of a speed fit.
    best = ChannelGraph(0, 0.0, 0.0)
    for speed in speeds:
        if speed > max_gb_per_s + _ROUNDING:
            continue
        if best.channels and speed / best.between <= _STOPS_BELOW:
            break
        channels = min(channels_at(speed), _MAX_CHANNELS)
        if channels * speed > best.channels * best.inside:
            best = ChannelGraph(channels, speed, speed)
        if channels == _MAX_CHANNELS or best.channels * best.inside >= enough_gb_per_s > 0:
            break
    return best if best.channels else ChannelGraph(1, 0.1, 0.1)


def _doubled(graph: ChannelGraph, generation: Generation) -> ChannelGraph:
    """Return fast channels as twice as many of half the speed (ncclTopoDupChannels), others as they are."""
    if graph.inside < _MIN_TO_DOUBLE:
        return graph
    if generation.compute_capability > AMPERE and graph.inside < _MIN_OF_MANY and graph.channels > _MANY:
        return graph
    channels = min(2 * graph.channels, _MAX_CHANNELS)
    # The limit on channels may allow less than twice as many; each then keeps a whole fraction of the speed
    parts = -(-channels // graph.channels)
    return ChannelGraph(channels, graph.inside / parts, graph.between / parts)


def _tree(channels: int, max_gb_per_s: float, speeds: tuple[float, ...], fastest_gb_per_s: float) -> ChannelGraph:
    """Return as many channels as the ring has, at the largest of `speeds` that fits, in GB/s."""
    # max_gb_per_s: of all channels together; fastest_gb_per_s: of one channel.
    fits = [s for s in speeds if s <= fastest_gb_per_s + _ROUNDING and s * channels <= max_gb_per_s + _ROUNDING]
    speed = fits[0] if fits else speeds[-1]
    return ChannelGraph(channels, speed, speed)


def _faster_inside(tree: ChannelGraph, in_host_gb_per_s: float, speeds: tuple[float, ...]) -> ChannelGraph:
    """Return a tree over hosts with the largest speed inside that all its channels have, below twice that between.

    ncclTopoCompute raises the speed inside step by step, as data cross a NIC once where they cross NVLinks twice on two
    hosts; it tries the next of `speeds` while the one it has is below twice the speed between hosts.
    """
    # in_host_gb_per_s: of all channels together
    inside = tree.inside
    for speed in reversed(speeds[: speeds.index(inside)] if inside in speeds else ()):
        if inside >= 2 * tree.between or speed * tree.channels > in_host_gb_per_s + _ROUNDING:
            break
        inside = speed
    return tree._replace(inside=inside)


def heads_of(hosts: int, per_host: int, nics: int) -> int:
    """Return the number of NVLS heads of a host: over hosts, NCCL's search finds one per NIC.

    Args:
        hosts: The number of hosts.
        per_host: The number of members of a host.
        nics: The number of NICs of a host.
    """
    return min(per_host if hosts == 1 else nics, MAX_HEADS)


def _nvls(
    hosts: int, per_host: int, nics: int, nic_gb_per_s: float, nvlink_gb_per_s: float, generation: Generation
) -> ChannelGraph:
    """Return a channel per head, which takes its speed from every member's links, and twice from the head's."""
    # As in ncclTopoSearchTryNvls, the speed between hosts is raised while it is below twice the speed inside and, if
    # there are NICs, fits them.
    heads = heads_of(hosts, per_host, nics)

    def greatest(heads: int, speeds: tuple[float, ...], fastest: float) -> float:
        """Return the largest of `speeds` in GB/s, at most `fastest`, at which every member's links carry all heads."""
        fits = (s for s in speeds if s <= fastest + _ROUNDING and (heads + 1) * s <= nvlink_gb_per_s + _ROUNDING)
        return next(fits, speeds[-1])

    alone = greatest(heads_of(1, per_host, nics), generation.inside_speeds, nvlink_gb_per_s)
    speeds = generation.inside_speeds if hosts == 1 else generation.between_speeds
    inside = alone if hosts == 1 else greatest(heads, speeds, nic_gb_per_s)
    between = inside
    # `speeds` falls, so these are the ones faster than `inside`, the slowest of them first
    for speed in reversed(speeds[: speeds.index(inside)]):
        if between >= 2 * inside or (hosts > 1 and speed > nic_gb_per_s + _ROUNDING):
            break
        between = speed
    return ChannelGraph(heads, inside, between, alone)
