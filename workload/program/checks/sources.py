"""What `nadi trace check` looks at: a trace set, plain traces by their folder or prefix, or one file."""

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
    """The traces that a path names; none of them is opened as a trace.

    Args:
        path: the folder of a trace set, a folder of plain traces `<prefix>.<npu>.et[.gz]`, `<folder>/<prefix>`, or a
            file, which is then looked at by itself.
        groups: the group file; None: groups.json or `<prefix>.json` beside the traces, if it is one.
        npus: how many NPUs there are; None: as many as the set has, or up to the largest number of a file.

    Raises:
        WorkloadError: there are no traces, several prefixes in a folder, two files for one NPU, more NPUs than `npus`,
            or a manifest is wrong.
        TraceError: the group file is wrong.
    """
    where = Path(path)
    if where.is_file():
        members = read_groups(groups) if groups else {}
        users = (np.zeros(1, np.int64),)
        found = re.fullmatch(r".*\.(\d+)\.et(\.gz)?", where.name)
        if found and int(found[1]) <= MAX_NPUS:
            users = (np.array([int(found[1])]),)
        return Sources(
            where, (where,), users, (AS_WRITTEN,), MAX_NPUS + 1, members, {}, str(groups or ""), is_complete=False
        )
    if is_set(where):
        return _of_set(where, read_groups(groups) if groups else {}, str(groups or ""), npus)
    prefix = where / _prefix_in(where) if where.is_dir() else where
    files = files_of(prefix, MAX_NPUS + 1 if npus is None else npus)
    users_of = list(users_of_contents(files).values())
    named = groups or _groups_beside(prefix)
    return Sources(
        path=where,
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
    """The beginning of the names of all traces in a folder."""
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
    """The group file that belongs to traces, by its name."""
    for file in (prefix.parent / GROUPS_NAME, prefix.with_name(f"{prefix.name}.json")):
        kind = inputs.kind_of(file) if file.is_file() else None
        if kind is not None and kind.key == "groups":
            return file
    return None
