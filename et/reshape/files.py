"""The files of a trace set, as they lie in a folder or begin alike."""

import os
import re
from pathlib import Path
from typing import NamedTuple

import inputs
from et.errors import TraceError

_NAME = re.compile(r"(?P<prefix>.*?)\.(?:npu)?(?P<npu>\d+)\.et(?:\.gz)?", re.DOTALL)
_ENDINGS = (".et", ".et.gz")
_COMPANIONS = ("traces.json", "groups.json")
_EXPECTED = "PREFIX of PREFIX.<npu>.et, a folder of traces, or a trace"
NO_NPU = -1


class TraceFile(NamedTuple):
    """One trace of a set.

    Attributes:
        npu: whose it is, by its name; NO_NPU = -1 where that does not say.
        path: of the file.
    """

    npu: int
    path: Path


def npu_of(name: str) -> int:
    """The NPU that a name `<prefix>.<npu>.et`, or `<prefix>.npu<npu>.et` of a trace set, says; -1 if it says none."""
    match = _NAME.fullmatch(name)
    return int(match["npu"]) if match and int(match["npu"]) < 2**31 else NO_NPU


def find_files(where: str | os.PathLike[str]) -> list[TraceFile]:
    """The traces of a folder, those that begin with a prefix, or the one that is named; by NPU, then by name.

    Raises:
        TraceError: there is none, or a folder cannot be listed.
    """
    path = Path(where)
    if path.is_dir():
        found = [TraceFile(npu_of(file.name), file) for file in _listed(path) if file.name.endswith(_ENDINGS)]
    elif path.exists():
        found = [TraceFile(npu_of(path.name), path)]
    else:
        found = [TraceFile(npu_of(file.name), file) for file in _listed(path.parent) if _begins(file.name, path.name)]
    if not found:
        raise TraceError(f"{where}: no traces, expected {_EXPECTED}")
    return sorted(found, key=lambda file: (file.npu, file.path.name))


def companions(where: str | os.PathLike[str]) -> list[Path]:
    """Files beside the traces that say what is in them: the manifest of a trace set, and group files.

    A group file is `groups.json`, or `PREFIX.json` as STG writes it; of a folder, every group file in it.
    """
    path = Path(where)
    if path.is_dir():
        candidates = [file for file in _listed(path) if file.suffix == ".json"]
    else:
        prefix = match["prefix"] if (match := _NAME.fullmatch(path.name)) else path.name
        wanted = {*_COMPANIONS, f"{prefix}.json"}
        candidates = [file for file in _listed(path.parent) if file.name in wanted]
    return [file for file in candidates if _is_companion(file)]


def _is_companion(file: Path) -> bool:
    if file.name in _COMPANIONS:
        return file.is_file()
    kind = inputs.kind_of(file)
    return kind is not None and kind.key == "groups"


def _begins(name: str, prefix: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and match["prefix"] == prefix


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise TraceError(f"{folder}: {error.strerror or error}, expected {_EXPECTED}") from error
