"""Inputs of `nadi trace check`: a trace set, plain traces in a folder or with a prefix, or one file.

`--fix` writes them to another folder with all fixes that need no guessing.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.et import read_groups
from nadi.et.checking.check import open_trace
from nadi.et.checking.fixing import TraceFix, changed_messages, safe_changes
from nadi.et.checking.sources import AS_WRITTEN, Sources
from nadi.et.framing import frame, write_frames
from nadi.et.prefixes import GROUPS_NAME, npu_of
from nadi.inputs.limits import MAX_NPUS
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets import manifest
from nadi.workload.trace_sets.files import is_set
from nadi.workload.trace_sets.folder import staged_traces
from nadi.workload.trace_sets.load import files_of, users_of_contents
from nadi.workload.trace_sets.manifest import read_manifest


def sources_of(
    path: str | os.PathLike[str], *, groups: str | os.PathLike[str] | None = None, npus: int | None = None
) -> Sources:
    """Return the traces of a path without opening them as traces.

    path: folder of a trace set, folder of plain traces `<prefix>.<npu>.et[.gz]`, `<folder>/<prefix>`, or one file,
    which is checked alone; groups: path of the group file, None = groups.json or `<prefix>.json` next to the traces, if
    it is a group file; npus: number of NPUs, None = that of the set, or the largest number in the files' names plus
    one. Raises WorkloadError: there are no traces, several prefixes in a folder, two files for one NPU, more NPUs than
    `npus`, or an invalid manifest; TraceError: the group file is invalid.
    """
    source = Path(path)
    if source.is_file():
        members = read_groups(groups) if groups else {}
        users = (np.zeros(1, np.int64),)
        npu = npu_of(source)
        if npu is not None and npu <= MAX_NPUS:
            users = (np.array([npu]),)
        return Sources(
            source, (source,), users, (AS_WRITTEN,), MAX_NPUS + 1, members, {}, str(groups or ""), is_complete=False
        )
    if is_set(source):
        return _of_set(source, read_groups(groups) if groups else {}, str(groups or ""), npus)
    prefix, files = files_of(source, MAX_NPUS + 1 if npus is None else npus)
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
    """Return the traces of a set's folder; groups and npus as in `sources_of`, groups_file: where groups are from."""
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


def _groups_beside(prefix: Path) -> Path | None:
    """Return the group file next to traces, None if there is no such file."""
    for file in (prefix.parent / GROUPS_NAME, prefix.with_name(f"{prefix.name}.json")):
        kind = inputs.kind_of(file) if file.is_file() else None
        if kind is not None and kind.key == "groups":
            return file
    return None


def write_mended(sources: Sources, folder: Path) -> list[TraceFix]:
    """Write all traces and their manifest or group file to a folder, and return the fixes, one per type and file."""
    own = sources.files[0].parent
    if folder.exists() and folder.samefile(own):
        raise WorkloadError(f"{folder}: the traces' own folder, expected another one")
    files = _files(sources)
    beside = [own / manifest.NAME] if is_set(own) else []
    beside += [Path(sources.groups_file)] if sources.groups_file else []
    names = [file.name for file in files] + [GROUPS_NAME if file.suffix != ".json" else file.name for file in beside]
    fixes: list[TraceFix] = []
    with staged_traces(folder, names, "these traces") as staging:
        for file, name in zip([*files, *beside], names, strict=True):
            if file in beside:
                shutil.copyfile(file, staging / name)
            else:
                fixes += _mended(file, staging / name)
    return fixes


def _files(sources: Sources) -> list[Path]:
    """Return all files of the traces, including duplicates of other files."""
    if not sources.is_complete or is_set(sources.files[0].parent):
        return list(sources.files)
    found = []
    for file, users in zip(sources.files, sources.users, strict=True):
        prefix = file.name.rsplit(f".{users[0]}.et", 1)[0]
        for npu in users.tolist():
            plain = file.with_name(f"{prefix}.{npu}.et")
            found.append(plain if plain.exists() else plain.with_name(f"{plain.name}.gz"))
    return found


def _mended(source: Path, out: Path) -> list[TraceFix]:
    """Write one file to `out`, fixed, and return its fixes; a file that is unreadable for other reasons is copied."""
    opened = open_trace(0, source)
    raw = opened.raw
    changes = safe_changes(raw) if raw is not None and not opened.error else None
    if raw is None or changes is None or not changes.fixes:
        shutil.copyfile(source, out)
        return []
    write_frames(out, (frame(message) for message in changed_messages(raw, changes)))
    return list(changes.fixes)
