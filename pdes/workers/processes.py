"""Workers as processes of this machine: forked after the kernels are compiled, outboxes and team in shared memory.

Each does its share from building the worlds of its own LPs on. Its outcome returns through a pipe at the end. When a
process dies, a thread of the first notices it and stops the others; when the first dies, the kernel's parent-death
signal ends them.
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
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from nadi.compiling import defect_text
from nadi.pdes.construction.layout import Layout, Outboxes
from nadi.pdes.core import Int64, RunError
from nadi.pdes.core.packet import WORD_BYTES
from nadi.pdes.outcomes.outcome import LpResults, merge
from nadi.pdes.workers import AbortedError, Mailbox, ProcessPlace, Segment, Share, segment_words
from nadi.pdes.workers.batches import no_batches
from nadi.pdes.workers.team import Team, found_team, team_in, team_words

PR_SET_PDEATHSIG = 1  # option of prctl(2), linux/prctl.h
REPORT_TIMEOUT_S = 2.0  # time within which a failed process must report its error
END_TIMEOUT_S = 2.0  # time within which a stopped process must end
POLL_INTERVAL_S = 1e-4  # time between two checks whether all have built their worlds
BUILT, DONE = 1, 2  # progress of a process


class _Workers:
    """The other processes of the run."""

    def __init__(self, team: Team, status: Int64) -> None:
        """Begin without processes; status: int64[workers], shared: BUILT once its worlds are built, DONE at its end."""
        self._team = team
        self._status = status
        self.started: list[tuple[BaseProcess, connection.Connection]] = []

    def start(self, target: Callable[[connection.Connection, int], None], worker: int) -> None:
        """Fork a process that calls target(pipe, worker), where worker is its number."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, worker), daemon=True, name=f"worker {worker}")
        # no Ctrl-C between the fork and its registration
        usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            self.started.append((process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        theirs.close()

    def watch(self) -> None:
        """Stop the team as soon as a process ends before it is done; return when all have ended."""
        waiting: dict[Any, int] = {process.sentinel: i for i, (process, _) in enumerate(self.started, start=1)}
        while waiting:
            for sentinel in connection.wait(list(waiting)):
                if self._status[waiting.pop(sentinel)] != DONE:
                    # the others leave their kernels at the next wait; without this they would wait for ever for one
                    # that is gone
                    self._team.state.abort = 1

    def failure(self) -> RunError:
        """Return the error of the first process that reports one, after the team was stopped."""
        waiting: dict[Any, Any] = {pipe: (process, pipe) for process, pipe in self.started}
        # an error is sent before the process ends, so a short time is enough; a killed process sends none
        until = time.monotonic() + REPORT_TIMEOUT_S
        while waiting and (ready := connection.wait(list(waiting), max(0.0, until - time.monotonic()))):
            for pipe in ready:
                try:
                    _received(*waiting.pop(pipe))
                # it stopped because of another one, which knows the reason
                except AbortedError:
                    continue
                except RunError as error:
                    return error
        return RunError("a worker stopped the run without an error message")

    def stop(self) -> None:
        """End all processes that still run."""
        self._team.state.abort = 1
        until = time.monotonic() + END_TIMEOUT_S
        for process, _ in self.started:
            # all processes together have this long
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


class Processes(Mailbox):
    """This process and others that it forks, one worker each, at most as many as LPs."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._calls = 0  # of `have_all`
        self._pipe: connection.Connection | None = None  # to the first process; None = this is the first

    def everywhere(
        self,
        layout: Layout,
        threads: int,  # noqa: ARG002 - a process is one worker
        work: Share,
    ) -> tuple[LpResults, LpResults]:
        """Fork the others (layout, threads), do this process's share of `work`, and return all results and its own."""
        workers = self._workers
        parts = [layout.part(number) for number in range(layout.lps)]
        words = sum(map(segment_words, (team_words(workers), workers, 2 * workers)))
        words += sum(segment_words(int(part.outbox_at()[-1])) for part in parts)
        memory = Segment(np.frombuffer(mmap.mmap(-1, WORD_BYTES * words), np.int64))
        self._team = team = team_in(memory.take(team_words(workers)))
        self._status = status = memory.take(workers)
        self._answers = memory.take(2 * workers).reshape(2, workers)  # of `have_all`, of two calls in turn
        found_team(team, layout.grid_ps, layout.lookahead_ps, pool_size=1)
        post = Outboxes(parts, memory.take)
        parent = os.getpid()

        def place(worker: int) -> ProcessPlace:
            """Return the place of a worker of the team by its number: one process, with its share of the LPs."""
            own = [parts[number] for number in layout.share(workers, worker)]
            self._worker = worker
            return ProcessPlace(own, post, team, no_batches(own), worker)

        def child(pipe: connection.Connection, worker: int) -> None:
            """Do the share of worker number `worker` in a forked process; send its results or error through `pipe`."""
            # the kernel kills this process when its parent dies (Linux)
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals all, the parent ends its children
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._pipe = pipe
            try:
                own = work(place(worker))
                status[worker] = DONE
                pipe.send(own)
            except BaseException as error:  # noqa: BLE001 - the parent raises it
                pipe.send(_transferable(error, worker))
                team.state.abort = 1
            pipe.close()
            os._exit(0)

        self._others = others = _Workers(team, status)
        try:
            for worker in range(1, workers):
                others.start(child, worker)
            threading.Thread(target=others.watch, daemon=True).start()
            try:
                own = work(place(0))
            except AbortedError:
                raise others.failure() from None
            total = self._merged_here(own)
            total = replace(total, forked_rss_bytes=total.peak_rss_bytes - own.peak_rss_bytes)
            return total, total
        finally:
            others.stop()

    def _merged_here(self, own: LpResults) -> LpResults:
        """Return the outcome of all processes from that of the first, `own`, and those that the others send to it."""
        return merge([own, *(_received(process, pipe) for process, pipe in self._others.started)])

    def merged(self, own: LpResults) -> tuple[LpResults, LpResults] | None:
        """As Mailbox.merged.

        Args:
            own: LpResults of this process.
        """
        if self._pipe is not None:
            self._pipe.send(own)
            return None
        total = self._merged_here(own)
        return total, total

    def have_all(self, is_done: bool) -> bool:
        """As Mailbox.have_all.

        Args:
            is_done: Whether this process has done its part.
        """
        # An answer is the number of the call, with the lowest bit 1 after False. The answers of a call stay until the
        # next but one, which begins when all have read them.
        self._calls += 1
        answers = self._answers[self._calls & 1]
        # alone in its word, which no other process writes: no lock is needed
        answers[self._worker] = 2 * self._calls + (not is_done)
        while (answers >> 1 < self._calls).any():
            if self._team.state.abort == 1:
                raise AbortedError
            time.sleep(POLL_INTERVAL_S)
        return not (answers & 1).any()

    @contextlib.contextmanager
    def windows(self) -> Iterator[None]:
        """Let all begin when the last has built its worlds."""
        # a worker that began early would wait in its kernel with a busy core, beside others that still build
        self._status[self._worker] = BUILT
        while (self._status < BUILT).any():
            if self._team.state.abort == 1:
                raise AbortedError
            time.sleep(POLL_INTERVAL_S)
        yield


def _received(process: BaseProcess, pipe: connection.Connection) -> LpResults:
    """Return the outcome that a process sends through its pipe, or raise the error that it raised."""
    try:
        outcome = pipe.recv()
    except (EOFError, OSError):
        # its exit code says how it ended
        process.join(END_TIMEOUT_S)
        code = process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        raise RunError(f"{process.name} (process {process.pid}) ended before the run did: {how}") from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _transferable(error: BaseException, worker: int) -> BaseException:
    """Return the failure of worker number `worker` in a form that another process can raise, without traceback."""
    if isinstance(error, RunError | AbortedError):
        return error
    # the traceback stays in the other process: its last line is all that crosses
    frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{Path(frame.filename).name}:{frame.lineno}"
    return RunError(f"worker {worker}: {defect_text(error)} ({location}); this is a defect")
