"""The status of a run: a small file beside the results, which the first rank renews every second for `nadi watch`."""

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from nadi.inputs import write_whole
from nadi.launching.progress import work_done

if TYPE_CHECKING:
    from nadi.pdes import Snapshot

STATUS_FILE = "status.json"
RENEW_EVERY_S = 1.0  # seconds between two renewals of the file, which take a tenth of a millisecond

Phase = Literal["preparing", "simulating", "writing results"]


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
        self._expected = 0.0

    def enter(self, phase: Phase) -> None:
        """Set what the run does from now on.

        Args:
            phase: The part of the run that begins.
        """
        self._phase = phase

    def expect(self, work: float) -> None:
        """Set the expected packet-hops of the run, or messages at message level.

        Args:
            work: The expected number of packet-hops, or of messages at message level.
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
            at = work_done(now, self._expected, self._first)
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
