"""A network of the engine, of packets, whole messages or flows, to which its owner posts messages one at a time.

It runs the same kernels on the same world as a run (pdes/driver.py), in which no NPU has anything to do. A message that
is posted takes a row of its sender's trace, which is done when the message has left.
"""

import numpy as np

from nadi.pdes.construction.settings import Settings
from nadi.pdes.construction.worlds import build_world
from nadi.pdes.core.errors import RunError
from nadi.pdes.core.inputs import Graph, Program
from nadi.pdes.core.jit import Directory
from nadi.pdes.core.memory import zeros
from nadi.pdes.core.packet import pair_source, tag_lane
from nadi.pdes.core.state import FAILED, FULL, INF
from nadi.pdes.fidelity.contract import MessageReport, check_message
from nadi.pdes.messages.message_loop import TOO_LATE, work_messages
from nadi.pdes.messages.posting import next_message_event_ps, post_from_outside
from nadi.pdes.outcomes.stall import TOO_LATE_TEXT, failed_queue_pair
from nadi.pdes.workers import team as tm
from nadi.pdes.workers.batches import no_batches
from nadi.pdes.workers.worker_pool import begin_messages, compile_kernels, make_room


class OpenNetwork:
    """A Network (pdes/fidelity/contract.py) of a model with links."""

    def __init__(self, graph: Graph, rows: Program, settings: Settings) -> None:
        """Build the network; rows: a program of rows without work that never start, as many as messages may be open.

        All NPUs have the same trace. Only `fidelity`, keys of [network] and faults of the settings have an effect.
        """
        self._sim = build_world(graph, rows, settings)
        (self._lp,) = self._sim.lps
        self._by_message = settings.fidelity.hooks.act is not None
        compile_kernels(self._sim.layout, self._sim.settings)
        if self._by_message:
            begin_messages(self._lp, self._sim.settings)
        self._team = tm.team_in(zeros(tm.team_words(1)))
        tm.found_team(self._team, self._sim.layout.grid_ps, self._sim.layout.lookahead_ps, pool_size=1)
        addresses = np.array([self._lp.address], np.int64)
        context = tm.WorkerContext(self._team, tm.new_pool(1), addresses, no_batches([self._lp.part]))
        self._context = Directory(context, "workers")
        self.grid_ps = 1 if self._by_message else int(self._sim.layout.grid_ps)
        self.now_ps = 0
        self._posted = 0
        # messages, by sender and row of its trace, that have not left, and that have not arrived
        self._leaving: dict[tuple[int, int], int] = {}
        self._arriving: dict[tuple[int, int], int] = {}
        self._free = [list(range(int(rows.trace_ptr[1])))[::-1] for _ in range(graph.npus)]

    def post(self, src: int, dst: int, size_bytes: int) -> int:
        """Post a message now and return its number; RunError: too many of the sender's messages are under way.

        Args:
            src: Number of the NPU that sends.
            dst: Number of the NPU that receives.
            size_bytes: Payload of the message in bytes.
        """
        check_message(self._sim.graph.npus, src, dst, size_bytes)
        if not self._free[src]:
            raise RunError(f"npu {src} has {self._sim.program.trace_ptr[1]:,} messages under way; expected fewer")
        row = self._free[src].pop()
        self._lp.world.rows.finish[self._lp.row_ptr[src] + row] = -1
        while post_from_outside(self._lp.address, src, dst, row, size_bytes, self.now_ps) == FULL:
            make_room(self._lp)
        worker, state = self._team.workers[0], self._team.state
        # the window that is next, or under way, must not begin after this message
        begun = state if worker.stage == tm.ALL else worker
        begun.begin_ps = min(begun.begin_ps, self.now_ps)
        self._leaving[src, row] = self._arriving[src, row] = self._posted
        self._posted += 1
        return self._posted - 1

    def next_event_ps(self) -> int | None:
        """Return a time before which nothing happens, by packets the begin of a cell; None = nothing is left."""
        if self._by_message:
            time_ps = next_message_event_ps(self._lp.address)
        else:
            worker, state = self._team.workers[0], self._team.state
            time_ps = int(state.begin_ps if worker.stage == tm.ALL else worker.begin_ps)
        return time_ps if time_ps < INF else None

    def advance(self, until_ps: int) -> list[MessageReport]:
        """Do all that happens before until_ps, by packets to the end of its cell, and return what messages did then."""
        while (next_ps := self.next_event_ps()) is not None and next_ps < until_ps:
            if self._by_message:
                status = work_messages(self._lp.address, INF, until_ps)
            else:
                status = tm.work(self._context.address, 0, INF, 0)
            if status == FULL:
                make_room(self._lp)
            elif self._by_message and status == TOO_LATE:
                raise RunError(TOO_LATE_TEXT)
            elif not self._by_message and status == FAILED:
                raise RunError(failed_queue_pair(self._sim, self._lp))
        # packets act to the end of a cell, so time is then there
        self.now_ps = max(self.now_ps, -(-until_ps // self.grid_ps) * self.grid_ps)
        return self._reports()

    def _reports(self) -> list[MessageReport]:
        """Return what messages have done since the last call, in order of time."""
        self._lp.take_flows()
        leaving = list(self._leaving)
        rows = [int(self._lp.row_ptr[src]) + row for src, row in leaving]
        times_ps = self._lp.world.rows.finish[rows].tolist()
        left = [(time_ps, place) for time_ps, place in zip(times_ps, leaving, strict=True) if time_ps >= 0]
        arrived = [
            (int(row.finished_ps), (int(pair_source(row.pair)), int(tag_lane(row.tag))))
            for rows in self._lp.flows_in
            for row in rows
        ]
        self._lp.flows_in.clear()
        self._lp.flows_out.clear()
        found = [MessageReport(time_ps, self._leaving.pop(place), has_arrived=False) for time_ps, place in left]
        found += [MessageReport(time_ps, self._arriving.pop(place), has_arrived=True) for time_ps, place in arrived]
        # a row is free again once its message has left and arrived
        for src, row in {place for _, place in (*left, *arrived)} - self._leaving.keys() - self._arriving.keys():
            self._free[src].append(row)
        return sorted(found)
