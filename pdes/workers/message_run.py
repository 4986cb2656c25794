"""The worker of a Simulation of messages at message level."""

import time

import numpy as np

from pdes.build.hooks import hooks_of
from pdes.build.settings import Settings
from pdes.build.simulation import LogicalProcess, Progress, Simulation, Snapshot
from pdes.core import state as s
from pdes.core.errors import RunError
from pdes.core.hashmap import rehash
from pdes.core.inputs import Graph
from pdes.core.jit import compile_for, hook_address
from pdes.core.status import DONE, FULL
from pdes.harvest.gathering import WorkerTimes
from pdes.harvest.stall import TOO_LATE_TEXT
from pdes.messages.events import KEY_SHIFT, KIND_SHIFT, OWN, begin_with
from pdes.messages.message_loop import PAUSED, TOO_LATE, work_messages
from pdes.workers.crew import make_room

EVENTS_OF_A_PAUSE = 1_000_000


def compile_messages(graph: Graph | None = None, settings: Settings | None = None) -> float:
    """Compile what a run of messages needs, or load it; without a graph what every such run needs. Seconds it took."""
    begun = time.perf_counter()
    words = np.zeros(1, np.int64)
    compile_for(work_messages, 0, 0)
    compile_for(rehash, words, words, words, words)
    for function in hooks_of(graph, settings).values() if graph is not None and settings is not None else ():
        hook_address(function)
    return time.perf_counter() - begun


class MessageRun:
    """The worker of a Simulation that holds all NPUs in one LP.

    Args:
        sim: from build_world, of a fidelity other than packets.
        progress: called now and then with a Snapshot.
        nodes_total: trace rows of the run.
    """

    def __init__(self, sim: Simulation, progress: Progress | None = None, nodes_total: int = 0) -> None:
        (self._lp,) = sim.lps
        self._progress = progress
        self._nodes_total = nodes_total
        self.first_event_s = 0.0

    def times(self) -> WorkerTimes:
        """Nothing: there is one worker, and no windows."""
        return {}

    def run(self) -> None:
        """Run to the end."""
        lp, begun = self._lp, time.perf_counter()
        begin(lp)
        while (status := work_messages(lp.address, EVENTS_OF_A_PAUSE)) != DONE:
            if status == FULL:
                make_room(lp)
            elif status == TOO_LATE:
                raise RunError(TOO_LATE_TEXT)
            elif status == PAUSED and self._progress is not None:
                wall_s = time.perf_counter() - begun
                self.first_event_s = self.first_event_s or wall_s
                self._progress(_snapshot(lp, self._nodes_total, wall_s))
        self.first_event_s = self.first_event_s or time.perf_counter() - begun


def begin(lp: LogicalProcess) -> None:
    """Have every NPU that has something to do begin at time 0."""
    w = lp.world
    ready = np.flatnonzero(w.npus.npu.ready_head[: lp.part.npus] >= 0)
    begin_with(w.messages, w.net.ctl, (OWN << KIND_SHIFT) | (ready << KEY_SHIFT) | s.LANES, ready)


def _snapshot(lp: LogicalProcess, total: int, wall_s: float) -> Snapshot:
    net = lp.world.net
    return Snapshot(
        now_ps=int(net.ctl.now_ps),
        packet_hops=int(net.count.hops),
        nodes_done=total - int(net.ctl.rows_left),
        nodes_total=total,
        wall_s=wall_s,
        messages=int(net.count.consumed_packets),
    )
