"""What a closed form of NCCL's time consists of: launch, steps of the protocol, channels, NVLink and NICs.

A closed form is a sum of times and maxima of such sums, each proportional to one of a few costs: the launch, the time
of a step of the protocol, and the time per byte of a channel, of NVLink and of a NIC. So it is homogeneous of degree
one in them, and by Euler's theorem it is the sum of each cost times its derivative. The fraction of a cost is the
relative change of the time over that of the cost, at NCCL's choice for the size, which stays as it is.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives.nccl.decision import NcclDecision
from nadi.workload.collectives.nccl.point_to_point import Communicator, message
from nadi.workload.collectives.nccl.pxn_plans import SendGroup, closed_form
from nadi.workload.collectives.nccl.tuning import NVLS, NVLS_TREE, base_ps
from nadi.workload.shape import GroupShape

PARTS = ("launch", "protocol", "channels", "NVLink", "NIC")
"""Launch of the kernel; times of steps, with those of host threads; rates of thread blocks; links of each kind."""
LAUNCH, PROTOCOL, CHANNELS, NVLINK, NIC = PARTS
LATENCY_PARTS = (LAUNCH, PROTOCOL)
"""Parts that do not move data: the rest is data at a rate."""
_CHANGE = 1e-3  # relative change of a cost, small enough that the same terms of maxima stay the largest

ClosedFormOf = Callable[[str, GroupShape, int, NcclDecision], float]


def of_decision(
    form: ClosedFormOf, kind: str, shape: GroupShape, size_bytes: int, decision: NcclDecision
) -> dict[str, float]:
    """Return the fraction of each of PARTS in the closed form of a decision.

    Args:
        form: The closed form of the decision's algorithm.
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        decision: NCCL's decisions for this kind and size.
    """
    less = 1 - _CHANGE
    # a channel's rate is a share of that of NVLink, or of the NIC: it stays the same where links are faster
    slower = decision._replace(shares=decision.shares / less) if decision.shares > 1 else decision
    paces_nvlink = decision.algorithm in {NVLS, NVLS_TREE} or len(set(shape.host)) == 1
    changed = {
        LAUNCH: (shape, decision._replace(launch_ps=decision.launch_ps * less)),  # type: ignore[arg-type]  # no plan
        PROTOCOL: (_with_latency(shape, less), _with_steps(decision, less)),
        CHANNELS: (shape, decision._replace(shares=max(1.0, decision.shares * less))),
        NVLINK: (_faster(shape, 1 / less, 1.0), slower if paces_nvlink else decision),
        NIC: (_faster(shape, 1.0, 1 / less), decision if paces_nvlink else slower),
    }
    time_ps = form(kind, shape, size_bytes, decision)
    parts = {
        part: max(0.0, (1 - form(kind, own_shape, size_bytes, own) / time_ps) / _CHANGE) if time_ps > 0 else 0.0
        for part, (own_shape, own) in changed.items()
    }
    # host threads and copies, which pass before data flow, are no launch
    own_launch = min(1.0, base_ps(decision.algorithm, decision.protocol) / max(1, decision.launch_ps))
    parts[PROTOCOL] += parts[LAUNCH] * (1 - own_launch)
    parts[LAUNCH] *= own_launch
    # where channels and links are equally fast, a faster one alone changes nothing: the link is what limits both
    parts[NVLINK if len(set(shape.host)) == 1 else NIC] += max(0.0, 1 - sum(parts.values()))
    return parts


def of_messages(group: SendGroup, size_bytes: int) -> dict[str, float]:
    """Return the fraction of each of PARTS in the closed form of an all-to-all; what no link takes is the channels'.

    Args:
        group: The group whose members send to each other.
        size_bytes: The size of the whole buffer in bytes.
    """
    less, block_bytes = 1 - _CHANGE, size_bytes / group.shape.members
    time_ps = closed_form(group, size_bytes)
    several = len(set(group.shape.host)) > 1
    launch = min(1.0, group.message(block_bytes, between_hosts=several).base_ps / time_ps)

    def part(shape: GroupShape, own_bytes: int = size_bytes) -> float:
        return max(0.0, (1 - closed_form(group._replace(shape=shape), own_bytes) / time_ps) / _CHANGE)

    nvlink, nic = part(_faster(group.shape, 1 / less, 1.0)), part(_faster(group.shape, 1.0, 1 / less))
    data = min(1.0 - launch, max(nvlink + nic, part(group.shape, round(size_bytes * less))))
    return {
        LAUNCH: launch,
        PROTOCOL: max(0.0, 1 - launch - data),
        CHANNELS: max(0.0, data - nvlink - nic),
        NVLINK: nvlink,
        NIC: nic,
    }


class ShiftTime(NamedTuple):
    """The time of a shift, in which every member sends a message to the next one and receives one."""

    time_ps: float  # time of the slowest message
    choice: str  # its protocol and channels
    parts: dict[str, float]  # fraction of each of PARTS in it


def of_shift(group: Communicator, shape: GroupShape, size_bytes: int) -> ShiftTime:
    """Return the time of a shift, as sendrecv_perf of nccl-tests has it.

    Every GPU sends one message and receives one, so that each uses its links alone. NCCL relays messages that change
    rails over NVLink (PXN), which costs nothing beside the NIC here.

    Args:
        group: The communicator of the members.
        shape: The positions of the members on the fabric.
        size_bytes: The size of each message in bytes.
    """
    goes_far = {host != after for host, after in pairwise((*shape.host, shape.host[0]))}
    return max((_message_alone(group, shape, size_bytes, far=far) for far in goes_far), key=lambda each: each.time_ps)


def _message_alone(group: Communicator, shape: GroupShape, size_bytes: int, *, far: bool) -> ShiftTime:
    """Return the time of a message; far: it goes to another host. Its data takes the slower of channels and link."""
    sent = message(group, size_bytes, between_hosts=far)
    path_ps, rate_bps = (shape.outside_ps, shape.outside_bps) if far else (shape.inside_ps, shape.inside_bps)
    wire_bytes, hop_ps = sent.transport.wire_bytes(size_bytes), max(sent.hop_ps, path_ps)
    channels_ps = wire_bytes / sent.gb_per_s * 1e3
    link_ps = wire_bytes * PS_PER_BYTE_AT_1_BPS / rate_bps if rate_bps else 0.0
    time_ps = sent.base_ps + hop_ps + max(channels_ps, link_ps)
    slower = CHANNELS if channels_ps > link_ps else NIC if far else NVLINK
    parts_ps = {LAUNCH: sent.base_ps, PROTOCOL: hop_ps, slower: max(channels_ps, link_ps)}
    channels = f"{sent.channels} channel{'s' * (sent.channels > 1)}"
    choice = f"send and receive {sent.protocol}, {channels}, {group.host.generation.name}"
    return ShiftTime(time_ps, choice, {part: part_ps / time_ps for part, part_ps in parts_ps.items()})


def _with_steps(decision: NcclDecision, factor: float) -> NcclDecision:
    """Return the decision with other times of steps."""
    inside_ps, between_ps = (round(step_ps * factor) for step_ps in (decision.inside_ps, decision.between_ps))
    return decision._replace(inside_ps=inside_ps, between_ps=between_ps)


def _with_latency(shape: GroupShape, factor: float) -> GroupShape:
    """Return the shape with other latencies of the paths, which are part of NCCL's times of steps."""
    trees = (
        branch._replace(
            tree=branch.tree._replace(latency_ps=tuple(round(each * factor) for each in branch.tree.latency_ps))
        )
        for branch in shape.trees
    )
    inside_ps, outside_ps = (round(each * factor) for each in (shape.inside_ps, shape.outside_ps))
    return shape._replace(inside_ps=inside_ps, outside_ps=outside_ps, trees=tuple(trees))


def _faster(shape: GroupShape, nvlink: float, nic: float) -> GroupShape:
    """Return the shape with rates multiplied by a factor for NVLinks and one for NICs."""

    def scaled(rates_bps: tuple[int, ...], is_nvlink: tuple[bool, ...]) -> tuple[int, ...]:
        pairs = zip(rates_bps, is_nvlink, strict=True)
        return tuple(round(rate * (nvlink if inside else nic)) for rate, inside in pairs)

    trees = (
        branch._replace(
            tree=branch.tree._replace(
                rate_bps=scaled(branch.tree.rate_bps, branch.tree.nvlink),
                both_ways_bps=scaled(branch.tree.both_ways_bps, branch.tree.nvlink),
            )
        )
        for branch in shape.trees
    )
    lines_bps = scaled(shape.lines_bps, (True, False))
    inside_bps, outside_bps = round(shape.inside_bps * nvlink), round(shape.outside_bps * nic)
    return shape._replace(line_bps=lines_bps, trees=tuple(trees), inside_bps=inside_bps, outside_bps=outside_bps)
