"""A folder of traces that appear under their names when all are complete."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from et import TraceError
from workload.errors import WorkloadError

MOST_FILES = 1 << 17
"""Files of one set of traces, which take four minutes to write; NPUs of larger runs share traces in a trace set."""
DISK_BLOCK_BYTES = 4096
"""Bytes that a file takes at least, on ext4 and XFS as they are made by default."""


def check_prefix(prefix: str) -> None:
    """Refuse what names of files cannot begin with.

    Raises:
        WorkloadError: it is empty, begins with a dot, or holds a slash or NUL.
    """
    if not prefix or prefix.startswith(".") or "/" in prefix or "\0" in prefix:
        raise WorkloadError(f"prefix {prefix!r}: expected the beginning of names of files, without a slash")


@contextmanager
def staged_traces(folder: Path, names: Sequence[str], expected: str, bytes_each: int = 0) -> Iterator[Path]:
    """A folder to write files into; when the block ends well they move to `folder`, the last of `names` last.

    When it does not, nothing stays. Files of these names from an earlier time are replaced, the last one is removed
    before any other appears: where it stands, all belong together.

    Args:
        folder: made if it is not there.
        names: what the block writes.
        expected: what may be in the folder, for messages.
        bytes_each: Estimate of the size of a file in bytes; 0 = unknown.

    Raises:
        WorkloadError: the folder cannot be written, holds other traces or another set's manifest, or the files are too
            many or take more than the disk has free.
    """
    _refuse_too_much(folder, len(names), bytes_each)
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_others(folder, set(names), expected)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as staging:
            yield Path(staging)
            (folder / names[-1]).unlink(missing_ok=True)
            for name in names:
                (Path(staging) / name).replace(folder / name)
    except BaseException as error:
        for parent in made:
            with suppress(OSError):  # somebody else put something there
                parent.rmdir()
        if isinstance(error, OSError):
            text = f"{folder}: {error.strerror or error}, expected a folder to write traces to"
            raise WorkloadError(text) from error
        if isinstance(error, TraceError):  # with the name of the folder that is gone now
            raise WorkloadError(str(error).replace(str(Path(staging)), str(folder))) from error
        raise


def _refuse_too_much(folder: Path, files: int, bytes_each: int) -> None:
    """Refuse files that would take minutes to write, or more than the disk has free.

    Raises:
        WorkloadError: The files are too many or too large.
    """
    size_bytes = files * max(bytes_each, DISK_BLOCK_BYTES)
    if files > MOST_FILES:
        text = f"{files:,} files would take about {size_bytes / 1e9:,.1f} GB, expected at most {MOST_FILES:,} files"
        raise WorkloadError(f"{folder}: {text}")
    there = next((parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()), None)
    free_bytes = shutil.disk_usage(there).free if there else size_bytes
    if size_bytes > free_bytes:
        raise WorkloadError(
            f"{folder}: {files:,} files would take about {size_bytes / 1e9:,.1f} GB, "
            f"expected at most the {free_bytes / 1e9:,.1f} GB that the disk has free"
        )


def link(file: Path, name: Path) -> None:
    """Give a file another name; copy it where the file system has no hard links."""
    try:
        name.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, name)


def _refuse_others(folder: Path, names: set[str], expected: str) -> None:
    """Other traces would be read as part of these."""
    for file in sorted(folder.iterdir()):
        if file.name not in names and file.name.endswith((".et", ".et.gz", "traces.json")):
            raise WorkloadError(f"{file}: of other traces, expected a folder with {expected} only")
