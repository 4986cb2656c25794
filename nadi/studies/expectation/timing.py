"""The time of one collective of a group on an idle fabric, by packets, flows or the algorithm's formula.

The method follows from the number of messages: packets for few, flows for more, and the formula beyond. Formulas leave
out how channels get in each other's way, so that a formula for sizes above those of flows, with the same choice of
algorithm and protocol, is multiplied by what flows took of the formula at the largest size that they simulated.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.insight.benchmark_logs import SEND_RECEIVE
from nadi.simulation.closed_forms import IsolatedCollectives, closed_form, payload_shape
from nadi.simulation.resolving import TimedFabric
from nadi.topologies import Graph
from nadi.workload import CollectiveSettings, Program, ScheduleSet, collective_program
from nadi.workload.collectives import (
    ON_NVSWITCHES,
    AlgorithmChoice,
    choose,
    default_algorithm,
    defaults_on,
    with_parameters,
)
from nadi.workload.shape import GroupShape, shape_of, stripes_of

MAX_PACKETS = 1 << 16  # number of packets up to which packets are simulated: 50 ms
MAX_FLOWS = 1 << 18  # number of messages up to which flows are: 0.3 s
MAX_STEPS = 1 << 21  # number of steps of plans up to which plans are built: some seconds, and 300 MB
_FEW_MEMBERS = 64  # number of members up to which no plan is coarse (workload.collectives)
_LARGE_BYTES = 16 << 30  # size of a buffer for which NCCL uses all of its channels
CHANNELS = re.compile(r"(?<![0-9])([0-9]++) channels")  # in a choice
LATENCY, LINKS = "latency", "links"  # parts of times of other algorithms than NCCL's


class CollectiveTime(NamedTuple):
    """The time of a collective alone."""

    time_ps: float
    source: str  # "packets", "flows", "formula" or "messages"
    choice: str  # algorithm, protocol and channels
    parts: dict[str, float]  # fraction of each part of the time (`nccl.time_parts`); {} = not known
    program: Program | None  # its schedule, number 0; None = none was built


class _Case(NamedTuple):
    """A collective of a size with its algorithm."""

    kind: str
    size_bytes: int
    chosen: AlgorithmChoice
    shape: GroupShape | None  # None = the algorithm does not depend on it
    payload: GroupShape | None  # shape with the rates that headers leave
    stripes: int  # number of stripes of the buffer over parallel NICs

    @property
    def on(self) -> GroupShape:
        """The shape, for an algorithm that needs it."""
        return self.chosen.on(self.kind, self.shape)


class HostGroup:
    """GPUs of some hosts of a fabric, and the times of their collectives."""

    def __init__(
        self,
        fabric: TimedFabric,
        members: Int64,
        nccl: Mapping[str, str] = {},
        channels: tuple[int, int] = (0, 0),
        *,
        follows_links: bool = False,
    ) -> None:
        """Begin without times.

        fabric: the idle fabric; members: int64[n], NPUs; nccl: parameters of the algorithm "nccl" that a command sets;
        channels: its minimum and maximum number of channels, 0 = NCCL's own; follows_links: whether plans are needed
        also where the formula gives the time.
        """
        self.graph: Graph = fabric.graph
        self.settings, self._named = fabric.settings, fabric.collectives
        self.members = members
        self.follows_links = follows_links
        self._nccl, self._channels = nccl, channels
        self._shapes: dict[str, tuple[GroupShape, GroupShape]] = {}  # by trees: shape, and with payload rates
        self._continued: dict[tuple[str, str], float] = {}  # of kinds and choices: time by flows over the formula's
        self._empty_ps: dict[str, float] = {}  # times of tiny buffers by kind, for algorithms other than NCCL's
        self._without_schedules = collective_program("barrier", 1, 0)

    @property
    def hosts(self) -> int:
        """Number of hosts of the members."""
        return len(np.unique(self.graph.host[self.members]))

    def algorithm(self, kind: str, size_bytes: int = _LARGE_BYTES) -> str:
        """Return the algorithm of a kind and size with its parameters, as users write it.

        Args:
            kind: The kind of collective.
            size_bytes: The size of the whole buffer in bytes, on which the channels that a command asks for depend.
        """
        if kind == SEND_RECEIVE:
            return self.algorithm("all-to-all", size_bytes)
        named = self._named.algorithm.get(kind) or defaults_on(self.graph).get(kind) or default_algorithm(kind)
        algorithm = CollectiveSettings({**self._named.algorithm, kind: named}).algorithm_of(kind)
        if algorithm.partition(":")[0] != ON_NVSWITCHES:
            return algorithm
        algorithm = with_parameters(algorithm, self._nccl)
        channels = self._channels_asked(kind, algorithm, size_bytes)
        return with_parameters(algorithm, {"channels": str(channels)} if channels else {})

    def _channels_asked(self, kind: str, algorithm: str, size_bytes: int) -> int:
        """Return the channels of a size with the command's minimum and maximum; 0 = NCCL's own.

        NCCL uses fewer channels for small buffers, whatever the minimum of the communicator is.
        """
        least, most = self._channels
        if not least and not most:
            return 0
        if kind == "all-to-all":
            return most or least
        own, full = (self._own_channels(kind, algorithm, size) for size in (size_bytes, _LARGE_BYTES))
        if most and own > most:
            return most
        return least if own == full and least > own else 0

    def _own_channels(self, kind: str, algorithm: str, size_bytes: int) -> int:
        """Return the number of channels that NCCL would use."""
        chosen = choose(kind, algorithm)
        match = CHANNELS.search(chosen.describe(kind, self._shape(chosen.trees)[0], size_bytes))
        return int(match[1]) if match else 0

    def time(self, kind: str, size_bytes: int) -> CollectiveTime:
        """Return the time of a collective; larger sizes of a kind come after smaller ones.

        Args:
            kind: The kind of collective.
            size_bytes: The size of the whole buffer in bytes.
        """
        if kind == SEND_RECEIVE:
            return self._shift(size_bytes)
        chosen, n = choose(kind, self.algorithm(kind, size_bytes)), len(self.members)
        by_shape = chosen.needs_shape or chosen.pays(self.graph.accelerator)
        shape, payload = self._shape(chosen.trees) if by_shape else (None, None)
        stripes = stripes_of(self.graph, self.members)
        extent = chosen.striped(kind, stripes).extent(kind, n, shape, size_bytes)
        case = _Case(kind, size_bytes, chosen, shape, payload, stripes)
        if payload is None or not chosen.needs_shape or chosen.pays(self.graph.accelerator):
            return self._of_plain(case)
        # the formula knows the shape only: it needs no plan
        formula_ps = chosen.closed_form(kind, n, size_bytes, 0.0, 0.0, payload)
        formula_ps += self.settings.fidelity.endpoint_delay_ps
        alone = CollectiveTime(
            formula_ps, "formula", _choice(case), chosen.parts_of_time(kind, payload, size_bytes), None
        )
        # steps of one plan that all members share are those of each
        messages = extent.steps * (n if extent.plans == 1 else 1)
        # as in `closed_form`: chunks of plans of large groups may be so large that the formula is nearer
        is_coarse = n > _FEW_MEMBERS and chosen.is_coarse(kind, case.on, size_bytes)
        simulates = messages <= MAX_FLOWS and not is_coarse
        if extent.steps > MAX_STEPS or not (simulates or self.follows_links):
            return self._continued_formula(kind, alone)
        program = self._program(case)
        alone = alone._replace(program=program)
        found = self._simulated(case, alone, program) if simulates else None
        if found is None:
            return self._continued_formula(kind, alone)
        self._continued[kind, _family(alone.choice)] = found.time_ps / formula_ps
        return found

    def _of_plain(self, case: "_Case") -> CollectiveTime:
        """Return the time of an algorithm that has no formula of its shape: simulated, or by its messages' paths."""
        program = self._program(case)
        alone = CollectiveTime(0.0, "formula", _choice(case), {}, program)
        found = self._simulated(case, alone, program)
        if found is None:
            none, algorithm = IsolatedCollectives(0, max_flows=0), self.algorithm(case.kind, case.size_bytes)
            arguments = self.graph, program, self.settings, case.kind, algorithm, 0, self.members, case.size_bytes, none
            found = alone._replace(time_ps=closed_form(*arguments).time_ps)
        if case.size_bytes > _tiny_bytes(len(self.members)) and case.kind not in self._empty_ps:
            self._empty_ps[case.kind] = self._of_plain(case._replace(size_bytes=_tiny_bytes(len(self.members)))).time_ps
        latency = min(1.0, self._empty_ps.get(case.kind, found.time_ps) / found.time_ps)
        return found._replace(parts={LATENCY: latency, LINKS: 1 - latency})

    def _program(self, case: "_Case") -> Program:
        """Return a program that holds the schedule of a collective as number 0."""
        schedules = ScheduleSet()
        algorithm = self.algorithm(case.kind, case.size_bytes)
        schedules.add(case.kind, algorithm, len(self.members), case.shape, case.size_bytes, case.stripes)
        return self._without_schedules._replace(schedules=schedules.pack())

    def _simulated(self, case: "_Case", alone: CollectiveTime, program: Program) -> CollectiveTime | None:
        """Return the time by packets, or by flows; None if both are too many."""
        isolated = IsolatedCollectives(MAX_PACKETS, max_flows=MAX_FLOWS)
        how = self.graph, program, self.settings, case.chosen, 0, self.members.tolist(), case.size_bytes
        for source, simulated_ps in (("packets", isolated.time_ps), ("flows", isolated.flows_ps)):
            time_ps = simulated_ps(*how)
            if time_ps is not None:
                return alone._replace(time_ps=time_ps, source=source)
        return None

    def _continued_formula(self, kind: str, formula: CollectiveTime) -> CollectiveTime:
        """Return the formula's time, continued from the flows of smaller sizes with the same choice."""
        factor = self._continued.get((kind, _family(formula.choice)))
        if factor is None:
            return formula
        return formula._replace(time_ps=formula.time_ps * factor, source=f"formula x {factor:.2f}, from flows")

    def _shape(self, trees: str) -> tuple[GroupShape, GroupShape]:
        """Return the shape of the members, and the same with the rates that headers leave for payload."""
        if trees not in self._shapes:
            payload = payload_shape(self.graph, self.settings, self.members, trees=trees)
            self._shapes[trees] = shape_of(self.graph, self.members, trees=trees), payload
        return self._shapes[trees]

    def _shift(self, size_bytes: int) -> CollectiveTime:
        """Return the time in which each member sends to the next one, as sendrecv_perf has it: the slowest message."""
        all_to_all = choose("all-to-all", self.algorithm("all-to-all"))
        _, payload = self._shape(all_to_all.trees)
        shift = getattr(all_to_all.module, "shift", None)
        if shift is None:
            return self._plain_shift(payload, size_bytes)
        found = shift(payload, size_bytes, **dict(all_to_all.parameters))
        return CollectiveTime(found.time_ps, "messages", found.choice, found.parts, None)

    def _plain_shift(self, payload: GroupShape, size_bytes: int) -> CollectiveTime:
        """Return the time of a shift without NCCL's costs: latency and bytes of the slowest path."""
        rates_bps = [rate for rate in (payload.inside_bps, payload.outside_bps) if rate] or list(payload.rate_bps)
        latency_ps = max(payload.outside_ps, payload.inside_ps, *payload.latency_ps)
        data_ps = size_bytes * PS_PER_BYTE_AT_1_BPS / min(rates_bps)
        time_ps = self.settings.fidelity.endpoint_delay_ps + latency_ps + data_ps
        parts = {LATENCY: 1 - data_ps / time_ps, LINKS: data_ps / time_ps}
        return CollectiveTime(time_ps, "messages", "send and receive", parts, None)


def _tiny_bytes(members: int) -> int:
    """Return the size of a buffer whose time is all latency: a word for each member."""
    return 4 * members


def _choice(case: _Case) -> str:
    """Return what an algorithm chooses for a size, in words."""
    described = case.chosen.describe(case.kind, case.shape, case.size_bytes) if case.shape else ""
    if case.chosen.name == ON_NVSWITCHES:
        return described
    return " ".join(filter(None, (case.chosen.name, described)))


def _family(choice: str) -> str:
    """Return algorithm and protocol of a choice such as "ring ll128, 16 channels, h100"."""
    return choice.partition(",")[0]
