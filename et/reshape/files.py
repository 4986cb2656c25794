"""The files of a trace set: those in a folder, or those with a common prefix."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.prefixes import GROUPS_NAME, MANIFEST_NAME

_NAME = re.compile(r"(?P<prefix>.*?)\.(?:npu)?(?P<npu>\d+)\.et(?:\.gz)?", re.DOTALL)
_ENDINGS = (".et", ".et.gz")
_COMPANIONS = (MANIFEST_NAME, GROUPS_NAME)
_EXPECTED = "PREFIX of PREFIX.<npu>.et, a folder of traces, or a trace"
NO_NPU = -1


class TraceFile(NamedTuple):
    """One trace of a set."""

    npu: int  # NPU in the file's name; NO_NPU = -1 without one
    path: Path  # path of the file


def npu_of(file_name: str) -> int:
    """Return the NPU in a name `<prefix>.<npu>.et`, or `<prefix>.npu<npu>.et` of a trace set; -1 without one.

    Args:
        file_name: The name of a file without its folder.
    """
    match = _NAME.fullmatch(file_name)
    return int(match["npu"]) if match and int(match["npu"]) < 2**31 else NO_NPU


def find_files(location: str | os.PathLike[str]) -> list[TraceFile]:
    """Return the traces in a folder, those with a prefix, or the named one, sorted by NPU and name.

    Args:
        location: A folder, the common prefix of the files' paths, or the path of one trace.
    """
    path = Path(location)
    if path.is_dir():
        found = [TraceFile(npu_of(file.name), file) for file in _listed(path) if file.name.endswith(_ENDINGS)]
    elif path.exists():
        found = [TraceFile(npu_of(path.name), path)]
    else:
        named = [(file, _NAME.fullmatch(file.name)) for file in _listed(path.parent)]
        found = [TraceFile(npu_of(file.name), file) for file, match in named if match and match["prefix"] == path.name]
    if not found:
        raise TraceError(f"{location}: no traces, expected {_EXPECTED}")
    return sorted(found, key=lambda file: (file.npu, file.path.name))


def companions(location: str | os.PathLike[str]) -> list[Path]:
    """Return the files that describe a trace set: its manifest, and its group files.

    A group file is `groups.json`, or `PREFIX.json` as STG writes it; for a folder, every group file in it.

    Args:
        location: A folder, the common prefix of the files' paths, or the path of one trace.
    """
    path = Path(location)
    if path.is_dir():
        candidates = [file for file in _listed(path) if file.suffix == ".json"]
    else:
        prefix = match["prefix"] if (match := _NAME.fullmatch(path.name)) else path.name
        names = {*_COMPANIONS, f"{prefix}.json"}
        candidates = [file for file in _listed(path.parent) if file.name in names]
    kinds = {file: inputs.kind_of(file) for file in candidates if file.is_file()}
    return [file for file, kind in kinds.items() if file.name in _COMPANIONS or (kind and kind.key == "groups")]


def _listed(folder: Path) -> list[Path]:
    """Return the files of a folder that are not hidden, by name; raise TraceError if it cannot be read."""
    with inputs.refusing(folder, _EXPECTED, TraceError):
        return sorted(file for file in folder.iterdir() if not file.name.startswith("."))
