"""Circuits of optical switches: cables that [[optical]] adds to a fabric, and the times at which they carry packets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nadi import pdes
from nadi.configuration.machine import FaultSection
from nadi.configuration.optical import OpticalSection
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.inputs.units import format_time
from nadi.pdes import parallel
from nadi.pdes.wire import detours
from nadi.simulation.assembly import NodeNames, takes_fault
from nadi.topologies import SWITCH, Graph
from nadi.topologies.endpoints import with_cables

FOREVER = 1 << 62  # time in picoseconds after the end of any run
PS_PER_BYTE_AT_1_BPS = 8 * 10**12
# rules of load balancing that read until when a port is busy, which no NPU knows where packets wait for a phase
LOOK_AHEAD = frozenset({"adaptive", "grades"})
Windows = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class OpticalSwitches:
    """The optical switches of a fabric, whose circuits are its last cables."""

    switches: tuple["_OpticalSwitch", ...] = ()
    first_cable: int = 0  # number of the first circuit among all cables

    @property
    def phases(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of each phase that the epochs follow; () = epochs begin at times."""
        return next((switch.section.phases for switch in self.switches if switch.section.phases), ())

    @property
    def trigger(self) -> str:
        """Return which moment of a phase the epochs follow."""
        return next((switch.section.trigger for switch in self.switches if switch.section.phases), "")

    def circuits(self, phases: Sequence[int] = (), reports_ps: Sequence[int] = ()) -> parallel.Circuits:
        """Return the circuits, and when they carry packets.

        Args:
            phases: The phases of the workload one after another, as numbers of `phases`; () = there are none.
            reports_ps: Times in ps at which the last NPU reports each phase but the first.
        """
        found: list[parallel.Circuit] = []
        for switch in self.switches:
            holds = switch.section.in_flight == "hold"
            for _, _, lit, routed in switch.circuits(phases, reports_ps):
                found.append(parallel.Circuit(self.first_cable + len(found), lit, routed, holds))
        period_ps = max((switch.period_ps for switch in self.switches if switch.section.changes), default=0)
        waits_ps = [
            (section.controller_delay + section.drain + section.dark) * (section.in_flight == "hold")
            for section in (switch.section for switch in self.switches)
            if section.phases
        ]
        if waits_ps:
            return parallel.FollowingCircuits(tuple(found), period_ps, max(waits_ps))
        return parallel.Circuits(tuple(found), period_ps)


NO_SWITCHES = OpticalSwitches()


def with_circuits(graph: Graph, sections: Sequence[OpticalSection], packet_bytes: int) -> tuple[Graph, OpticalSwitches]:
    """Return the fabric with the circuits of all optical switches as further cables, and the switches.

    Raises ConfigError or TopologyError: a port leads to no switch of the fabric, epochs are too short, repeat in
    different periods or follow different phases, or some NPUs are not connected by all circuits together.

    Args:
        graph: The fabric without optical switches.
        sections: Sections [[optical]] of the run file.
        packet_bytes: Size on the wire of a full packet.
    """
    if not sections:
        return graph, NO_SWITCHES
    if not graph.routing.goes_around:
        raise ConfigError(f"[[optical]]: {graph.name} is routed by dimensions; expected a fabric with switches")
    names = NodeNames(graph)
    switches = [_OpticalSwitch(graph, names, section, number) for number, section in enumerate(sections)]
    cables: list[tuple[int, int, int, int]] = []
    for switch in switches:
        switch.check_times(packet_bytes)
        cables += [(a, b, switch.section.rate, switch.section.delay) for a, b, _, _ in switch.circuits()]
    changing = [switch for switch in switches if switch.section.changes]
    for switch in changing:
        if switch.period_ps != changing[0].period_ps:
            found = f"repeats {_period(switch.period_ps)}, {changing[0].where} {_period(changing[0].period_ps)}"
            raise ConfigError(f"{switch.where}: {found}; expected the same period")
    following = [switch for switch in switches if switch.section.phases]
    for switch in following:
        for key in ("phases", "trigger"):
            if getattr(switch.section, key) != getattr(following[0].section, key):
                raise ConfigError(f"{switch.where} {key}: found others than in {following[0].where}; expected the same")
    found_graph = with_cables(graph, np.array(cables, np.int64).T)
    return found_graph, OpticalSwitches(tuple(switches), graph.links // 2)


def _period(period_ps: int) -> str:
    """Return a phrase that says when epochs repeat."""
    return f"after {format_time(period_ps)}" if period_ps else "never"


class _OpticalSwitch:
    """An optical switch: the nodes at its ports, its matchings and their times."""

    def __init__(self, graph: Graph, names: NodeNames, section: OpticalSection, number: int) -> None:
        """Find the nodes at the ports of entry `number` of [[optical]]; ConfigError if one is no switch."""
        self.section, self.where = section, f"[optical.{number}]"
        self._graph, self._names = graph, names
        self._nodes = self._nodes_of(section.ports)
        self.matchings = section.pairs(len(self._nodes))
        self._begins_ps, self.period_ps = section.epochs(len(self.matchings))
        self._packet_ps = 0  # time of a full packet on a circuit

    def _nodes_of(self, ports: str | Sequence[int | str]) -> list[int]:
        """Return the node at each port."""
        graph = self._graph
        if ports == "npu":
            ports = range(graph.npus)
        elif isinstance(ports, str):
            numbered = [f"{ports} {number}" for number in range(graph.nodes)]
            ports = [name for name in numbered if name in set(graph.switch_names)]
            if len(ports) < 2:
                raise ConfigError(
                    f"{self.where} ports: found {len(ports)} switches with the word {self.section.ports!r}; expected 2 "
                    f"or more, as of {graph.node_name(graph.nodes - 1)}"
                )
        return [self._switch(port) for port in ports]

    def _switch(self, port: int | str) -> int:
        """Return the node that a port names."""
        try:
            node = port if isinstance(port, int) else self._names.node(port)
        except ValueError as error:
            raise ConfigError(f"{self.where} ports: {error}") from None
        if 0 <= node < self._graph.npus:
            return self._own_switch(node)
        if not 0 <= node < self._graph.nodes or self._graph.node_kind[node] != SWITCH:
            raise ConfigError(f"{self.where} ports: found {port!r}; expected an NPU, or a switch outside of hosts")
        return node

    def _own_switch(self, npu: int) -> int:
        """Return the switch that has the NPU alone: the NIC by which it is at the optical switch."""
        graph = self._graph
        above = graph.link_dst[graph.link_src == npu]
        above = np.unique(above[graph.node_kind[above] == SWITCH])
        if len(above) != 1 or np.count_nonzero((graph.link_dst == above[0]) & (graph.link_src < graph.npus)) != 1:
            found = f"npu {npu} at " + (" and ".join(graph.node_name(node) for node in above.tolist()) or "no leaf")
            others = ", with other NPUs" if len(above) == 1 else ""
            raise ConfigError(
                f"{self.where} ports: found {found}{others}; expected NPUs each with a leaf of its own, as with "
                "hosts_per_leaf=1 or hosts_per_rail_leaf=1"
            )
        return int(above[0])

    def check_times(self, packet_bytes: int) -> None:
        """Refuse epochs that leave no time for a packet, and ports that do not exist."""
        section = self.section
        self._packet_ps = -(-packet_bytes * PS_PER_BYTE_AT_1_BPS // section.rate) + 1
        if section.phases and section.controller_delay < self._packet_ps:
            # packets that leave know for as long as they take that the light goes out
            raise ConfigError(
                f"{self.where} controller_delay: found {format_time(section.controller_delay)}; expected at least "
                f"{format_time(self._packet_ps)}, which a full packet takes"
            )
        begins_ps = () if section.phases else self._begins_ps
        following = [*begins_ps[1:], begins_ps[0] + self.period_ps if self.period_ps else FOREVER] if begins_ps else []
        for number, (begin_ps, end_ps) in enumerate(zip(begins_ps, following, strict=True)):
            # nothing comes before the first of epochs that happen once
            change_ps = section.drain + section.dark if number or self.period_ps else 0
            if section.changes and end_ps - begin_ps < change_ps + self._packet_ps:
                raise ConfigError(
                    f"{self.where} dark: epoch {number} lasts {format_time(end_ps - begin_ps)}; expected at least "
                    f"{format_time(change_ps + self._packet_ps)}, for drain, dark and a full packet"
                )
        highest = max((port for pairs in self.matchings for pair in pairs for port in pair), default=0)
        if highest >= len(self._nodes):
            raise ConfigError(
                f"{self.where} matchings: found port {highest}; expected ports 0 to {len(self._nodes) - 1}"
            )

    def circuits(
        self, phases: Sequence[int] = (), reports_ps: Sequence[int] = ()
    ) -> Iterator[tuple[int, int, Windows, Windows | None]]:
        """Yield both nodes of each circuit, and the windows in which it carries packets and in which routes use it.

        Args:
            phases: As in `OpticalSwitches.circuits`.
            reports_ps: As in `OpticalSwitches.circuits`.
        """
        matching_of_epoch, begins_ps = tuple(range(len(self.matchings))), self._begins_ps
        if self.section.phases and phases:
            matching_of_epoch, begins_ps = self._following(phases, reports_ps)
        matchings: dict[tuple[int, int], set[int]] = {}
        for number, pairs in enumerate(self.matchings):
            for a, b in pairs:
                matchings.setdefault((min(a, b), max(a, b)), set()).add(number)
        for (a, b), own in matchings.items():
            if self._nodes[a] == self._nodes[b]:
                node = self._graph.node_name(self._nodes[a])
                raise ConfigError(
                    f"{self.where} matchings: ports {a} and {b} are both of {node}; expected two switches"
                )
            epochs = [epoch for epoch, matching in enumerate(matching_of_epoch) if matching in own]
            yield self._nodes[a], self._nodes[b], *self._windows(epochs, begins_ps)

    def _following(self, phases: Sequence[int], reports_ps: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the matching and the begin of each epoch that follows a phase.

        An epoch begins when the change before it is over. None serves a phase that is over with the one before it.
        """
        section = self.section
        matchings, begins_ps, free_ps = [phases[0]], [0], 0
        for phase, report_ps, end_ps in zip(phases[1:], reports_ps, [*reports_ps[1:], FOREVER], strict=True):
            if end_ps > report_ps:
                matchings.append(phase)
                begins_ps.append(max(report_ps + section.controller_delay, free_ps))
                free_ps = begins_ps[-1] + section.drain + section.dark + self._packet_ps
        return tuple(matchings), tuple(begins_ps)

    def _windows(self, epochs: Sequence[int], begins_ps: Sequence[int]) -> tuple[Windows, Windows | None]:
        """Return when a circuit carries packets, and when routes use it, None = always.

        `epochs`: those that have it; `begins_ps`: the begin of every epoch.
        """
        section, number, period_ps = self.section, len(begins_ps), self.period_ps
        is_direct = section.routes == "direct"
        if len(epochs) == number:
            return ((0, FOREVER),), None
        own, windows = set(epochs), []

        def begin_of(epoch: int) -> int:
            """Return the begin of an epoch, counted on into the next period, or after all that happen once."""
            if not period_ps and epoch >= number:
                return FOREVER
            return begins_ps[epoch % number] + epoch // number * period_ps

        for first in epochs:
            # a circuit that stays is not interrupted; the epochs of a period follow each other in a circle
            before = (first - 1) % number if period_ps else first - 1
            if before in own:
                continue
            last = first
            while (last + 1) % number in own and (period_ps or last + 1 < number):
                last += 1
            begin_ps = begin_of(first) + (section.drain + section.dark if period_ps or first else 0)
            end_ps = begin_of(last + 1)
            turns_ps = begin_ps // period_ps * period_ps if period_ps else 0
            windows.append((begin_ps - turns_ps, end_ps - turns_ps))
        windows.sort()
        lit = tuple((begin, end + section.drain if end < FOREVER else end) for begin, end in windows)
        return lit, None if is_direct else tuple(windows)


def check_supported(
    sections: Sequence[OpticalSection], network: NetworkSection, faults: Sequence[FaultSection]
) -> None:
    """Refuse optical switches beside what cannot follow their circuits.

    Args:
        sections: Sections [[optical]] of the run.
        network: Section [network] of the run.
        faults: Sections [[faults]] of the run.
    """
    if not sections:
        return
    if not takes_fault("state", network.model):
        expected = pdes.fidelity.quoted(partial(takes_fault, "state"))
        raise ConfigError(f"[[optical]]: found with a [network] fidelity whose links never change; expected {expected}")
    if network.flows:
        raise ConfigError("[[optical]]: found beside [network] flows; expected packets alone, or flows alone")
    holds = any(section.in_flight == "hold" for section in sections)
    if holds and network.queue_limit and network.switch == "output-queued":
        raise ConfigError(
            '[network] queue_limit: found beside [[optical]] in_flight = "hold"; expected unlimited, as output queues '
            'count packets by the time that they wait, or switch = "shared-buffer"'
        )
    looks_ahead = next((rule for rule in network.balancings if rule in LOOK_AHEAD), None)
    if detours.known(network.routing).reads_queues:
        looks_ahead = network.routing
    if looks_ahead and any(section.phases and section.in_flight == "hold" for section in sections):
        raise ConfigError(
            f'[[optical]] phases: found beside in_flight = "hold" and "{looks_ahead}", which looks at how long a port '
            'will be busy; expected in_flight = "drop", or slot or at'
        )
    repeats = any(section.slot or section.period for section in sections)
    for number, fault in enumerate(faults):
        if repeats and not network.model.has_packets and fault.state and fault.until is None:
            raise ConfigError(
                f"[faults.{number}] until: missing beside [[optical]] that repeats; expected it, as a run whose flows "
                "wait for ever would not end"
            )
