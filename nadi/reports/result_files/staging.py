"""A folder of results appears under its name when it is complete, and one run at a time writes into it.

Until then all lies in a hidden folder: in the folder of results where that is there already, else beside the first
folder on the way to it that is not. The hidden folder is the lock, too: a run holds it as long as it lives, and what a
killed run has left of it the next one removes.
"""

import contextlib
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

import inputs
from nadi.errors import OutputError
from nadi.launching.ending import unwound
from nadi.launching.gather import ALONE, RankGather
from nadi.launching.world import AgreedError, together

_HIDDEN = ".nadi-"
_HOLDER = "written-by"
_LONGEST_NAME = 100


@contextmanager
def staged(out: Path, files: Sequence[str], ranks: RankGather = ALONE, *, key: str = "") -> Iterator[Path | None]:
    """A folder to write into; when the block ends well its files move to `out`, the first of `files` last.

    When it does not, or is ended by a signal, nothing stays. Those of `files` that an earlier run has written and this
    one does not are removed; files of these names that no run has written are the user's, and the folder is refused.
    On several ranks only rank 0 gets the folder, and all fail if it cannot be written.

    Args:
        out: where results go.
        files: names that the block may write; the first stands for all being there.
        ranks: this rank and the others.
        key: Top-level key by which the first of `files`, a JSON document, is known as Nadi's; "" = its name is enough.

    Raises:
        OutputError: `out` cannot be made or written to, holds files of the user's, or another run is writing there;
            found before the block runs.
        AgreedError: the same, on several ranks.
        EndedBySignalError: SIGTERM or SIGHUP.
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
                raise AgreedError(f"{out}: {error}; results are not written", OutputError.exit_code) from error
            raise


class _Stage:
    """The hidden folder of one run.

    Attributes:
        folder: its path, once it is prepared.
    """

    def __init__(self, out: Path, files: Sequence[str], key: str, stack: ExitStack) -> None:
        self._name = out
        self._files = files
        self._key = key
        self._earlier: list[str] = []
        self._out = Path(os.path.realpath(out))
        self._stack = stack
        self._made: list[Path] = []
        self._is_ours = False
        self.folder = self._out

    def prepare(self) -> None:
        """Take the hidden folder, empty; that it can be made shows that results can be written.

        Raises:
            OutputError: it cannot be made, or another run has it.
        """
        try:
            base = next(folder for folder in (self._out, *self._out.parents) if os.path.lexists(folder))
            if not base.is_dir():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._check_names(base)
            self._clear_others(base)
            self.folder = self._hidden(base)
            self._earlier = self._earlier_files()
            self._take(self.folder)
            self._is_ours = True
            holder = f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            (self.folder / _HOLDER).write_text(holder, encoding="utf-8")
        except OSError as error:
            self.drop()
            reason = error.strerror or str(error)
            raise OutputError(f"{self._name}: {reason}; expected a folder to write results to") from None

    def publish(self) -> None:
        """Give the results their names: all at once where nothing is there yet, else one by one."""
        files = self._files
        (self.folder / _HOLDER).unlink(missing_ok=True)
        if not self._out.exists():
            self._make(self._out.parent)
            with suppress(OSError):  # somebody has put something there
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
        """Leave nothing."""
        if self._is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)
        for folder in reversed(self._made):
            with suppress(OSError):  # somebody else put something there
                folder.rmdir()

    def _earlier_files(self) -> list[str]:
        """Return those of the files that an earlier run has written.

        Raises:
            OutputError: There are some that no run has written: the file that is written last is missing or none of
                Nadi's, and no run was killed there while it wrote.
        """
        found = [name for name in self._files if os.path.lexists(self._out / name)]
        if found and not self._has_marker(self._out / self._files[0]) and not os.path.lexists(self.folder):
            raise OutputError(
                f"{self._name}: {found[0]} in it was not written by Nadi, which would replace or remove it; "
                "expected another folder for results"
            )
        return found

    def _has_marker(self, path: Path) -> bool:
        """Return whether the file that stands for all is there, and Nadi wrote it."""
        if not self._key:
            return path.is_file()
        try:
            document = json.loads(inputs.read_text(path))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(document, dict) and self._key in document

    def _check_names(self, base: Path) -> None:
        """Find a name that is too long, or none that Parquet files can have, now and not when all is moved there."""
        try:
            str(self._out).encode()
        except UnicodeEncodeError:
            raise OSError(errno.EILSEQ, "its path is no UTF-8") from None
        if any(len(os.fsencode(part)) > os.pathconf(base, "PC_NAME_MAX") for part in self._out.parts):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    def _hidden(self, base: Path) -> Path:
        """The hidden folder in a folder that is there: the same for every run into `out`."""
        if base == self._out:
            return base / f"{_HIDDEN}results"
        way = str(self._out.relative_to(base))
        digest = hashlib.blake2b(os.fsencode(way), digest_size=4).hexdigest()
        return base / f"{_HIDDEN}{way.replace(os.sep, '-')[:_LONGEST_NAME]}-{digest}"

    def _clear_others(self, base: Path) -> None:
        """What a run has left, or holds, that began when less of the way to `out` was there."""
        for ancestor in self._out.parents:
            left = self._hidden(ancestor)
            if ancestor != base and os.path.isdir(left):  # noqa: PTH112 - False where nothing may be seen
                with suppress(OSError):  # another user's, who lets nobody in
                    self._take(left)
                    shutil.rmtree(left, ignore_errors=True)

    def _take(self, folder: Path) -> None:
        """Make a folder, if need be, and lock it; what is left in it goes.

        The lock ends with the process, however that ends. Where the file system has none, all go on without.
        """
        while True:
            with suppress(FileExistsError):
                folder.mkdir()
            try:
                opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            self._stack.callback(os.close, opened)
            if os.fstat(opened).st_uid != os.geteuid():  # who could put links into it
                raise PermissionError(errno.EPERM, f"{folder.name} in it belongs to another user")
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._held(folder) from None
            except OSError:
                pass
            with suppress(FileNotFoundError):  # whoever had the lock has just moved or removed it
                if os.path.samestat(os.fstat(opened), folder.lstat()):
                    break
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def _held(self, folder: Path) -> OutputError:
        holder = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            holder = (folder / _HOLDER).read_text(encoding="utf-8")
        who = f"another run ({holder})" if holder else "another run"
        return OutputError(f"{self._name}: {who} is writing results there; expected another folder, or to wait for it")

    def _make(self, folder: Path) -> None:
        """Make a folder and those on the way to it; `drop` removes them."""
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir()
        self._made.append(folder)
