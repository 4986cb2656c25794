"""Replayed NVLink domains of a logical process: their collectives can be simulated once and replayed (pdes/reuse).

Which collectives these are follows from the fabric, the program and the settings alone.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nadi.pdes.construction.fabric import MAX_CELL_PS, Fabric
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Array, Bools, Graph, Int64, Program, state as s
from nadi.pdes.core.jit import aligned, full, never_used, rows_of, zeros
from nadi.pdes.core.rows.npu import DomainMember, ReplayedDomain
from nadi.pdes.network.framing import AGGREGATOR_KIND, NVSWITCH_KIND
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_SEND
from nadi.pdes.reuse_kernels.domains import CROSSING, INSIDE, OUTSIDE

if TYPE_CHECKING:
    from nadi.pdes.construction.layout import Layout, Part

SYNCHRONISING = (0, 6, 7, 8)
"""Collectives, by `Program.node_collective`, of which no member ends before all have started: all-reduces, all-to-alls,
reduce-scatters and barriers. All-gathers (2) too, but a member that starts last may end a moment after its start.
"""
ALL_GATHER = 2


class Domain(NamedTuple):
    """An NVLink domain: NPUs that one NVSwitch joins, and no other."""

    npus: Int64  # int64[n], NPUs ascending, aggregators last
    switch: int  # node
    links: Int64  # int64[2n], links of the fabric ascending


class SingleSwitch(NamedTuple):
    """NPUs of a domain with the links between them and the switch: what an episode of these NPUs needs."""

    npus: Int64  # int64[n], NPUs ascending, aggregators last
    switch: int  # node
    links: Int64  # int64[2n], links of the fabric ascending
    kind: int  # subfabrics of one kind differ in nothing but the numbers of their nodes and links


def subfabric_of(graph: Graph, domain: Domain, places: Sequence[int]) -> SingleSwitch:
    """Return the subfabric of some NPUs of a domain.

    Args:
        graph: The fabric (`Graph`).
        domain: The NVLink domain.
        places: Ascending indices of the NPUs in `domain.npus`.
    """
    npus = domain.npus[list(places)]
    ends = graph.link_src[domain.links], graph.link_dst[domain.links]
    links = domain.links[np.isin(ends[0], npus) | np.isin(ends[1], npus)]
    columns = [
        np.searchsorted(np.append(npus, domain.switch), graph.link_src[links]),
        graph.link_rate_bps[links],
        graph.link_delay_ps[links],
        np.repeat(graph.node_kind[npus] == AGGREGATOR_KIND, 2),
    ]
    shape = np.append(np.concatenate(columns).astype(np.int64), graph.node_latency_ps[domain.switch]).tobytes()
    return SingleSwitch(npus, domain.switch, links, int.from_bytes(blake2b(shape, digest_size=8).digest(), "big") >> 1)


def may_replay(graph: Graph, settings: Settings) -> bool:
    """Return whether a fabric has NVSwitches, and settings under which nothing remains of a collective that is over.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    # Tokens and a limit of collectives in flight have a state that outlives a collective, or depends on collectives
    # outside.
    return (
        settings.reuse
        and bool(np.any(graph.node_kind == NVSWITCH_KIND))
        and graph.routing.dimensions == 0
        and settings.fidelity.model.has_packets
        and not settings.concurrent_collectives
        and not settings.one_at_a_time
        and settings.phases_per_dimension == 0
        and settings.collectives_in_flight == 0
        and settings.rendezvous_bytes == 0
        and settings.flow_groups is None
        and not settings.routing.publish
    )


def all_domains(graph: Graph, settings: Settings, owner: Int64) -> list[Domain]:
    """Return the NVLink domains that lie in one LP each and never change.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
        owner: int64[nodes], LP of each node.
    """
    if not may_replay(graph, settings):
        return []
    changing = {link >> 1 for fault in settings.faults.links if not fault.is_lasting for link in fault.links}
    order = np.argsort(graph.link_src, kind="stable")
    first = np.searchsorted(graph.link_src[order], np.arange(graph.nodes + 1))
    domains = []
    to_nvswitch = graph.node_kind[graph.link_dst] == NVSWITCH_KIND
    nvlinks = np.bincount(graph.link_src[to_nvswitch], minlength=graph.nodes)  # number of links by node
    for switch in np.flatnonzero(graph.node_kind == NVSWITCH_KIND).tolist():
        cables = np.sort(order[first[switch] : first[switch + 1]] >> 1)
        links = np.stack([2 * cables, 2 * cables + 1], axis=1).reshape(-1)
        npus = np.unique(np.minimum(graph.link_src[links], graph.link_dst[links])).astype(np.int64)
        is_star = npus[-1] < graph.npus and bool((nvlinks[npus] == 1).all())
        if not is_star or np.any(owner[npus] != owner[switch]) or changing.intersection(cables.tolist()):
            continue
        domains.append(Domain(npus, switch, links))
    return domains


def long_cell_ps(graph: Graph, settings: Settings, fabric: Fabric, domains: list[Domain]) -> int:
    """Return the length in ps of a cell in which no packet crosses links of `domains`, a multiple of other cells.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
        fabric: Links of the fabric by class, and their times (`Fabric`).
        domains: NVLink domains whose links no packet crosses in the cell.
    """
    # A change by a fault happens at the begin of a cell, so that cells then have one length.
    outside = np.ones(graph.links, bool)
    for domain in domains:
        outside[domain.links] = False
    if not domains or not settings.faults.never_change or not outside.any():
        return fabric.cell_ps
    longest_ps = int(min(fabric.reach_ps[outside].min(), fabric.longest_cell_ps(outside), MAX_CELL_PS))
    cell_ps = max(1, longest_ps // fabric.cell_ps) * fabric.cell_ps
    fabric.make_room(cell_ps, outside)
    return cell_ps


def replayed_schedules(program: Program, cell_ps: int, tick_ps: int) -> Bools:
    """Return bool[schedules]: schedules of collectives of which no member ends before all others have started.

    Args:
        program: Work of all NPUs (`Program`).
        cell_ps: Length of a cell in ps; nothing that starts in a cell may have an effect in it.
        tick_ps: Interval in ps at which NPUs notice what has ended; 0 = at once.
    """
    # Nothing that starts in a cell, which is cell_ps long, may have an effect in it. In the world of an episode all
    # jobs have their ticks, which are tick_ps apart, at the same times.
    replayed = (program.schedules.launch_ps >= cell_ps) & _synchronising(program)
    if tick_ps > 0 and program.jobs is not None and np.any(program.jobs.begin_ps % tick_ps):
        replayed[:] = False
    return replayed


def _synchronising(program: Program) -> Bools:
    """Return bool[schedules]: schedules of kinds of which no member ends before all others have started."""
    used = (program.node_schedule >= 0) & (program.node_collective >= 0)
    fits = np.isin(program.node_collective, (*SYNCHRONISING, ALL_GATHER)) & ~np.asarray(program.node_uneven, bool)
    found = np.ones(len(program.schedules.members), bool)
    found[program.node_schedule[used & ~fits]] = False
    return found


def roles_of(program: Program, domain_of: Int64) -> Any:
    """Return int8[slots]: the role of each slot's group for NVLink domains.

    Args:
        program: Work of all NPUs (`Program`).
        domain_of: int64[npus], number of the domain of each NPU of the fabric, -1 = none.
    """
    groups = len(program.group_ptr) - 1
    group = np.repeat(np.arange(groups), np.diff(program.group_ptr))
    domain = domain_of[program.group_member]
    lowest, highest = np.full(groups, len(domain_of)), np.full(groups, -2)
    np.minimum.at(lowest, group, domain)
    np.maximum.at(highest, group, domain)
    # INSIDE: the lowest and the highest domain of the members are one, so all members are in it
    role = np.where((lowest == highest) & (lowest >= 0), INSIDE, OUTSIDE)
    known = domain >= 0
    pairs, count = np.unique(np.stack([group[known], domain[known]]), axis=1, return_counts=True)
    meets = np.zeros(groups, bool)
    meets[pairs[0][count > 1]] = True
    role[meets & (role == OUTSIDE)] = CROSSING
    return role[program.slot_group].astype(np.int8)


def replayable_rows(graph: Graph, program: Program, settings: Settings) -> Bools:
    """Return bool[rows]: collectives of a program inside one NVLink domain, of the kinds that are replayed.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: Settings of the run.
    """
    domain_of = np.full(graph.npus, -1)
    for number, domain in enumerate(all_domains(graph, settings, np.zeros(graph.nodes, np.int64))):
        domain_of[domain.npus] = number
    npu = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    slot = program.trace_slot_ptr[program.trace_of_npu[npu]] + np.arange(len(npu)) - program.slot_ptr[npu]
    # NPUs that share a trace have the same groups but for their places; the last entry is that of no group
    is_inside = np.zeros(int(program.trace_slot_ptr[-1]) + 1, bool)
    is_inside[slot] = roles_of(program, domain_of) == INSIDE
    trace = np.repeat(np.arange(len(program.trace_ptr) - 1), np.diff(program.trace_ptr))
    sends = (program.node_kind == KIND_COLLECTIVE) & (program.node_schedule >= 0)
    sends[sends] = _synchronising(program)[program.node_schedule[sends]]
    return is_inside[np.where(sends, program.trace_slot_ptr[trace] + program.node_group, -1)]


def domain_tables(
    layout: "Layout", program: Program, settings: Settings, part: "Part", domains: list[Domain], net: s.Net
) -> s.Domains:
    """Return the tables of an LP's NVLink domains, those of `domains`, and set the length of its first cells in `net`.

    Args:
        layout: Division of the fabric among LPs (`Layout`).
        program: Work of all NPUs (`Program`).
        settings: Settings of the run.
        part: Nodes and links of the LP (`Part`).
        domains: NVLink domains of the LP, one per domain.
        net: Nodes, links and packets of the LP (`Net`).
    """
    if not layout.replays:
        return never_used(s.Domains)
    graph = layout.lasting
    domain_of, node_of = full(graph.npus, -1, np.int32), full(graph.npus, -1, np.int32)
    rows, members = rows_of(ReplayedDomain, len(domains)), rows_of(DomainMember, part.npus)
    row_of_link = np.full(graph.links, -1, np.int64)
    own = np.concatenate([part.links, *part.links_in]).astype(np.int64)
    row_of_link[own] = np.arange(len(own))
    for number, domain in enumerate(domains):
        domain_of[domain.npus] = number
        node_of[domain.npus] = part.local[domain.npus]
        is_real = graph.node_kind[domain.npus] != AGGREGATOR_KIND
        rows[number].first_aggregator = domain.npus[is_real].max() + 1 if is_real.all() else domain.npus[~is_real].min()
        rows[number].drain_ps = int(net.const.tie_pause_ps) + longest_hop_ps(graph, settings, domain)
        for link in domain.links.tolist():
            is_out = graph.link_dst[link] == domain.switch
            node = part.local[(graph.link_src if is_out else graph.link_dst)[link]]
            members[node]["link_out" if is_out else "link_in"] = row_of_link[link]
    slots, groups = int(program.slot_ptr[-1]), len(program.group_ptr) - 1
    tables = s.Domains(
        domain=rows,
        member=members,
        domain_of=domain_of,
        node_of=node_of,
        role=aligned(roles_of(program, domain_of), np.int8),
        replays=aligned(replayed_schedules(program, layout.grid_ps, settings.tick_ps), np.int8),
        link=aligned(row_of_link[[link for domain in domains for link in domain.links]], np.int32),
        start_ps=full(slots, -1),
        start_row=full(slots, -1, np.int32),
        start_order=zeros(slots),
        end_ps=full(slots, -1),
        packet_row=zeros(slots, np.int32),
        started=zeros(groups, np.int32),
        due=zeros(slots + groups + part.npus, np.int32),
        row_of=aligned(row_of_link, np.int32),
    )
    # nothing crosses an NVLink domain's link in the first long cell, so that the run may begin with one
    if first_packet_ps(program, tables) >= layout.grid_ps:
        net.const.long_cell_ps = net.ctl.cell_ps = layout.grid_ps
    return tables


def first_packet_ps(program: Program, nvlink: s.Domains) -> int:
    """Return the minimum time in ps from the start of a trace row to its first packet over an NVLink domain.

    Args:
        program: Work of all NPUs (`Program`).
        nvlink: NVLink domains of the LP whose collectives are replayed (`Domains`).
    """
    least_ps = s.INF
    for trace in range(len(program.trace_ptr) - 1):
        npus = np.flatnonzero(program.trace_of_npu == trace)
        npus = npus[nvlink.domain_of[npus] >= 0]
        if not len(npus):
            continue
        slots = np.arange(program.trace_slot_ptr[trace + 1] - program.trace_slot_ptr[trace])
        used = (nvlink.role[program.slot_ptr[npus][:, None] + slots] != OUTSIDE).any(axis=0)
        begin, end = program.trace_ptr[trace], program.trace_ptr[trace + 1]
        kind, schedule = program.node_kind[begin:end], program.node_schedule[begin:end]
        sends_inside = (kind == KIND_COLLECTIVE) & (schedule >= 0)
        sends_inside[sends_inside] = used[program.node_group[begin:end][sends_inside]]
        launches = program.schedules.launch_ps[np.unique(schedule[sends_inside])]
        least_ps = min(least_ps, int(launches.min(initial=s.INF)))
        sends = np.flatnonzero(kind == KIND_SEND)
        if not len(sends):  # aggregators send none, and have no place in a job
            continue
        peers, which = np.unique(program.node_peer[begin:end][sends], return_inverse=True)
        other = peers_of(program, npus[:, None], peers)
        inside = (nvlink.domain_of[other] == nvlink.domain_of[npus][:, None]).any(axis=0)
        delays = program.node_duration_ps[begin:end][sends][inside[which.reshape(-1)]]
        least_ps = min(least_ps, int(delays.min(initial=s.INF)))
    return least_ps


def peers_of(program: Program, npus: Array, differences: Array) -> Any:
    """Return the NPUs of the ranks whose numbers are those of `npus` plus `differences`, within the same job.

    Args:
        program: Work of all NPUs (`Program`).
        npus: int64[n], numbers of NPUs.
        differences: int[n], rank of each peer minus rank of its NPU within the job.
    """
    return npus + differences if program.jobs is None else program.jobs.npu[program.jobs.place[npus] + differences]


def longest_hop_ps(graph: Graph, settings: Settings, domain: Domain) -> int:
    """Return the longest time in ps from when a port of a domain is idle until its last packet has left a switch.

    Args:
        graph: The fabric (`Graph`).
        settings: Settings of the run.
        domain: The NVLink domain.
    """
    full_packet = (settings.mtu_bytes + settings.header_bytes) * s.PS_PER_BYTE_AT_1_BPS
    slowest_bps = int(graph.link_rate_bps[domain.links].min())
    return int(
        2 * full_packet / slowest_bps
        + int(graph.link_delay_ps[domain.links].max())
        + int(graph.node_latency_ps[domain.switch])
    )
