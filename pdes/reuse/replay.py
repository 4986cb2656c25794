"""The replay of episodes in one logical process, which finds the ends of collectives and counts what they do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pdes.build.islands import Domain
from pdes.build.simulation import LogicalProcess, Simulation
from pdes.core import state as s
from pdes.core.inputs import Int64
from pdes.core.memory import rows_of, words_of
from pdes.core.packet import SEQ_SHIFT, job_of, message_tag, pair_word, rank_of
from pdes.core.rows.nic import FlowIn, FlowOut
from pdes.npu.islands import INSIDE, begin_cells, count_links, count_messages, end_members, take_packets
from pdes.reuse.episodes import EpisodeRecord, Messages, simulate
from pdes.reuse.own_world import Collective, Episode, Member, domain_graph
from pdes.reuse.records import Records
from pdes.window import may_lengthen

MAX_COLLECTIVES = 8  # of an episode: each one more that starts before the others end repeats the simulation of all


class Closed(NamedTuple):
    """A collective that is over."""

    group: int
    tag: int  # of its messages, on lane 0
    npus: Int64  # NPUs of its domain
    member: int  # NPU that is no aggregator
    begin_ps: int
    messages: Messages
    sums: Int64  # int64[4], of `sum_messages`


@dataclass(eq=False)
class Group:
    """A group within a domain; columns by member, aggregators last."""

    number: int
    npus: Int64  # NPUs
    places: tuple[int, ...]  # places among the domain's NPUs
    nodes: Int64  # nodes of the LP
    slots: Int64  # slots of the group
    real: int  # members that are no aggregators


@dataclass(eq=False)
class Running:
    """A collective of a group that members have started; columns by member, -1 = not started, not known."""

    group: Group
    seq: int
    collective: Collective
    members: int  # members that take part, the first ones
    first_ps: int  # earliest time at which it sends
    rows: Int64  # trace row
    start_ps: Int64
    order: Int64  # order of the starts in the LP
    end_ps: Int64

    @property
    def is_complete(self) -> bool:
        """Whether all members have started."""
        return bool((self.start_ps[: self.members] >= 0).all())


@dataclass(eq=False)
class IslandState:
    """What goes on in a domain: its current episode."""

    number: int
    domain: Domain
    groups: list[Group]
    running: list[Running] = field(default_factory=list)  # collectives that all members have started
    partial: list[Running] = field(default_factory=list)  # others that meet them
    begin_ps: int = 0
    busy_until_ps: int = -1  # time until which it affects what starts
    record: EpisodeRecord | None = None


class Replay:
    """Replays the episodes of an LP."""

    def __init__(self, sim: Simulation, lp: LogicalProcess, records: Records) -> None:
        """Take an LP of a Simulation, and the records of this process."""
        self._sim, self._lp, self._records = sim, lp, records
        self.islands = [
            IslandState(number, domain, self._groups_in(domain)) for number, domain in enumerate(lp.domains)
        ]
        self.noted: list[Closed] | None = None  # collectives that have ended since a period began, while one is noted
        self._state_of = {group.number: state for state in self.islands for group in state.groups}
        self._graphs = {domain.kind: domain_graph(sim.graph, domain) for domain in reversed(lp.domains)}

    def _groups_in(self, domain: Domain) -> list[Group]:
        """Return the groups within a domain."""
        program, islands = self._sim.program, self._lp.world.islands
        place = {npu: i for i, npu in enumerate(domain.npus.tolist())}
        first_aggregator = int(islands.island[islands.island_of[domain.npus[0]]].first_aggregator)
        members: dict[int, list[tuple[int, int, int]]] = {}
        for npu in place:
            for slot in range(program.slot_ptr[npu], program.slot_ptr[npu + 1]):
                if islands.role[slot] == INSIDE:
                    member = int(program.slot_member[slot]), npu, slot
                    members.setdefault(int(program.slot_group[slot]), []).append(member)
        groups = []
        for number, found in members.items():
            npus = np.array([npu for _, npu, _ in sorted(found)])
            groups.append(
                Group(
                    number,
                    npus,
                    tuple(place[npu] for npu in npus.tolist()),
                    islands.node_of[npus].astype(np.int64),
                    np.array([slot for _, _, slot in sorted(found)]),
                    int((npus < first_aggregator).sum()),
                )
            )
        return groups

    def serve(self) -> None:
        """Find the ends of the collectives that members have started, at the end of a cell."""
        ctl, islands = self._lp.world.net.ctl, self._lp.world.islands
        due = dict.fromkeys(islands.due[: int(ctl.due_replays)].tolist())
        ctl.due_replays = 0
        for number, groups in self._by_island(due).items():
            state = self.islands[number]
            candidates = state.groups if islands.island[number].open_members > 0 else groups
            self._advance(state, [one for group in candidates if (one := self._started(group)) is not None])
        if self._records.is_in_vain:
            islands.island.off = 1
        self._settle_cell()

    def _settle_cell(self) -> None:
        """Change the length of cells, if packets are to cross links of islands, or no longer do."""
        net, islands = self._lp.world.net, self._lp.world.islands
        ctl, const = net.ctl, net.const
        if ctl.changes_cell == 0 and not may_lengthen(net):
            return
        busy_ps = int(net.tx.busy_ps[islands.link].max()) + int(islands.island.drain_ps.max())
        if ctl.changes_cell == 0 and busy_ps >= ctl.now_ps + ctl.cell_ps:
            ctl.retry_ps = busy_ps + 1
            return
        self._lp.make_room("free_blocks", s.NEED_BLOCKS, len(net.tx) + int(const.reserve_blocks))
        packets = np.zeros((5, len(self._lp.world.net.record)), np.int64)  # time, link and three words of each
        count = take_packets(self._lp.address, *packets)
        time_ps, link = packets[:2, :count]
        in_order = np.ascontiguousarray(packets[:, np.lexsort((time_ps, link))])
        cell_ps = const.cell_ps if ctl.changes_cell else const.long_cell_ps
        begin_cells(self._lp.address, int(cell_ps), *in_order)

    def _by_island(self, due: Iterable[int]) -> dict[int, list[Group]]:
        """Return the groups with these numbers by their island."""
        groups: dict[int, list[Group]] = {}
        for number in due:
            state = self._state_of[number]
            groups.setdefault(state.number, []).append(next(g for g in state.groups if g.number == number))
        return groups

    def _started(self, group: Group) -> Running | None:
        """Return the collective of a group that members have started, and forget its starts if all members have."""
        world = self._lp.world
        islands, schedules = world.islands, self._sim.program.schedules
        slots, real = group.slots, group.real
        rows, start_ps = islands.start_row[slots].astype(np.int64), islands.start_ps[slots].copy()
        begun = np.flatnonzero(rows[:real] >= 0)
        if not len(begun):
            return None
        npu = world.npus.npu[group.nodes[begun[0]]]
        row = int(npu.trace_base) + int(rows[begun[0]])
        trace = world.trace
        schedule = int(trace.schedule[row])
        members = int(schedules.members[schedule])
        start_ps[rows < 0] = rows[members:] = start_ps[members:] = -1
        first_ps = int(start_ps[:real][begun].min())
        reacts = np.arange(len(rows)) >= real
        start_ps[reacts & (start_ps >= 0) & (start_ps < first_ps)] = first_ps  # it sends nothing before it receives
        collective = Collective(group.places, schedule, int(trace.bytes[row]), int(trace.lane[row]))
        launched_ps = first_ps + int(schedules.launch_ps[schedule])
        order = islands.start_order[slots].copy()
        unknown = np.full(len(rows), -1)
        running = Running(group, int(trace.seq[row]), collective, members, launched_ps, rows, start_ps, order, unknown)
        if running.is_complete:
            islands.start_row[slots[:members]] = -1
        return running

    def _advance(self, state: IslandState, started: list[Running]) -> None:
        """Add collectives that all members, or some, have started to a domain's episode, and set the ends."""
        complete = [one for one in started if one.is_complete]
        partial = [one for one in started if not one.is_complete]
        is_later = all(one.first_ps > state.busy_until_ps for one in complete)
        if state.running and complete and is_later and not state.partial:
            self._close(state)
        if complete:
            state.running = sorted(state.running + complete, key=lambda one: (one.first_ps, one.group.places))
            state.partial = []
            self._simulate(state)
        if self._lp.world.net.ctl.is_disturbed:
            return
        while state.running and self._lp.world.net.ctl.is_disturbed == 0:
            meets = [one for one in partial if one.first_ps <= state.busy_until_ps]
            if [one.start_ps.tolist() for one in meets] == [one.start_ps.tolist() for one in state.partial]:
                break
            state.partial = meets
            self._simulate(state)
        if state.record:
            for running, finish_ps in zip(state.running, state.record.finish_ps, strict=False):
                self._set_ends(running, state.begin_ps + finish_ps)

    def _simulate(self, state: IslandState) -> None:
        """Find the record of a domain's episode, and the time until which it affects others."""
        together = [*state.running, *state.partial]
        if len(together) > MAX_COLLECTIVES:
            self._lp.world.net.ctl.is_disturbed = 1
            return
        state.begin_ps = min(int(one.start_ps[one.start_ps >= 0].min()) for one in together)
        starts: list[list[tuple[int, int, Member]]] = [[] for _ in state.domain.npus]
        for number, one in enumerate(together):
            for member in np.flatnonzero(one.start_ps >= 0).tolist():
                start_ps = int(one.start_ps[member])
                at = Member(number, member, start_ps - state.begin_ps)
                starts[one.group.places[member]].append((start_ps, int(one.order[member]), at))
        in_order = tuple(tuple(member for *_, member in sorted(own)) for own in starts)
        episode = Episode(state.domain.kind, tuple(one.collective for one in together), in_order)
        state.record = self._records.of(episode, self._simulated)
        state.busy_until_ps = state.begin_ps + state.record.quiet_ps + int(self._lp.world.net.const.tie_pause_ps)
        self._lp.world.islands.island[state.number].busy_until_ps = state.busy_until_ps

    def _simulated(self, episode: Episode) -> EpisodeRecord:
        """Return the record of an episode that has none yet."""
        sim = self._sim
        const = self._lp.world.net.const
        return simulate(self._graphs[episode.domain_kind], sim.program, sim.settings, const, episode)

    def _set_ends(self, running: Running, end_ps: Int64) -> None:
        """Let the members of a collective end at end_ps, int64[members], unless they have ended already."""
        world = self._lp.world
        now_ps = int(world.net.ctl.now_ps) + int(world.net.ctl.cell_ps)
        taking_part = np.arange(len(end_ps)) < running.members
        has_ended = taking_part & (running.end_ps >= 0) & (running.end_ps < now_ps)
        ends = taking_part & ~has_ended
        if np.any(end_ps[has_ended] != running.end_ps[has_ended]) or np.any(
            end_ps[ends] < max(now_ps, int(running.start_ps.max()))
        ):
            world.net.ctl.is_disturbed = 1
            return
        running.end_ps[ends] = end_ps[ends]
        room = int(world.net.const.reserve_messages) + len(end_ps)
        self._lp.make_room("free_messages", s.NEED_MSGS, room)
        group = running.group
        columns = group.nodes[ends], running.rows[ends], group.slots[ends], end_ps[ends]
        end_members(self._lp.address, *columns)

    def _close(self, state: IslandState) -> None:
        """Count what a domain's episode, which is over, has done."""
        record = state.record
        assert record is not None, "what runs has a record"  # noqa: S101 - for the reader
        sums = record.message_sums(state.domain.npus, rank_of(self._lp.world.net.jobs.who[state.domain.npus]))
        for running, messages, sum_of_messages in zip(state.running, record.messages, sums, strict=True):
            group = running.group
            tag = message_tag(group.number, running.seq, 0)
            closed = Closed(
                group.number, tag, state.domain.npus, int(group.npus[0]), state.begin_ps, messages, sum_of_messages
            )
            self._count(closed)
            if self.noted is None:
                self._record_flows(closed)
            else:
                self.noted.append(closed)
        words = words_of(self._lp.world.net.count)
        words += record.counters
        count_links(self._lp.address, state.number, record.link_bytes, record.link_packets, record.link_wait_ps)
        self._count_for_jobs(state, record)
        self._records.count_replay(record)
        state.running, state.record = [], None

    def _count_for_jobs(self, state: IslandState, record: EpisodeRecord) -> None:
        """Count the bytes of an episode on its domain's links for the jobs of the NPUs at their ends."""
        world, graph = self._lp.world, self._sim.graph
        jobs = int(world.net.const.jobs)
        if jobs:
            links, island = state.domain.links, world.islands.island[state.number]
            src, dst = graph.link_src[links], graph.link_dst[links]
            who = world.net.jobs.who[np.where(src < graph.npus, src, dst)]
            rows = world.islands.link[island.first_link : island.first_link + island.links].astype(np.int64)
            world.net.jobs.link_bytes[rows * jobs + job_of(who)] += record.link_bytes

    def _count(self, closed: Closed) -> None:
        """Count the messages of a collective."""
        count_messages(
            self._lp.address, closed.tag, closed.member, closed.begin_ps, len(closed.messages.src), closed.sums
        )

    def _record_flows(self, closed: Closed) -> None:
        """Keep a row for each message of a collective, if asked for."""
        if not (self._sim.settings.record_flows and self._sim.settings.record_replayed):
            return
        npus, messages = closed.npus, closed.messages
        tag = closed.tag + messages.lane
        pair = pair_word(npus[messages.src], npus[messages.dst])
        ordinal = np.arange(len(tag))
        posted_ps, finished_ps = closed.begin_ps + messages.start_ps, closed.begin_ps + messages.finish_ps
        out = rows_of(
            FlowOut,
            len(tag),
            pair=pair,
            tag=tag,
            payload_bytes=messages.size_bytes,
            posted_ps=posted_ps,
            ordinal=ordinal,
        )
        into = rows_of(FlowIn, len(tag), pair=pair, tag=tag, ordinal=ordinal, finished_ps=finished_ps)
        self._lp.flows_out.append(out[: len(tag)])
        self._lp.flows_in.append(into[: len(tag)])

    def finish(self) -> None:
        """Count the last episodes, at the end of the run."""
        for state in self.islands:
            if state.running and not state.partial and not self._lp.world.net.ctl.is_disturbed:
                self._close(state)

    def records(self) -> list[EpisodeRecord | None]:
        """Return the records of the episodes under way."""
        return [state.record for state in self.islands if state.running or state.partial]

    def state_since(self, moment_ps: int, low: Int64) -> tuple[list[Any], list[Int64]]:
        """Return what determines the future of all domains at a quiet moment: names and numbers, and times since then.

        low: int64[NPUs of the LP], trace rows from which those of an NPU are counted.
        """
        starts = int(self._lp.world.net.ctl.replay_starts)
        found: list[Any] = []
        times: list[Int64] = []
        for state in self.islands:
            if not state.running and not state.partial:
                continue
            found.append((state.number, len(state.running)))
            busy_ps = max(state.busy_until_ps - moment_ps, -1)
            times.append(np.array([state.begin_ps - moment_ps, busy_ps]))
            for one in (*state.running, *state.partial):
                has_started = one.start_ps >= 0
                is_real = np.arange(len(one.rows)) < one.group.real
                rows = np.where(one.rows >= 0, one.rows - low[one.group.nodes], s.INF)
                found.append((one.group.number, one.collective, one.members, rows.tobytes(), has_started.tobytes()))
                times.append(np.append(one.first_ps - moment_ps, np.where(has_started, one.start_ps - moment_ps, -1)))
                times.append(np.where(is_real & has_started, starts - one.order, -1))
                times.append(np.where(one.end_ps >= 0, one.end_ps - moment_ps, s.INF))
        return found, times

    def repeat(self, periods: int, length_ps: int, of_group: Int64) -> None:
        """Count the noted collectives again in each of the periods that follow, length_ps long.

        of_group: int64[groups], collectives of a period.
        """
        for closed in self.noted or ():
            later = int(of_group[closed.group]) << SEQ_SHIFT
            for turn in range(1, periods + 1):
                again = closed._replace(tag=closed.tag + turn * later, begin_ps=closed.begin_ps + turn * length_ps)
                self._count(again)
                self._record_flows(again)

    def stop_notes(self) -> None:
        """Note no more collectives that end."""
        noted, self.noted = self.noted or (), None
        for closed in noted:
            self._record_flows(closed)

    def go_forward(self, shift_ps: int, rows_by: Int64, collectives_by: Int64) -> None:
        """Let all that is under way be shift_ps later, and further in the traces.

        rows_by: int64[NPUs of the LP], trace rows; collectives_by: int64[groups].
        """
        for state in self.islands:
            state.begin_ps += shift_ps
            state.busy_until_ps += shift_ps if state.busy_until_ps >= 0 else 0
            for one in (*state.running, *state.partial):
                one.rows[one.rows >= 0] += rows_by[one.group.nodes][one.rows >= 0]
                one.seq += int(collectives_by[one.group.number])
                one.first_ps += shift_ps
                one.start_ps[one.start_ps >= 0] += shift_ps
                one.end_ps[one.end_ps >= 0] += shift_ps
