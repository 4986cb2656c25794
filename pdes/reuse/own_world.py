"""The world of an episode: the fabric of its NPUs alone, and a program that starts its collectives."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nadi.pdes.construction.domains import AGGREGATOR_KIND, SingleSwitch
from nadi.pdes.core.inputs import Graph, Int64, Program
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_COMPUTE


class Member(NamedTuple):
    """A start of a collective: which of the episode's, the member of its group, when, since the episode's begin."""

    collective: int
    member: int
    start_ps: int


class Collective(NamedTuple):
    """A collective of an episode."""

    places: tuple[int, ...]  # place of each member that takes part, aggregators last
    schedule: int
    size_bytes: int
    lane: int  # Program.node_lane


class Episode(NamedTuple):
    """Collectives on idle links of NPUs of a domain: what determines all that happens there. It is a key of records."""

    subfabric_kind: int
    collectives: tuple[Collective, ...]
    starts: tuple[tuple[Member, ...], ...]  # by place among its NPUs, in the order of starts


def subfabric_graph(graph: Graph, subfabric: SingleSwitch) -> Graph:
    """Return the fabric of a subfabric alone, whose links have the order that they have in the whole fabric.

    Args:
        graph: The fabric (`Graph`).
        subfabric: NPUs of a domain with the links between them and the switch.
    """
    nodes = np.append(subfabric.npus, subfabric.switch)
    npus, links = len(subfabric.npus), len(subfabric.links)
    # the switch's port set towards each NPU is its one link down
    down = np.flatnonzero(graph.link_src[subfabric.links] == subfabric.switch)
    # positions in ascending lists are numbers in the subfabric: NPU i of the subfabric is the i-th of `subfabric.npus`
    attached = np.searchsorted(subfabric.npus, graph.link_dst[subfabric.links[down]])
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
        link_src=np.searchsorted(nodes, graph.link_src[subfabric.links]).astype(np.int32),
        link_dst=np.searchsorted(nodes, graph.link_dst[subfabric.links]).astype(np.int32),
        link_rate_bps=graph.link_rate_bps[subfabric.links],
        link_delay_ps=graph.link_delay_ps[subfabric.links],
        dims=(npus,),
        host=np.where(graph.node_kind[subfabric.npus] == AGGREGATOR_KIND, 1, 0).astype(np.int32),
        pod=np.full(npus + 1, -1, np.int32),
        routing=alone,
        switch_names=("nvswitch",),
    )


class _Timelines(NamedTuple):
    """Rows of all traces: those of a trace compute until the next collective starts."""

    rows: list[tuple[int, int, int, int]]  # kind, duration, collective, slot
    children: list[list[int]]  # of each row, rows of its trace
    trace_ptr: list[int]
    coll_ptr: list[int]  # pointers to the rows of each slot's collectives
    coll_node: list[int]


def _timelines(episode: Episode, slots: Sequence[Sequence[tuple[int, ...]]]) -> _Timelines:
    """Return the rows of an episode's traces; slots: places of the groups of each NPU."""
    found = _Timelines([], [], [0], [0], [])
    rows, children = found.rows, found.children
    for npu, members in enumerate(episode.starts):
        first, now_ps, timer = len(rows), 0, -1
        own: dict[tuple[int, ...], list[int]] = {places: [] for places in slots[npu]}
        for start in members:
            places = episode.collectives[start.collective].places
            added = [(KIND_COLLECTIVE, 0, start.collective, slots[npu].index(places))]
            # a computation as a timer, up to the next start of the NPU
            # the first start of an NPU at time 0, and equal starts, need no timer
            if start.start_ps > now_ps:
                added.insert(0, (KIND_COMPUTE, start.start_ps - now_ps, -1, 0))
            for row in added:
                # each row waits for the timer before it
                if timer >= 0:
                    children[timer].append(len(rows) - first)
                if row[0] == KIND_COMPUTE:
                    timer, now_ps = len(rows), start.start_ps
                else:
                    own[places].append(len(rows) - first)
                rows.append(row)
                children.append([])
        for places in slots[npu]:
            found.coll_node.extend(own[places])
            found.coll_ptr.append(len(found.coll_node))
        found.trace_ptr.append(len(rows))
    return found


def _columns(program: Program, episode: Episode, timelines: _Timelines, seq: Sequence[int]) -> dict[str, Any]:
    """Return the columns of an episode's rows as fields of Program; seq: number of each collective in its group."""
    rows, children = timelines.rows, timelines.children
    # int64[n] each; reshape, since an array of no rows would have one dimension
    kind, duration, number, slot = np.array(rows, np.int64).reshape(-1, 4).T
    is_collective = kind == KIND_COLLECTIVE
    deps = np.zeros(len(rows), np.int32)
    for first, end in pairwise(timelines.trace_ptr):
        for row in range(first, end):
            # += counts once per child: the children of a row are distinct
            deps[[first + child for child in children[row]]] += 1

    def of_collective(values: Sequence[int], default: int) -> Int64:
        # number is -1 in other rows, and picks the default at the end
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
    return {
        name: np.asarray(columns.get(name, np.zeros(len(rows)))).astype(getattr(program, name).dtype)
        for name in program._fields
        if name.startswith("node_")
    }


def episode_program(program: Program, episode: Episode) -> Program:
    """Return a program whose NPUs start the collectives of an episode at its times, with the schedules of `program`."""
    # group 0 is that of all NPUs, as in every program
    groups = {places: 1 + i for i, places in enumerate(dict.fromkeys(each.places for each in episode.collectives))}
    seq, before = [], dict.fromkeys(groups, 0)
    for collective in episode.collectives:
        seq.append(before[collective.places])
        before[collective.places] += 1
    npus = len(episode.starts)
    # groups of each NPU, in the order of their numbers
    slots = [[places for places in groups if npu in places] for npu in range(npus)]
    timelines = _timelines(episode, slots)
    children = timelines.children
    arrays = _columns(program, episode, timelines, seq)
    in_groups = [np.array(places) for places in groups]
    # lengths of the lists of members: all NPUs first, then each group; their sums are the pointers of a CSR
    counts = [npus, *(len(places) for places in groups)]
    slot_group = [groups[places] for own_slots in slots for places in own_slots]
    slot_member = [places.index(npu) for npu, own_slots in enumerate(slots) for places in own_slots]
    return program._replace(
        npus=npus,
        trace_of_npu=np.arange(npus, dtype=np.int32),
        trace_ptr=np.array(timelines.trace_ptr, np.int64),
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
        coll_ptr=np.array(timelines.coll_ptr, np.int64),
        coll_node=np.array(timelines.coll_node, np.int32),
        recv_ptr=np.zeros(npus + 1, np.int64),
        recv_key=np.zeros(0, np.int64),
        recv_node=np.zeros(0, np.int32),
        in_network=(),
        jobs=None,
    )
