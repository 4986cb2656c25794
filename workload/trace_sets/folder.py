"""A folder of traces that appear under their names when all are complete."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from et import TraceError
from workload.errors import WorkloadError


def check_prefix(prefix: str) -> None:
    """Refuse what names of files cannot begin with.

    Raises:
        WorkloadError: it is empty, begins with a dot, or holds a slash or NUL.
    """
    if not prefix or prefix.startswith(".") or "/" in prefix or "\0" in prefix:
        raise WorkloadError(f"prefix {prefix!r}: expected the beginning of names of files, without a slash")


@contextmanager
def staged_traces(folder: Path, names: Sequence[str], expected: str) -> Iterator[Path]:
    """A folder to write files into; when the block ends well they move to `folder`, the last of `names` last.

    When it does not, nothing stays. Files of these names from an earlier time are replaced, the last one is removed
    before any other appears: where it stands, all belong together.

    Args:
        folder: made if it is not there.
        names: what the block writes.
        expected: what may be in the folder, for messages.

    Raises:
        WorkloadError: the folder cannot be written, or holds other traces or another set's manifest.
    """
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
