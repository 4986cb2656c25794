"""The checkpoints of a run: folders of files in the folder of its results. Nadi keeps the last two.

A checkpoint is written into a hidden folder, which gets its number as its name when all of it is on the disk. A run
that is killed while it writes leaves the checkpoint before. SIGUSR1 requests a checkpoint, SIGTERM one after which the
run ends.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from nadi.errors import ConfigError
from nadi.inputs.arrays import DamagedFileError, read_arrays, seal_of, write_arrays
from nadi.inputs.units import format_bytes
from nadi.pdes import parallel

CHECKPOINTS = "checkpoints"  # folder in the folder of results
KEPT = 2  # checkpoints
FORMAT = 3  # number of the format of checkpoints
RUN = "run"  # name of the part about the whole run
PARTIAL = f"{CHECKPOINTS}/partial"  # folder of the results at the newest checkpoint, in the folder of results
_WRITING = ".writing"  # folder of the checkpoint that is being written
_WRITING_PARTIAL = ".partial"  # folder of results that are being written
_OLD_PARTIAL = ".old-partial"  # folder of results that newer ones replace
_ENDING = ".nadi"


def newest(results: Path) -> Path:
    """Return the newest checkpoint in a folder of results; ConfigError if it has no checkpoint."""
    numbers = _numbers(results / CHECKPOINTS)
    if not numbers:
        raise ConfigError(
            f"--resume {results}: found no checkpoint; expected the folder of results of a run with [engine] checkpoint"
        )
    return results / CHECKPOINTS / _name(numbers[-1])


def _name(number: int) -> str:
    return f"{number:06}"


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the complete checkpoints in a folder, ascending."""
    try:
        names = [path.name for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def read_part(checkpoint: Path, name: str) -> parallel.SavedState:
    """Return a part of a checkpoint; ConfigError: it is damaged.

    Args:
        checkpoint: The folder of one checkpoint.
        name: The name of the part.
    """
    try:
        values, arrays = read_arrays(checkpoint / f"{name}{_ENDING}")
    except (OSError, DamagedFileError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{reason}; remove {checkpoint} to continue from the checkpoint before") from None
    return parallel.SavedState(values, arrays)


def read_run(checkpoint: Path) -> parallel.SavedState:
    """Return the part of a checkpoint about the whole run; ConfigError: it is damaged, or of another version."""
    state = read_part(checkpoint, RUN)
    values = state.values if isinstance(state.values, dict) else {}
    given = values.get("arguments")
    overrides = given.get("overrides", []) if isinstance(given, dict) else None
    is_ours = (
        all(isinstance(values.get(name), dict) for name in ("identity", "parts"))
        and isinstance(given, dict)
        and isinstance(given.get("file"), str | None)
        and isinstance(overrides, list)
        and all(isinstance(each, str) for each in overrides)
    )
    if not is_ours:
        raise ConfigError(
            f"{checkpoint / (RUN + _ENDING)}: found other content than this version writes; remove {checkpoint} to "
            "continue from the checkpoint before"
        )
    return state


class CheckpointFolder(parallel.Checkpoints):
    """The checkpoints of a run in its folder of results; every process of the run has one."""

    def __init__(
        self,
        results: Path,
        interval_s: float,
        resumed_from: Path | None,
        arguments: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """Take where checkpoints go.

        interval_s: wall time between two, 0 = only on request; resumed_from: checkpoint from which the run continues;
        arguments: JSON of what the user gave, for a later --resume; say: function that prints one line.
        """
        self.interval_s = interval_s
        self._folder = results / CHECKPOINTS
        self._resumed_from, self._arguments, self._say = resumed_from, arguments, say
        self._identity: dict[str, Any] = {}
        self._begun_s = 0.0
        self._seals: dict[str, Any] = {}  # size and checksum of each part of the checkpoint, as its run part has them
        if resumed_from is not None:
            self.resumed = read_run(resumed_from)
            self._seals = self.resumed.values["parts"]

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Set what must be equal where the run continues; ConfigError: it is not, and this run continues another.

        Args:
            identity: Settings and hashes of files that must not change between the parts of a run.
        """
        self._identity = {"format": FORMAT, **identity}
        if self.resumed is None:
            return
        saved = self.resumed.values["identity"]
        for key, value in self._identity.items():
            if saved.get(key) != value:
                raise ConfigError(f"--resume: {_difference(key, saved.get(key), value)}; expected the same")

    def clear(self) -> None:
        """Remove what a killed run has left; one process calls this before the run."""
        for name in (_WRITING, _WRITING_PARTIAL, _OLD_PARTIAL):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def new_partial(self) -> Path:
        """Return the path of a folder for partial results, which does not exist; `keep_partial` gives it its name."""
        folder = self._folder / _WRITING_PARTIAL
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def keep_partial(self) -> None:
        """Wait until the new partial results are on the disk, and replace the earlier ones by them."""
        new, kept, old = (self._folder / name for name in (_WRITING_PARTIAL, Path(PARTIAL).name, _OLD_PARTIAL))
        for path in new.iterdir():
            _sync(path)
        _sync(new)
        if kept.exists():
            kept.rename(old)
        new.rename(kept)
        _sync(self._folder)
        shutil.rmtree(old, ignore_errors=True)

    def remove(self) -> None:
        """Remove all checkpoints; one process calls this after the run, whose results are written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, name: str, state: parallel.SavedState) -> None:
        """As Checkpoints.write.

        Args:
            name: The name of the part.
            state: The state of a process, as values of JSON and arrays by name.
        """
        self._begun_s = self._begun_s or time.monotonic()
        folder = self._folder / _WRITING
        folder.mkdir(parents=True, exist_ok=True)
        write_arrays(folder / f"{name}{_ENDING}", state.values, state.arrays)

    def commit(self, state: parallel.SavedState) -> None:
        """As Checkpoints.commit.

        Args:
            state: The state that all processes share, written last.
        """
        writing = self._folder / _WRITING
        parts = {path.stem: seal_of(path) for path in sorted(writing.iterdir())}
        values = state.values | {"identity": self._identity, "arguments": self._arguments, "parts": parts}
        self.write(RUN, parallel.SavedState(values, state.arrays))
        size_bytes = sum(path.stat().st_size for path in writing.iterdir())
        numbers = _numbers(self._folder)
        number = numbers[-1] + 1 if numbers else 1
        _sync(writing)
        writing.rename(self._folder / _name(number))
        _sync(self._folder)
        for old in [*numbers, number][:-KEPT]:
            shutil.rmtree(self._folder / _name(old), ignore_errors=True)
        took_s, self._begun_s = time.monotonic() - self._begun_s, 0.0
        self._say(f"checkpoint {number}: {format_bytes(size_bytes)} in {took_s:.1f} s")

    def discard(self, reason: str) -> None:
        """As Checkpoints.discard.

        Args:
            reason: One line that explains why the state cannot be used.
        """
        self._begun_s = 0.0
        shutil.rmtree(self._folder / _WRITING, ignore_errors=True)
        self._say(f"no checkpoint could be written: {reason}")

    def has(self, name: str) -> bool:
        """As Checkpoints.has.

        Args:
            name: The name of the part.
        """
        return name in self._seals

    def read(self, name: str) -> parallel.SavedState:
        """As Checkpoints.read.

        Args:
            name: The name of the part.
        """
        assert self._resumed_from is not None, "only a run that continues reads"  # noqa: S101 - for mypy
        self._check_seal(name)
        return read_part(self._resumed_from, name)

    def check_parts(self) -> None:
        """Check that all parts of the checkpoint from which the run continues are its own; one process calls this."""
        for name in self._seals:
            self._check_seal(name)

    def _check_seal(self, name: str) -> None:
        """Raise ConfigError if a part is not the file that the run part names, by its size and checksum."""
        path = (self._resumed_from or Path()) / f"{name}{_ENDING}"
        try:
            if self._seals.get(name) == seal_of(path):
                return
            reason = (
                f"found other size or checksum than {RUN}{_ENDING} names: it is truncated, or of another checkpoint"
            )
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL
            reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: {reason}; remove {self._resumed_from} to continue from the checkpoint before")

    def listen(self) -> None:
        """As Checkpoints.listen."""
        with suppress(ValueError):  # only the main thread may
            for number in _REQUESTS:
                signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of signal handlers
        self.request = max(self.request, _REQUESTS[signal.Signals(number)])


_REQUESTS = {signal.SIGUSR1: parallel.SAVE, signal.SIGTERM: parallel.SAVE_AND_END}


@contextmanager
def usual_signals() -> Iterator[None]:
    """Restore the handlers of the signals that request checkpoints at the end of the block."""
    usual = {number: signal.getsignal(number) for number in _REQUESTS}
    try:
        yield
    finally:
        with suppress(ValueError, TypeError):
            for number, handler in usual.items():
                signal.signal(number, handler)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _difference(key: str, saved: Any, found: Any) -> str:  # noqa: ANN401 - JSON
    """Return what differs between a checkpoint and this run, in words."""
    if isinstance(found, dict) and isinstance(saved, dict):
        name = next(each for each in [*found, *saved] if found.get(each) != saved.get(each))
        inner, other = found.get(name), saved.get(name)
        if isinstance(inner, dict) and isinstance(other, dict):
            last = next(each for each in [*inner, *other] if inner.get(each) != other.get(each))
            return f"[{name}] {last} is {inner.get(last)!r}, and {other.get(last)!r} in the checkpoint"
        return f"{name}: its content differs from that of the checkpoint" if key == "files" else f"[{name}] differs"
    return f"{key} differ from those of the checkpoint"
