"""Saving and restoring the part of a run that one process holds: its logical processes, and its records of reuse."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nadi.pdes.checkpoint.checking import check_built, check_owner, check_shapes, check_world, readable
from nadi.pdes.checkpoint.dividing import ROW_LISTS, OtherDivisionError, Redivision
from nadi.pdes.checkpoint.packets import coming_in, put_on_links, sent_packets
from nadi.pdes.checkpoint.saved_state import (
    Checkpoints,
    SavedState,
    array_list,
    domains_packed,
    in_rows,
    load_domains,
    load_records,
    load_routes,
    numbered_arrays,
    records_packed,
    saved_words,
    with_saved,
)
from nadi.pdes.construction.layout import LogicalProcess, Simulation
from nadi.pdes.core import Int64, Program, Rows
from nadi.pdes.core.state import SIDES
from nadi.pdes.network.faults import make_changes
from nadi.pdes.outcomes.outcome import outcome_so_far, results
from nadi.pdes.outcomes.results import Results
from nadi.pdes.reuse.records import Records
from nadi.pdes.workers.mailbox import Mailbox, ProcessPlace
from nadi.pdes.workers.team import Team
from nadi.pdes.workers.worker_pool import NO_SNAPSHOT, SAVE, SAVE_AND_END, SnapshotPoints, StoppedError


def program_hash(program: Program) -> str:
    """Return a hash of all arrays of a program: those of two ranks differ, as do their numbers of traces and plans."""
    digest = hashlib.blake2b(digest_size=16)
    for record in (program, program.schedules):
        for value in record if isinstance(record, tuple) else vars(record).values():
            if isinstance(value, np.ndarray):
                digest.update(np.ascontiguousarray(value).view(np.uint8).data)
    return digest.hexdigest()


def reused(checkpoints: Checkpoints) -> bool:
    """Return whether the run reused what repeats at the checkpoint that it continues; True if it continues none.

    Args:
        checkpoints: Checkpoints of the run.
    """
    return checkpoints.resumed is None or bool(checkpoints.resumed.values["reuse"])


class Saver(SnapshotPoints):
    """The part of a run in one process, which can be saved at snapshot points, and restored before the run."""

    def __init__(
        self, checkpoints: Checkpoints, mailbox: Mailbox, place: ProcessPlace, sim: Simulation, records: Records
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
        is_written = self._mailbox.have_all(not reason)
        if leads_team:
            team.state.asked = 0  # all processes have passed on their requests before they met
        if self._is_first and is_written:
            reason = self._failure_of(lambda: self._checkpoints.commit(self._of_run(begin_ps)))
        if (self._is_first and reason) or not is_written:
            self._checkpoints.discard(reason or "another process could not write its part")
        is_kept = self._mailbox.have_all(not reason and is_written)
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

    def _of_run(self, begin_ps: int) -> SavedState:
        """Return the part of the checkpoint that is about the whole run."""
        values = {"begin_ps": begin_ps, "reuse": self._sim.layout.reuses, "lps": self._sim.layout.lps}
        return SavedState(values, {"owner": self._sim.layout.owner})

    def _write(self) -> None:
        """Write the parts of this process."""
        arrays: list[np.ndarray] = []
        document = records_packed(self._records, arrays) | {"program": self._program}
        self._checkpoints.write(
            f"records-{self._sim.lps[0].part.number}", SavedState(document, numbered_arrays(arrays))
        )
        for lp in self._sim.lps:
            number = lp.part.number
            self._checkpoints.write(f"sent-{number}", SavedState({}, {"packets": sent_packets(lp).reshape(-1)}))
            self._checkpoints.write(f"names-{number}", self._names_of(lp))
            self._checkpoints.write(f"lp-{number}", _of_lp(lp))

    def _names_of(self, lp: LogicalProcess) -> SavedState:
        """Return the NPUs of an LP's queue pairs, and the hash of the program that numbers its traces and plans."""
        pairs = lp.world.qps.qp.npu[: int(lp.world.net.ctl.queue_pairs)]
        return SavedState({"program": self._program}, {"npu_of_pair": lp.part.nodes[pairs].astype(np.int64)})

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
                load_records(self._records, state.values, array_list(state), counts=self._is_first, kept=has_same_plans)

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
        lp.world = with_saved(lp.world, state.arrays)
        load_routes(lp.world)
        for name, kind in ROW_LISTS.items():
            rows: Rows = state.arrays[name].view(kind.dtype).view(np.recarray)
            setattr(lp, name, [rows.copy()] if len(rows) else [])
        load_domains(lp, state.values["domains"], array_list(state))
        # packets that others sent in the last window have not been taken in yet
        for neighbour in lp.part.neighbours:
            if neighbour not in sent:
                packets = self._checkpoints.read(f"sent-{neighbour}").arrays["packets"]
                sent[neighbour] = packets.reshape(-1, lp.part.crossing_words)
        coming = [coming_in(lp.part, sent[neighbour]) for neighbour in lp.part.neighbours]
        if coming:
            put_on_links(lp, np.concatenate(coming))


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
        ctl.side = begin_ps // int(ctl.cell_ps) & (SIDES - 1)
        make_changes(lp.address)


def _of_lp(lp: LogicalProcess) -> SavedState:
    """Return the state of an LP."""
    # rows in the kernels' pools move to the lists that are saved
    lp.take_flows()
    lp.take_samples()
    numbered: list[np.ndarray] = []
    values = {"domains": domains_packed(lp, numbered)}
    arrays = saved_words(lp.world) | numbered_arrays(numbered)
    for name, kind in ROW_LISTS.items():
        rows = np.concatenate([*getattr(lp, name), np.zeros(0, kind.dtype)])
        arrays[name] = in_rows(rows.view(np.ndarray).view(np.int64), kind.dtype)
    return SavedState(values, arrays)
