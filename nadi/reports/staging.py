"""Atomic publication of a folder of results, which one run at a time may write, and the progress of that run.

A run writes into a hidden folder: in the folder of results if that exists, else beside the first missing folder of its
path. The hidden folder is also the lock, which a run holds until it ends; the next run removes the remains of a killed
run. Its status file tells the progress.
"""

import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nadi import inputs
from nadi.errors import OutputError
from nadi.launching.checkpoints import CHECKPOINTS, PARTIAL
from nadi.launching.ending import unwound
from nadi.launching.progress import RENEW_EVERY_S, STATUS_FILE, Status
from nadi.launching.ranks import ALONE, AgreedError, RankGather, together
from nadi.simulation.earlier_run import read_summary

SUMMARY = "summary.json"  # file that a run writes last
_HIDDEN = ".nadi-"
_HOLDER = "written-by"
_MAX_NAME_LENGTH = 100


def hidden_folders(out: Path) -> Iterator[Path]:
    """Yield the hidden folders of runs that write to `out`: of one under way, or remains of a killed one."""
    real = Path(os.path.realpath(out))
    for base in (real, *real.parents):
        folder = _hidden_in(base, real)
        if folder.is_dir() and not folder.is_symlink():
            yield folder


def _hidden_in(base: Path, out: Path) -> Path:
    """Return the hidden folder in the existing folder `base`: the same for every run that writes to `out`."""
    if base == out:
        return base / f"{_HIDDEN}results"
    relative = str(out.relative_to(base))
    digest = hashlib.blake2b(os.fsencode(relative), digest_size=4).hexdigest()
    return base / f"{_HIDDEN}{relative.replace(os.sep, '-')[:_MAX_NAME_LENGTH]}-{digest}"


@contextmanager
def staged(out: Path, files: Sequence[str], ranks: RankGather = ALONE, *, key: str = "") -> Iterator[Path | None]:
    """Provide a folder to write into; when the block ends normally, its files move to `out`, the first of `files` last.

    If the block fails or a signal ends it, nothing remains. Files in `files` that an earlier run wrote and this run
    does not are removed; files of these names that no run wrote belong to the user, and the folder is refused. With
    several ranks only rank 0 gets the folder, and all ranks fail if it cannot be written. Raise OutputError before the
    block runs if `out` cannot be made or written to, holds files of the user, or another run is writing to it
    (AgreedError with several ranks), and EndedBySignalError on SIGTERM or SIGHUP.

    The first of `files` marks a complete folder; `key` is a top-level key of it by which Nadi knows its JSON documents,
    "" = its name suffices.
    """
    is_first = ranks.rank == 0
    with unwound() if is_first else nullcontext(), ExitStack() as stack:
        stage = _Stage(out, files, key, stack)
        try:
            with together(ranks):
                if is_first:
                    stage.prepare()
            yield stage.folder if is_first else None
            with together(ranks):
                if is_first:
                    stage.publish()
        except BaseException as error:
            if is_first:
                stage.drop()
            if isinstance(error, OSError):
                raise OutputError(f"{out}: {error.strerror or error}; results are not written") from error
            if isinstance(error, AgreedError) and error.of_a_file:
                raise AgreedError(f"{out}: {error}; results are not written", error.exit_code) from error
            raise


class _Stage:
    """The hidden folder of one run, whose results move to the folder `out`; `base` is its nearest existing parent."""

    def __init__(self, out: Path, files: Sequence[str], key: str, stack: ExitStack) -> None:
        self._name, self._files, self._key, self._stack = out, files, key, stack
        self._earlier: list[str] = []  # files that an earlier run wrote
        self._out = Path(os.path.realpath(out))
        self._made: list[Path] = []  # folders that this run created
        self._is_ours = False  # whether this run holds the lock
        self.folder = self._out  # path of the hidden folder, set by `prepare`

    def prepare(self) -> None:
        """Create and lock an empty hidden folder, which proves that results can be written; else raise OutputError."""
        try:
            base = next(folder for folder in (self._out, *self._out.parents) if os.path.lexists(folder))
            if not base.is_dir():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._check_names(base)
            self._clear_others(base)
            self.folder = _hidden_in(base, self._out)
            found = [name for name in self._files if os.path.lexists(self._out / name)]
            if found and not self._has_marker(self._out / self._files[0]) and not os.path.lexists(self.folder):
                raise OutputError(
                    f"{self._name}: {found[0]} in it was not written by Nadi, which would replace or remove it; "
                    "expected another folder for results"
                )
            self._earlier = found
            self._take(self.folder)
            self._is_ours = True
            holder = f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            (self.folder / _HOLDER).write_text(holder, encoding="utf-8")
        except OSError as error:
            self.drop()
            reason = error.strerror or str(error)
            raise OutputError(f"{self._name}: {reason}; expected a folder to write results to") from None

    def publish(self) -> None:
        """Move the results to their names: all at once if the folder does not exist yet, else file by file."""
        files = self._files
        (self.folder / _HOLDER).unlink(missing_ok=True)
        if not self._out.exists():
            self._make(self._out.parent)
            with suppress(OSError):  # another process has created something there
                self.folder.rename(self._out)
                return
        written = sorted(self.folder.iterdir(), key=lambda file: file.name == files[0])
        names = {file.name for file in written} - {files[0]}
        for name in self._earlier:
            if name not in names:
                (self._out / name).unlink(missing_ok=True)
        for file in written:
            file.replace(self._out / file.name)
        self.folder.rmdir()

    def drop(self) -> None:
        """Remove everything that this run has created."""
        if self._is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)
        for folder in reversed(self._made):
            with suppress(OSError):  # another process has created something there
                folder.rmdir()

    def _has_marker(self, path: Path) -> bool:
        """Return whether the file that marks a complete folder exists and was written by Nadi."""
        if not self._key:
            return path.is_file()
        try:
            document = json.loads(inputs.read_text(path))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(document, dict) and self._key in document

    def _check_names(self, base: Path) -> None:
        """Reject a name that is too long, or that Parquet files cannot have, before the run instead of after it."""
        try:
            str(self._out).encode()
        except UnicodeEncodeError:
            raise OSError(errno.EILSEQ, "its path is no UTF-8") from None
        if any(len(os.fsencode(part)) > os.pathconf(base, "PC_NAME_MAX") for part in self._out.parts):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    def _clear_others(self, base: Path) -> None:
        """Remove or respect hidden folders of runs that began when fewer folders of the path to `out` existed."""
        for ancestor in self._out.parents:
            left = _hidden_in(ancestor, self._out)
            if ancestor != base and os.path.isdir(left):  # noqa: PTH112 - False where nothing may be seen
                with suppress(OSError):  # another user's folder without permissions
                    self._take(left)
                    shutil.rmtree(left, ignore_errors=True)

    def _take(self, folder: Path) -> None:
        """Create a folder if necessary, lock it until the process ends (if the file system has locks), and empty it."""
        while True:
            with suppress(FileExistsError):
                folder.mkdir()
            try:
                opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            self._stack.callback(os.close, opened)
            if os.fstat(opened).st_uid != os.geteuid():  # that user could put links into it
                raise PermissionError(errno.EPERM, f"{folder.name} in it belongs to another user")
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = "another run"
                with suppress(OSError, UnicodeDecodeError):
                    holder += f" ({(folder / _HOLDER).read_text(encoding='utf-8')})"
                fix = "expected another folder, or to wait for it"
                raise OutputError(f"{self._name}: {holder} is writing results there; {fix}") from None
            except OSError:
                pass
            with suppress(FileNotFoundError):  # the former holder has just moved or removed it
                if os.path.samestat(os.fstat(opened), folder.lstat()):
                    break
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        """Create a folder and its missing parents; `drop` removes them."""
        if folder.is_dir():
            return
        self._make(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            if not folder.is_dir():
                raise
        else:  # else another run has created it meanwhile
            self._made.append(folder)


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
        status = _read_status(folder / STATUS_FILE)
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


def partial_metrics(out: Path) -> dict[str, Any] | None:
    """Return `partial` of the summary of a run's partial results; None if it has none, or just replaces them.

    Args:
        out: Folder of the run's results.
    """
    try:
        found: dict[str, Any] | None = read_summary(out / PARTIAL).get("partial")
    except (OSError, ValueError):
        return None
    return found


def _read_status(path: Path) -> Status | None:
    """Return the status in a file; None if there is no file, or not one of a run."""
    try:
        return Status.model_validate_json(inputs.read_bytes(path, _LARGEST_STATUS_BYTES))
    except (OSError, ValueError):
        return None
