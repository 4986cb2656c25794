"""`nadi trace check --fix`: writes the traces to another folder with all fixes that need no guessing."""

import shutil
from pathlib import Path

from et.checking.check import open_trace
from et.checking.fixing import TraceFix, changed_messages, safe_changes
from et.checking.sources import Sources
from et.framing import frame, write_frames
from workload.errors import WorkloadError
from workload.trace_sets import manifest
from workload.trace_sets.expansion import GROUPS_NAME
from workload.trace_sets.files import is_set
from workload.trace_sets.folder import staged_traces


def write_mended(sources: Sources, folder: Path) -> list[TraceFix]:
    """Write all traces, with their manifest or group file, to a folder; files without fixes are copied.

    Args:
        sources: Traces that were checked.
        folder: Target folder, created if it does not exist; not the folder of the traces.

    Returns:
        The fixes, one per type and file.

    Raises:
        WorkloadError: If the folder is not writable, is that of the traces, or holds other traces.
        TraceError: If a file has changed since the check.
    """
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


def _mended(file: Path, out: Path) -> list[TraceFix]:
    """Write one file, and return its fixes; a file that is unreadable for other reasons is copied."""
    opened = open_trace(0, file)
    raw = opened.raw
    changes = safe_changes(raw) if raw is not None and not opened.error else None
    if raw is None or changes is None or not changes.fixes:
        shutil.copyfile(file, out)
        return []
    write_frames(out, (frame(message) for message in changed_messages(raw, changes)))
    return list(changes.fixes)
