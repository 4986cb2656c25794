"""Collectives simulated in isolation, on an idle fabric: as packets, or as flows where packets would take too long.

This module has the limits above which flows replace packets, and a formula replaces flows.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nadi import pdes, topologies
from nadi.inputs.arrays import Int64
from nadi.pdes import Settings
from nadi.pdes.wire import MAX_SET, window_packets
from nadi.simulation.closed_forms.position import GroupPositions
from nadi.topologies import Graph, build_table_routing
from nadi.topologies.endpoints import with_aggregators
from nadi.workload import Program, Schedules
from nadi.workload.collectives import AlgorithmChoice, trees_of
from nadi.workload.collectives.schedules import message_count, packet_count, pairs
from nadi.workload.node_kinds import COLLECTIVE
from nadi.workload.program import NOT_HERE, assemble, empty_rows
from nadi.workload.trace_sets import GroupTable

# Maximum number of messages to simulate: the first if the formula is an estimate and messages are packets, the second
# otherwise. Laying out two million messages takes half a gigabyte.
_MAX_MESSAGES_OF_ESTIMATES, _MAX_MESSAGES = 1 << 21, 1 << 19
# maximum number of sender-receiver pairs to simulate if there is a formula, as packets and as flows, whose paths take a
# second and four
_MAX_PAIRS, _MAX_PAIRS_OF_FLOWS = 1 << 14, 1 << 16
# Maximum number of packets to simulate, about half a microsecond each: the first if the formula is exact, the second if
# it is an estimate.
_MAX_PACKETS, _MAX_PACKETS_OF_ESTIMATES = 1 << 23, 1 << 26
# number of packets whose simulation takes as long as that of a message as a flow, 1.6 to 2.5 us where few share a link
_PACKETS_PER_FLOW = 2
_UNLIMITED = 1 << 62
Pair = tuple[int, int]  # sender and receiver, as members of the group


class Paths(NamedTuple):
    """Equal paths of a group's messages."""

    links: list[int]  # links of one of the paths, in order
    both_ways: bool  # True if the sender acknowledges another message over the same cable meanwhile
    multiplicity: int  # number of these paths


class IsolatedCollectives:
    """Collectives of a program on an idle network, each simulated once, whatever others are simulated.

    `paths`: Distinct paths by schedule and members, for formulas. `max_packets`: Maximum number of packets to simulate
    for a collective that has a formula; None = the limits of this module. `positions`: Positions of groups, of which
    those with equal positions are simulated once; None = each group is simulated. `max_flows`: Maximum number of
    messages to simulate as flows; None = as many as take the time of `max_packets`.
    """

    def __init__(
        self,
        max_packets: int | None = None,
        positions: GroupPositions | None = None,
        max_flows: int | None = None,
    ) -> None:
        self._max_packets, self._positions = max_packets, positions
        packets = _MAX_PACKETS if max_packets is None else max_packets
        self._max_flows = packets // _PACKETS_PER_FLOW if max_flows is None else max_flows
        self._times_ps: dict[tuple[int, int, object, bool], float] = {}
        self.paths: dict[tuple[int, tuple[int, ...]], list[Paths]] = {}
        self.formulas_ps: dict[tuple[int, int, object], float] = {}  # times by formulas, which positions share too
        self._position_of: dict[tuple[int, ...], object] = {}
        self._fabrics: dict[tuple[int, object], IdleFabric] = {}

    def time_ps(
        self,
        graph: Graph,
        program: Program,
        settings: Settings,
        choice: AlgorithmChoice,
        schedule: int,
        members: list[int],
        size_bytes: int,
    ) -> float | None:
        """Return the time of a group's collective simulated on its own ports; None if it has too many packets.

        Args:
            graph: The fabric (`Graph`).
            program: Work of all NPUs (`Program`).
            settings: The engine's settings of the run (`pdes.Settings`).
            choice: Algorithm of the collective.
            schedule: Number of the schedule.
            members: NPUs of the group's members.
            size_bytes: Size of the buffer in bytes.
        """
        s = program.schedules
        # without a formula there is no other way, however long it takes
        must_play = not choice.has_formula or bool(s.uneven[schedule])
        if not must_play and self._takes_long(s, settings, schedule, size_bytes, is_exact=choice.is_exact):
            return None
        fabric = self._fabric(graph, s, settings, choice, schedule, members, _UNLIMITED if must_play else _MAX_PAIRS)
        return fabric and self._simulated_ps(fabric, s, schedule, members, size_bytes, as_flows=False)

    def flows_ps(
        self,
        graph: Graph,
        program: Program,
        settings: Settings,
        choice: AlgorithmChoice,
        schedule: int,
        members: list[int],
        size_bytes: int,
    ) -> float | None:
        """Return the time of a group's collective as flows on its own ports; None if it has too many messages.

        The simulation of a message takes as long as that of a few packets, whatever its size. Where nothing contends,
        flows take the time of packets (scripts/fidelities_agree.py).

        Args:
            graph: The fabric (`Graph`).
            program: Work of all NPUs (`Program`).
            settings: The engine's settings of the run (`pdes.Settings`).
            choice: Algorithm of the collective.
            schedule: Number of the schedule.
            members: NPUs of the group's members.
            size_bytes: Size of the buffer in bytes.
        """
        s, fidelity = program.schedules, settings.fidelity
        # messages of flows are never `acknowledged`
        if not fidelity.model.has_headers or fidelity.acknowledged or message_count(s, schedule) > self._max_flows:
            return None
        fabric = self._fabric(graph, s, settings, choice, schedule, members, _MAX_PAIRS_OF_FLOWS)
        return fabric and self._simulated_ps(fabric, s, schedule, members, size_bytes, as_flows=True)

    def _fabric(
        self,
        graph: Graph,
        s: Schedules,
        settings: Settings,
        choice: AlgorithmChoice,
        schedule: int,
        members: list[int],
        max_pairs: int,
    ) -> "IdleFabric | None":
        """Return the idle fabric of a group; None if more than `max_pairs` pairs of members send."""
        key = schedule, self.position(tuple(members))
        if key not in self._fabrics:
            ends = pairs(s, schedule, max_pairs)
            if ends is None:
                return None
            # switches that reduce act as further members
            if s.aggregators[schedule]:
                switches = trees_of(graph, np.array(members), choice.trees)[1]
                members = [*members, *range(graph.npus, graph.npus + len(switches))]
                graph = with_aggregators(graph, switches)
            self._fabrics[key] = idle_fabric(graph, settings, members, ends)
        return self._fabrics[key]

    def _simulated_ps(
        self, fabric: "IdleFabric", s: Schedules, schedule: int, members: list[int], size_bytes: int, *, as_flows: bool
    ) -> float:
        """Return the time of a collective on the idle fabric of its group."""
        key = schedule, size_bytes, self.position(tuple(members)), as_flows
        if key not in self._times_ps:
            self._times_ps[key] = (fabric.with_flows() if as_flows else fabric).time_ps(s, schedule, size_bytes)
        return self._times_ps[key]

    def position(self, npus: tuple[int, ...]) -> object:
        """Return a key that groups of NPUs with equal positions share; without positions, that of these NPUs alone.

        Args:
            npus: NPUs of the group's members.
        """
        if npus not in self._position_of:
            self._position_of[npus] = self._positions.keys([np.array(npus)])[0] if self._positions else npus
        return self._position_of[npus]

    def _takes_long(self, s: Schedules, settings: Settings, schedule: int, size_bytes: int, *, is_exact: bool) -> bool:
        """Return whether a collective has more messages or packets than are simulated."""
        has_headers, packets = settings.fidelity.model.has_headers, float(message_count(s, schedule))
        if packets > (_MAX_MESSAGES_OF_ESTIMATES if has_headers and not is_exact else _MAX_MESSAGES):
            return True
        if has_headers:
            packets = packet_count(s, schedule, size_bytes, settings.mtu_bytes)
        limit = _MAX_PACKETS if is_exact else _MAX_PACKETS_OF_ESTIMATES
        return packets > (limit if self._max_packets is None else self._max_packets)


class IdleFabric(NamedTuple):
    """The fabric on which the collectives of one group run alone."""

    graph: Graph
    npu_of_member: Int64  # int64[n], NPU of each member, aggregators included
    settings: pdes.Settings

    def with_flows(self) -> "IdleFabric":
        """Return the fabric with messages as flows in place of packets."""
        return self._replace(settings=with_flows(self.settings))

    def time_ps(self, schedules: Schedules, schedule_number: int, size_bytes: int) -> float:
        """Return the time in picoseconds until the last member has done its part of a schedule.

        Args:
            schedules: Schedules of collectives.
            schedule_number: Number of the schedule.
            size_bytes: Size of the buffer in bytes.
        """
        program = program_of(schedules, schedule_number, size_bytes, self.npu_of_member, self.graph.npus)
        return float(pdes.run(pdes.build_world(self.graph, program, self.settings)).finish_time_ps)


def idle_fabric(graph: Graph, settings: pdes.Settings, npus: list[int], pairs: Collection[Pair]) -> IdleFabric:
    """Return the idle fabric of messages between pairs of members; acknowledgements use the other direction.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
        npus: NPU of each member, aggregators included.
        pairs: Pairs of members, sender and receiver, by their numbers.
    """
    own, members = idle_settings(graph, settings), np.array(npus)
    if not pairs or graph.routing.npus_forward or own.fidelity.hooks.act:
        return IdleFabric(graph, members, own)
    both = sorted({pair for src, dst in pairs for pair in ((src, dst), (dst, src))})
    routes = [_routes(graph, npus[src], npus[dst]) for src, dst in both]
    links = np.array([link for route in routes for link in route], np.int64)
    senders, receivers = np.repeat(both, [len(route) for route in routes], axis=0).T
    is_whole = len(npus) == graph.npus  # then nodes and links keep their numbers, on which the order of packets depends
    nodes = np.arange(graph.nodes)
    if not is_whole:
        nodes = np.concatenate([members, np.unique(graph.link_dst[links][graph.link_dst[links] >= graph.npus])])
    npu_of_member = members if is_whole else np.arange(len(npus))
    copy = _copy(graph, nodes, links, npu_of_member[senders], receivers)
    return IdleFabric(copy, npu_of_member, replace(own, load_balancing=pdes.balancing.balancing("source")))


def _routes(graph: Graph, src: int, dst: int) -> list[int]:
    """Return the links of a route from NPU src to NPU dst for each NIC on which src may send to dst."""

    def route_over(nic: int) -> list[int]:
        return topologies.route(graph, src, dst, lambda links: nic if nic in links else min(links))

    return [link for nic in topologies.next_links(graph, src, dst) for link in route_over(nic)]


def idle_settings(graph: Graph, settings: pdes.Settings) -> pdes.Settings:
    """Return the settings of an idle fabric: those of the run without contention, losses, faults and records.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    fidelity = settings.fidelity
    if fidelity.model.has_headers:
        fidelity = replace(fidelity, model=pdes.fidelity.PACKET)
    return pdes.Settings(
        fidelity=fidelity,
        mtu_bytes=settings.mtu_bytes,
        header_bytes=settings.header_bytes,
        ack_bytes=settings.ack_bytes,
        window_bytes=window_packets(graph, settings) * settings.mtu_bytes,
        cut_through=settings.cut_through,
        nvlink_framing=settings.nvlink_framing,
        seed=settings.seed,
        phases_per_dimension=settings.phases_per_dimension,
        scheduling=settings.scheduling,
        record_nodes=False,
        record_flows=False,
    )


def with_flows(settings: pdes.Settings) -> pdes.Settings:
    """Return settings with messages as flows in place of packets.

    Args:
        settings: The engine's settings of packets (`pdes.Settings`).
    """
    flow = pdes.fidelity.fidelity(pdes.fidelity.FLUID, collectives="steps")
    return replace(settings, fidelity=replace(settings.fidelity, model=flow.model, own=flow.own))


def _copy(
    graph: Graph, nodes: Int64, links: Int64, senders: Int64, receivers: Int64, max_copies: int = MAX_SET
) -> Graph:
    """Return the graph of some nodes, with links between switches as often as it takes for each sender to have its own.

    `nodes`: int64[k], NPUs, then switches.
    `links`, `senders`, `receivers`: int64[n], links of all routes, and who uses them; senders by their NPU in the copy.
    `max_copies`: maximum number of copies of a link, above which senders share them.
    """
    end, other = graph.link_src[::2], graph.link_dst[::2]  # of each cable
    number = np.full(graph.nodes, -1)
    number[nodes] = np.arange(len(nodes))
    at_npu = np.minimum(end, other) < graph.npus
    is_used = np.zeros(len(end), np.bool_)
    # link >> 1 is the number of its cable
    is_used[links >> 1] = True
    kept = np.flatnonzero(np.where(at_npu, (number[end] >= 0) & (number[other] >= 0), is_used))
    # int64[links], different receivers of each link: behind one of a single receiver, messages wait anyway
    has_receivers = np.bincount(np.unique(np.stack([links, receivers]), axis=1)[0], minlength=graph.links)
    shared = np.flatnonzero(~at_npu[links >> 1] & (has_receivers[links] > 1))
    copies = min(_copies(links[shared], senders[shared]), max_copies)
    cables = np.concatenate([kept, np.tile(np.unique(links[shared] >> 1), copies - 1)])
    own = (2 * cables[:, None] + np.arange(2)).reshape(-1)
    src, dst = (number[ends[own]].astype(np.int32) for ends in (graph.link_src, graph.link_dst))
    npus = nodes[nodes < graph.npus]
    order = None if graph.link_order is None else graph.link_order[own]
    # without the links that no route takes, pairs that exchange nothing may be far from each other
    routing = build_table_routing(len(npus), len(nodes), src, dst, graph.group[nodes], order, refuses_long=False)
    # where switches choose among several cables, each of them is there `copies` times
    widest = int(np.diff(routing.set_ptr).max(initial=0))
    if widest > MAX_SET:
        return _copy(graph, nodes, links, senders, receivers, copies * MAX_SET // widest)
    return replace(
        graph,
        link_order=order,
        npus=len(npus),
        nodes=len(nodes),
        links=len(own),
        node_kind=graph.node_kind[nodes],
        node_latency_ps=graph.node_latency_ps[nodes],
        link_src=src,
        link_dst=dst,
        link_rate_bps=graph.link_rate_bps[own],
        link_delay_ps=graph.link_delay_ps[own],
        known_rate_bps=None if graph.known_rate_bps is None else graph.known_rate_bps[own],
        dims=(len(npus),),
        host=graph.host[npus],
        pod=graph.pod[nodes],
        group=graph.group[nodes],
        routing=routing,
        switch_names=tuple(graph.node_name(node) for node in nodes[len(npus) :].tolist()),
    )


def _copies(links: Int64, senders: Int64) -> int:
    """Return a number of copies of each link, modulo which all senders of a link differ, at most MAX_SET."""
    users = np.unique(np.stack([links, senders]), axis=1)
    copies = int(np.bincount(users[0]).max(initial=1))
    # Senders 0, 2 and 4 are 0, 2 and 1 modulo 3: three copies are enough. Senders 0, 3 and 6 need four
    while copies < MAX_SET and len(np.unique(users[0] * MAX_SET + users[1] % copies)) < len(users[0]):
        copies += 1
    return copies


def program_of(
    schedules: Schedules, schedule_number: int, size_bytes: int, npu_of_member: Int64, num_npus: int
) -> Program:
    """Return a program of `num_npus` NPUs of which the members do one collective of this size and schedule."""
    count = len(npu_of_member)
    trace = np.full(num_npus, NOT_HERE, np.int32)
    trace[npu_of_member] = 0
    row = empty_rows(1)._replace(
        kind=np.full(1, COLLECTIVE, np.int8),
        bytes=np.full(1, size_bytes),
        schedule=np.full(1, schedule_number, np.int32),
    )
    # members on NPUs 7, 2 and 5: in the order of NPUs, their member numbers (`slot_member`) are 1 2 0
    groups = GroupTable(
        group_ptr=np.array([0, count]),
        group_member=npu_of_member.astype(np.int32),
        names=("",),
        slot_ptr=np.concatenate([[0], np.cumsum(trace != NOT_HERE)]),
        slot_group=np.zeros(count, np.int32),
        slot_member=np.argsort(npu_of_member).astype(np.int32),
    )
    return assemble(trace, [row], groups, schedules)
