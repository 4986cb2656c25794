"""What GPU kernels add to a plan: the launch, the time of each message beside its data, and the flags of the protocol.

Every plan that GPUs execute on a machine whose accelerator has NCCL's constants (nccl.generations) costs what NCCL's
kernels cost there: in one NVLink domain those of `KernelTimes`, else those of NCCL's tuning model. The protocol is that
of the plan's file, or that which the user names, or that of NCCL for a ring (all-to-all, gather and scatter: for a
message) of the same size.

A message is on its way for the time of a step of its protocol. Sends do not wait for each other, so a plan takes the
times of the longest chain of messages of which each waits for the one before: a ring 2(n-1) of them, all pairs two. As
all of a chain is waited for whenever its data come, Nadi adds its time to that of the launch, before the first step.
"""

from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np

from nadi.inputs.units import PS_PER_US
from nadi.workload.collectives.nccl import point_to_point, tuning
from nadi.workload.collectives.nccl.decision import NcclParameters, host_of
from nadi.workload.collectives.nccl.generations import generations
from nadi.workload.collectives.plans.plan import AT_ONCE, NONE, Plans, step_table
from nadi.workload.shape import GroupShape

AUTO, NO_TIMES = "auto", "none"
PROTOCOLS = (AUTO, *tuning.PROTOCOLS, NO_TIMES)
_PLAIN_WIRE = (1, 1)
_FLAG = tuning.LL.name  # protocol of messages without data


class FlightTimes(NamedTuple):
    """The times of a protocol's messages beside their data, for a group on a machine."""

    launch_ps: int  # time of a kernel before its first message
    near_ps: int  # time of an empty message inside a host, without the path's latency, which the fabric adds
    far_ps: int  # time of an empty message between hosts, without the path's latency


def has_times(accelerator: str) -> bool:
    """Return whether the times of a machine's kernels are known.

    Args:
        accelerator: The name of the NPU type on the fabric; "" = unknown.
    """
    return accelerator in generations()


def protocol_of(kind: str, shape: GroupShape, size_bytes: int, proto: str = AUTO, *, in_switches: bool = False) -> str:
    """Return the protocol of a collective's messages: the named one, or NCCL's for a ring or messages of this size.

    Args:
        kind: The kind of collective, one of workload.KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        proto: The protocol that the user or a file names, or AUTO.
        in_switches: Whether switches sum or copy the data, which cannot have flags in between.
    """
    if proto != AUTO:
        return proto
    if kind == "barrier":
        return _FLAG
    if in_switches:
        return tuning.SIMPLE.name
    host = host_of(shape, NcclParameters())
    if kind in {"all-to-all", "gather", "scatter"}:
        group, far = point_to_point.communicator(host, is_paced=True), host.plan.hosts > 1
        return point_to_point.message(group, size_bytes / shape.members, between_hosts=far).protocol
    return tuning.best(kind, host, size_bytes, tuning.RING, AUTO)[1]


def timed(plans: Plans, shape: GroupShape, protocol: str) -> Plans:
    """Return the plans with the kernel's times before their first step, and with the bytes of the protocol.

    Plans with a launch of their own stay as they are. Those with a protocol of their own have its bytes.

    Args:
        plans: The plans of all members.
        shape: The positions of the group's members on the fabric.
        protocol: The name of the protocol of the messages, of tuning.PROTOCOLS.
    """
    if plans.launch_ps:
        return plans
    times = _flight_times(shape, protocol)
    launch_ps = times.launch_ps + round(_longest_ps(plans, shape, times))
    wire = tuning.PROTOCOLS[protocol].wire
    if plans.protocol or wire == _PLAIN_WIRE:
        return plans._replace(launch_ps=launch_ps)
    own = (plans.attributes_of(plan) for plan in range(len(plans.plans)))
    attributes = (tuple(a._replace(wire=wire) if a.wire == _PLAIN_WIRE else a for a in lanes) for lanes in own)
    return plans._replace(launch_ps=launch_ps, attributes=tuple(attributes))


def _flight_times(shape: GroupShape, protocol: str) -> FlightTimes:
    """Return the times of a protocol, by name, for a group."""
    # Kernels begin alike whatever their protocol. What NCCL's model and the rows of one NVLink domain add for LL128 is
    # the cost of a ring's slow blocks.
    host, base = host_of(shape, NcclParameters()), tuning.SIMPLE.name if protocol == tuning.SIMPLE.name else _FLAG
    far_ps = tuning.message_hop_ps(host, protocol, between_hosts=True)
    launch_ps = tuning.base_ps(tuning.RING, base)
    near_ps = tuning.message_hop_ps(host, protocol, between_hosts=False)
    if host.kernel:
        launch_ps = round(host.kernel.launch_us[tuning.column_of(base)] * PS_PER_US)
        near_ps = round(host.kernel.hop_us[tuning.column_of(protocol)] * PS_PER_US)
    return FlightTimes(launch_ps, max(0, near_ps - shape.inside_ps), max(0, far_ps - shape.outside_ps))


_OF_CHAINS = [0, 1, 2, 3, 6]  # columns of a step that chains depend on: what it waits for, its receiver and its sender


def _longest_ps(plans: Plans, shape: GroupShape, times: FlightTimes) -> float:
    """Return the picoseconds of the longest chain of messages without data."""
    flight = _Flight(plans, shape, times)
    lanes = {
        (member, lane): step_table([steps])[:, _OF_CHAINS].tolist()
        for member, own in enumerate(plans.plans)
        for lane, steps in enumerate(own)
    }
    done_ps: dict[tuple[int, int], list[float]] = {key: [] for key in lanes}
    # arrivals of the messages of each sender in a lane, in order, and the number that the lane has taken
    arrived: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    taken: dict[tuple[int, int, int], int] = defaultdict(int)
    waiting: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)  # lanes by the lane or message they need
    sent: set[tuple[int, int]] = set()  # lanes whose next step has sent, and waits for a message
    ready = deque(lanes)
    while ready:
        key = ready.popleft()
        member, lane = key
        own_ps, steps = done_ps[key], lanes[key]
        has_sent = key in sent
        sent.discard(key)
        for at in range(len(own_ps), len(steps)):
            dep_lane, dep_step, to, to_lane, source = steps[at]
            begin_ps = own_ps[-1] if own_ps else 0.0
            if (dep_lane, dep_step) != AT_ONCE:
                before = done_ps[member, dep_lane]
                if len(before) <= dep_step:
                    waiting[member, dep_lane].append(key)
                    break
                begin_ps = max(begin_ps, before[dep_step])
            if to != NONE and not has_sent:
                receiver, sender, flight_ps = flight.of(member, lane, to)
                message = receiver, to_lane, sender
                arrived[message].append(begin_ps + flight_ps)
                ready.extend(waiting.pop(message, ()))
            if source != NONE:
                message = member, lane, source
                number = taken[message]
                if len(arrived[message]) == number:
                    waiting[message].append(key)
                    if to != NONE:
                        sent.add(key)
                    break
                begin_ps = max(begin_ps, arrived[message][number])
                taken[message] = number + 1
            has_sent = False
            own_ps.append(begin_ps)
            if key in waiting:
                ready.extend(waiting.pop(key))
    return max((own_ps[-1] for own_ps in done_ps.values() if own_ps), default=0.0)


class _Flight:
    """The ends of messages of a plan, and their times; a relative plan is that of one member, for all."""

    def __init__(self, plans: Plans, shape: GroupShape, times: FlightTimes) -> None:
        self._plans, self._times = plans, times
        self._host = [int(host) for host in shape.host]
        self._trees = shape.trees
        self._outside: dict[int, bool] = {}
        self._known: dict[tuple[int, int], tuple[int, float]] = {}

    def of(self, member: int, lane: int, to: int) -> tuple[int, int, float]:
        """Return receiver, sender as the receiver names it, and ps of a message to `to` from a member's lane."""
        if self._plans.relative:
            view = self._plans.attributes_of(0)[lane].view
            if (view, to) not in self._known:
                self._known[view, to] = self._of_all(view, to)
            sender, flight_ps = self._known[view, to]
            return 0, sender, flight_ps
        n = len(self._host)
        if member >= n:  # a switch sends on without a kernel
            return to, member, 0.0
        if to >= n and to not in self._outside:
            self._outside[to] = self._is_outside(to)
        far = self._outside[to] if to >= n else self._host[to] != self._host[member]
        return to, member, self._times.far_ps if far else self._times.near_ps

    def _is_outside(self, aggregator: int) -> bool:
        """Return whether a switch sums the data of several hosts, which come over NICs."""
        branch = max((branch for branch in self._trees if branch.first <= aggregator), key=lambda own: own.first)
        return len({self._host[member] for member in branch.members}) > 1

    def _of_all(self, view: int, distance: int) -> tuple[int, float]:
        """Return the distance back and the mean ps of the messages of all members to a distance in their lines."""
        host = np.array(self._host)
        order = np.arange(len(host)) if view == NONE else self._plans.views[view].member
        size = len(order) if view == NONE else self._plans.views[view].size
        lines = host[order].reshape(-1, size)
        far = float(np.mean(lines != np.roll(lines, -distance, axis=1)))
        return size - distance, far * self._times.far_ps + (1 - far) * self._times.near_ps
