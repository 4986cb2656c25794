"""The time of one collective of a group on an idle fabric, by packets, flows or the algorithm's formula.

The method follows from the number of messages: packets for few, flows for more, and the formula beyond. Formulas leave
out how channels get in each other's way, so that a formula for sizes above those of flows, with the same choice of
algorithm and protocol, is multiplied by what flows took of the formula at the largest size that they simulated.
"""

from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.simulation.closed_forms import IsolatedCollectives, closed_form, payload_shape
from nadi.simulation.resolving import TimedFabric
from nadi.topologies import Graph
from nadi.workload import CollectiveSettings, Program, ScheduleSet, collective_program
from nadi.workload.collectives import ON_NVSWITCHES, choose, default_algorithm, defaults_on
from nadi.workload.shape import GroupShape, shape_of, stripes_of

MAX_PACKETS = 1 << 16  # number of packets up to which packets are simulated: 50 ms
MAX_FLOWS = 1 << 18  # number of messages up to which flows are: 0.3 s
MAX_STEPS = 1 << 21  # number of steps of plans up to which plans are built: some seconds, and 300 MB
_FEW_MEMBERS = 64  # number of members up to which no plan is coarse (workload.collectives)
SEND_RECEIVE = "send-receive"
LATENCY, LINKS = "latency", "links"  # parts of times of other algorithms than NCCL's


class CollectiveTime(NamedTuple):
    """The time of a collective alone."""

    time_ps: float
    source: str  # "packets", "flows", "formula" or "messages"
    choice: str  # algorithm, protocol and channels
    parts: dict[str, float]  # fraction of each part of the time (`nccl.time_parts`); {} = not known
    program: Program | None  # its schedule, number 0; None = none was built


class Group:
    """GPUs of some hosts of a fabric, and the times of their collectives."""

    def __init__(self, fabric: TimedFabric, members: Int64, nccl: dict[str, str]) -> None:
        """Begin without times; nccl: parameters of the algorithm "nccl" that a command sets, by name."""
        self.graph: Graph = fabric.graph
        self.settings, self._named = fabric.settings, fabric.collectives
        self.members = members
        self._nccl = nccl
        self._shapes: dict[str, tuple[GroupShape, GroupShape]] = {}  # by trees: shape, and with payload rates
        self._continued: dict[tuple[str, str], float] = {}  # of kinds and choices: time by flows over the formula's
        self._empty = collective_program("barrier", 1, 0)

    @property
    def hosts(self) -> int:
        """Number of hosts of the members."""
        return len(np.unique(self.graph.host[self.members]))

    def algorithm(self, kind: str) -> str:
        """Return the algorithm of a kind with its parameters, as users write it.

        Args:
            kind: The kind of collective.
        """
        if kind == SEND_RECEIVE:
            return self.algorithm("all-to-all")
        named = self._named.algorithm.get(kind) or defaults_on(self.graph).get(kind)
        algorithm = CollectiveSettings({**self._named.algorithm, kind: named or default_algorithm(kind)}).algorithm_of(kind)
        if algorithm.partition(":")[0] != ON_NVSWITCHES or not self._nccl:
            return algorithm
        colon = "," if ":" in algorithm else ":"
        return algorithm + colon + ",".join(f"{key}={value}" for key, value in self._nccl.items())

    def time(self, kind: str, size_bytes: int) -> CollectiveTime:
        """Return the time of a collective; larger sizes of a kind come after smaller ones.

        Args:
            kind: The kind of collective.
            size_bytes: The size of the whole buffer in bytes.
        """
        if kind == SEND_RECEIVE:
            return self._shift(size_bytes)
        algorithm = self.algorithm(kind)
        chosen, n = choose(kind, algorithm), len(self.members)
        stripes = stripes_of(self.graph, self.members)
        by_shape = chosen.needs_shape or chosen.pays(self.graph.accelerator)
        shape, payload = self._shape(chosen.trees) if by_shape else (None, None)
        choice = (chosen.describe(kind, shape, size_bytes) if shape else "") or chosen.name
        parts = chosen.parts_of_time(kind, payload, size_bytes) if payload else {}
        has_own_formula = chosen.needs_shape and not chosen.pays(self.graph.accelerator)
        formula_ps = 0.0
        if has_own_formula:
            formula_ps = chosen.closed_form(kind, n, size_bytes, 0.0, 0.0, payload) + self.settings.fidelity.endpoint_delay_ps
        extent = chosen.striped(kind, stripes).extent(kind, n, shape, size_bytes)
        # steps of one plan that all members share are those of each
        steps, messages = extent.steps, extent.steps * (n if extent.plans == 1 else 1)
        # as in `closed_form`: chunks of plans of large groups may be so large that the formula is nearer
        is_coarse = has_own_formula and n > _FEW_MEMBERS and chosen.is_coarse(kind, shape, size_bytes)
        if has_own_formula and (is_coarse or messages > MAX_FLOWS or steps > MAX_STEPS):
            return self._by_formula(kind, choice, formula_ps, parts, None)
        schedules = ScheduleSet()
        number = schedules.add(kind, algorithm, n, shape, size_bytes, stripes)
        program = self._empty._replace(schedules=schedules.pack())
        isolated = IsolatedCollectives(MAX_PACKETS, max_flows=MAX_FLOWS)
        how = self.graph, program, self.settings, chosen, number, self.members.tolist(), size_bytes
        if number < 0:
            return CollectiveTime(0.0, "formula", choice, {}, None)
        for source, time_ps in (("packets", isolated.time_ps(*how)), ("flows", None)):
            found_ps = isolated.flows_ps(*how) if source == "flows" else time_ps
            if found_ps is not None:
                if formula_ps:
                    self._continued[kind, _family(choice)] = found_ps / formula_ps
                return CollectiveTime(found_ps, source, choice, parts, program)
        if has_own_formula:
            return self._by_formula(kind, choice, formula_ps, parts, program)
        none = IsolatedCollectives(0, max_flows=0)
        arguments = self.graph, program, self.settings, kind, algorithm, number, self.members, size_bytes, none
        return CollectiveTime(closed_form(*arguments).time_ps, "formula", choice, parts, program)

    def _by_formula(
        self, kind: str, choice: str, formula_ps: float, parts: dict[str, float], program: Program | None
    ) -> CollectiveTime:
        """Return the formula's time, continued from the flows of smaller sizes with the same choice."""
        factor = self._continued.get((kind, _family(choice)))
        source = "formula" if factor is None else f"formula x {factor:.2f}, from flows"
        return CollectiveTime(formula_ps * (factor or 1.0), source, choice, parts, program)

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


def _family(choice: str) -> str:
    """Return algorithm and protocol of a choice such as "ring ll128, 16 channels, h100"."""
    return choice.partition(",")[0]
