"""A collective alone on the fabric: the packet engine runs it on a copy of the part of the fabric that its group uses.

On the copy, senders share no links between switches before the links on which only one receiver is left: these links
exist several times, and switches choose one by the sender (`pdes.network.balancing.source`). So messages wait for each
other only at the members' own ports. Fabrics whose NPUs pass packets on (`DimensionRouting`), and message-level models,
use the fabric as it is: there, messages of one collective may also wait for each other between the members' ports.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nadi import pdes, topologies
from nadi.inputs.arrays import Int64
from nadi.pdes.wire import MAX_SET, window_packets
from nadi.topologies import DimensionRouting, Graph, build_table_routing
from nadi.workload import Program, Schedules
from nadi.workload.node_kinds import COLLECTIVE
from nadi.workload.program import NOT_HERE, assemble, empty_rows
from nadi.workload.trace_sets import GroupTable

Pair = tuple[int, int]  # sender and receiver, as members of the group


class IdleFabric(NamedTuple):
    """The fabric on which the collectives of one group run alone."""

    graph: Graph
    npu_of_member: Int64  # int64[n], NPU of each member, aggregators included
    settings: pdes.Settings

    def time_ps(self, schedules: Schedules, schedule_number: int, size_bytes: int) -> float:
        """Return the time in picoseconds until the last member has done its part of a schedule.

        Args:
            schedules: Schedules of collectives.
            schedule_number: Number of the schedule.
            size_bytes: Size of the buffer in bytes.
        """
        program = _program(schedules, schedule_number, size_bytes, self.npu_of_member, self.graph.npus)
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
    if not pairs or isinstance(graph.routing, DimensionRouting) or own.fidelity.hooks.act:
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


def _copy(graph: Graph, nodes: Int64, links: Int64, senders: Int64, receivers: Int64) -> Graph:
    """Return the graph of some nodes, with links between switches as often as it takes for each sender to have its own.

    `nodes`: int64[k], NPUs, then switches.
    `links`, `senders`, `receivers`: int64[n], links of all routes, and who uses them; senders by their NPU in the copy.
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
    copies = _copies(links[shared], senders[shared])
    cables = np.concatenate([kept, np.tile(np.unique(links[shared] >> 1), copies - 1)])
    own = (2 * cables[:, None] + np.arange(2)).reshape(-1)
    src, dst = (number[ends[own]].astype(np.int32) for ends in (graph.link_src, graph.link_dst))
    npus = nodes[nodes < graph.npus]
    return replace(
        graph,
        npus=len(npus),
        nodes=len(nodes),
        links=len(own),
        node_kind=graph.node_kind[nodes],
        node_latency_ps=graph.node_latency_ps[nodes],
        link_src=src,
        link_dst=dst,
        link_rate_bps=graph.link_rate_bps[own],
        link_delay_ps=graph.link_delay_ps[own],
        dims=(len(npus),),
        host=graph.host[npus],
        pod=graph.pod[nodes],
        routing=build_table_routing(len(npus), len(nodes), src, dst),
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


def _program(
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
