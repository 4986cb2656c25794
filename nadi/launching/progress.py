"""Progress of a run: shown on standard error, and in a status file beside the results.

On a terminal or in a notebook, one line is renewed; elsewhere, a line is printed every few seconds. The first rank
renews the status file every second for `nadi watch`.
"""

import math
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from pydantic import BaseModel
from rich.live import Live
from rich.text import Text

from nadi.inputs import shown, write_whole
from nadi.inputs.units import format_time
from nadi.launching.ending import Interrupts
from nadi.terminal import Terminal

if TYPE_CHECKING:
    from nadi.pdes import Snapshot

LINE_EVERY_S = 5.0  # Minimum seconds between two lines if standard error is not a terminal
# Minimum seconds between two updates in a notebook, whose server drops output that comes much faster
_REWRITE_EVERY_S = 0.25
_MINUTE_S = 60
STATUS_FILE = "status.json"
RENEW_EVERY_S = 1.0  # seconds between two renewals of the file, which take a tenth of a millisecond

Phase = Literal["preparing", "simulating", "writing results"]


class ExpectedWork(NamedTuple):
    """Work that a run is expected to do: packet-hops outside of replayed collectives, or messages at message level."""

    units: float  # 0 = not known
    # of these, packet-hops of periods of the run that are likely to be counted and not simulated
    counted: float = 0.0
    spanned_rows: float = 0.0  # trace rows of all NPUs from the first of these periods to the last
    earlier_rows: float = 0.0  # trace rows before them

    def simulated(self, snapshot: "Snapshot") -> float:
        """Return how many units the run simulates one by one from begin to end, as far as is known at a snapshot."""
        # neither what was counted nor what was simulated of the periods that might be counted is still to be counted
        passed = (snapshot.nodes_done - self.earlier_rows) / max(self.spanned_rows, 1.0)
        likely = min(self.counted * (1.0 - min(passed, 1.0)), max(self.counted - snapshot.counted_hops, 0.0))
        return max(self.units - snapshot.counted_hops - likely, 0.0)


class Progress:
    """Display of progress snapshots; it shows only a few of them."""

    def __init__(self, stream: TextIO, live: Live | None, *, rewrites: bool = False) -> None:
        self._stream = stream
        self._live = live
        self._rewrites = rewrites
        self._width = 0
        self._begin_s = self._last_s = time.monotonic()
        self._run = ""
        self._expected = ExpectedWork(0.0)
        self._first: Snapshot | None = None  # first snapshot of the run
        self._if_stopped = 0.0, ""  # packet-hops more, and what to say, if the run stops to replay collectives
        self.status: RunStatus | None = None  # receives each snapshot too; None = nobody can watch the run

    def __call__(self, snapshot: "Snapshot") -> None:
        """Show a snapshot unless one was shown a moment ago; raise a lost Ctrl-C."""
        Interrupts.check()
        if self.status is not None:
            self.status.take(snapshot)
        self._first = self._first or snapshot
        if snapshot.stopped_replaying and self._if_stopped[0]:
            more, advice = self._if_stopped
            more = max(more - snapshot.replayed_hops, 0.0)
            self.expect(ExpectedWork(self._expected.units + more))
            self.say(advice)
        text = describe(snapshot, self._expected.simulated(snapshot), self._first)
        self._show(f"{self._run}: {text}" if self._run else text)

    def expect(self, work: ExpectedWork, replayable: float = 0.0, advice: str = "") -> None:
        """Set the expected work of the run that begins.

        Args:
            work: The expected work.
            replayable: The packet-hops that are added, less those that were replayed, if the run stops replaying
                collectives, as they seldom repeat.
            advice: The line that is printed in that case.
        """
        self._expected, self._first, self._if_stopped = work, None, (replayable, advice)
        if self.status is not None:
            self.status.expect(work)

    def begin(self, run: str) -> None:
        """Set and show the name of the run that the next snapshots belong to, if there are several runs."""
        self._run = run
        self._show(run)

    def count(self, done: int, of: int, what: str) -> None:
        """Show how many of several things are done, and the remaining time at the mean pace so far.

        Args:
            what: A noun in the plural for the things that are counted.
            done: The number of things that are done.
            of: The total number of things.
        """
        left_s = (time.monotonic() - self._begin_s) * (of - done) / done
        self._show(f"{done} of {of} {what} done, {duration_text(left_s)} left")

    def say(self, text: str) -> None:
        """Print one line about the current activity, such as compiling.

        Args:
            text: The line to print.
        """
        Interrupts.check()
        self.end_line()
        console = self._live.console if self._live is not None else Terminal(file=self._stream)
        console.print(f"nadi: {text}", soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print one line that also appears if progress is not shown.

        Args:
            text: The line to print.
        """
        self.say(text)

    def _show(self, text: str) -> None:
        """Show a text, on a terminal in place of the last one, elsewhere every few seconds."""
        if self._live is not None:
            self._live.update(Text(shown(text)))
        elif self._rewrites:
            self._rewrite(f"nadi: {shown(text)}")
        elif time.monotonic() - self._last_s >= LINE_EVERY_S:
            self._last_s = time.monotonic()
            self._stream.write(f"nadi: {shown(text)}\n")  # one write: a signal must not split the line
            self._stream.flush()

    def end_line(self) -> None:
        """Begin a new line if the current one is not complete."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def _rewrite(self, line: str) -> None:
        """Overwrite the previous line, as browsers interpret a carriage return."""
        now_s = time.monotonic()
        if self._width and now_s - self._last_s < _REWRITE_EVERY_S:
            return
        self._last_s = now_s
        self._stream.write(f"\r{line:<{self._width}}")
        self._stream.flush()
        self._width = len(line)


class NoProgress(Progress):
    """Progress without output, except warnings."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, None)

    def say(self, text: str) -> None:  # noqa: ARG002 - Progress prints it
        """Raise a lost Ctrl-C; else do nothing.

        Args:
            text: The line that is not shown.
        """
        Interrupts.check()

    def warn(self, text: str) -> None:
        """Print one line.

        Args:
            text: The line to print.
        """
        sys.stderr.write(f"nadi: {shown(text)}\n")

    def _show(self, text: str) -> None:
        pass


@contextmanager
def progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Yield a Progress on `stream` (default: standard error) for the block.

    Args:
        quiet: Whether only warnings appear.
        stream: The text stream for progress; None means standard error.
    """
    stream = stream or sys.stderr
    if quiet:
        yield NoProgress()
    elif stream.isatty():
        with Live(console=Terminal(file=stream), transient=True, refresh_per_second=4) as live:
            yield Progress(stream, live)
    elif in_notebook():
        display = Progress(stream, None, rewrites=True)
        try:
            yield display
        finally:
            display.end_line()
    else:
        yield Progress(stream, None)


def in_notebook() -> bool:
    """Return whether this process is a notebook kernel, whose output interprets carriage returns."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


MIN_SHARE = 1 / 200  # of the expected work, below which the pace so far says nothing about the rest


class WorkDone(NamedTuple):
    """How far a run is."""

    done: int  # packet-hops, or messages at message level
    what: str  # unit of `done`
    hops_per_s: float  # mean rate since the begin of the simulation
    share: float | None  # share of the expected work that is done, 0 to 1; None = not known, or more than expected
    left_s: float | None  # remaining time at the mean pace so far; None = not known yet


def work_done(snapshot: "Snapshot", expected_work: float, first: "Snapshot | None" = None) -> WorkDone:
    """Return how far a run is; `expected_work` is in packet-hops, or messages at message level, 0 = not known.

    Rate and remaining time count from the `first` snapshot on, because a run that continues from a checkpoint has done
    much before; None = from the begin. Retransmissions may add packets beyond the expected ones; share and remaining
    time are then not known.
    """
    done, what = _done(snapshot)
    hops, wall_s, done_here = snapshot.packet_hops, snapshot.wall_s, done
    if first is not None and first.wall_s < wall_s:
        hops, wall_s, done_here = hops - first.packet_hops, wall_s - first.wall_s, done - _done(first)[0]
    rate = hops / max(wall_s, 1e-9)
    if done >= expected_work:
        return WorkDone(done, what, rate, None, None)
    left_s = wall_s * (expected_work - done) / done_here if done_here >= MIN_SHARE * expected_work else None
    return WorkDone(done, what, rate, done / expected_work, left_s)


def _done(snapshot: "Snapshot") -> tuple[int, str]:
    """Return the work done so far and its unit."""
    if snapshot.messages is not None:
        return snapshot.messages, "messages"
    return snapshot.packet_hops, "packet-hops"


def describe(snapshot: "Snapshot", expected_work: float, first: "Snapshot | None" = None) -> str:
    """Return one line: simulated time, packet-hops per second, share of the work done, and remaining time.

    Once more is done than was expected, trace nodes show how far the run is.

    Args:
        snapshot: The counters of the simulation at this moment.
        expected_work: The expected number of packet-hops or messages; 0 if it is unknown.
        first: The first snapshot of the run, from which the pace is measured.
    """
    at = work_done(snapshot, expected_work, first)
    now_ps = snapshot.now_ps // 1000 * 1000  # show whole nanoseconds
    begun = f"{format_time(now_ps)} simulated"
    if snapshot.packet_hops or at.share is not None:
        begun += f", {at.hops_per_s / 1e6:.1f} M packet-hops/s"
    if at.share is None:
        more = f", {at.done / expected_work:.3g} times the expected {at.what}" if at.done > expected_work > 0 else ""
        return f"{begun}, {snapshot.nodes_done:,} of {snapshot.nodes_total:,} trace nodes done{more}"
    left = "" if at.left_s is None else f", {duration_text(at.left_s)} left"
    share = math.floor(1000 * at.share) / 1000  # "100.0%" would say that the run is over
    return f"{begun}, {share:.1%} of {expected_work:.3g} {at.what} done{left}"


def duration_text(seconds: float) -> str:
    """Return a time in words, such as "2 min 5 s".

    Args:
        seconds: The duration in seconds.
    """
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, _MINUTE_S)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


class SlowestWorker(BaseModel):
    """The worker of the first rank's node that has waited least for the others."""

    rank: int  # MPI rank of the worker
    worker: int  # number of the worker on its node
    waiting_share: float  # share of the time since the first window that it waited, 0 to 1
    mean_waiting_share: float  # mean of that share over all workers of the node


class Status(BaseModel):
    """Content of the file. Before the first report of the simulation, the fields of the simulation hold None."""

    host: str  # name of the host of the first rank
    process: int  # process id of the first rank on its host
    ranks: int  # number of MPI ranks
    phase: Phase  # what the run does
    begun_unix_s: float  # begin of the run, by the host's clock
    renewed_unix_s: float  # time of this renewal, by the host's clock
    simulated_ps: int | None = None  # simulated time
    packet_hops: int | None = None  # packet-hops so far
    messages: int | None = None  # messages received so far, at message level
    packet_hops_per_s: float | None = None  # rate since the last renewal with a report
    mean_packet_hops_per_s: float | None = None  # rate since the first report of this process
    done_share: float | None = None  # share of the expected work that is done, 0 to 1; None = not known
    left_s: float | None = None  # remaining time at the mean pace so far; None = not known
    slowest: SlowestWorker | None = None  # None = there are no other workers


class RunStatus:
    """The status of this process's run, as far as its parts have reported."""

    def __init__(self, ranks: int) -> None:
        """Begin a run of this number of ranks."""
        self._status = Status(
            host=platform.node(),
            process=os.getpid(),
            ranks=ranks,
            phase="preparing",
            begun_unix_s=time.time(),
            renewed_unix_s=0.0,
        )
        self._phase: Phase = "preparing"
        self._first: Snapshot | None = None
        self._snapshot: Snapshot | None = None
        self._reported: Snapshot | None = None  # snapshot of the last renewal that had a new one
        self._expected = ExpectedWork(0.0)

    def enter(self, phase: Phase) -> None:
        """Set what the run does from now on.

        Args:
            phase: The part of the run that begins.
        """
        self._phase = phase

    def expect(self, work: ExpectedWork) -> None:
        """Set the expected work of the run.

        Args:
            work: The expected work.
        """
        self._expected = work

    def take(self, snapshot: "Snapshot") -> None:
        """Take a report of the simulation.

        Args:
            snapshot: The counters of the simulation at this moment.
        """
        self._snapshot = snapshot
        self._first = self._first or snapshot
        if self._phase == "preparing":
            self._phase = "simulating"

    def renewed(self) -> Status:
        """Return the status now."""
        now, before = self._snapshot, self._reported
        values: dict[str, object] = {"phase": self._phase, "renewed_unix_s": time.time()}
        if now is not None and now is not before:
            at = work_done(now, self._expected.simulated(now), self._first)
            hops, lasted_s = now.packet_hops, now.wall_s
            if before is not None and before.wall_s < now.wall_s:
                hops, lasted_s = hops - before.packet_hops, lasted_s - before.wall_s
            slowest = now.slowest and SlowestWorker(**now.slowest._asdict())
            values |= {
                "simulated_ps": now.now_ps,
                "packet_hops": now.packet_hops,
                "messages": now.messages,
                "packet_hops_per_s": hops / max(lasted_s, 1e-9),
                "mean_packet_hops_per_s": at.hops_per_s,
                "done_share": at.share,
                "left_s": at.left_s,
                "slowest": slowest,
            }
            self._reported = now
        self._status = self._status.model_copy(update=values)
        return self._status


@contextmanager
def run_status(folder: Path | None, ranks: int) -> Iterator[RunStatus]:
    """Yield the status of a run of `ranks` ranks, whose file in `folder` a thread renews until the block ends.

    folder: folder of the file; None on ranks other than the first and for a run without results: no file then. If the
    file cannot be written, the run continues without.
    """
    status, ended = RunStatus(ranks), threading.Event()
    if folder is None:
        yield status
        return
    path = folder / STATUS_FILE

    def renew() -> None:
        while True:
            with suppress(OSError):
                write_whole(path, status.renewed().model_dump_json())
            if ended.wait(RENEW_EVERY_S):
                return

    thread = threading.Thread(target=renew, daemon=True, name="status")
    thread.start()
    try:
        yield status
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            path.unlink()
