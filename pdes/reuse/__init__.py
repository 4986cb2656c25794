"""Exact reuse: collectives of an NVLink domain are simulated once, in a world of their own, and then replayed.

An episode is collectives in the domain that affect each other. Its world is the fabric of its NPUs alone, with the
constants of the whole fabric, and a trace for each NPU that starts the episode's collectives at given times. Nothing in
it depends on the time or the place of the NPUs in the fabric, so what it finds holds whenever and wherever the same
collectives start with the same offsets on idle links.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nadi.pdes.construction import build_world
from nadi.pdes.construction.domains import AGGREGATOR_KIND, SingleSwitch
from nadi.pdes.construction.faults import NO_FAULTS
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Graph, Int64, Program, Record, Rows, packet
from nadi.pdes.core.jit import words_of
from nadi.pdes.core.rows.network import FlowIn, FlowOut
from nadi.pdes.core.rows.run import Counters
from nadi.pdes.nic.counting import sum_messages
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_COMPUTE
from nadi.pdes.outcomes.outcome import LpResults, order_of_posts, outcome_of
from nadi.pdes.workers import ProcessPlace, SingleProcess, WorkerPool


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
    listed = graph.source_routes
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
        group=np.full(npus + 1, -1, np.int32),
        routing=alone,
        switch_names=("nvswitch",),
        source_routes=listed.without(listed.set_link) if listed else None,  # none of them crosses an NVSwitch
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


OF_FABRIC = "window_packets rto_ps base_rtt_ps tie_pause_ps"  # constants that follow from the whole fabric
NOT_STARTED = -1
RECORD_BYTES = 2048  # memory of a record besides its messages
# Trace rows end in the world of the run, and messages are counted by their sums.
_ONCE = "trace_rows flows windows events"
_IS_ADDED = np.zeros(Counters.words, bool)
_IS_ADDED[: len(Counters.declared)] = [name not in _ONCE.split() for name in Counters.declared]


class Messages(NamedTuple):
    """The m messages of a collective, as columns int64[m]; times since the episode's begin."""

    src: Int64  # place of the sender among the episode's NPUs
    dst: Int64  # place of the receiver
    lane: Int64
    size_bytes: Int64
    start_ps: Int64
    finish_ps: Int64


class EpisodeRecord(NamedTuple):
    """What an episode does; times since its begin."""

    finish_ps: tuple[Int64, ...]  # of each collective: int64[members], -1 = not done, as members have not started
    messages: tuple[Messages, ...]  # of each collective
    counters: Int64  # words of Counters that a replay adds to those of the run, 0 for the others
    link_bytes: Int64  # int64[links of its NPUs]
    link_packets: Int64
    link_wait_ps: Int64
    quiescent_ps: int  # when the last packet has arrived
    hops: int  # packet-hops
    sums: dict[tuple[int, ...], list[Int64]]  # by ranks of the NPUs: int64[4] of each collective (`sum_messages`)

    def message_sums(self, ranks: Int64) -> list[Int64]:
        """Return int64[4] for each collective: the sums of its messages in the digest (`sum_messages`).

        ranks: int64[n], ranks within their jobs of the NPUs that replay the episode.
        """
        # the digest names ranks within jobs, which differ from domain to domain; of equal ones, each key is computed
        # once
        key = tuple(ranks.tolist())
        if key not in self.sums:
            self.sums[key] = [np.zeros(4, np.int64) for _ in self.messages]
            for messages, sums in zip(self.messages, self.sums[key], strict=True):
                sum_messages(ranks, messages.src, messages.dst, messages.lane, messages.finish_ps, sums)
        return self.sums[key]

    @property
    def message_count(self) -> int:
        """Number of messages."""
        return sum(len(messages.src) for messages in self.messages)

    @property
    def size_bytes(self) -> int:
        """Memory of the record in bytes, approximately."""
        return RECORD_BYTES + sum(column.nbytes for messages in self.messages for column in messages)


def simulate(
    graph: Graph, program: Program, settings: Settings, constants: Record, episode: Episode, *, is_rate_limited: bool
) -> EpisodeRecord:
    """Simulate an episode by packets and return its record.

    graph: fabric of its NPUs alone; program, settings, constants: of the whole run, and whether its lanes are limited
    to shares (is_rate_limited).
    """
    # the world of an episode must not do itself what is decided for the run: reuse, faults, slowdowns, turns of
    # collectives
    plain = replace(
        settings,
        reuse=False,
        faults=NO_FAULTS,
        record_nodes=True,
        record_flows=True,
        compute_slowdown=1.0,
        job_slowdowns=(),
        concurrent_collectives=True,  # members start when they have started, at times at which others end, too
    )
    own = episode_program(program, episode)
    sim = build_world(graph, own, plain, is_rate_limited=is_rate_limited)
    (lp,) = sim.lps
    for world in (lp, *([lp.back] if lp.back else [])):
        for name in OF_FABRIC.split():
            world.world.net.const[name] = constants[name]

    def run(place: ProcessPlace) -> LpResults:
        WorkerPool(sim, place).run()
        return outcome_of(sim)

    SingleProcess([lp.part]).everywhere(sim.layout, 1, run)
    net = lp.world.net
    # rows of `tx` are node by node; records have the links in the order of the fabric
    tx: Rows = net.tx[np.argsort(lp.part.links)]
    return EpisodeRecord(
        finish_ps=_ends(own, episode, lp.world.rows.finish),
        messages=_messages(own, episode, plain, lp.flows_out, lp.flows_in),
        counters=np.where(_IS_ADDED, words_of(net.count), 0),
        link_bytes=packet.bytes_sent(tx.sent_bytes),
        link_packets=packet.packets_sent(tx.sent_packets),
        link_wait_ps=packet.longest_wait_ps(tx.sent_bytes, tx.sent_packets),
        quiescent_ps=int(tx.busy_ps.max()) + int(graph.link_delay_ps.max()),
        hops=int(net.count.hops),
        sums={},
    )


def _ends(program: Program, episode: Episode, finish_ps: Int64) -> tuple[Int64, ...]:
    """Return when each member of each collective ends, -1 = not; finish_ps: int64[rows of the program]."""
    ends = [np.full(len(each.places), NOT_STARTED) for each in episode.collectives]
    for npu, members in enumerate(episode.starts):
        rows = program.trace_ptr[npu] + np.flatnonzero(
            program.node_kind[program.trace_ptr[npu] : program.trace_ptr[npu + 1]] == KIND_COLLECTIVE
        )
        # the collectives of an NPU's trace are in the order of its starts (`_timelines`)
        for start, row in zip(members, rows.tolist(), strict=True):
            ends[start.collective][start.member] = finish_ps[row]
    return tuple(ends)


def _messages(
    program: Program, episode: Episode, settings: Settings, flows_out: Sequence[Any], flows_in: Sequence[Any]
) -> tuple[Messages, ...]:
    """Return the messages of each collective that have arrived."""
    out: Rows = np.concatenate([*flows_out, np.zeros(0, FlowOut.dtype)]).view(np.recarray)
    into: Rows = np.concatenate([*flows_in, np.zeros(0, FlowIn.dtype)]).view(np.recarray)
    # in this order, row i of both is the same message
    out, into = out[order_of_posts(out, settings)], into[order_of_posts(into, settings)]
    pair, tag = into["pair"], into["tag"]
    members = [tuple(program.group_member[a:b].tolist()) for a, b in pairwise(program.group_ptr[1:].tolist())]
    found = []
    seen = dict.fromkeys(members, 0)
    for each in episode.collectives:
        # group 0 of an episode's program is the group of all NPUs
        group, seq = 1 + members.index(each.places), seen[each.places]
        seen[each.places] += 1
        # columns of one collective: the records of all are in one order, so that a selection of rows is consistent
        which = np.flatnonzero((packet.tag_group(tag) == group) & (packet.tag_seq(tag) == seq))
        found.append(
            Messages(
                *(
                    np.ascontiguousarray(column[which])
                    for column in (
                        packet.pair_source(pair),
                        packet.pair_destination(pair),
                        packet.tag_lane(tag),
                        out["payload_bytes"],
                        out["posted_ps"],
                        into["finished_ps"],
                    )
                )
            )
        )
    return tuple(found)


# The records of a process's episodes: each is simulated once, the least recently used are dropped.

MAX_BYTES = 1 << 30  # memory of all records of a process
TRIED = 64  # episodes, replayed or disturbed, after which it is known whether replay is worth its search
HOPS_OF_REPLAY, HOPS_OF_WORLD = 4_000, 100_000  # packet-hops that take as long as a replay, and as a world's building


class Records:
    """Records of episodes, shared by the workers of a process."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Begin without records; max_bytes: memory that they may take together."""
        self.simulated = 0  # episodes
        self.replayed = 0
        self.disturbed = 0  # episodes that went on as packets
        self.simulated_hops = 0  # packet-hops
        self.replayed_hops = 0
        self.replayed_messages = 0
        self.repeated_periods = 0  # periods of the whole run that were counted, not simulated
        self.repeated_hops = 0
        self.near_periods = 0  # those of them that are only nearly like simulated ones, by fast-forward
        self.near_ps = 0  # simulated time of these
        self.near_error_ps = 0  # by how much they may be longer or shorter together, as simulated ones differ
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._records: OrderedDict[Episode, EpisodeRecord] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, episode: Episode, simulate: Callable[[Episode], EpisodeRecord]) -> EpisodeRecord:
        """Return the record of an episode, by `simulate` if there is none yet."""
        with self._lock:
            record = self._records.get(episode)
            if record is not None:
                self._records.move_to_end(episode)
                return record
        # without the lock: others may simulate meanwhile, at worst the same episode
        record = simulate(episode)
        with self._lock:
            self.simulated += 1
            self.simulated_hops += record.hops
        self.keep([(episode, record)])
        return record

    def keep(self, records: Iterable[tuple[Episode, EpisodeRecord]]) -> None:
        """Keep records of episodes, in the order of their last use, as far as there is room."""
        with self._lock:
            for episode, record in records:
                # another worker may have simulated the same episode meanwhile: the first record stays
                if episode not in self._records:
                    self._records[episode] = record
                    self.size_bytes += record.size_bytes
            # the first entry is the one that was used longest ago
            while self.size_bytes > self._max_bytes and len(self._records) > 1:
                self.size_bytes -= self._records.popitem(last=False)[1].size_bytes

    def kept(self) -> list[tuple[Episode, EpisodeRecord]]:
        """Return the records that are kept, in the order of their last use."""
        with self._lock:
            return list(self._records.items())

    def count_replay(self, record: EpisodeRecord) -> None:
        """Count an episode that is over.

        Args:
            record: The episode's record.
        """
        with self._lock:
            self.replayed += 1
            self.replayed_hops += record.hops
            self.replayed_messages += record.message_count

    def count_disturbed(self, episodes: int) -> None:
        """Count episodes that continue as packets; episodes: number of episodes."""
        with self._lock:
            self.disturbed += episodes

    def count_periods(self, before: dict[str, int], periods: int, hops: int, *, is_first: bool) -> None:
        """Count periods of the whole run, with `hops` packet-hops in all; before: `counts` one period ago.

        is_first: whether this is the first of the run's processes, which counts the periods for all.
        """
        self.repeated_periods += periods * is_first
        self.repeated_hops += hops
        # each of the periods replays as many messages as the one that was simulated
        self.replayed_messages += periods * (self.replayed_messages - before["replayed_messages"])

    def count_near(self, periods: int, length_ps: int, spread_ps: int) -> None:
        """Count periods that are length_ps long, as others are that differ by at most spread_ps."""
        self.near_periods += periods
        self.near_ps += periods * length_ps
        self.near_error_ps += periods * spread_ps

    def counts(self) -> dict[str, int]:
        """Return the counts of `Results.reuse`."""
        return {
            "episodes_simulated": self.simulated,
            "episodes_replayed": self.replayed,
            "episodes_disturbed": self.disturbed,
            "episode_hops": self.simulated_hops,
            "replayed_hops": self.replayed_hops,
            "replayed_messages": self.replayed_messages,
            "repeated_periods": self.repeated_periods,
            "repeated_hops": self.repeated_hops,
            "near_periods": self.near_periods,
            "near_ps": self.near_ps,
            "near_error_ps": self.near_error_ps,
            "record_bytes": self.size_bytes,
        }

    @property
    def is_in_vain(self) -> bool:
        """Whether replay takes longer than the packets that it saves."""
        # An episode whose world is built also counts twice the packets that its world then simulates: it may be one of
        # those that are simulated again, as another collective joins it.
        # Example: 100 replays of 10,000 hops save 1,000,000; 20 worlds that simulated 200,000 hops cost 400,000 again,
        # 100 x 4,000 for the replays and 20 x 100,000 for the worlds: in vain.
        saved_hops = self.replayed_hops - 2 * self.simulated_hops
        tried = self.replayed + self.disturbed
        return tried >= TRIED and saved_hops < HOPS_OF_REPLAY * tried + HOPS_OF_WORLD * self.simulated
