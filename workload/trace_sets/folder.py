"""Folders of traces whose files get their names when all are complete."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nadi.et import TraceError
from nadi.workload.errors import WorkloadError

MAX_FILES = 1 << 17
"""Maximum number of files of plain traces: writing them takes four minutes; larger runs share traces in a set."""
DISK_BLOCK_BYTES = 4096  # Minimum bytes of a file on disk: the default block size of ext4 and XFS


def check_prefix(prefix: str) -> None:
    """Refuse a prefix of file names that is empty, begins with a dot, or contains a slash or NUL."""
    if not prefix or prefix.startswith(".") or "/" in prefix or "\0" in prefix:
        raise WorkloadError(f"prefix {prefix!r}: expected the beginning of names of files, without a slash")


@contextmanager
def staged_traces(
    folder: Path,
    names: Sequence[str],
    expected: str,
    bytes_each: int = 0,
    accepts: Callable[[str], bool] = lambda _name: False,
) -> Iterator[Path]:
    """Yield a temporary folder; when the block ends without an error, its files move to `folder` in order of `names`.

    After an error, no files remain. Existing files with these names are replaced. The last of `names` is removed before
    the first file moves, so that all files belong together whenever it exists. The folder is created if it does not
    exist; it may hold other traces if `accepts` returns true for their names. `expected` describes the allowed content,
    for messages; `bytes_each` estimates the size of a file, 0 = unknown. Raises WorkloadError: the folder is not
    writable, holds other traces or another set's manifest, or the files are too many or exceed the free disk space.
    """
    _refuse_too_much(folder, len(names), bytes_each)
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(folder.iterdir()):  # other traces would be read as part of these
            if file.name.endswith((".et", ".et.gz", "traces.json")) and not (file.name in names or accepts(file.name)):
                raise WorkloadError(f"{file}: of other traces, expected a folder with {expected} only")  # noqa: TRY301
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as staging:
            yield Path(staging)
            for last in names[-1:]:
                (folder / last).unlink(missing_ok=True)
            for name in names:
                (Path(staging) / name).replace(folder / name)
    except BaseException as error:
        for parent in created:
            with suppress(OSError):  # another process wrote to it
                parent.rmdir()
        if isinstance(error, OSError):
            text = f"{folder}: {error.strerror or error}, expected a folder to write traces to"
            raise WorkloadError(text) from error
        if isinstance(error, TraceError):  # name the target folder, not the temporary one
            raise WorkloadError(str(error).replace(str(Path(staging)), str(folder))) from error
        raise


def _refuse_too_much(folder: Path, files: int, bytes_each: int) -> None:
    """Refuse files that would take minutes to write, or exceed the free disk space."""
    size_bytes = files * max(bytes_each, DISK_BLOCK_BYTES)
    if files > MAX_FILES:
        text = f"{files:,} files would take about {size_bytes / 1e9:,.1f} GB, expected at most {MAX_FILES:,} files"
        raise WorkloadError(f"{folder}: {text}")
    existing = next((parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()), None)
    free_bytes = shutil.disk_usage(existing).free if existing else size_bytes
    if size_bytes > free_bytes:
        raise WorkloadError(
            f"{folder}: {files:,} files would take about {size_bytes / 1e9:,.1f} GB, "
            f"expected at most the {free_bytes / 1e9:,.1f} GB that the disk has free"
        )


def link(file: Path, name: Path) -> None:
    """Create a hard link `name` of a file, or a copy if the file system has no hard links."""
    try:
        name.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, name)
