"""Workers as processes of this machine: forked after the kernels are compiled, outboxes and team in shared memory.

Each builds the worlds of its own LPs only. What they have brought comes back through a pipe at the end. When one dies
a thread of the first sees it and stops the rest; when the first dies the kernel's parent-death signal ends them.
"""

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import threading
import time
import traceback
from multiprocessing import connection
from pathlib import Path

import numpy as np

from pdes.build.layout import Layout
from pdes.build.post import Post, outbox_words
from pdes.build.worlds import build_lps
from pdes.core.errors import RunError
from pdes.harvest.gathering import check, harvest, merge, results
from pdes.nic.driven import has_shares, with_driven
from pdes.workers.crew import AbortedError, Crew, compile_kernels
from pdes.workers.team import TEAM_ABORT, found_team, team_words
from pdes.workers.threads import settled

PR_SET_PDEATHSIG = 1
LINE_WORDS = 16
SAYS_WHY_S = 2.0
ENDS_S = 2.0


class _SharedMemory:
    """Zeroed memory that forked processes share; pages are taken when they are first written."""

    def __init__(self, words):
        self._words = np.frombuffer(mmap.mmap(-1, max(1, 8 * words)), np.int64)
        self._used = 0

    def take(self, words):
        """int64[words], beginning on a line of its own."""
        begin = self._used
        self._used += -(-words // LINE_WORDS) * LINE_WORDS
        return self._words[begin : begin + words]


class _Workers:
    """The processes beside this one.

    Args:
        team: see pdes.workers.team.
        done: int64[workers], shared: 1 = the worker has done all its windows.
    """

    def __init__(self, team, done):
        self._team = team
        self._done = done
        self._processes = []
        self._pipes = []

    def start(self, target, worker):
        """Fork a process that calls target(pipe, worker)."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, worker), daemon=True, name=f"worker {worker}")
        usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C between a fork and its being known
        try:
            process.start()
            self._processes.append(process)
            self._pipes.append(ours)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        theirs.close()

    def watch(self):
        """Have a thread stop the team as soon as a process ends that is not done."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        waiting = {process.sentinel: worker for worker, process in enumerate(self._processes, start=1)}
        while waiting:
            for sentinel in connection.wait(list(waiting)):
                if self._done[waiting.pop(sentinel)] == 0:
                    self._team[TEAM_ABORT] = 1

    def receive(self):
        """What each process has brought, in order."""
        return [self._receive(number) for number in range(len(self._pipes))]

    def failure(self):
        """Of those that stopped the team, the one that says why."""
        waiting = {pipe: number for number, pipe in enumerate(self._pipes)}
        until = time.monotonic() + SAYS_WHY_S
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                try:
                    self._receive(waiting.pop(pipe))
                except AbortedError:
                    continue
                except RunError as error:
                    return error
        return RunError("a worker stopped the run and did not say why")

    def _receive(self, number):
        """What a process has brought; raises what it has raised."""
        process, pipe = self._processes[number], self._pipes[number]
        try:
            outcome = pipe.recv()
        except (EOFError, OSError):
            process.join(ENDS_S)
            code = process.exitcode
            how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
            raise RunError(f"{process.name} (process {process.pid}) ended before the run did: {how}") from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def stop(self):
        """End all that still run."""
        self._team[TEAM_ABORT] = 1
        until = time.monotonic() + ENDS_S
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def run_processes(graph, program, settings, owner, workers, progress=None):
    """Build worlds and run them on so many processes; this one is the first. Returns Results.

    Args:
        graph: as for pdes.build_world.
        program: same.
        settings: same.
        owner: same.
        workers: at most as many as LPs.
        progress: called a few times a second with a Snapshot.

    Raises:
        RunError: as pdes.run; or a process ended before its time.
    """
    begun = time.perf_counter()
    settings = with_driven(settings, driven=has_shares(program))
    layout = Layout(graph, settings, owner)
    parts = [layout.part(number) for number in range(layout.lps)]
    memory = _SharedMemory(team_words(workers) + workers + outbox_words(parts) + LINE_WORDS * (2 + layout.lps))
    team = memory.take(team_words(workers))
    done = memory.take(workers)
    found_team(team, workers, layout.fabric.cell_ps, crew_size=1)
    post = Post(parts, memory.take)
    compile_s = compile_kernels(graph, settings)
    others = _Workers(team, done)
    parent = os.getpid()

    def child(pipe, worker):
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all, the parent ends us
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            own = [parts[number] for number in layout.share(workers, worker)]
            sim = build_lps(layout, program, settings, own, post)
            Crew(sim, team, first=worker).run()
            done[worker] = 1
            pipe.send(harvest(sim))
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            pipe.send(_told(error, worker))
            team[TEAM_ABORT] = 1
        pipe.close()
        os._exit(0)

    try:
        for worker in range(1, workers):
            others.start(child, worker)
        others.watch()
        sim = build_lps(layout, program, settings, [parts[number] for number in layout.share(workers, 0)], post)
        crew = Crew(sim, team, progress=progress, nodes_total=_trace_rows(program))
        setup_s = time.perf_counter() - begun - compile_s
        started = time.perf_counter()
        try:
            crew.run()
        except AbortedError:
            raise others.failure() from None
        wall_s = time.perf_counter() - started
        own = harvest(sim)
        whole = merge([own, *others.receive()])
    finally:
        others.stop()
    check(whole)
    return results(
        whole,
        whole,
        graph,
        wall_s=wall_s,
        setup_s=setup_s,
        compile_s=compile_s,
        first_event_s=crew.first_event_s,
        settled=settled(sim),
        workers_rss_bytes=whole.peak_rss_bytes - own.peak_rss_bytes,
    )


def _trace_rows(program):
    """Trace rows of all NPUs."""
    trace = np.asarray(program.trace_of_npu)
    return int(np.diff(program.trace_ptr)[trace[trace >= 0]].sum())


def _told(error, worker):
    """A worker's failure as this process can raise it: what comes through a pipe has lost its traceback."""
    if isinstance(error, RunError | AbortedError):
        return error
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return RunError(f"worker {worker}: {type(error).__name__}: {error} ({where}); this is a defect")


def _die_with(parent):
    """Have this process killed when its parent dies (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
