"""How far a run is, on standard error: a live line on a terminal or in a notebook, else a line every few seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.live import Live
from rich.text import Text

from inputs import shown
from nadi.launching.ending import Interrupts
from nadi.terminal.console import Terminal
from topologies.units import format_time

if TYPE_CHECKING:
    from pdes import Snapshot

LINE_EVERY_S = 5.0
_REWRITE_EVERY_S = 0.25
"""A notebook's server drops what comes much faster."""
_MINUTE_S = 60


class Progress:
    """Called with snapshots; shows at most a few of them."""

    def __init__(self, stream: TextIO, live: Live | None, *, rewrites: bool = False) -> None:
        self._stream = stream
        self._live = live
        self._rewrites = rewrites
        self._width = 0
        self._last_s = time.monotonic()
        self._run = ""
        self._expected = 0.0

    def __call__(self, snapshot: "Snapshot") -> None:
        """Show a snapshot, or not, if one was shown a moment ago; a Ctrl-C that was lost is raised here."""
        Interrupts.check()
        text = describe(snapshot, self._expected)
        self._show(f"{self._run}: {text}" if self._run else text)

    def expect(self, work: float) -> None:
        """How many packet-hops, or messages at message level, the run that snapshots are of will take."""
        self._expected = work

    def begin(self, run: str) -> None:
        """Name the run that snapshots are of from now on, where there are several; shown as they are."""
        self._run = run
        self._show(run)

    def say(self, text: str) -> None:
        """One line about what is done now, such as compiling."""
        Interrupts.check()
        self.end_line()
        console = self._live.console if self._live is not None else Terminal(file=self._stream)
        console.print(f"nadi: {text}", soft_wrap=True)

    def warn(self, text: str) -> None:
        """One line that is said even where nobody wants to see progress."""
        self.say(text)

    def _show(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(shown(text)))
        elif self._rewrites:
            self._rewrite(f"nadi: {shown(text)}")
        elif time.monotonic() - self._last_s >= LINE_EVERY_S:
            self._last_s = time.monotonic()
            self._stream.write(f"nadi: {shown(text)}\n")  # at once: a signal must not come before the end of the line
            self._stream.flush()

    def end_line(self) -> None:
        """Have what comes next stand on a line of its own."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def _rewrite(self, line: str) -> None:
        """Write over the line before, as browsers show a carriage return."""
        now_s = time.monotonic()
        if self._width and now_s - self._last_s < _REWRITE_EVERY_S:
            return
        self._last_s = now_s
        self._stream.write(f"\r{line:<{self._width}}")
        self._stream.flush()
        self._width = len(line)


class NoProgress:
    """Shows nothing."""

    def __call__(self, snapshot: "Snapshot") -> None:  # noqa: ARG002 - Progress shows it
        """Raise a Ctrl-C that was lost; else do nothing."""
        Interrupts.check()

    def expect(self, work: float) -> None:
        """Do nothing."""

    def begin(self, run: str) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:  # noqa: ARG002 - Progress says it
        """Raise a Ctrl-C that was lost; else do nothing."""
        Interrupts.check()

    def warn(self, text: str) -> None:
        """One line that is said even here."""
        sys.stderr.write(f"nadi: {shown(text)}\n")


@contextmanager
def progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress | NoProgress]:
    """A Progress on `stream` (standard error if not given) as long as the block runs."""
    stream = stream or sys.stderr
    if quiet:
        yield NoProgress()
    elif stream.isatty():
        with Live(console=Terminal(file=stream), transient=True, refresh_per_second=4) as live:
            yield Progress(stream, live)
    elif in_notebook():
        telling = Progress(stream, None, rewrites=True)
        try:
            yield telling
        finally:
            telling.end_line()
    else:
        yield Progress(stream, None)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output is no terminal but takes carriage returns."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def describe(snapshot: "Snapshot", expected: float) -> str:
    """One line: simulated time, packet-hops per second, share of the work done, and time left at the pace so far.

    What is lost is sent again, so that there may be more packets than expected: then nothing is said of the time left.

    Args:
        snapshot: of the run.
        expected: packet-hops, or messages at message level, that the run will take; 0 = not known.
    """
    done, what = snapshot.packet_hops, "packet-hops"
    if snapshot.messages is not None:
        done, what = snapshot.messages, "messages"
    rate = snapshot.packet_hops / max(snapshot.wall_s, 1e-9)
    now_ps = snapshot.now_ps // 1000 * 1000  # picoseconds are noise here
    begun = f"{format_time(now_ps)} simulated"
    if snapshot.packet_hops or expected > 0:
        begun += f", {rate / 1e6:.1f} M packet-hops/s"
    if expected <= 0:
        return f"{begun}, {snapshot.nodes_done:,} of {snapshot.nodes_total:,} trace nodes done"
    share = done / expected
    left = f", {_duration(snapshot.wall_s * (1 - share) / share)} left" if 0 < share < 1 else ""
    return f"{begun}, {min(share, 1):.1%} of {expected:.3g} {what} done{left}"


def _duration(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, _MINUTE_S)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
