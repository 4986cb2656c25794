"""The progress of a run that writes to a folder of results, from its status file."""

import errno
import os
import platform
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nadi import inputs
from nadi.launching.checkpoints import CHECKPOINTS, PARTIAL
from nadi.launching.progress import RENEW_EVERY_S, STATUS_FILE, Status
from nadi.reports.result_files.run_folder import SUMMARY
from nadi.reports.result_files.staging import hidden_folders
from nadi.simulation.earlier_run import read_summary

# Seconds without renewal after which a run counts as dead: clients of network file systems remember names for up to a
# minute
DEAD_AFTER_S = 60.0
# Seconds without renewal after which a run whose process this host does not have counts as dead
_GONE_AFTER_S = 3 * RENEW_EVERY_S
_LARGEST_STATUS_BYTES = 1 << 16

State = Literal["none", "starting", "running", "finished", "ended", "dead"]


class Sight(NamedTuple):
    """What was seen of a run."""

    # none: no run and no results; starting: without a status so far; finished: results are complete; ended: a run has
    # ended without results; dead: a run has ended without removing its status, or its host does not renew it
    state: State
    status: Status | None  # last status of the run, None = none was seen
    age_s: float  # seconds since it was last renewed


class Watch:
    """An observer of the run that writes to a folder."""

    def __init__(self, out: Path) -> None:
        """Begin to observe the run that writes to `out`."""
        self._summary = out / SUMMARY
        self._out = out
        self._results = self._identity()  # results of an earlier run, or None
        self._status: Status | None = None
        self._is_begun = False  # a run has been seen
        self._renewed_s = time.monotonic()  # when the status was last renewed, or the observation began

    def look(self) -> Sight:
        """Return what is to be seen now."""
        folder = next(hidden_folders(self._out), None)
        if folder is None:
            return self._without_run()
        self._is_begun = True
        status = _read(folder / STATUS_FILE)
        if status is not None and status != self._status:
            # only the first age is by the other machine's clock, which may differ from ours
            age_s = max(0.0, time.time() - status.renewed_unix_s) if self._status is None else 0.0
            self._renewed_s = time.monotonic() - age_s
            self._status = status
        age_s = time.monotonic() - self._renewed_s
        is_dead = age_s > DEAD_AFTER_S or (age_s > _GONE_AFTER_S and self._is_gone())
        state: State = "dead" if is_dead else "running" if self._status else "starting"
        return Sight(state, self._status, age_s)

    def _without_run(self) -> Sight:
        """Return the state of a folder to which no run writes."""
        results = self._identity()
        age_s = time.monotonic() - self._renewed_s
        if not self._is_begun:
            is_saved = (self._out / CHECKPOINTS).is_dir()
            return Sight("finished" if results else "ended" if is_saved else "none", None, age_s)
        return Sight("finished" if results and results != self._results else "ended", self._status, age_s)

    def _identity(self) -> tuple[int, int] | None:
        """Return what differs between the results of two runs; None without results."""
        try:
            found = self._summary.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _is_gone(self) -> bool:
        """Return whether the run was on this host, which has no process of its number."""
        if self._status is None or self._status.host != platform.node():
            return False
        try:
            os.kill(self._status.process, 0)
        except OSError as error:
            return error.errno == errno.ESRCH
        return False


def partial_figures(out: Path) -> dict[str, Any] | None:
    """Return `partial` of the summary of a run's partial results; None if it has none, or just replaces them.

    Args:
        out: Folder of the run's results.
    """
    try:
        found: dict[str, Any] | None = read_summary(out / PARTIAL).get("partial")
    except (OSError, ValueError):
        return None
    return found


def _read(path: Path) -> Status | None:
    """Return the status in a file; None if there is no file, or not one of a run."""
    try:
        return Status.model_validate_json(inputs.read_bytes(path, _LARGEST_STATUS_BYTES))
    except (OSError, ValueError):
        return None
