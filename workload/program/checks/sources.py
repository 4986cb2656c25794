"""Inputs of `nadi trace check`: a trace set, plain traces in a folder or with a prefix, or one file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import inputs
from et import read_groups
from et.checking.sources import AS_WRITTEN, Sources
from inputs.limits import MAX_NPUS
from workload.errors import WorkloadError
from workload.trace_sets import manifest
from workload.trace_sets.expansion import GROUPS_NAME
from workload.trace_sets.files import is_set
from workload.trace_sets.load import files_of, users_of_contents
from workload.trace_sets.manifest import read_manifest

Int64 = NDArray[np.int64]

_TRACE = re.compile(r"(?P<prefix>.+)\.\d+\.et(\.gz)?")


def sources_of(
    path: str | os.PathLike[str], *, groups: str | os.PathLike[str] | None = None, npus: int | None = None
) -> Sources:
    """Return the traces of a path without opening them as traces.

    Args:
        path: Folder of a trace set, folder of plain traces `<prefix>.<npu>.et[.gz]`, `<folder>/<prefix>`, or one file,
            which is checked alone.
        groups: Path of the group file; None = groups.json or `<prefix>.json` next to the traces, if it is a group file.
        npus: Number of NPUs; None = that of the set, or the largest number in the files' names plus one.

    Raises:
        WorkloadError: If there are no traces, several prefixes in a folder, two files for one NPU, more NPUs than
            `npus`, or an invalid manifest.
        TraceError: If the group file is invalid.
    """
    source = Path(path)
    if source.is_file():
        members = read_groups(groups) if groups else {}
        users = (np.zeros(1, np.int64),)
        match = re.fullmatch(r".*\.(\d+)\.et(\.gz)?", source.name)
        if match and int(match[1]) <= MAX_NPUS:
            users = (np.array([int(match[1])]),)
        return Sources(
            source, (source,), users, (AS_WRITTEN,), MAX_NPUS + 1, members, {}, str(groups or ""), is_complete=False
        )
    if is_set(source):
        return _of_set(source, read_groups(groups) if groups else {}, str(groups or ""), npus)
    prefix = source / _prefix_in(source) if source.is_dir() else source
    files = files_of(prefix, MAX_NPUS + 1 if npus is None else npus)
    users_of = list(users_of_contents(files).values())
    named = groups or _groups_beside(prefix)
    return Sources(
        path=source,
        files=tuple(files[npus[0]] for npus in users_of),
        users=tuple(np.array(npus, np.int64) for npus in users_of),
        examples=(AS_WRITTEN,) * len(users_of),
        npus=max(files) + 1 if npus is None else npus,
        groups=read_groups(named) if named else {},
        groups_file=str(named or ""),
    )


def _of_set(folder: Path, groups: Mapping[str, tuple[int, ...]], groups_file: str, npus: int | None) -> Sources:
    said = read_manifest(folder / manifest.NAME)
    if npus is not None and npus != len(said.trace_of_npu):
        raise WorkloadError(f"{folder / manifest.NAME}: npus is {len(said.trace_of_npu)}, expected {npus} as asked for")
    order = np.argsort(said.trace_of_npu, kind="stable")
    ends = np.searchsorted(said.trace_of_npu[order], np.arange(len(said.files) + 1))
    users = [order[ends[trace] : ends[trace + 1]].astype(np.int64) for trace in range(len(said.files))]
    used = [trace for trace in range(len(said.files)) if len(users[trace])]
    return Sources(
        path=folder,
        files=tuple(folder / said.files[trace] for trace in used),
        users=tuple(users[trace] for trace in used),
        examples=tuple(int(said.example_npu[trace]) for trace in used),
        npus=len(said.trace_of_npu),
        groups=groups,
        families=said.families,
        groups_file=groups_file,
    )


def _prefix_in(folder: Path) -> str:
    """Return the prefix of the names of all traces in a folder."""
    try:
        names = [file.name for file in folder.iterdir()]
    except OSError as error:
        raise WorkloadError(f"{folder}: {error.strerror or error}, expected a folder of traces") from error
    found = sorted(
        {match["prefix"] for name in names if not name.startswith(".") and (match := _TRACE.fullmatch(name))}
    )
    if not found:
        raise WorkloadError(f"{folder}: no traces, looked for NAME.<npu>.et, NAME.<npu>.et.gz and {manifest.NAME}")
    if len(found) > 1:
        raise WorkloadError(f"{folder}: traces {found[0]} and {found[1]}, expected one name; say {folder / found[0]}")
    return found[0]


def _groups_beside(prefix: Path) -> Path | None:
    """Return the group file next to traces, None if there is no such file."""
    for file in (prefix.parent / GROUPS_NAME, prefix.with_name(f"{prefix.name}.json")):
        kind = inputs.kind_of(file) if file.is_file() else None
        if kind is not None and kind.key == "groups":
            return file
    return None
