"""Workers as processes of this machine: forked after the kernels are compiled, outboxes and team in shared memory.

Each builds the worlds of its own LPs only. What they have brought comes back through a pipe at the end. When one dies
the others stop; when the first dies the kernel's parent-death signal ends the rest.
"""

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import time

import numpy as np

from pdes.build import build_lps
from pdes.crew import AbortedError, Crew, compile_kernels
from pdes.driver import settled
from pdes.harvest import check, harvest, merge, results
from pdes.layout import Layout
from pdes.post import Post, outbox_words
from pdes.results import RunError
from pdes.team import TEAM_ABORT, found_team, team_words

PR_SET_PDEATHSIG = 1
LINE_WORDS = 16


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
    """The processes beside this one."""

    def __init__(self, team):
        self._team = team
        self._processes = []
        self._pipes = []
        self.brought = {}

    def start(self, target, worker):
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, worker), daemon=True, name=f"nadi worker {worker}")
        process.start()
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)

    def look_around(self):
        """Raise if a process has ended before its time."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            if not process.is_alive() and process.name not in self.brought:
                self._receive(process, pipe)

    def receive(self):
        """What each process has brought, in order."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            if process.name not in self.brought:
                self._receive(process, pipe)
            process.join()
        return list(self.brought.values())

    def _receive(self, process, pipe):
        try:
            outcome = pipe.recv()
        except EOFError:
            process.join()
            code = process.exitcode
            how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
            raise RunError(f"{process.name} (process {process.pid}) ended before the run did: {how}") from None
        if isinstance(outcome, AbortedError):
            return
        if isinstance(outcome, BaseException):
            raise outcome
        self.brought[process.name] = outcome

    def failure(self):
        """The failure of a process that stopped the team, if one says so."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            with contextlib.suppress(EOFError):
                if pipe.poll(1.0):
                    outcome = pipe.recv()
                    if isinstance(outcome, BaseException) and not isinstance(outcome, AbortedError):
                        return outcome
            if not process.is_alive() and process.exitcode:
                return RunError(f"{process.name} (process {process.pid}) failed")
        return None

    def stop(self):
        """End all that still run."""
        self._team[TEAM_ABORT] = 1
        for process in self._processes:
            process.join(timeout=2.0)
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
    layout = Layout(graph, settings, owner)
    parts = [layout.part(number) for number in range(layout.lps)]
    memory = _SharedMemory(team_words(workers) + outbox_words(parts) + LINE_WORDS * (1 + layout.lps))
    team = memory.take(team_words(workers))
    found_team(team, workers, layout.fabric.cell_ps, crew_size=1)
    post = Post(parts, memory.take)
    compile_s = compile_kernels()
    others = _Workers(team)
    parent = os.getpid()

    def child(pipe, worker):
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            own = [parts[number] for number in layout.share(workers, worker)]
            sim = build_lps(layout, program, settings, own, post)
            Crew(sim, team, first=worker).run()
            pipe.send(harvest(sim))
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            team[TEAM_ABORT] = 1
            pipe.send(error)
        pipe.close()
        os._exit(0)

    try:
        for worker in range(1, workers):
            others.start(child, worker)
        sim = build_lps(layout, program, settings, [parts[number] for number in layout.share(workers, 0)], post)
        crew = Crew(sim, team, progress=progress, nodes_total=_trace_rows(program), look_around=others.look_around)
        setup_s = time.perf_counter() - begun - compile_s
        started = time.perf_counter()
        try:
            crew.run()
        except AbortedError:
            raise others.failure() or RunError("a worker stopped the run and did not say why") from None
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


def _die_with(parent):
    """Have this process killed when its parent dies (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
