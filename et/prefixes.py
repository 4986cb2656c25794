"""Plain traces, one file per NPU: the files that a prefix, a folder or a list of files means."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.et.errors import TraceError

GROUPS_NAME = "groups.json"
MANIFEST_NAME = "traces.json"


class PlainTraces(NamedTuple):
    """The files of one prefix."""

    prefix: Path  # folder and common beginning of the names
    files: dict[int, Path]  # file of each NPU


def plain_traces(path: str | os.PathLike[str]) -> PlainTraces:
    """Return the traces `<prefix>.<npu>.et` or `.et.gz` of a prefix, or of a folder that holds those of one prefix.

    Args:
        path: The prefix of the files' names, or a folder that holds the traces of one prefix.
    """
    given = Path(path)
    # First as a prefix, then as a folder
    of_prefix = _by_prefix(file for file in _listed(given.parent) if prefix_of(file) == given.name)
    folder = given.parent if of_prefix else given
    of_prefix = of_prefix or _by_prefix(_listed(folder))
    if not of_prefix:
        kind = inputs.kind_of(given)
        found = f"is {kind.words}, and there are no traces" if kind else "no traces"
        # The traces of a set have names of another form, NAME.npu<N>.et, and are read by the set's folder
        hint = f"; {given.parent} is a trace set" if (given.parent / MANIFEST_NAME).is_file() else ""
        raise TraceError(f"{given}: {found}, looked for {given}.<npu>.et, {given}.<npu>.et.gz and {given}{hint}")
    if len(of_prefix) > 1:
        examples = ", ".join(str(folder / name) for name in sorted(of_prefix)[:3])
        raise TraceError(f"{given}: traces of {len(of_prefix)} prefixes, expected one of them ({examples})")
    name, files = next(iter(of_prefix.items()))
    return PlainTraces(folder / name, dict(sorted(files.items())))


def _listed(folder: Path) -> list[Path]:
    """Return the sorted content of a folder, empty if the path is no folder."""
    with inputs.refusing(folder, "a folder of traces", TraceError):
        return sorted(folder.iterdir()) if folder.is_dir() else []


def files_of_npus(paths: Sequence[Path], name_end: str = ".et") -> dict[int, Path]:
    """Return the file of each NPU among files and folders, all of one prefix.

    Args:
        paths: The files and folders; a file without a number is NPU 0's.
        name_end: The end of the files' names.
    """
    listed = [file for given in paths for file in (sorted(given.iterdir()) if given.is_dir() else [given])]
    of_prefix = _by_prefix(listed, name_end, is_given=lambda file: file in paths)
    if not of_prefix:
        raise TraceError(f"{paths[0]}: no trace in it, expected files NAME.<npu>{name_end}")
    if len(of_prefix) > 1:
        first, second = (next(iter(files.values())) for files in list(of_prefix.values())[:2])
        raise TraceError(f"{second}: another name than {first.name}, expected one trace per NPU, all of one name")
    (files,) = of_prefix.values()
    return dict(sorted(files.items()))


def prefix_of(file: Path, suffix: str = ".et") -> str | None:
    """Return the text before the NPU's number in a file name; None if the name has another form.

    Args:
        file: The path of the file.
        suffix: The end of the file's name.
    """
    match = _named(file, suffix)
    return match[1] if match else None


def npu_of(file: Path) -> int | None:
    """Return the NPU of a trace `<prefix>.<npu>.et` or `.et.gz`; None if its name has no number there.

    Args:
        file: The path of the file.
    """
    match = _named(file, ".et")
    return int(match[2]) if match else None


def _named(file: Path, suffix: str) -> re.Match[str] | None:
    return re.fullmatch(rf"(.+)\.([0-9]{{1,9}}){re.escape(suffix)}(\.gz)?", file.name)


def _by_prefix(
    candidates: Iterable[Path], suffix: str = ".et", is_given: Callable[[Path], bool] = lambda _: False
) -> dict[str, dict[int, Path]]:
    """Return the file of each NPU by prefix; `is_given` selects files that count whatever their names are."""
    of_prefix: dict[str, dict[int, Path]] = {}
    for file in candidates:
        found = _named(file, suffix)
        if found is None and not is_given(file):
            continue
        files = of_prefix.setdefault(found[1] if found else file.name, {})
        npu = int(found[2]) if found else 0
        if npu in files:
            raise TraceError(f"{file}: second trace of NPU {npu}, besides {files[npu].name}, expected one per NPU")
        files[npu] = file
    return of_prefix
