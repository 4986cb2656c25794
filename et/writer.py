"""Writing a trace file."""

import contextlib
import gzip
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from google.protobuf.message import Message

from et.errors import TraceError
from et.framing import frame
from inputs import type_of


def write_trace(path: str | os.PathLike[str], metadata: Message, nodes: Iterable[Message]) -> None:
    """Write a trace file, gzipped if its name ends in .gz; it has its name only when it is complete.

    The same messages give the same bytes, gzipped or not.

    Raises:
        TraceError: the file cannot be written.
    """
    write_frames(path, (frame(message.SerializeToString(deterministic=True)) for message in (metadata, *nodes)))


def write_frames(path: str | os.PathLike[str], frames: Iterable[bytes]) -> None:
    """Write a file of messages that stand behind their lengths already, any number of them in each of `frames`.

    Raises:
        TraceError: the file cannot be written.
    """
    path = Path(path)
    other = type_of(path) or ("" if path.name else "a folder")
    if other:  # a device would be replaced by the file
        raise TraceError(f"{path}: {other}, expected a place to write a trace to")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _removed_on_error(part):
            with part.open("wb") as file, _compressed(file, path) as out:
                for some in frames:
                    out.write(some)
            part.replace(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}, expected a place to write a trace to") from error


def _compressed(file: IO[bytes], path: Path) -> contextlib.AbstractContextManager[IO[bytes] | gzip.GzipFile]:
    if path.suffix != ".gz":
        return contextlib.nullcontext(file)
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
