"""Exact recurrence: a machine in the same state again does the same again, which is then counted and not simulated.

A pipeline in its steady state repeats itself with each micro-batch, and training with each iteration. At quiescent
moments, when no packet is under way, the state of a run is small (pdes/reuse_kernels/quiescent.py). If it was the same
at an earlier moment, but for the time and for the number of rows that are done in each trace, the stretch between is a
period. If the traces repeat it (pdes/reuse_kernels/periods.py), the run simulates one more period, whose messages it
notes, and then moves forward by all periods that follow: times, trace rows, counters and digest are what a simulation
would find.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import lcm
from typing import Any

import numpy as np

from nadi.pdes.construction.layout import LogicalProcess, Simulation, shares
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Int64, Program, state as s
from nadi.pdes.core.jit import row_of, words_of
from nadi.pdes.core.packet import bytes_sent, packets_sent
from nadi.pdes.core.rows.run import Counters, WatchedNpu
from nadi.pdes.npu.trace import KIND_SEND
from nadi.pdes.reuse import Records
from nadi.pdes.reuse.measured_links import MeasuredLinks
from nadi.pdes.reuse.moments import Moment, Notes, Steady
from nadi.pdes.reuse.observed_buffers import ObservedBuffers
from nadi.pdes.reuse.replay import Replay
from nadi.pdes.reuse.within_messages import WithinMessages
from nadi.pdes.reuse_kernels import periods, quiescent
from nadi.pdes.reuse_kernels.periods import Continuation, Period, Together
from nadi.pdes.workers import Mailbox, ProcessPlace
from nadi.pdes.workers.team import NO_MARK

FEWEST_PERIODS = 2  # periods below which going forward is not worth the note of one
TRIES = 100  # moments after a mark, of which the first at which nothing is open counts
SMALLEST_SHARE = 0.01  # of the packet-hops that are worth a look: fewer count as so many
MAX_NEAR_PERIODS = 8  # periods by which it then goes forward before it simulates another one
REMEMBERED = 64  # moments with which a new one is compared
HOPS_OF_MOMENT, HOPS_OF_NPU = 20_000, 200  # packet-hops that take as long as a look at the state, and at that of an NPU
# Messages and trace rows are counted again one by one; windows are those that were simulated.
_IN_EACH = np.zeros(Counters.words, np.int64)  # 1 for each counter of which each period adds as much as the noted one
_IN_EACH[: len(Counters.declared)] = [name not in {"flows", "trace_rows", "windows"} for name in Counters.declared]


def may_recur(sim: Simulation) -> bool:
    """Return whether `quiescent` finds all of the state of a run, of which `sim` is the part in this process."""
    # all processes have the same answer
    layout, settings = sim.layout, sim.settings
    if len(sim.lps) < layout.lps and settings.fast_forward:
        return False
    return layout.reuses and has_periods(sim.program, settings)


def has_periods(program: Program, settings: Settings) -> bool:
    """Return whether periods of a program are looked for with these settings, in one process at least.

    Args:
        program: Work of all NPUs (`Program`).
        settings: Settings of the run.
    """
    return (
        settings.reuse
        and settings.fidelity.model.has_packets
        and settings.flow_groups is None
        # telemetry is that of a queue pair's links, which must be the same for all of its packets (MeasuredLinks)
        and (
            "telemetry" not in settings.congestion_control.signals
            or not (settings.routing.route or settings.entropy.act or not settings.faults.never_change)
        )
        and settings.faults.only_repeat
        and settings.queue_pairs == "pair"
        and not any(rule.remembers for rule in settings.balancings)
        and not settings.routing.publish
        and settings.phases_per_dimension == 0
        and settings.collectives_in_flight == 0
        and settings.rendezvous_bytes == 0
        and settings.record_nodes
        and settings.sample_ps == 0
        and settings.remote_sharers == 1
        and settings.fidelity.reduction_psb == 0
        and not settings.concurrent_collectives
        and not settings.one_at_a_time
        and program.jobs is None
    )


class Recurrence:
    """Finds recurrences of a run, of which each process has a part.

    All processes do the same steps, as each decision follows from what all of them have told each other.
    """

    def __init__(self, sim: Simulation, place: ProcessPlace, mailbox: Mailbox, records: Records) -> None:
        """Watch an NPU of the run for places in its trace where it may be in the same place of a period.

        sim: part of the run in this process; place: place of the process; mailbox: its connections to others, all of
        which call this; records: its records.
        """
        self._sim, self._place, self._team, self._records = sim, place, place.team, records
        program = sim.program
        of_npu = shares(sim.layout.owner, mailbox.size)[: program.npus]
        self._of_all = mailbox.of_all
        self._together = Together(mailbox.number, mailbox.size, of_npu, mailbox.exchange, mailbox.of_all)
        self.watch = row_of(WatchedNpu, lp=-1)
        self._program = program
        self._slots = [np.diff(program.slot_ptr)[self._npus(lp)] for lp in sim.lps]
        self._parents = np.append(program.node_deps, 0).astype(np.int64)
        self._low = [np.zeros(lp.part.npus, np.int64) for lp in sim.lps]
        self._seen: dict[tuple[Any, ...], Moment] = {}
        self._noted: Notes | None = None
        self._hops = self._tries = self._looked_at = 0
        # packet-hops of counted periods, outside of replayed collectives and of these
        self.counted_hops = self.replayed_hops = 0
        self._records_flows = [int(lp.world.net.const.record_flows) for lp in sim.lps]
        self._control, self._paths = sim.settings.congestion_control.state, sim.settings.entropy.state
        self._tolerance = sim.settings.fast_forward
        # ticks and circuits, of which time is the state, are the same again after so long
        self._tick_ps = lcm(max(1, sim.settings.tick_ps), max(1, sim.settings.faults.circuits.period_ps))
        self._steady = Steady()
        const = sim.lps[0].world.net.const
        drains = [int(lp.world.nvlink.domain.drain_ps.max()) for lp in sim.lps if lp.domains]
        self._forgotten_ps = max(2 * int(const.tie_pause_ps), *drains, 0)
        self._longest_window_ps = max(self._forgotten_ps, int(sim.graph.link_delay_ps.max()))
        self._measured = MeasuredLinks(sim, mailbox.number, mailbox.of_all)
        cost_hops = HOPS_OF_MOMENT + HOPS_OF_NPU * program.npus
        self.within = WithinMessages(sim, self._team, cost_hops, self._count_within)
        self._watch()

    def _npus(self, lp: LogicalProcess) -> Int64:
        """Return the numbers of an LP's NPUs."""
        return lp.part.nodes[: lp.part.npus]

    def _watch(self) -> None:
        """Choose the NPU to watch: the one that sends most messages, or else does most."""
        program = self._program
        rows = np.diff(program.trace_ptr)
        trace = np.repeat(np.arange(len(rows)), rows)  # trace of each row
        sends = np.bincount(trace[program.node_kind == KIND_SEND], minlength=len(rows))
        traces = program.trace_of_npu
        own = np.flatnonzero(self._together.is_own & (traces >= 0)).tolist()
        # more sends outweigh any rows; of equal NPUs the first
        busiest = max(((int(sends[traces[npu]]), int(rows[traces[npu]]), -npu) for npu in own), default=(-1, 0, 0))
        npu = -max(self._of_all(busiest))[2]
        for number, lp in enumerate(self._sim.lps):
            node = int(lp.part.local[npu])
            if 0 <= node < lp.part.npus:
                self.watch.lp, self.watch.npu = number, node
                self._marks = periods.marks(program, npu)
                self._rows = int(rows[traces[npu]])
        self._set_mark()

    @property
    def _watches(self) -> bool:
        """Whether the watched NPU is in this process."""
        return bool(self.watch.lp >= 0)

    def _rows_left(self) -> int:
        """Return the trace rows that the watched NPU has left."""
        return int(self._sim.lps[int(self.watch.lp)].world.npus.npu[int(self.watch.npu)].rows_left)

    def _set_mark(self, share: float = 1.0) -> None:
        """Stop at the first quiescent moment after the watched NPU's next mark; other processes follow.

        share: packet-hops since the last look, as a share of those that are worth one: with few, marks are left out.
        """
        self.watch.mark = 0
        if not self._watches:
            return
        at = int(np.searchsorted(self._marks, self._rows - self._rows_left()))
        self.watch.mark = NO_MARK
        if at < len(self._marks):
            # half of those that are left at the rate so far, as a stop of several processes takes time
            if share >= 1:
                self._looked_at = at
            elif self._together.size > 1:
                skipped = (at - self._looked_at) * (1 / max(share, SMALLEST_SHARE) - 1) / 2
                at = min(at + int(skipped), len(self._marks) - 1)
            self.watch.mark = self._rows - 1 - int(self._marks[at])

    def serve(self) -> None:
        """Look at a moment at which no packet is under way, and go forward if that is possible."""
        # Without notes, the moment is compared with earlier ones, and if one is equal, notes of the next period begin.
        # With notes, that period ends here, and the run goes forward by its repetitions.
        moment = None
        hops = self._hops_now()
        enough = HOPS_OF_MOMENT + HOPS_OF_NPU * self._program.npus
        # looking takes time, so it must have been some hops ago
        share = 1.0 if self._noted else sum(self._of_all(hops - self._hops)) / max(1, enough)
        if share >= 1 or enough == 0:
            if self._tolerance and not self._is_long():
                return
            moment = self._agreed(self._look())
            if moment is None and self._tries < TRIES:
                self._tries += 1
                return
            self._hops = hops
        self._tries = 0
        noted, self._noted = self._noted, None
        if noted:
            found = self._following(noted, moment)
            length_ps = moment.earliest_ps - noted.begin.earliest_ps if moment else 0
            if moment and found:
                self._go_forward(noted, moment, *found)
            self._end_notes(noted)
            if moment and found:
                self._seen = {moment.key: moment}
                self._steady.add(moment, length_ps)
                if moment.key != noted.begin.key:
                    self._begin_notes(moment, noted.steps, noted.length_ps)
                moment = None
        if moment:
            self._compare(moment, noted)
        if not self._noted:
            self._set_mark(share)

    def _count_within(self, periods: int, hops: int) -> None:
        """Count periods within messages, and their packet-hops."""
        self._records.repeated_periods += periods
        self._records.repeated_hops += hops
        self.counted_hops += hops

    def _compare(self, moment: Moment, noted: Notes | None) -> None:
        """Begin notes if a moment is like an earlier one; noted: the period that it ends, if one was noted."""
        earlier = self._seen.pop(moment.key, None)
        self._seen[moment.key] = moment
        # the oldest moments go first
        while len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        if earlier is None and self._tolerance:
            earlier = self._steady.earlier(moment, self._tolerance)
        elif noted:
            earlier = None
        if earlier:
            steps = [now - before for now, before in zip(moment.low, earlier.low, strict=True)]
            self._begin_notes(moment, steps, moment.earliest_ps - earlier.earliest_ps)

    def _is_long(self) -> bool:
        """Return whether nothing happens before the moment for long enough that workers stop there in any division."""
        last_ps = max(int(lp.world.net.ctl.now_ps + lp.world.net.ctl.cell_ps) for lp in self._sim.lps)
        return int(self._team.state.soonest_ps) - last_ps >= self._longest_window_ps

    def _agreed(self, moment: Moment | None) -> Moment | None:
        """Return the moment with the key of all processes, or None if a message is open in any of them."""
        if not all(self._of_all(moment is not None)):
            return None
        measured = self._measured.words_since(moment.earliest_ps) if moment else None
        if moment is None or measured is None:
            return None
        moment.key += tuple(map(_hash, measured))
        moment.shape += tuple(map(_hash, measured))
        if self._together.size == 1:
            return moment
        moment.key = tuple(self._of_all(blake2b(repr(moment.key).encode(), digest_size=16).digest()))
        return moment

    def _look(self) -> Moment | None:
        """Return the moment as this process sees it, or None if a message is open."""
        moment_ps = int(self._team.state.soonest_ps)
        since_tick_ps = moment_ps % self._tick_ps
        key: list[Any] = [since_tick_ps]
        shape: list[Any] = [since_tick_ps]
        approximate: list[Int64] = []
        high: list[Int64] = []
        kept: list[Any] = []
        for lp, slots, low in zip(self._sim.lps, self._slots, self._low, strict=True):
            last = np.zeros(lp.part.npus, np.int64)
            quiescent.find_windows(lp.address, self._parents, lp.row_ptr, low, last)
            words = np.zeros(_room(lp.world, slots, low, last), np.int64)
            count = quiescent.write_state(lp.address, moment_ps, slots, low, last, words)
            resting = None
            if count >= 0:
                if self._sim.settings.congestion_control.forgets:
                    quiescent.forget(lp.address, moment_ps)
                kinds = self._control, self._paths
                resting = quiescent.words_at_rest(lp.world, *kinds, moment_ps, self._forgotten_ps)
            if resting is None or lp.world.net.ctl.is_disturbed:
                return None
            words = np.append(words[:count], resting)
            key.append(_hash(words))
            # approximate words are time differences + APPROXIMATE (2^60): only they lie between 2^59 and 2^61
            is_approximate = (words > quiescent.APPROXIMATE // 2) & (words < 2 * quiescent.APPROXIMATE)
            approximate.append(words[is_approximate])
            shape.append(_hash(np.where(is_approximate, quiescent.APPROXIMATE, words)))
            if isinstance(lp.replay, Replay):
                names, times = lp.replay.state_since(moment_ps, low)
                key += [*names, *map(_hash, times), *map(id, lp.replay.records())]
                shape += names
                approximate += times
                kept.append(lp.replay.records())  # so that their addresses stay theirs
            high.append(last)  # rows to compare next time
        lows = [low.copy() for low in self._low]
        return Moment(moment_ps, tuple(key), tuple(shape), np.concatenate(approximate), lows, high, kept)

    def _begin_notes(self, moment: Moment, steps: list[Int64], length_ps: int) -> None:
        """Note what happens in the period that begins, if the traces repeat it often enough."""
        watched = int(steps[int(self.watch.lp)][int(self.watch.npu)]) if self._watches else 1
        if min(self._of_all(watched)) <= 0:
            return
        period = self._period(moment.low, moment.high, steps)
        # notes pay only if several periods follow
        if periods.continuation(self._program, period, self._together).periods < FEWEST_PERIODS + 1:
            return
        lps = self._sim.lps
        for lp in lps:
            lp.take_flows()
            lp.world.net.const.record_flows = 1
            if isinstance(lp.replay, Replay):
                lp.replay.noted = []
        self._noted = Notes(
            moment,
            steps,
            length_ps,
            [_flags(lp, low, high) for lp, low, high in zip(lps, moment.low, moment.high, strict=True)],
            [words_of(lp.world.net.count).copy() for lp in lps],
            [lp.world.net.tx[: len(lp.part.links)].copy() for lp in lps],
            [lp.world.net.tx_dropped.copy() for lp in lps],
            [ObservedBuffers.of(lp.world) for lp in lps],
            self._records.counts(),
            [(len(lp.flows_out), len(lp.flows_in)) for lp in lps],
        )
        self.watch.mark = self._rows_left() - watched if self._watches else 0

    def _period(self, low: Sequence[Int64], high: Sequence[Int64], steps: Sequence[Int64]) -> Period:
        """Return a period of the program from columns of all LPs."""
        columns = np.zeros((3, self._program.npus), np.int64)
        for lp, *own in zip(self._sim.lps, low, steps, high, strict=True):
            npus = self._npus(lp)
            columns[:, npus[npus < self._program.npus]] = np.stack(own)[:, npus < self._program.npus]
        return Period(*columns)

    def stop_notes(self) -> None:
        """Stop the notes of a period, if one is noted: what follows is not known to repeat it."""
        self.within.end()
        noted, self._noted = self._noted, None
        if noted:
            self._end_notes(noted)
            self._set_mark()

    def _end_notes(self, noted: Notes) -> None:
        """Record messages from now on by the run's settings, and keep no others of the noted period."""
        for lp, blocks, records_flows in zip(self._sim.lps, noted.recorded, self._records_flows, strict=True):
            lp.take_flows()
            lp.world.net.const.record_flows = records_flows
            if not records_flows:
                del lp.flows_out[blocks[0] :], lp.flows_in[blocks[1] :]
            if isinstance(lp.replay, Replay):
                lp.replay.stop_notes()

    def _following(self, noted: Notes, moment: Moment | None) -> tuple[Period, Continuation] | None:
        """Return the noted period and how often it is repeated, None if it has not recurred at the moment."""
        length_ps = moment.earliest_ps - noted.begin.earliest_ps if moment else 0
        is_exact = moment is not None and moment.key == noted.begin.key and length_ps == noted.length_ps
        if moment is None or not (is_exact or self._steady.is_near(noted.begin, moment, self._tolerance)):
            return None
        pairs = zip(moment.low, noted.begin.low, noted.steps, strict=True)
        if not all(self._of_all(all(np.array_equal(now - before, steps) for now, before, steps in pairs))):
            return None
        period = self._period(noted.begin.low, moment.high, noted.steps)
        following = periods.continuation(self._program, period, self._together)
        # errors of an approximate period add up, so it counts for a few repetitions only
        if not is_exact and following.periods:
            following = following._replace(periods=min(following.periods, MAX_NEAR_PERIODS))
            mean_ps, spread_ps = self._steady.mean_and_spread_ps(length_ps)
            noted.length_ps = mean_ps - mean_ps % self._tick_ps
            self._records.count_near(following.periods, noted.length_ps, spread_ps)
        return (period, following) if following.periods else None

    def _repeat_messages(
        self, lp: LogicalProcess, noted: Notes, period: Period, following: Continuation, blocks: tuple[int, int]
    ) -> None:
        """Count the messages of the noted period, and keep their records, in each period that follows."""
        lp.take_flows()
        kinds = ((lp.flows_out, blocks[0], "posted_ps"), (lp.flows_in, blocks[1], "finished_ps"))
        for records, first, time in kinds:
            if not records[first:]:
                continue
            rows: Any = np.concatenate(records[first:]).view(np.recarray)
            later = periods.tags_later(self._program, period, following, rows.pair, rows.tag, self._together.is_own)
            for turn, tags in enumerate(later, 1):
                again = rows.copy()
                again.tag = tags
                again[time] += turn * noted.length_ps
                # a message counts once, when it is complete
                if time == "finished_ps":
                    columns = (np.ascontiguousarray(again[name]) for name in ("pair", "tag", time))
                    periods.count_messages_again(lp.address, *columns)
                records.append(again)

    def _go_forward(self, noted: Notes, moment: Moment, period: Period, following: Continuation) -> None:
        """Let all LPs be further by the periods that follow the noted one, at whose end they are."""
        repeated = following.periods
        shift_ps = repeated * noted.length_ps  # by this much all times grow
        team, first, rows_by = self._team, self._place.first, 0
        missing_bytes = self._measured.missing_bytes()
        for i, lp in enumerate(self._sim.lps):
            net, steps = lp.world.net, noted.steps[i]
            begin = noted.begin
            self._repeat_messages(lp, noted, period, following, noted.recorded[i])
            ptr = np.append(0, np.cumsum(begin.high[i] - begin.low[i]))
            periods.repeat_rows(
                lp.address, repeated, noted.length_ps, begin.low[i], begin.high[i], ptr, noted.flags[i],
                moment.high[i], steps,
            )  # fmt: skip
            counts = words_of(net.count)
            more = counts - noted.counts[i]
            more *= _IN_EACH
            counts += repeated * more
            own: Any = net.tx[: len(lp.part.links)]
            before = noted.links[i]
            own.sent_bytes += repeated * (bytes_sent(own.sent_bytes) - bytes_sent(before.sent_bytes))
            own.sent_packets += repeated * (packets_sent(own.sent_packets) - packets_sent(before.sent_packets))
            net.tx_dropped[:] += repeated * (net.tx_dropped - noted.dropped[i])
            noted.buffers[i].repeat(lp.world, repeated, noted.length_ps)
            if isinstance(lp.replay, Replay):
                lp.replay.repeat(repeated, noted.length_ps, following.of_group)
                lp.replay.go_forward(shift_ps, repeated * steps, repeated * following.of_group)
            quiescent.go_forward(lp.world, self._control, self._paths, shift_ps, repeated * steps, self._slots[i])
            periods.go_forward(
                lp.address, shift_ps, moment.low[i], moment.high[i], self._slots[i], repeated * steps,
                repeated * following.of_slot,
            )  # fmt: skip
            rows_by += repeated * int(steps.sum())
        self._measured.go_forward(shift_ps, missing_bytes)
        hops, replayed = self._hops_now() - self._hops, self._records.replayed_hops - noted.reuse["replayed_hops"]
        # counts of all processes add up
        self._records.count_periods(noted.reuse, repeated, hops, is_first=self._together.number == 0)
        self.replayed_hops += repeated * replayed
        self._hops = self._hops_now()
        moment.earliest_ps += shift_ps
        # the next window, whose begin all workers have read already
        begin_ps = moment.earliest_ps // int(team.state.cell_ps) * int(team.state.cell_ps)
        workers: Any = team.workers[first : first + self._place.threads]
        workers.begin_ps = begin_ps
        workers.rows_left[0] -= rows_by
        if first == 0:
            team.state.begin_ps = begin_ps
        # others of the team go on when all have come here
        self.counted_hops += sum(self._of_all(hops - repeated * replayed))
        moment.low = [low + repeated * steps for low, steps in zip(moment.low, noted.steps, strict=True)]
        moment.high = [high + repeated * steps for high, steps in zip(moment.high, noted.steps, strict=True)]

    def _hops_now(self) -> int:
        """Return the packet-hops of all LPs."""
        return sum(int(lp.world.net.count.hops) for lp in self._sim.lps)


def _hash(words: Int64) -> bytes:
    """Return a hash of words that no two states of a run share by chance."""
    return blake2b(np.ascontiguousarray(words).tobytes(), digest_size=16).digest()


def _room(world: s.World, slots: Int64, low: Int64, high: Int64) -> int:
    """Return the number of words that `quiescent.write_state` writes at most."""
    npus = len(low)
    laters = len(world.qps.msg_free) - int(world.net.ctl.free_messages)
    return int(
        quiescent.WORDS_OF_NPU * npus
        + quiescent.WORDS_OF_ROW * (high - low).sum()
        + quiescent.WORDS_OF_EVENT * world.npus.npu.heap_size.sum()
        + quiescent.WORDS_OF_LATER * laters
        + quiescent.WORDS_OF_SLOT * slots.sum()
    )


def _flags(lp: LogicalProcess, low: Int64, high: Int64) -> Any:
    """Return the flags of the rows [low, high) of an LP's NPUs, one NPU after another."""
    begin = lp.row_ptr[: len(low)]
    parts = [lp.world.rows.flag[a:b] for a, b in zip((begin + low).tolist(), (begin + high).tolist(), strict=True)]
    return np.concatenate([*parts, np.zeros(1, np.int8)]).astype(np.int64)
