"""Episodes: collectives of an NVLink domain, simulated by packets in a world that holds nothing else.

Its world is the domain alone, with the constants of the whole fabric, and a trace for each NPU that starts the
episode's collectives at given times. Nothing in it depends on the time or the place of the domain in the fabric, so
what it finds holds whenever and wherever the same collectives start with the same offsets on an idle domain.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pdes.build.islands import AGGREGATOR_KIND, Domain
from pdes.build.schedule import NO_FAULTS
from pdes.build.settings import Settings
from pdes.build.worlds import build_world
from pdes.core.inputs import Graph, Int64, Program, Record, Rows
from pdes.core.packet import (
    bytes_sent,
    longest_wait_ps,
    packets_sent,
    pair_destination,
    pair_source,
    tag_group,
    tag_lane,
    tag_seq,
)
from pdes.core.rows.nic import FlowIn, FlowOut
from pdes.harvest.gathering import Harvest, harvest
from pdes.npu.trace import KIND_COLLECTIVE, KIND_COMPUTE
from pdes.workers.crew import Crew
from pdes.workers.mailbox import ProcessPlace, SingleProcess

OF_FABRIC = "window_packets rto_ps base_rtt_ps tie_pause_ps"  # constants that follow from the whole fabric
NOT_STARTED = -1
RECORD_BYTES = 2048  # memory of a record besides its messages


class Member(NamedTuple):
    """A start of a collective: which of the episode's, the member of its group, when, since the episode's begin."""

    collective: int
    member: int
    start_ps: int


class Collective(NamedTuple):
    """A collective of an episode."""

    places: tuple[int, ...]  # place of each member among the domain's NPUs, aggregators last
    schedule: int
    size_bytes: int
    lane: int  # Program.node_lane


class Episode(NamedTuple):
    """Collectives that run on an idle domain: what determines all that happens there. It is a key of records."""

    domain_kind: int
    collectives: tuple[Collective, ...]
    starts: tuple[tuple[Member, ...], ...]  # by place in the domain, in the order of starts


class Messages(NamedTuple):
    """The m messages of a collective, as columns int64[m]; times since the episode's begin."""

    src: Int64  # place of the sender in the domain
    dst: Int64  # place of the receiver
    lane: Int64
    size_bytes: Int64
    start_ps: Int64
    finish_ps: Int64


class EpisodeRecord(NamedTuple):
    """What an episode does; times since its begin."""

    finish_ps: tuple[Int64, ...]  # of each collective: int64[members], -1 = not done, as members have not started
    messages: tuple[Messages, ...]  # of each collective
    counters: Record  # Counters
    link_bytes: Int64  # int64[links of the domain]
    link_packets: Int64
    link_wait_ps: Int64
    quiet_ps: int  # when the last packet has arrived

    @property
    def size_bytes(self) -> int:
        """Memory of the record in bytes, approximately."""
        return RECORD_BYTES + sum(column.nbytes for messages in self.messages for column in messages)


def domain_graph(graph: Graph, domain: Domain) -> Graph:
    """Return the fabric of a domain alone, whose links have the order that they have in the whole fabric."""
    nodes = np.append(domain.npus, domain.switch)
    npus, links = len(domain.npus), len(domain.links)
    down = np.flatnonzero(graph.link_src[domain.links] == domain.switch)
    attached = np.searchsorted(domain.npus, graph.link_dst[domain.links[down]])
    routing: Any = graph.routing
    alone = replace(
        routing,
        home_node=np.array([npus], np.int32),
        home=np.zeros((npus, 1), np.int32),
        attach_set=np.arange(npus, dtype=np.int32).reshape(-1, 1),
        row=np.append(np.full(npus, -1), 0).astype(np.int32),
        hops=np.zeros((1, 1), np.int8),
        next_set=np.full((1, 1), -1, np.int32),
        set_ptr=np.arange(npus + 1, dtype=np.int32),
        set_link=down[np.argsort(attached)].astype(np.int32),
    )
    return replace(
        graph,
        npus=npus,
        nodes=npus + 1,
        links=links,
        node_kind=graph.node_kind[nodes],
        node_latency_ps=graph.node_latency_ps[nodes],
        link_src=np.searchsorted(nodes, graph.link_src[domain.links]).astype(np.int32),
        link_dst=np.searchsorted(nodes, graph.link_dst[domain.links]).astype(np.int32),
        link_rate_bps=graph.link_rate_bps[domain.links],
        link_delay_ps=graph.link_delay_ps[domain.links],
        dims=(npus,),
        host=np.where(graph.node_kind[domain.npus] == AGGREGATOR_KIND, 1, 0).astype(np.int32),
        pod=np.full(npus + 1, -1, np.int32),
        routing=alone,
        switch_names=("nvswitch",),
    )


def episode_program(program: Program, episode: Episode) -> Program:
    """Return a program whose NPUs start the collectives of an episode at its times, with the schedules of `program`."""
    groups = {places: 1 + i for i, places in enumerate(dict.fromkeys(each.places for each in episode.collectives))}
    seq, before = [], dict.fromkeys(groups, 0)
    for collective in episode.collectives:
        seq.append(before[collective.places])
        before[collective.places] += 1
    npus = len(episode.starts)
    slots = [[places for places in groups if npu in places] for npu in range(npus)]
    rows: list[tuple[int, int, int, int]] = []  # kind, duration, collective, slot
    trace_ptr, coll_ptr, coll_node = [0], [0], list[int]()
    children: list[list[int]] = []  # of each row, rows of its trace
    for npu, members in enumerate(episode.starts):
        first, now_ps, timer = len(rows), 0, -1
        own: dict[tuple[int, ...], list[int]] = {places: [] for places in slots[npu]}
        for start in members:
            if start.start_ps > now_ps:
                rows.append((KIND_COMPUTE, start.start_ps - now_ps, -1, 0))
                children.append([])
                if timer >= 0:
                    children[timer].append(len(rows) - 1 - first)
                timer, now_ps = len(rows) - 1, start.start_ps
            places = episode.collectives[start.collective].places
            own[places].append(len(rows) - first)
            rows.append((KIND_COLLECTIVE, 0, start.collective, slots[npu].index(places)))
            children.append([])
            if timer >= 0:
                children[timer].append(len(rows) - 1 - first)
        for places in slots[npu]:
            coll_node += own[places]
            coll_ptr.append(len(coll_node))
        trace_ptr.append(len(rows))
    kind, duration, number, slot = np.array(rows, np.int64).reshape(-1, 4).T
    is_collective = kind == KIND_COLLECTIVE
    deps = np.zeros(len(rows), np.int32)
    for first, end in pairwise(trace_ptr):
        for row in range(first, end):
            deps[[first + child for child in children[row]]] += 1

    def of_collective(values: Sequence[int], default: int) -> Int64:
        return np.where(is_collective, np.append(np.array(values, np.int64), default)[number], default)

    each = episode.collectives
    columns = {
        "node_kind": kind,
        "node_lane": of_collective([one.lane for one in each], 0),
        "node_duration_ps": duration,
        "node_bytes": of_collective([one.size_bytes for one in each], 0),
        "node_seq": of_collective(seq, 0),
        "node_group": slot,
        "node_schedule": of_collective([one.schedule for one in each], -1),
        "node_channel": np.full(len(rows), -1),
        "node_deps": deps,
    }
    arrays: dict[str, Any] = {
        name: np.asarray(columns.get(name, np.zeros(len(rows)))).astype(getattr(program, name).dtype)
        for name in program._fields
        if name.startswith("node_")
    }
    in_groups = [np.array(places) for places in groups]
    counts = [npus, *(len(places) for places in groups)]
    slot_group = [groups[places] for own_slots in slots for places in own_slots]
    slot_member = [places.index(npu) for npu, own_slots in enumerate(slots) for places in own_slots]
    return program._replace(
        npus=npus,
        trace_of_npu=np.arange(npus, dtype=np.int32),
        trace_ptr=np.array(trace_ptr, np.int64),
        **arrays,
        child_ptr=np.append(0, np.cumsum([len(one) for one in children])).astype(np.int64),
        child=np.array([child for one in children for child in one], np.int32),
        slot_ptr=np.append(0, np.cumsum([len(one) for one in slots])).astype(np.int64),
        slot_group=np.array(slot_group, np.int32),
        slot_member=np.array(slot_member, np.int32),
        group_ptr=np.append(0, np.cumsum(counts)).astype(np.int64),
        group_member=np.concatenate([np.arange(npus), *in_groups]).astype(np.int32),
        group_names=("",) * len(counts),
        trace_slot_ptr=np.append(0, np.cumsum([len(one) for one in slots])).astype(np.int64),
        coll_ptr=np.array(coll_ptr, np.int64),
        coll_node=np.array(coll_node, np.int32),
        recv_ptr=np.zeros(npus + 1, np.int64),
        recv_key=np.zeros(0, np.int64),
        recv_node=np.zeros(0, np.int32),
        in_network=(),
    )


def simulate(graph: Graph, program: Program, settings: Settings, constants: Record, episode: Episode) -> EpisodeRecord:
    """Simulate an episode by packets and return its record.

    graph: fabric of the domain alone; program, settings, constants: of the whole run.
    """
    plain = replace(settings, reuse=False, faults=NO_FAULTS, record_nodes=True, record_flows=True, compute_slowdown=1.0)
    own = episode_program(program, episode)
    sim = build_world(graph, own, plain)
    (lp,) = sim.lps
    for world in (lp, *([lp.back] if lp.back else [])):
        for name in OF_FABRIC.split():
            world.world.net.const[name] = constants[name]

    def run(place: ProcessPlace) -> Harvest:
        Crew(sim, place).run()
        return harvest(sim)

    SingleProcess([lp.part]).everywhere(sim.layout, 1, run)
    net = lp.world.net
    tx: Rows = net.tx[np.argsort(lp.part.links)]
    return EpisodeRecord(
        finish_ps=_ends(own, episode, lp.world.rows.finish),
        messages=_messages(own, episode, lp.flows_out, lp.flows_in),
        counters=net.count.copy(),
        link_bytes=bytes_sent(tx.sent_bytes),
        link_packets=packets_sent(tx.sent_packets),
        link_wait_ps=longest_wait_ps(tx.sent_bytes, tx.sent_packets),
        quiet_ps=int(tx.busy_ps.max()) + int(graph.link_delay_ps.max()),
    )


def _ends(program: Program, episode: Episode, finish_ps: Int64) -> tuple[Int64, ...]:
    """Return when each member of each collective ends, -1 = not; finish_ps: int64[rows of the program]."""
    ends = [np.full(len(each.places), NOT_STARTED) for each in episode.collectives]
    for npu, members in enumerate(episode.starts):
        rows = program.trace_ptr[npu] + np.flatnonzero(
            program.node_kind[program.trace_ptr[npu] : program.trace_ptr[npu + 1]] == KIND_COLLECTIVE
        )
        for start, row in zip(members, rows.tolist(), strict=True):
            ends[start.collective][start.member] = finish_ps[row]
    return tuple(ends)


def _messages(
    program: Program, episode: Episode, flows_out: Sequence[Any], flows_in: Sequence[Any]
) -> tuple[Messages, ...]:
    """Return the messages of each collective that have arrived."""
    out, into = (
        np.concatenate([*(np.asarray(block) for block in blocks), np.zeros(0, kind.dtype)])
        for blocks, kind in ((flows_out, FlowOut), (flows_in, FlowIn))
    )
    out = out[np.lexsort((out["tag"], out["ordinal"], tag_group(out["tag"]), out["pair"]))]
    into = into[np.lexsort((into["tag"], into["ordinal"], tag_group(into["tag"]), into["pair"]))]
    pair, tag = into["pair"], into["tag"]
    members = [tuple(program.group_member[a:b].tolist()) for a, b in pairwise(program.group_ptr[1:].tolist())]
    found = []
    seen = dict.fromkeys(members, 0)
    for each in episode.collectives:
        group, seq = 1 + members.index(each.places), seen[each.places]
        seen[each.places] += 1
        which = np.flatnonzero((tag_group(tag) == group) & (tag_seq(tag) == seq))
        found.append(
            Messages(
                *(
                    np.ascontiguousarray(column[which])
                    for column in (
                        pair_source(pair),
                        pair_destination(pair),
                        tag_lane(tag),
                        out["payload_bytes"],
                        out["posted_ps"],
                        into["finished_ps"],
                    )
                )
            )
        )
    return tuple(found)
