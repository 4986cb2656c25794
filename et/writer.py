"""Writing of trace files."""

import contextlib
import gzip
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from google.protobuf.message import Message

from et.errors import TraceError
from et.framing import frame
from inputs import whole_file


def write_trace(path: str | os.PathLike[str], metadata: Message, nodes: Iterable[Message]) -> None:
    """Write a trace file, gzipped if its name ends in .gz; the file appears only when it is complete.

    The same messages give the same bytes, gzipped or not.
    """
    write_frames(path, (frame(message.SerializeToString(deterministic=True)) for message in (metadata, *nodes)))


def write_frames(path: str | os.PathLike[str], frames: Iterable[bytes]) -> None:
    """Write a file of messages that have their lengths already; each item of `frames` may hold several.

    Raises:
        TraceError: The file cannot be written.
    """
    path = Path(path)
    try:
        with whole_file(path) as file, _compressed(file, path) as out:
            for batch in frames:
                out.write(batch)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}, expected a place to write a trace to") from error


def _compressed(file: IO[bytes], path: Path) -> contextlib.AbstractContextManager[IO[bytes] | gzip.GzipFile]:
    if path.suffix != ".gz":
        return contextlib.nullcontext(file)
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
