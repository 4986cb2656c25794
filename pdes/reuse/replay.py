"""The replay of episodes in one logical process, which finds the ends of collectives and counts what they do."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from nadi.pdes.construction.domains import Domain, SingleSwitch, subfabric_of
from nadi.pdes.construction.layout import LogicalProcess, Simulation
from nadi.pdes.core import Graph, Int64, state as s
from nadi.pdes.core.jit import rows_of, words_of
from nadi.pdes.core.packet import SEQ_SHIFT, job_of, message_tag, pair_word, rank_of
from nadi.pdes.core.rows.network import FlowIn, FlowOut
from nadi.pdes.nic.pacing import RATE_LIMITED
from nadi.pdes.reuse import Collective, Episode, EpisodeRecord, Member, Messages, Records, simulate, subfabric_graph
from nadi.pdes.reuse.open_episodes import DomainState, Group, OpenEpisode, Running, Start, first_sent
from nadi.pdes.reuse_kernels import domains
from nadi.pdes.window import may_lengthen

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


class Replay:
    """Replays the episodes of an LP."""

    def __init__(self, sim: Simulation, lp: LogicalProcess, records: Records) -> None:
        """Take an LP of a Simulation, and the records of this process."""
        self._sim, self._lp, self._records = sim, lp, records
        self.domains = [
            DomainState(number, domain, self._groups_in(domain)) for number, domain in enumerate(lp.domains)
        ]
        self.noted: list[Closed] | None = None  # collectives that have ended since a period began, while one is noted
        self._state_of = {group.number: state for state in self.domains for group in state.groups}
        self._subfabrics: dict[tuple[int, tuple[int, ...]], SingleSwitch] = {}  # by domain and places
        self._graphs: dict[int, Graph] = {}  # by kind of subfabric
        self._is_past = False  # the next cell is an earlier one

    def _groups_in(self, domain: Domain) -> list[Group]:
        """Return the groups within a domain."""
        program, nvlink = self._sim.program, self._lp.world.nvlink
        place = {npu: i for i, npu in enumerate(domain.npus.tolist())}
        first_aggregator = int(nvlink.domain[nvlink.domain_of[domain.npus[0]]].first_aggregator)
        members: dict[int, list[tuple[int, int, int]]] = {}
        for npu in place:
            for slot in range(program.slot_ptr[npu], program.slot_ptr[npu + 1]):
                # groups with members elsewhere (CROSSING) are never replayed
                if nvlink.role[slot] == domains.INSIDE:
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
                    nvlink.node_of[npus].astype(np.int64),
                    np.array([slot for _, _, slot in sorted(found)]),
                    # members that are no aggregators
                    int((npus < first_aggregator).sum()),
                )
            )
        return groups

    def serve(self) -> None:
        """Find the ends of the collectives that members have started, at the end of a cell."""
        ctl, nvlink = self._lp.world.net.ctl, self._lp.world.nvlink
        # each once, in the order of reports
        due = list(dict.fromkeys(nvlink.due[: int(ctl.due_replays)].tolist()))
        ctl.due_replays = 0
        disturbed = {-1 - number for number in due if number < 0}
        groups = self._by_domain(number for number in due if number >= 0)
        for number in sorted(disturbed | groups.keys()):
            state = self.domains[number]
            late = self._take_late(state) if number in disturbed else []
            # collectives that wait may meet those that are due, so look at all groups
            some_wait = bool(nvlink.started[[group.number for group in state.groups]].any())
            candidates = state.groups if some_wait else groups.get(number, [])
            started = [one for group in candidates if (one := self._started(group)) is not None]
            places = np.flatnonzero(nvlink.member.is_disturbed[nvlink.node_of[state.domain.npus]]).tolist()
            if places:
                started = self._go_on_as_packets(state, places, started, late)
            self._advance(state, started)
        if self._records.is_in_vain:
            nvlink.domain.off = 1
        self._settle_cell()
        self._is_past = False

    @property
    def replayed_hops(self) -> int:
        """Packet-hops that this process has replayed."""
        return self._records.replayed_hops

    @property
    def has_stopped(self) -> bool:
        """Whether collectives of these NVLink domains seldom repeat, so that all that start go by packets."""
        return bool(self._lp.world.nvlink.domain.off.any())

    def _take_late(self, state: DomainState) -> list[Start]:
        """Return the starts of collectives of packets that disturb others, and forget them."""
        nvlink, slot_ptr, npus = self._lp.world.nvlink, self._sim.program.slot_ptr, state.domain.npus
        # all slots of the domain's NPUs; `nodes` repeats each NPU's node for each of its slots
        slots = np.concatenate([np.arange(slot_ptr[npu], slot_ptr[npu + 1]) for npu in npus.tolist()])
        nodes = np.repeat(nvlink.node_of[npus], slot_ptr[npus + 1] - slot_ptr[npus])
        rows = nvlink.start_row[slots]
        # starts of rows whose packets cross the domain's links
        late = (rows >= 0) & (nvlink.packet_row[slots] == rows + 1)
        slots = slots[late]
        columns = nvlink.start_ps[slots], nvlink.start_order[slots], nodes[late], rows[late], slots
        starts = [Start(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]
        nvlink.start_row[slots] = -1
        return starts

    def _settle_cell(self) -> None:
        """Change the length of cells, if packets are to cross links of NVLink domains, or no longer do; or return."""
        is_past = self._is_past
        net, nvlink = self._lp.world.net, self._lp.world.nvlink
        ctl, const = net.ctl, net.const
        if ctl.changes_cell == 0 and not is_past and not may_lengthen(net):
            return
        busy_ps = int(net.tx.busy_ps[nvlink.link].max()) + int(nvlink.domain.drain_ps.max())
        if ctl.changes_cell == 0 and not is_past and busy_ps >= ctl.now_ps + ctl.cell_ps:
            ctl.retry_ps = busy_ps + 1
            return
        self._lp.make_room("free_blocks", s.NEED_BLOCKS, len(net.tx) + int(const.reserve_blocks))
        packets = np.zeros((6, len(net.record)), np.int64)  # time, link, three words and record of each
        count = domains.take_packets(self._lp.address, *packets)
        time_ps, link = packets[:2, :count]
        # by link and, on each link, by time: lists of links must be in order of arrival
        in_order = np.ascontiguousarray(packets[:, np.lexsort((time_ps, link))])
        telemetry = net.telemetry[in_order[-1]] if net.hooks.telemetry else None
        cell_ps = const.cell_ps if ctl.changes_cell or is_past else const.long_cell_ps
        domains.begin_cells(self._lp.address, int(cell_ps), *in_order)
        if telemetry is not None:
            net.telemetry[in_order[-1]] = telemetry

    def _by_domain(self, due: Iterable[int]) -> dict[int, list[Group]]:
        """Return the groups with these numbers by their domain."""
        groups: dict[int, list[Group]] = {}
        for number in due:
            state = self._state_of[number]
            groups.setdefault(state.number, []).append(next(g for g in state.groups if g.number == number))
        return groups

    def _started(self, group: Group) -> Running | None:
        """Return the collective of a group that members have started, and forget its starts if all members have."""
        world = self._lp.world
        nvlink, schedules = world.nvlink, self._sim.program.schedules
        begun = np.flatnonzero(nvlink.start_row[group.slots[: group.real]] >= 0)
        if not len(begun):
            return None
        npu = world.npus.npu[group.nodes[begun[0]]]
        row = int(npu.trace_base) + int(nvlink.start_row[group.slots[begun[0]]])
        trace = world.trace
        schedule = int(trace.schedule[row])
        members = int(schedules.members[schedule])
        slots, real = group.slots[:members], min(group.real, members)
        rows, start_ps = nvlink.start_row[slots].astype(np.int64), nvlink.start_ps[slots].copy()
        start_ps[rows < 0] = -1
        first_ps = int(start_ps[:real][rows[:real] >= 0].min())
        reacts = np.arange(members) >= real
        start_ps[reacts & (start_ps >= 0) & (start_ps < first_ps)] = first_ps  # it sends nothing before it receives
        collective = Collective(group.places[:members], schedule, int(trace.bytes[row]), int(trace.lane[row]))
        # nothing is sent before the launch is over, so links are free until then
        launched_ps = first_ps + int(schedules.launch_ps[schedule])
        order = nvlink.start_order[slots].copy()
        unknown = np.full(members, -1)
        running = Running(group, int(trace.seq[row]), collective, launched_ps, rows, start_ps, order, unknown)
        if running.is_complete:
            nvlink.start_row[slots] = -1
        return running

    def _advance(self, state: DomainState, started: list[Running]) -> None:
        """Add collectives that all members, or some, have started to a domain's episodes, and set the ends."""
        for one in sorted((one for one in started if one.is_complete), key=first_sent):
            for over in state.add(one):
                self._close(state, over)
        partial = [one for one in started if not one.is_complete]
        changed: list[OpenEpisode] = []
        # An episode without a record is simulated; its end may then reach further, to collectives that some members
        # have started, which joins them and voids the record: until nothing changes.
        while True:
            for episode in [episode for episode in state.episodes if episode.record is None]:
                if episode not in state.episodes:
                    continue
                # each further collective would repeat the simulation of all
                if len(episode.together) > MAX_COLLECTIVES:
                    partial = self._go_on_as_packets(state, episode.places, partial, [])
                else:
                    self._simulate(state, episode)
                    changed.append(episode)
            if not any(state.take_in(episode, partial) for episode in list(state.episodes)):
                break
        for episode in state.episodes:
            if episode.record and episode in changed:
                for running, finish_ps in zip(episode.running, episode.record.finish_ps, strict=False):
                    self._set_ends(running, episode.begin_ps + finish_ps)

    def _go_on_as_packets(
        self, state: DomainState, places: Iterable[int], started: list[Running], late: list[Start]
    ) -> list[Running]:
        """Let collectives that share members with packets, at these places, send packets themselves; return the others.

        started: collectives that are in no episode, or only some members of which have started; late: other starts.
        """
        ctl = self._lp.world.net.ctl
        begin_ps = int(ctl.now_ps) + int(ctl.cell_ps)
        over, disturbed, lost, others = state.give_up(places, started, begin_ps)
        for episode in over:
            self._close(state, episode)
        self._records.count_disturbed(len(disturbed))
        lost += [one for episode in disturbed for one in episode.running]
        self._send_packets(state, lost, late, begin_ps)
        return others

    def _send_packets(self, state: DomainState, lost: list[Running], late: list[Start], begin_ps: int) -> None:
        """Let collectives of a domain start again, as packets, and others; begin_ps: begin of the next cell."""
        starts = late + [
            Start(*(int(column[member]) for column in (one.start_ps, one.order, one.nodes, one.rows, one.slots)))
            for one in lost
            for member in np.flatnonzero(one.start_ps >= 0).tolist()
        ]
        self._lp.make_room("free_messages", s.NEED_MSGS, int(self._lp.world.net.const.reserve_messages) + len(starts))
        nvlink = self._lp.world.nvlink
        nvlink.member.is_disturbed[nvlink.node_of[state.domain.npus]] = 0
        for one in lost:
            nvlink.member.busy_until_ps[one.nodes] = -1
            if not one.is_complete:
                nvlink.started[one.group.number] = 0
                nvlink.start_row[one.slots] = -1
                nvlink.member.waiting[one.nodes] -= 1
            # aggregators: those that have not started yet then send packets at once (`enter_domain`)
            nvlink.start_order[one.slots[one.group.real :]] = one.seq + 1
        if starts:
            start_ps, _, nodes, rows, slots = np.array(sorted(starts), np.int64).T
            nodes, rows, slots, start_ps = (np.ascontiguousarray(each) for each in (nodes, rows, slots, start_ps))
            domains.send_packets(self._lp.address, nodes, rows, slots, start_ps, begin_ps)
            self._is_past = True

    def _simulate(self, state: DomainState, episode: OpenEpisode) -> None:
        """Find the record of an episode, and the time until which it affects others."""
        together, places = episode.together, episode.places
        subfabric, at = self._subfabric(state, places), {place: i for i, place in enumerate(places)}
        episode.begin_ps = min(int(one.start_ps[one.start_ps >= 0].min()) for one in together)
        starts: list[list[tuple[int, int, Member]]] = [[] for _ in places]
        for number, one in enumerate(together):
            for member in np.flatnonzero(one.start_ps >= 0).tolist():
                start_ps = int(one.start_ps[member])
                start = Member(number, member, start_ps - episode.begin_ps)
                starts[at[one.group.places[member]]].append((start_ps, int(one.order[member]), start))
        # members start in the order in which the run has started them
        in_order = tuple(tuple(member for *_, member in sorted(own)) for own in starts)
        collectives = tuple(
            one.collective._replace(places=tuple(at[place] for place in one.collective.places)) for one in together
        )
        episode.record = self._records.of(Episode(subfabric.kind, collectives, in_order), self._simulated)
        net, nvlink = self._lp.world.net, self._lp.world.nvlink
        # its last packet is in, and another pause without ties: later packets meet a network as if nothing had been
        episode.busy_until_ps = episode.begin_ps + episode.record.quiescent_ps + int(net.const.tie_pause_ps)
        nvlink.member.busy_until_ps[nvlink.node_of[subfabric.npus]] = episode.busy_until_ps

    def _subfabric(self, state: DomainState, places: tuple[int, ...]) -> SingleSwitch:
        """Return the NPUs and links at some places of a domain."""
        key = state.number, places
        if key not in self._subfabrics:
            subfabric = self._subfabrics[key] = subfabric_of(self._sim.layout.lasting, state.domain, places)
            if subfabric.kind not in self._graphs:
                self._graphs[subfabric.kind] = subfabric_graph(self._sim.layout.lasting, subfabric)
        return self._subfabrics[key]

    def _simulated(self, episode: Episode) -> EpisodeRecord:
        """Return the record of an episode that has none yet."""
        sim = self._sim
        const = self._lp.world.net.const
        graph, is_rate_limited = self._graphs[episode.subfabric_kind], sim.layout.control == RATE_LIMITED
        return simulate(graph, sim.program, sim.settings, const, episode, is_rate_limited=is_rate_limited)

    def _set_ends(self, running: Running, end_ps: Int64) -> None:
        """Let the members of a collective end at end_ps, int64[members], unless they have ended already."""
        world = self._lp.world
        now_ps = int(world.net.ctl.now_ps) + int(world.net.ctl.cell_ps)
        # ends before the end of this cell have happened already
        has_ended = (running.end_ps >= 0) & (running.end_ps < now_ps)
        ends = ~has_ended
        # an end in the past would have to change, so the run begins again without replays
        if np.any(end_ps[has_ended] != running.end_ps[has_ended]) or np.any(
            end_ps[ends] < max(now_ps, int(running.start_ps.max()))
        ):
            world.net.ctl.is_disturbed = 1
            return
        running.end_ps[ends] = end_ps[ends]
        room = int(world.net.const.reserve_messages) + len(end_ps)
        self._lp.make_room("free_messages", s.NEED_MSGS, room)
        columns = running.nodes[ends], running.rows[ends], running.slots[ends], end_ps[ends]
        domains.end_members(self._lp.address, *columns)

    def _close(self, state: DomainState, episode: OpenEpisode) -> None:
        """Count what a domain's episode, which is over, has done."""
        record, subfabric = episode.record, self._subfabric(state, episode.places)
        assert record is not None, "what runs has a record"  # noqa: S101 - for the reader
        sums = record.message_sums(rank_of(self._lp.world.net.jobs.who[subfabric.npus]))
        for running, messages, sum_of_messages in zip(episode.running, record.messages, sums, strict=True):
            group = running.group
            tag = message_tag(group.number, running.seq, 0)
            closed = Closed(
                group.number, tag, subfabric.npus, int(group.npus[0]), episode.begin_ps, messages, sum_of_messages
            )
            self._count(closed)
            if self.noted is None:
                self._record_flows(closed)
            else:
                self.noted.append(closed)
        words = words_of(self._lp.world.net.count)
        words += record.counters
        rows = self._lp.world.nvlink.row_of[subfabric.links].astype(np.int64)
        domains.count_links(self._lp.address, rows, record.link_bytes, record.link_packets, record.link_wait_ps)
        self._count_for_jobs(subfabric, rows, record)
        self._records.count_replay(record)

    def _count_for_jobs(self, subfabric: SingleSwitch, rows: Int64, record: EpisodeRecord) -> None:
        """Count the bytes of an episode on a subfabric's links, `rows` of `tx`, for jobs of the NPUs at their ends."""
        world, graph = self._lp.world, self._sim.graph
        jobs = int(world.net.const.jobs)
        if jobs:
            src, dst = graph.link_src[subfabric.links], graph.link_dst[subfabric.links]
            who = world.net.jobs.who[np.where(src < graph.npus, src, dst)]
            world.net.jobs.link_bytes[rows * jobs + job_of(who)] += record.link_bytes

    def _count(self, closed: Closed) -> None:
        """Count the messages of a collective."""
        domains.count_messages(
            self._lp.address, closed.tag, closed.member, closed.begin_ps, len(closed.messages.src), closed.sums
        )

    def _record_flows(self, closed: Closed) -> None:
        """Keep a row for each message of a collective, if asked for."""
        if not (self._sim.settings.record_flows and self._sim.settings.record_replayed):
            return
        npus, messages = closed.npus, closed.messages
        tag = closed.tag + messages.lane
        pair = pair_word(npus[messages.src], npus[messages.dst])
        # replayed messages have no queue pair: any numbers serve that are the same in both tables
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

    def finish(self, before_ps: int = s.INF) -> None:
        """Count the episodes that end before before_ps: at the run's end, and before what they did is read."""
        for state in self.domains:
            for episode in list(state.episodes):
                is_over = not episode.partial and episode.busy_until_ps < before_ps
                if is_over and not self._lp.world.net.ctl.is_disturbed:
                    state.episodes.remove(episode)
                    self._close(state, episode)

    def records(self) -> list[EpisodeRecord | None]:
        """Return the records of the episodes under way."""
        return [episode.record for state in self.domains for episode in state.episodes]

    def state_since(self, moment_ps: int, low: Int64) -> tuple[list[Any], list[Int64]]:
        """Return what determines the future of all domains at a quiescent moment: names, numbers, times since then.

        moment_ps: time of the moment in ps; low: int64[NPUs of the LP], trace rows from which those of an NPU are
        counted.
        """
        starts = int(self._lp.world.net.ctl.replay_starts)
        found: list[Any] = []
        times: list[Int64] = []
        for episode in (episode for state in self.domains for episode in state.episodes):
            found.append(len(episode.running))
            busy_ps = max(episode.busy_until_ps - moment_ps, -1)
            times.append(np.array([episode.begin_ps - moment_ps, busy_ps]))
            for one in episode.together:
                has_started = one.start_ps >= 0
                is_real = np.arange(len(one.rows)) < one.group.real
                rows = np.where(one.rows >= 0, one.rows - low[one.nodes], s.INF)
                found.append((one.group.number, one.collective, rows.tobytes(), has_started.tobytes()))
                times.append(np.append(one.first_ps - moment_ps, np.where(has_started, one.start_ps - moment_ps, -1)))
                times.append(np.where(is_real & has_started, starts - one.order, -1))
                times.append(np.where(one.end_ps >= 0, one.end_ps - moment_ps, s.INF))
        return found, times

    def repeat(self, periods: int, length_ps: int, of_group: Int64) -> None:
        """Count the noted collectives again in each of the periods that follow, length_ps long.

        of_group: int64[groups], collectives of a period.
        """
        for closed in self.noted or ():
            # collectives of a period, in the bits of a tag where their number is
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
        for episode in (episode for state in self.domains for episode in state.episodes):
            episode.begin_ps += shift_ps
            episode.busy_until_ps += shift_ps
            for one in episode.together:
                one.rows[one.rows >= 0] += rows_by[one.nodes][one.rows >= 0]
                one.seq += int(collectives_by[one.group.number])
                one.first_ps += shift_ps
                one.start_ps[one.start_ps >= 0] += shift_ps
                one.end_ps[one.end_ps >= 0] += shift_ps
