"""Inputs of `nadi trace check` (a set, a folder, a prefix or one file), and the check of each trace before a run.

`--fix` writes them to another folder with all fixes that need no guessing.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.et import read_groups
from nadi.et.checking import AS_WRITTEN, Sources, TraceFix, changed_messages, open_trace, safe_changes, shifts_of
from nadi.et.checking.matching import lack_peers
from nadi.et.files import GROUPS_NAME, npu_of
from nadi.et.framing import frame, write_frames
from nadi.inputs.arrays import Int32, Int64, Mask
from nadi.inputs.limits import MAX_BYTES, MAX_EQUAL_MESSAGES, MAX_NPUS, TAGS
from nadi.workload.collectives.uneven import check_splits
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import BARRIER
from nadi.workload.trace_sets import manifest
from nadi.workload.trace_sets.files import is_set, staged_traces
from nadi.workload.trace_sets.load import files_of, users_of_contents
from nadi.workload.trace_sets.manifest import read_manifest
from nadi.workload.trace_sets.trace_set import TraceView


def sources_of(
    path: str | os.PathLike[str], *, groups: str | os.PathLike[str] | None = None, npus: int | None = None
) -> Sources:
    """Return the traces of a path without opening them as traces.

    Raises WorkloadError: there are no traces, several prefixes in a folder, two files for one NPU, more NPUs than
    `npus`, or an invalid manifest; TraceError: the group file is invalid.

    Args:
        path: The folder of a trace set, the folder of plain traces `<prefix>.<npu>.et[.gz]`, `<folder>/<prefix>`, or
            one file, which is checked alone.
        groups: The path of the group file; None = groups.json or `<prefix>.json` next to the traces, if it is a group
            file.
        npus: The number of NPUs; None = that of the set, or the largest number in the files' names plus one.
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
    data = read_manifest(folder / manifest.NAME)
    if npus is not None and npus != len(data.trace_of_npu):
        raise WorkloadError(f"{folder / manifest.NAME}: npus is {len(data.trace_of_npu)}, expected {npus} as asked for")
    order = np.argsort(data.trace_of_npu, kind="stable")
    # NPUs sorted by trace: those before ends[0] run none (-1), and trace t has those from ends[t] to ends[t + 1]
    ends = np.searchsorted(data.trace_of_npu[order], np.arange(len(data.files) + 1))
    users = [order[ends[trace] : ends[trace + 1]].astype(np.int64) for trace in range(len(data.files))]
    used = [trace for trace in range(len(data.files)) if len(users[trace])]
    return Sources(
        path=folder,
        files=tuple(folder / data.files[trace] for trace in used),
        users=tuple(users[trace] for trace in used),
        examples=tuple(int(data.example_npu[trace]) for trace in used),
        npus=len(data.trace_of_npu),
        groups=groups,
        families=data.families,
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
    """Write all traces with their fixes to a folder, and return the fixes, one per type and file.

    The manifest or group file is copied.

    Args:
        sources: The traces to fix, and the files beside them.
        folder: The folder to write to, which is not the traces' own.
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


# Checks of each trace before a run: sizes, peers, tags and counts within the engine's limits.


_AT_MOST = f"at most {MAX_BYTES} bytes"


def check_sizes(view: TraceView, running_npus: Int64, npus: int) -> None:
    """Check sizes, peers and tags of one trace.

    Raises WorkloadError: comm_size is missing, above 64 TiB, or 0 (except for barriers and split sizes); split sizes do
    not cut it into integer bytes; or a peer, a tag, or a count of equal messages or collectives is missing or out of
    range.

    Args:
        view: The view of the trace: its rows by kind, in topological order.
        running_npus: The NPUs that run the trace, int64[], ascending.
        npus: The number of NPUs of the fabric.
    """
    size = view.table.comm_size[view.coll_rows]
    wrong = np.where(view.coll_uneven, size < 0, (size <= 0) & (view.coll_kind != BARRIER))
    _refuse(view, view.coll_rows, wrong, "comm_size", size, "more than 0")
    _refuse(view, view.coll_rows, size > MAX_BYTES, "comm_size", size, _AT_MOST)
    check_splits(view)
    _refuse(
        view, view.coll_rows, view.coll_seq >= MAX_EQUAL_MESSAGES, "number in its group", view.coll_seq, "below 2^20"
    )
    m = view.messages
    _refuse(view, m.row, m.size < 0, "comm_size", m.size, "0 or more")
    _refuse(view, m.row, m.size > MAX_BYTES, "comm_size", m.size, _AT_MOST)
    _check_peers(view, running_npus, npus)
    _refuse(view, m.row, m.tag >= TAGS, "comm_tag", m.tag, "below 2^24")
    _refuse(view, m.row, m.seq >= MAX_EQUAL_MESSAGES, "number among equal messages", m.seq, "below 2^20")


def _check_peers(view: TraceView, running_npus: Int64, npus: int) -> None:
    """Check the peers of the NPUs that run a trace; the error is that of the first one with a wrong peer."""
    messages, shifts = view.messages, shifts_of(running_npus, view.example)
    wrong = lack_peers(messages, shifts, npus)
    for name, side in (("comm_dst", messages.is_send), ("comm_src", ~messages.is_send)):
        if np.any(wrong & side):
            at = int(np.argmax(wrong & side))
            number = int(messages.peer[at])
            is_valid = (number + shifts >= 0) & (number + shifts < npus) & (number >= 0)
            npu = int(running_npus[np.argmin(is_valid)])
            value = "missing" if number == -1 else f"{number}{_shifted(view, npu, number)}"
            raise WorkloadError(
                f"{view.node(int(messages.row[at]))}: {name} is {value}, expected an NPU from 0 to {npus - 1}", npu
            )


def _shifted(view: TraceView, npu: int, peer: int) -> str:
    """Return a text with a peer's number for an NPU, "" if it is the number in the trace."""
    shift = view.shift(npu)
    return f" for NPU {view.example}, which means {peer + shift} for NPU {npu}" if shift else ""


def _refuse(
    view: TraceView, rows: Int32, is_wrong: Mask, quantity: str, values: NDArray[np.integer], expected: str
) -> None:
    """Raise WorkloadError for the first wrong row of a trace, with its quantity, value, and the expected values."""
    if np.any(is_wrong):
        at = int(np.argmax(is_wrong))
        value = "missing" if values[at] == -1 else values[at]
        raise WorkloadError(f"{view.node(int(rows[at]))}: {quantity} is {value}, expected {expected}")
