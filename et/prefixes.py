"""Plain traces, one file for each NPU: which files a prefix or a folder stands for."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from et.errors import TraceError

_NAME = re.compile(r"(.+)\.(\d+)\.et(\.gz)?")


class PlainTraces(NamedTuple):
    """The files of one prefix.

    Attributes:
        prefix: folder and beginning of the names.
        files: of each NPU.
    """

    prefix: Path
    files: dict[int, Path]


def plain_traces(path: str | os.PathLike[str]) -> PlainTraces:
    """The traces `<prefix>.<npu>.et` or `.et.gz` of a prefix, or of a folder that holds those of one prefix.

    Raises:
        TraceError: there are none, those of several prefixes are in the folder, or an NPU has two files.
    """
    given = Path(path)
    folder = given if given.is_dir() else given.parent
    of_prefix: dict[str, dict[int, Path]] = {}
    for file in _listed(folder):
        match = _NAME.fullmatch(file.name)
        if match is None or (folder != given and match[1] != given.name):
            continue
        files = of_prefix.setdefault(match[1], {})
        npu = int(match[2])
        if npu in files:
            raise TraceError(f"{file}: NPU {npu} has {files[npu].name} too, expected one file")
        files[npu] = file
    if not of_prefix:
        raise TraceError(f"{given}: no traces, expected a trace set, or files <prefix>.<npu>.et or .et.gz")
    if len(of_prefix) > 1:
        some = ", ".join(str(folder / name) for name in sorted(of_prefix)[:3])
        raise TraceError(f"{given}: traces of {len(of_prefix)} prefixes, expected one of them ({some})")
    name, files = next(iter(of_prefix.items()))
    return PlainTraces(folder / name, dict(sorted(files.items())))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise TraceError(f"{folder}: {error.strerror or error}, expected a folder of traces") from error
