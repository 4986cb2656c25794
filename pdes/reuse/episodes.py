"""Episodes: collectives in an NVLink domain that affect each other, simulated by packets in a world without any other.

Its world is their members and the switch alone, with the constants of the whole fabric, and a trace for each NPU that
starts the episode's collectives at given times. Nothing in it depends on the time or the place of the NPUs in the
fabric, so what it finds holds whenever and wherever the same collectives start with the same offsets on idle links.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nadi.pdes.construction.schedule import NO_FAULTS
from nadi.pdes.construction.settings import Settings
from nadi.pdes.construction.worlds import build_world
from nadi.pdes.core.inputs import Graph, Int64, Program, Record, Rows
from nadi.pdes.core.memory import words_of
from nadi.pdes.core.message_digest import sum_messages
from nadi.pdes.core.packet import (
    bytes_sent,
    longest_wait_ps,
    packets_sent,
    pair_destination,
    pair_source,
    tag_group,
    tag_lane,
    tag_seq,
)
from nadi.pdes.core.rows.nic import FlowIn, FlowOut
from nadi.pdes.core.rows.run import Counters
from nadi.pdes.npu.trace import KIND_COLLECTIVE
from nadi.pdes.outcomes.outcome import LpResults, order_of_posts, outcome_of
from nadi.pdes.reuse.own_world import Episode, episode_program
from nadi.pdes.workers.mailbox import ProcessPlace, SingleProcess
from nadi.pdes.workers.worker_pool import WorkerPool

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

    graph: fabric of its NPUs alone; program, settings, constants: of the whole run, and whether its lanes are driven at
    shares (is_rate_limited).
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
        link_bytes=bytes_sent(tx.sent_bytes),
        link_packets=packets_sent(tx.sent_packets),
        link_wait_ps=longest_wait_ps(tx.sent_bytes, tx.sent_packets),
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
        # the collectives of an NPU's trace are in the order of its starts (`own_world._timelines`)
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
