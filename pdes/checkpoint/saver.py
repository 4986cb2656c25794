"""Saving and restoring the part of a run that one process holds: its logical processes, and its records of reuse.

A run may divide the fabric in another way than its checkpoint: each logical process then gets its state from all that
had parts of it (`Redivision`).
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from nadi.pdes import checkpoint
from nadi.pdes.checkpoint import whole_fabric
from nadi.pdes.checkpoint.checking import check_built, check_owner, check_shapes, check_world, readable
from nadi.pdes.checkpoint.moving import move, move_rows, own_pairs, own_receivers
from nadi.pdes.construction import packets as plain_packets
from nadi.pdes.construction.domains import all_domains
from nadi.pdes.construction.layout import LogicalProcess, Part, Simulation
from nadi.pdes.core import AgreedRunError, Int64, Program, Rows, state as s
from nadi.pdes.core.declared import grow
from nadi.pdes.core.jit import words_of
from nadi.pdes.core.rows import Row, RowsOf
from nadi.pdes.core.rows.network import FlowIn, FlowOut, SampleEntry
from nadi.pdes.network.routing import make_changes
from nadi.pdes.outcomes import Results
from nadi.pdes.outcomes.outcome import outcome_so_far, results
from nadi.pdes.reuse import Records
from nadi.pdes.reuse.replay import Replay
from nadi.pdes.workers import NO_SNAPSHOT, SAVE, SAVE_AND_END, Mailbox, ProcessPlace, SnapshotPoints, StoppedError
from nadi.pdes.workers.team import Team

# lists of blocks of rows that an LP holds outside its world
ROW_LISTS: dict[str, type[Row]] = {"flows_out": FlowOut, "flows_in": FlowIn, "samples": SampleEntry}
SUMMED_JOB_WORDS = ("digest_a", "digest_b", "messages_a", "messages_b", "messages", "trace_rows")


class OtherDivisionError(AgreedRunError):
    """A run cannot continue with this division of the fabric; every process finds this."""

    exit_code = 2


class Redivision:
    """A checkpoint as the LPs of another division take it up."""

    def __init__(self, checkpoints: checkpoint.Checkpoints, sim: Simulation, owner: Int64, begin_ps: int) -> None:
        """Take the checkpoint; owner: int64[nodes], LP of each node in it; begin_ps: begin of the next window."""
        self._checkpoints, self._sim, self._owner, self._begin_ps = checkpoints, sim, owner, begin_ps
        numbers = range(int(owner.max()) + 1)
        names = [checkpoints.read(f"names-{number}").arrays["npu_of_pair"] for number in numbers]
        self._pairs = whole_fabric.QueuePairs(names, owner, sim.layout.owner, sim.graph.npus)
        self._states: dict[int, checkpoint.SavedState] = {}
        self._parts: dict[int, Part] = {}
        self._domains = all_domains(sim.graph, sim.settings, owner)
        own = [domain.switch for domain in sim.layout.domains]
        # replays of a domain can neither be divided nor turn into packets here
        if [domain.switch for domain in self._domains] != own:
            raise OtherDivisionError(
                "--resume: found NVLink domains with replayed collectives that are cut in another way than in the "
                "checkpoint; expected the same division"
            )

    def _old(self, number: int) -> tuple[Part, checkpoint.SavedState]:
        """Return the part and the state of an LP of the checkpoint."""
        if number not in self._parts:
            layout = self._sim.layout
            self._states[number] = self._checkpoints.read(f"lp-{number}")
            self._parts[number] = Part(layout.graph, layout.fabric, self._owner, number, layout.lookahead_ps)
        return self._parts[number], self._states[number]

    def restore(self, lp: LogicalProcess) -> None:
        """Restore an LP that was just built.

        Args:
            lp: The logical process, which was just built.
        """
        incoming = np.concatenate([*lp.part.links_in, np.zeros(0, np.int64)]).astype(np.int64)
        sources = self._owner[self._sim.graph.link_src[incoming]]
        # the old LPs of its nodes, and those that send to it: their packets may be under way
        numbers = np.union1d(self._owner[lp.part.nodes], sources).tolist()
        slot_ptr = np.asarray(self._sim.program.slot_ptr)
        olds = []
        for number in numbers:
            part, state = self._old(number)
            world = checkpoint.as_world(lp.world, state.arrays)
            olds.append(whole_fabric.shared_by(part, world, lp, slot_ptr, self._pairs))
        self._make_room(lp, olds)
        for shared in olds:
            if (shared.node >= 0).any():
                self._move(shared)
        ctl, npus = lp.world.net.ctl, lp.part.npus
        ctl.rows_left = lp.world.npus.npu.rows_left[:npus].sum()
        ctl.now_ps, ctl.check = self._begin_ps, 1
        if ctl.fault_ps < s.INF:
            ctl.fault_at, ctl.fault_ps = checkpoint.changes_until(lp.world, self._begin_ps)
        checkpoint.load_routes(lp.world)
        self._settle_cells(lp, olds)
        self._put_on_wires(lp, olds)

    @staticmethod
    def _make_room(lp: LogicalProcess, olds: Sequence[whole_fabric.Shared]) -> None:
        """Let the tables of queue pairs have room for all that come."""
        pairs = sum(len(own_pairs(shared)[0]) for shared in olds)
        receivers = sum(len(own_receivers(shared)) for shared in olds)
        const, ctl = lp.world.net.const, lp.world.net.ctl
        while len(lp.world.qps.qp) < pairs + int(const.reserve_queue_pairs):
            ctl.need = s.NEED_QPS
            lp.world = grow(lp.world)
        # the table of receivers is a map, at most half full
        while len(lp.world.qps.rxqp) < 2 * (receivers + int(const.reserve_queue_pairs) + 1):
            ctl.need = s.NEED_RXQPS
            lp.world = grow(lp.world)
        ctl.queue_pairs, ctl.receivers = pairs, receivers

    def _move(self, shared: whole_fabric.Shared) -> None:
        """Move what an old LP and a new one have in common, and the old one's sums, if the new one is their home."""
        move(shared)
        state = self._states[shared.part.number]
        self._move_domains(shared, state)
        samples: Rows = state.arrays["samples"].view(SampleEntry.dtype).view(np.recarray)
        if len(samples):
            samples = samples[shared.link[np.minimum(samples.link, len(shared.link) - 1)] >= 0].copy()
            # the last row may be the link that loses all packets
            samples = samples[samples.link < len(shared.link)]
            samples.link = shared.link[samples.link]
            shared.lp.samples.append(samples)
        if shared.node[0] >= 0:
            self._move_sums(shared, state)

    @staticmethod
    def _move_sums(shared: whole_fabric.Shared, state: checkpoint.SavedState) -> None:
        """Move counters, digests and logs of an old LP."""
        old, lp = shared.world, shared.lp
        new = lp.world
        # all LPs have the same windows, so these do not add up
        windows = max(int(old.net.count.windows), int(new.net.count.windows))
        words_of(new.net.count)[:] += np.asarray(old.net.count.base).view(np.int64).reshape(-1)
        new.net.count.windows = windows
        new.net.ctl.finish_ps = max(int(new.net.ctl.finish_ps), int(old.net.ctl.finish_ps))
        new.net.ctl.is_disturbed = max(int(new.net.ctl.is_disturbed), int(old.net.ctl.is_disturbed))
        for word in SUMMED_JOB_WORDS:
            new.net.jobs.total[word] += old.net.jobs.total[word]
        for name in ("flows_out", "flows_in"):
            rows: Rows = state.arrays[name].view(ROW_LISTS[name].dtype).view(np.recarray)
            if len(rows):
                getattr(lp, name).append(rows.copy())
        room = len(new.net.pause_log) // 2
        logs = [
            net.pause_log[: 2 * min(int(net.ctl.pauses), len(net.pause_log) // 2)].reshape(-1, 2)
            for net in (new.net, old.net)
        ]
        log = np.concatenate(logs)
        # the log keeps the first pauses, in order of time
        log = log[np.argsort(log[:, 0], kind="stable")][:room]
        new.net.pause_log[: 2 * len(log)] = log.reshape(-1)
        new.net.ctl.pauses += old.net.ctl.pauses

    def _move_domains(self, shared: whole_fabric.Shared, state: checkpoint.SavedState) -> None:
        """Move NVLink domains whose collectives are replayed."""
        lp = shared.lp
        mine = {domain.switch: number for number, domain in enumerate(lp.domains)}
        domains = [domain for domain in self._domains if self._owner[domain.switch] == shared.part.number]
        arrays = checkpoint.array_list(state)
        for number, domain in enumerate(domains):
            if domain.switch not in mine:
                continue
            to = mine[domain.switch]
            move_rows(shared, RowsOf.DOMAIN, np.array([number]), np.array([to]))
            replayed = cast("Replay", lp.replay).domains[to]
            checkpoint.load_domain(replayed, state.values["domains"][number], arrays)
            for running in (one for episode in replayed.episodes for one in episode.together):
                begun = int(np.flatnonzero(running.rows >= 0)[0])
                npu = lp.world.npus.npu[running.group.nodes[begun]]
                schedule = int(lp.world.trace.schedule[int(npu.trace_base) + int(running.rows[begun])])
                # programs of two processes may number their schedules differently
                running.collective = running.collective._replace(schedule=schedule)
            groups = np.array([group.number for group in replayed.groups], np.int64)
            move_rows(shared, RowsOf.GROUP, groups, groups)

    @staticmethod
    def _settle_cells(lp: LogicalProcess, olds: Sequence[whole_fabric.Shared]) -> None:
        """Let cells be short if they are in any old LP."""
        ctl, const = lp.world.net.ctl, lp.world.net.const
        if not lp.domains:
            return
        shared = [each.world.net.ctl for each in olds if (each.node >= 0).any()]
        ctl.replay_starts = max(int(old.replay_starts) for old in shared)
        # packets may cross NVLink domains of one of the old LPs, so all cells are short
        ctl.cell_ps = min(int(old.cell_ps) for old in shared)
        ctl.packet_rows = lp.world.nvlink.domain.packet_rows[: len(lp.domains)].sum()
        if ctl.cell_ps < const.long_cell_ps and ctl.packet_rows == 0:
            times = [int(old.retry_ps) for old in shared if old.cell_ps == ctl.cell_ps and old.retry_ps < s.INF]
            ctl.retry_ps = max([int(ctl.now_ps), *times])

    def _put_on_wires(self, lp: LogicalProcess, olds: Sequence[whole_fabric.Shared]) -> None:
        """Let all packets that are on their way to nodes of an LP wait on its links."""
        columns = lp.part.crossing_words
        found = [plain_packets.packets_on_wires(each.world, each.part, columns) for each in olds]
        for shared in olds:
            sent = self._checkpoints.read(f"sent-{shared.part.number}").arrays["packets"]
            found.append(sent.reshape(-1, columns))
        packets = plain_packets.arriving(lp.part, self._sim.layout, np.concatenate(found))
        packets[:, 2] = self._pairs.renumbered(packets[:, 1], packets[:, 2])
        plain_packets.put_on_links(lp, packets)


# Saving and restoring the part of a run that one process holds.


def program_hash(program: Program) -> str:
    """Return a hash of all arrays of a program: those of two ranks differ, as do their numbers of traces and plans."""
    digest = hashlib.blake2b(digest_size=16)
    for record in (program, program.schedules):
        for value in record if isinstance(record, tuple) else vars(record).values():
            if isinstance(value, np.ndarray):
                digest.update(np.ascontiguousarray(value).view(np.uint8).data)
    return digest.hexdigest()


def reused(checkpoints: checkpoint.Checkpoints) -> bool:
    """Return whether the run reused what repeats at the checkpoint that it continues; True if it continues none.

    Args:
        checkpoints: Checkpoints of the run.
    """
    return checkpoints.resumed is None or bool(checkpoints.resumed.values["reuse"])


class Saver(SnapshotPoints):
    """The part of a run in one process, which can be saved at snapshot points, and restored before the run."""

    def __init__(
        self,
        checkpoints: checkpoint.Checkpoints,
        mailbox: Mailbox,
        place: ProcessPlace,
        sim: Simulation,
        records: Records,
    ) -> None:
        """Take what is saved: LPs of `sim` and `records`; mailbox, place: mailbox and place of the process."""
        self._checkpoints, self._mailbox, self._place = checkpoints, mailbox, place
        self._sim, self._records = sim, records
        self._is_first = place.rank == 0 and place.first == 0
        self._begun_s = self._last_s = time.monotonic()
        self._program = program_hash(sim.program)
        checkpoints.listen()

    def wanted(self) -> int:
        """As SnapshotPoints.wanted: what was requested, or a checkpoint if it is time for one."""
        interval_s = self._checkpoints.interval_s
        is_due = self._is_first and interval_s > 0 and time.monotonic() - self._last_s >= interval_s
        return max(self._checkpoints.request, SAVE if is_due else NO_SNAPSHOT)

    def save(self, team: Team, begin_ps: int) -> None:
        """As `SnapshotPoints.save`: write this process's part of a checkpoint, and end the run if that was asked.

        Args:
            team: Memory that all workers of the team share.
            begin_ps: Begin of the next window in ps.
        """
        if self._checkpoints.request <= team.state.snapshot_point:
            self._checkpoints.request = NO_SNAPSHOT  # here, as a later request is one for the next snapshot point
        ends = team.state.snapshot_point == SAVE_AND_END
        leads_team = self._place.first == 0
        if leads_team:
            team.state.said_snapshot_point = 0
        for lp in self._sim.lps:
            make_due_changes(lp, begin_ps)
            if lp.replay:
                lp.replay.finish(begin_ps)
        reason = self._failure_of(self._write)
        is_written = all(self._mailbox.of_all(not reason))
        if leads_team:
            team.state.asked = 0  # all processes have passed on their requests before they met
        if self._is_first and is_written:
            reason = self._failure_of(lambda: self._checkpoints.commit(self._of_run(begin_ps)))
        if (self._is_first and reason) or not is_written:
            self._checkpoints.discard(reason or "another process could not write its part")
        is_kept = all(self._mailbox.of_all(not reason and is_written))
        if is_kept and self._checkpoints.publish is not None:
            self._publish_results(self._checkpoints.publish, begin_ps)
        self._last_s = time.monotonic()
        if ends:
            raise StoppedError(
                "ended as requested; --resume continues from the checkpoint"
                if is_kept
                else "ended as requested, but no checkpoint could be written"
            )

    def _publish_results(self, publish: Callable[[Results], None], begin_ps: int) -> None:
        """Merge the outcome of all processes so far and publish the results, unless nothing is simulated yet."""
        merged = self._mailbox.merged(replace(outcome_so_far(self._sim), reuse=self._records.counts()))
        if merged is None or begin_ps == 0 or merged[0].is_disturbed:  # a disturbed run begins again
            return
        wall_s = time.monotonic() - self._begun_s
        seconds: dict[str, Any] = {"wall_s": wall_s, "setup_s": 0.0, "compile_s": 0.0, "first_event_s": 0.0}
        so_far = results(*merged, self._sim.graph, self._sim.program, self._sim.settings, **seconds)
        publish(replace(so_far, finish_time_ps=begin_ps, snapshot_ps=begin_ps))

    @staticmethod
    def _failure_of(write: Callable[[], None]) -> str:
        """Call a function that writes files, and return why it fails, "" if it does not."""
        try:
            write()
        except OSError as error:
            return f"{error.filename or 'checkpoint'}: {error.strerror or error}"
        return ""

    def _of_run(self, begin_ps: int) -> checkpoint.SavedState:
        """Return the part of the checkpoint that is about the whole run."""
        values = {"begin_ps": begin_ps, "reuse": self._sim.layout.reuses, "lps": self._sim.layout.lps}
        return checkpoint.SavedState(values, {"owner": self._sim.layout.owner})

    def _write(self) -> None:
        """Write the parts of this process."""
        arrays: list[np.ndarray] = []
        document = checkpoint.records_packed(self._records, arrays) | {"program": self._program}
        self._checkpoints.write(
            f"records-{self._sim.lps[0].part.number}",
            checkpoint.SavedState(document, checkpoint.numbered_arrays(arrays)),
        )
        for lp in self._sim.lps:
            number = lp.part.number
            self._checkpoints.write(
                f"sent-{number}", checkpoint.SavedState({}, {"packets": plain_packets.sent_packets(lp).reshape(-1)})
            )
            self._checkpoints.write(f"names-{number}", self._names_of(lp))
            self._checkpoints.write(f"lp-{number}", _of_lp(lp))

    def _names_of(self, lp: LogicalProcess) -> checkpoint.SavedState:
        """Return the NPUs of an LP's queue pairs, and the hash of the program that numbers its traces and plans."""
        pairs = lp.world.qps.qp.npu[: int(lp.world.net.ctl.queue_pairs)]
        return checkpoint.SavedState({"program": self._program}, {"npu_of_pair": lp.part.nodes[pairs].astype(np.int64)})

    def restore(self, team: Team) -> None:
        """Restore the part of this process from the checkpoint that the run continues.

        Args:
            team: Memory that all workers of the team share.
        """
        resumed = self._checkpoints.resumed
        assert resumed is not None, "the caller has asked"  # noqa: S101 - for mypy
        saved = check_owner(resumed, len(self._sim.layout.owner))
        is_same = self._mailbox.sum(int(not self._is_divided_as(saved))) == 0
        with readable("the division of the fabric"):
            division = None if is_same else Redivision(self._checkpoints, self._sim, saved, resumed.values["begin_ps"])
        sent: dict[int, Int64] = {}
        for lp in self._sim.lps:
            rows_left = int(lp.world.net.ctl.rows_left)
            with readable(f"lp-{lp.part.number}"):
                if division is None:
                    self._restore_lp(lp, sent)
                else:
                    division.restore(lp)
                check_world(lp)
            own_worker = team.workers[self._place.first]
            own_worker.hops += lp.world.net.count.hops
            own_worker.events += lp.world.net.count.events
            own_worker.rows_left += lp.world.net.ctl.rows_left - rows_left
        workers: Rows = team.workers[self._place.first : self._place.first + self._place.threads]
        workers.begin_ps = resumed.values["begin_ps"]
        for number in range(resumed.values["lps"]):
            if not self._checkpoints.has(f"records-{number}"):
                continue  # only the first LP of each saved process has records
            state = self._checkpoints.read(f"records-{number}")
            with readable(f"records-{number}"):
                has_same_plans = state.values["program"] == self._program  # else records name other schedules
                checkpoint.load_records(
                    self._records,
                    state.values,
                    checkpoint.array_list(state),
                    counts=self._is_first,
                    kept=has_same_plans,
                )

    def _is_divided_as(self, owner: Int64) -> bool:
        """Return whether this process has the LPs of the checkpoint, and its program the same numbers."""
        layout, settings = self._sim.layout, self._sim.settings
        own = len(owner) == len(layout.owner) and not np.any(owner != layout.owner)
        # rows name groups and schedules by the numbers of the program
        for lp in self._sim.lps if own else ():
            own = own and self._checkpoints.read(f"names-{lp.part.number}").values.get("program") == self._program
        if not own and (settings.fidelity.hooks.act is not None or settings.flow_groups is not None):
            raise OtherDivisionError(
                "--resume: found another program or fabric than in the checkpoint; expected the same"
            )
        return own

    def _restore_lp(self, lp: LogicalProcess, sent: dict[int, Int64]) -> None:
        """Restore an LP; sent: packets that LPs have sent to others, as far as they were read."""
        state = self._checkpoints.read(f"lp-{lp.part.number}")
        check_shapes(lp.world, state.arrays)
        check_built(lp.world, state.arrays)
        lp.world = checkpoint.with_saved(lp.world, state.arrays)
        checkpoint.load_routes(lp.world)
        for name, kind in ROW_LISTS.items():
            rows: Rows = state.arrays[name].view(kind.dtype).view(np.recarray)
            setattr(lp, name, [rows.copy()] if len(rows) else [])
        checkpoint.load_domains(lp, state.values["domains"], checkpoint.array_list(state))
        # packets that others sent in the last window have not been taken in yet
        for neighbour in lp.part.neighbours:
            if neighbour not in sent:
                packets = self._checkpoints.read(f"sent-{neighbour}").arrays["packets"]
                sent[neighbour] = packets.reshape(-1, lp.part.crossing_words)
        for neighbour in lp.part.neighbours:
            plain_packets.put_on_links(lp, plain_packets.arriving(lp.part, self._sim.layout, sent[neighbour]))


def make_due_changes(lp: LogicalProcess, begin_ps: int) -> None:
    """Make the changes of the schedule up to the begin of the next window, which an LP makes when it has events.

    Args:
        lp: The logical process.
        begin_ps: Begin of the next window in ps.
    """
    world = lp.world
    ctl = world.net.ctl
    if ctl.fault_ps <= begin_ps:
        ctl.now_ps = begin_ps
        ctl.side = begin_ps // int(ctl.cell_ps) & (s.SIDES - 1)
        make_changes(lp.address)


def _of_lp(lp: LogicalProcess) -> checkpoint.SavedState:
    """Return the state of an LP."""
    # rows in the kernels' pools move to the lists that are saved
    lp.take_flows()
    lp.take_samples()
    numbered: list[np.ndarray] = []
    values = {"domains": checkpoint.domains_packed(lp, numbered)}
    arrays = checkpoint.saved_words(lp.world) | checkpoint.numbered_arrays(numbered)
    for name, kind in ROW_LISTS.items():
        rows = np.concatenate([*getattr(lp, name), np.zeros(0, kind.dtype)])
        arrays[name] = checkpoint.in_rows(rows.view(np.ndarray).view(np.int64), kind.dtype)
    return checkpoint.SavedState(values, arrays)
