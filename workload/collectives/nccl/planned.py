"""What NCCL's graph search plans for a group: how many channels, at which speeds (src/graph/search.cc).

NCCL searches the links of a host for channels that all have one speed out of a list, the greatest sum of speeds first.
On a host whose NVSwitch joins all GPUs alike and whose NICs are shared out evenly the search comes to counting: a
channel takes its speed from every link that it crosses. `planned` counts; a test walks the links one by one.
"""

from collections.abc import Callable
from typing import NamedTuple

from workload.collectives.nccl.generations import Generation
from workload.shape import Shape

_MOST_CHANNELS = 16
"""Of a search (MAXCHANNELS / 2); the communicator then uses each twice."""
_MOST_HEADS = 32
"""NPUs that pull from NVSwitches (NCCL_MAX_NVLS_ARITY)."""
_LEAST_TO_DOUBLE = 25.0
_NO_MORE_OF_MANY = 50.0
_MANY = 4
_STOPS_BELOW = 0.49
_ROUNDING = 1e-6
_FEW_CHANNELS = 16
_LEAST_OF_FOUR = 45.0
AMPERE, HOPPER, BLACKWELL = 80, 90, 100


class ChannelGraph(NamedTuple):
    """Channels of one algorithm.

    Attributes:
        channels: of the search.
        inside: GB/s of a channel in a host.
        between: GB/s of a channel between hosts, or what the search says of it in one host.
        alone: of NVLS, what `inside` would be without NICs; 0 = of no interest.
    """

    channels: int
    inside: float
    between: float
    alone: float = 0.0


class GroupChannels(NamedTuple):
    """What is planned for a group.

    Attributes:
        hosts: that its members stand on.
        per_host: members of the least host.
        ring: channels of rings.
        tree: channels of trees.
        nvls: channels of NVLS, one for each head; None = NVSwitches that sum are not there.
        used: channels of the communicator: those of the ring, each used twice.
        nvlink: GB/s that the search counts of a member's NVLinks together; 0 = there is none.
        net: GB/s that the search counts of a member's NIC.
    """

    hosts: int
    per_host: int
    ring: ChannelGraph
    tree: ChannelGraph
    nvls: ChannelGraph | None
    used: int
    nvlink: float
    net: float


def planned(shape: Shape, generation: Generation) -> GroupChannels:
    """What the search finds for a group."""
    counts = [shape.host.count(host) for host in sorted(set(shape.host))]
    hosts, per_host = len(counts), min(counts)
    inside_bps, outside_bps = shape.lines_bps
    nvlink = inside_bps / 8e9 * generation.nvlink_payload
    net = min(outside_bps / 8e9, generation.pcie)
    if hosts == 1:
        ring = _doubled(_ring_inside(nvlink, generation.inside_speeds), generation)
        tree = _tree(ring.channels, nvlink * per_host / (per_host - 1), generation.inside_speeds, nvlink)
    else:
        ring = _doubled(_ring_between(per_host, net, nvlink, generation.between_speeds), generation)
        most = min(per_host * net, nvlink * per_host / (per_host - 1) if per_host > 1 else per_host * net)
        tree = _tree(ring.channels, most, generation.between_speeds, net)
    nvls = None
    if sums_in_switches(shape) and generation.nvls_efficiency:
        nvls = _nvls(hosts, per_host, net, nvlink, generation)
    return GroupChannels(hosts, per_host, ring, tree, nvls, _used(hosts, ring, generation), nvlink, net)


def sums_in_switches(shape: Shape) -> bool:
    """Whether the members of each host have an NVSwitch that sums: as many in each, more than two."""
    of_host: dict[int, set[int]] = {}
    for member, host in enumerate(shape.host):
        of_host.setdefault(host, set()).add(member)
    found = [set(branch.members) for branch in shape.trees if all(branch.tree.nvlink[: len(branch.members)])]
    least = min(len(own) for own in of_host.values())
    return least > 2 and all(own in found for own in of_host.values())


def _ring_inside(nvlink: float, speeds: tuple[float, ...]) -> ChannelGraph:
    """A ring takes its speed of every member's links once in either direction."""
    return _greatest(speeds, nvlink, nvlink, lambda speed: int(nvlink / speed + _ROUNDING))


def _ring_between(nics: int, net: float, nvlink: float, speeds: tuple[float, ...]) -> ChannelGraph:
    """A ring enters a host by a NIC and leaves it by one; inside it takes its speed of every member's NVLinks."""

    def count(speed: float) -> int:
        through_nics = nics * int(net / speed + _ROUNDING)
        return min(through_nics, int(nvlink / speed + _ROUNDING)) if nvlink else through_nics

    return _greatest(speeds, net, nvlink, count)


def _greatest(speeds: tuple[float, ...], fastest: float, enough: float, count: Callable[[float], int]) -> ChannelGraph:
    """The greatest sum of speeds; of equal ones the first; no slower ones below about half of what was found."""
    best = ChannelGraph(0, 0.0, 0.0)
    for speed in speeds:
        if speed > fastest + _ROUNDING:
            continue
        if best.channels and speed / best.between <= _STOPS_BELOW:
            break
        channels = min(count(speed), _MOST_CHANNELS)
        if channels * speed > best.channels * best.inside:
            best = ChannelGraph(channels, speed, speed)
        if channels == _MOST_CHANNELS or best.channels * best.inside >= enough > 0:
            break
    return best if best.channels else ChannelGraph(1, 0.1, 0.1)


def _doubled(graph: ChannelGraph, generation: Generation) -> ChannelGraph:
    """Fast channels are used as two of half the speed (ncclTopoDupChannels)."""
    if graph.inside < _LEAST_TO_DOUBLE:
        return graph
    if generation.compute_capability > AMPERE and graph.inside < _NO_MORE_OF_MANY and graph.channels > _MANY:
        return graph
    channels = min(2 * graph.channels, _MOST_CHANNELS)
    parts = -(-channels // graph.channels)
    return ChannelGraph(channels, graph.inside / parts, graph.between / parts)


def _tree(channels: int, most: float, speeds: tuple[float, ...], fastest: float) -> ChannelGraph:
    """As many channels as the ring has, at the greatest speed that they can have."""
    fits = [s for s in speeds if s <= fastest + _ROUNDING and s * channels <= most + _ROUNDING]
    speed = fits[0] if fits else speeds[-1]
    return ChannelGraph(channels, speed, speed)


def _nvls(hosts: int, per_host: int, net: float, nvlink: float, generation: Generation) -> ChannelGraph:
    """A channel for each head takes its speed of every member's links, of the head's twice (ncclTopoSearchTryNvls).

    The speed between hosts is raised as long as it is below twice the one inside and, where there are NICs, fits these.
    """
    heads = min(per_host, _MOST_HEADS)

    def greatest(speeds: tuple[float, ...], fastest: float) -> float:
        fits = (s for s in speeds if s <= fastest + _ROUNDING and (heads + 1) * s <= nvlink + _ROUNDING)
        return next(fits, speeds[-1])

    alone = greatest(generation.inside_speeds, nvlink)
    speeds = generation.inside_speeds if hosts == 1 else generation.between_speeds
    inside = alone if hosts == 1 else greatest(speeds, net)
    between = inside
    for speed in reversed(speeds[: speeds.index(inside)]):
        if between >= 2 * inside or (hosts > 1 and speed > net + _ROUNDING):
            break
        between = speed
    return ChannelGraph(heads, inside, between, alone)


def _used(hosts: int, ring: ChannelGraph, generation: Generation) -> int:
    """Each channel twice; from Hopper on once more where few and fast ones lead to other hosts (ncclTopoPostset)."""
    used = 2 * ring.channels
    hopper = generation.compute_capability >= HOPPER
    if hopper and hosts > 1 and ring.between > _LEAST_OF_FOUR and used < _FEW_CHANNELS:
        used *= 2
    return min(used, 2 * _MOST_CHANNELS)
