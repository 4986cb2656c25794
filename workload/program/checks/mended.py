"""`nadi trace check --fix`: the same traces in another folder, with what can be mended without guessing."""

import shutil
from pathlib import Path

from et.checking.mending import TraceFix, changed_messages, safe_changes
from et.checking.opened import open_trace
from et.checking.sources import Sources
from et.framing import frame
from et.writer import write_frames
from workload.errors import WorkloadError
from workload.trace_sets import manifest
from workload.trace_sets.expansion import GROUPS_NAME
from workload.trace_sets.files import is_set
from workload.trace_sets.folder import staged_traces


def write_mended(sources: Sources, folder: Path) -> list[TraceFix]:
    """Write all traces, and what belongs to them, to a folder; files without mends are copied as they are.

    Args:
        sources: what was checked.
        folder: made if it is not there; must not be that of the traces.

    Returns:
        What has been mended, of a sort and file each.

    Raises:
        WorkloadError: the folder cannot be written, is the traces' own, or holds other traces.
        TraceError: a file has changed meanwhile.
    """
    own = sources.files[0].parent
    if folder.exists() and folder.samefile(own):
        raise WorkloadError(f"{folder}: the traces' own folder, expected another one")
    files = _files(sources)
    beside = [own / manifest.NAME] if is_set(own) else []
    beside += [Path(sources.groups_file)] if sources.groups_file else []
    names = [file.name for file in files] + [GROUPS_NAME if file.suffix != ".json" else file.name for file in beside]
    mends: list[TraceFix] = []
    with staged_traces(folder, names, "these traces") as staging:
        for file, name in zip([*files, *beside], names, strict=True):
            if file in beside:
                shutil.copyfile(file, staging / name)
            else:
                mends += _mended(file, staging / name)
    return mends


def _files(sources: Sources) -> list[Path]:
    """All files, also those that are equal to another one."""
    if not sources.is_complete or is_set(sources.files[0].parent):
        return list(sources.files)
    found = []
    for file, users in zip(sources.files, sources.users, strict=True):
        prefix = file.name.rsplit(f".{users[0]}.et", 1)[0]
        for npu in users.tolist():
            plain = file.with_name(f"{prefix}.{npu}.et")
            found.append(plain if plain.exists() else plain.with_name(f"{plain.name}.gz"))
    return found


def _mended(file: Path, out: Path) -> list[TraceFix]:
    """Write one file; nothing is mended in a file that cannot be read otherwise."""
    opened = open_trace(0, file)
    raw = opened.raw
    changes = safe_changes(raw) if raw is not None and not opened.error else None
    if raw is None or changes is None or not changes.fixes:
        shutil.copyfile(file, out)
        return []
    write_frames(out, (frame(message) for message in changed_messages(raw, changes)))
    return list(changes.fixes)
