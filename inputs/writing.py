"""Writing of user-named files: a file appears under its name only when it is complete.

Until then its content is in a file in the same folder with a random name, which is created exclusively: nothing that
exists there before, such as a symbolic link to another file, is written to.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nadi.inputs.reading import type_of

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o666  # permissions of a new file, before the umask


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file for writing that replaces `path` when the block succeeds; else no trace of it remains.

    A symbolic link at `path` itself is replaced, not followed. Failures raise OSError with `path` as filename; a folder
    or a special file is one, too.
    """
    path = Path(path)
    other = type_of(path) or ("" if path.name else "a folder")
    if other:
        raise OSError(errno.EISDIR if other == "a folder" else errno.EINVAL, other, str(path))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(part, _NEW, _MODE)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - no path: the file is open
            yield file
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename in {None, str(part)}:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file at once, replacing any existing one; text as UTF-8.

    Args:
        path: The file to write; an existing one is replaced.
        content: The complete content.
    """
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
