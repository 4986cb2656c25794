"""Folders of trace sets: a file per distinct trace and a manifest, which get their names when all are complete."""

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from nadi import inputs
from nadi.et import NodeType, TraceError, TraceTable, TraceTables, read_trace, write_table
from nadi.et.files import GROUPS_NAME
from nadi.et.reshape import find_files
from nadi.et.statistics import Rank
from nadi.inputs.arrays import Mask
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets import manifest
from nadi.workload.trace_sets.manifest import Manifest, read_manifest
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, ELSEWHERE, IDLE, NO_GROUP, TraceSet, group_of_npu

MAX_FILES = 1 << 17
"""Maximum number of files of plain traces: writing them takes four minutes; larger runs share traces in a set."""
DISK_BLOCK_BYTES = 4096  # Minimum bytes of a file on disk: the default block size of ext4 and XFS


def check_prefix(prefix: str) -> None:
    """Check a prefix of file names. Raises WorkloadError: it is empty, begins with a dot, or has a slash or NUL.

    Args:
        prefix: The beginning of the files' names.
    """
    if not prefix or prefix.startswith(".") or "/" in prefix or "\0" in prefix:
        raise WorkloadError(f"prefix {prefix!r}: expected the beginning of names of files, without a slash")


@contextmanager
def staged_traces(
    folder: Path,
    names: Sequence[str],
    expected: str,
    bytes_each: int = 0,
    accepts: Callable[[str], bool] = lambda _name: False,
) -> Iterator[Path]:
    """Yield a temporary folder whose files move to the target folder when the block ends without an error.

    After an error, no files remain. Existing files with these names are replaced. The last of `names` is removed before
    the first file moves, so that all files belong together whenever it exists. The folder is created if it does not
    exist. Raises WorkloadError: the folder is not writable, holds other traces or another set's manifest, or the files
    are too many or exceed the free disk space.

    Args:
        folder: The target folder.
        names: The names of the files, in the order of their moves.
        expected: A description of the folder's allowed content, for errors.
        bytes_each: The estimated size of a file in bytes; 0 = unknown.
        accepts: A function that returns whether the folder may hold another trace with a given name.
    """
    _refuse_too_much(folder, len(names), bytes_each)
    # The innermost first, so that after an error each can be removed once it is empty
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(folder.iterdir()):  # other traces would be read as part of these
            if file.name.endswith((".et", ".et.gz", "traces.json")) and not (file.name in names or accepts(file.name)):
                raise WorkloadError(f"{file}: of other traces, expected a folder with {expected} only")  # noqa: TRY301
        # In the target folder, hence on the same file system: `replace` is then a rename, not a copy
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as staging:
            yield Path(staging)
            # A set is complete when its manifest, the last name, exists: an old one must not describe new traces
            for last in names[-1:]:
                (folder / last).unlink(missing_ok=True)
            for name in names:
                (Path(staging) / name).replace(folder / name)
    except BaseException as error:
        for parent in created:
            with suppress(OSError):  # another process wrote to it
                parent.rmdir()
        if isinstance(error, OSError):
            text = f"{folder}: {error.strerror or error}, expected a folder to write traces to"
            raise WorkloadError(text) from error
        if isinstance(error, TraceError):  # name the target folder, not the temporary one
            raise WorkloadError(str(error).replace(str(Path(staging)), str(folder))) from error
        raise


def _refuse_too_much(folder: Path, files: int, bytes_each: int) -> None:
    """Refuse files that would take minutes to write, or exceed the free disk space."""
    size_bytes = files * max(bytes_each, DISK_BLOCK_BYTES)
    if files > MAX_FILES:
        text = f"{files:,} files would take about {size_bytes / 1e9:,.1f} GB, expected at most {MAX_FILES:,} files"
        raise WorkloadError(f"{folder}: {text}")
    existing = next((parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()), None)
    free_bytes = shutil.disk_usage(existing).free if existing else size_bytes
    if size_bytes > free_bytes:
        raise WorkloadError(
            f"{folder}: {files:,} files would take about {size_bytes / 1e9:,.1f} GB, "
            f"expected at most the {free_bytes / 1e9:,.1f} GB that the disk has free"
        )


def link(file: Path, name: Path) -> None:
    """Create a hard link of a file, or a copy if the file system has no hard links.

    Args:
        file: The path of the file.
        name: The path of the link.
    """
    try:
        name.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, name)


# Files of trace sets: one per distinct trace, and a manifest.


def write_set(folder: str | os.PathLike[str], traces: TraceSet, prefix: str = "traces") -> Path:
    """Write a set: `<folder>/<prefix>.npu<example>.et` for each trace, and `<folder>/traces.json`; return the folder.

    Files get their names when all are complete, the manifest last. The folder is the value for `[workload] traces`.
    Raises WorkloadError: the folder is not writable or holds traces of another set, or the prefix is invalid.

    Args:
        folder: The folder to write to.
        traces: The traces of all NPUs.
        prefix: The beginning of the files' names.
    """
    out = Path(folder)
    check_prefix(prefix)
    examples = _examples(traces)
    files = tuple(f"{prefix}.npu{npu}.et" for npu in examples)
    nodes = tuple(len(table) for table in traces.traces)
    numbers = traces.example_npu, traces.trace_of_npu
    sms = traces.dispatch_sms, traces.leaves_sms
    contents = Manifest(files, nodes, *numbers, traces.families, traces.framework, traces.copied, *sms)
    with staged_traces(out, [*files, manifest.NAME], "the traces of this set") as staging:
        for table, file in zip(traces.traces, files, strict=True):
            write_table(staging / file, table)
        (staging / manifest.NAME).write_text(manifest.written(contents), encoding="utf-8")
    return out


def read_set(
    folder: str | os.PathLike[str],
    npus: int | None = None,
    *,
    strict: bool = True,
    own: Mask | None = None,
    keep_others: bool = False,
) -> TraceSet:
    """Read a set, or the part of it that a rank's own NPUs run.

    Raises WorkloadError: the manifest is invalid, a file is missing or does not have the manifest's number of nodes, or
    the fabric has fewer NPUs than the set; et.TraceError: a file is invalid.

    Args:
        folder: The folder of the set.
        npus: The number of NPUs of the fabric, those beyond the set's are idle; None = the number of the set.
        strict: Whether dependencies on missing nodes, and control dependencies that close cycles, are errors; else they
            are dropped.
        own: Whether this rank runs each NPU, bool[npus]: the others are ELSEWHERE, and files that no own NPU needs are
            not opened. None = it runs all.
        keep_others: Whether attributes that no column takes are kept.
    """
    path = Path(folder) / manifest.NAME
    contents = read_manifest(path)
    npus = len(contents.trace_of_npu) if npus is None else npus
    if len(contents.trace_of_npu) > npus:
        raise WorkloadError(f"{path}: traces of {len(contents.trace_of_npu)} NPUs, but the fabric has {npus} NPUs")
    for file in contents.files:
        if not (path.parent / file).is_file():
            raise WorkloadError(f"{path.parent / file}: no such file, but {manifest.NAME} names it")
    trace_of_npu = np.full(npus, IDLE, np.int32)
    trace_of_npu[: len(contents.trace_of_npu)] = contents.trace_of_npu
    if own is not None:
        trace_of_npu[~own] = ELSEWHERE
    # Traces are renumbered to those that this rank's NPUs run: `row` is each NPU's trace among `used`
    used, row = np.unique(trace_of_npu[trace_of_npu >= 0], return_inverse=True)
    trace_of_npu[trace_of_npu >= 0] = row
    tables = []
    for trace in used.tolist():
        file = path.parent / contents.files[trace]
        table = read_trace(file, strict=strict, keep_others=keep_others)
        if len(table) != contents.nodes[trace]:
            raise WorkloadError(f"{file}: {len(table)} nodes, but {manifest.NAME} says {contents.nodes[trace]}")
        tables.append(table)
    sms = contents.dispatch_sms, contents.leaves_sms
    known = contents.families, contents.framework, contents.copied, *sms
    return TraceSet(tables, trace_of_npu, contents.example_npu[used], *known)


def with_node_counts(folder: Path, nodes_of_file: Mapping[str, int]) -> None:
    """Update the numbers of nodes in the manifest of a folder, if there is one.

    Args:
        folder: The folder of the files.
        nodes_of_file: The number of nodes of each changed file, by file name.
    """
    path = folder / manifest.NAME
    if path.is_file():
        contents = read_manifest(path)
        counts = tuple(map(nodes_of_file.get, contents.files, contents.nodes))
        inputs.write_whole(path, manifest.written(contents._replace(nodes=counts)))


def is_set(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder with a manifest.

    Args:
        path: The path of a file or folder.
    """
    return (Path(path) / manifest.NAME).exists()


def describe_set(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a manifest as values for JSON, without opening the traces.

    Args:
        folder: The folder of the set.
    """
    path = Path(folder) / manifest.NAME
    contents = read_manifest(path)
    users = np.bincount(contents.trace_of_npu[contents.trace_of_npu >= 0], minlength=len(contents.files))
    sizes = {name: [len(members) for members in groups] for name, groups in contents.families.items()}
    columns = zip(contents.files, users.tolist(), contents.example_npu.tolist(), contents.nodes, strict=True)
    return {
        "path": str(path),
        "npus": len(contents.trace_of_npu),
        "idle": int(np.count_nonzero(contents.trace_of_npu == IDLE)),
        "traces": [
            {"file": file, "npus": npus, "example": example, "nodes": nodes} for file, npus, example, nodes in columns
        ],
        "families": {
            name: {"groups": len(own), "fewest_members": min(own), "most_members": max(own)}
            for name, own in sizes.items()
        },
    }


def read_ranks(path: str | os.PathLike[str]) -> list[Rank]:
    """Read the NPUs that have a trace, sorted by number: of a trace set, of a folder or prefix, or of one file.

    Args:
        path: The path of a trace set's folder, a folder or prefix of plain traces, or one file.
    """
    # Dangling dependencies, and control dependencies that close a cycle, are dropped: et.read_trace(strict=False).
    if is_set(path):
        return ranks_of(read_set(path, strict=False, keep_others=True))
    files = find_files(path)
    ranks: dict[int, Rank] = {}
    for file in files:
        # A single file whose name has no number is the trace of NPU 0
        npu = max(file.npu, 0) if len(files) == 1 else file.npu
        if npu < 0:
            raise WorkloadError(f"{file.path}: its name says no NPU, expected NAME.<npu>.et beside others")
        if npu in ranks:
            raise WorkloadError(f"{file.path}: NPU {npu} has {ranks[npu].table.path} too, expected one file")
        ranks[npu] = Rank(npu, read_trace(file.path, strict=False, keep_others=True))
    return [ranks[npu] for npu in sorted(ranks)]


def ranks_of(traces: TraceSet) -> list[Rank]:
    """Return the NPUs of a trace set that are not idle.

    Args:
        traces: The traces of all NPUs.
    """
    group = {name: group_of_npu(groups, traces.npus) for name, groups in traces.families.items()}
    ranks = []
    for npu, trace in enumerate(traces.trace_of_npu.tolist()):
        if trace >= 0:
            example = int(traces.example_npu[trace])
            shift = 0 if example == AS_WRITTEN else npu - example
            own = {name: f"{name}[{of_npu[npu]}]" for name, of_npu in group.items() if of_npu[npu] != NO_GROUP}
            ranks.append(Rank(npu, traces.traces[trace], shift, own))
    return ranks


def _examples(traces: TraceSet) -> list[int]:
    """Return an NPU of each trace for the name of its file: its example, or its first user if it is AS_WRITTEN."""
    examples = []
    for trace, example in enumerate(traces.example_npu.tolist()):
        users = np.flatnonzero(traces.trace_of_npu == trace)
        if len(users) == 0:
            raise WorkloadError(f"trace {trace} of the set: no NPU runs it, expected one or more")
        if example != AS_WRITTEN and example not in users:
            raise WorkloadError(f"trace {trace} of the set: its example NPU {example} does not run it, expected a user")
        examples.append(int(users[0]) if example == AS_WRITTEN else example)
    return examples


# Expansion of a trace set to the form of other tools: one file per NPU with its own peers, and a group file.


def expand(traces: TraceSet, folder: str | os.PathLike[str], prefix: str = "trace") -> Path:
    """Write `<folder>/<prefix>.<npu>.et` for each NPU that is not idle, and `<folder>/groups.json` with families.

    The name of each group of each family is a number from 1 on, because other simulators read numbers. The result is
    `<folder>/<prefix>`, the value for `[workload] traces` of run files. Raises WorkloadError: the folder is not
    writable or holds other traces, or an NPU is in no group of a family that its trace names.

    Args:
        traces: The traces of all NPUs.
        folder: The folder of the files.
        prefix: The beginning of the files' names.
    """
    out = Path(folder)
    check_prefix(prefix)
    plain = _PlainTraces(traces)
    names = [f"{prefix}.{npu}.et" for npu in plain] + [GROUPS_NAME] * bool(plain.groups)
    with staged_traces(out, names, "these traces") as staging:
        written: dict[object, Path] = {}
        for npu in plain:
            file, key = staging / f"{prefix}.{npu}.et", plain.key(npu)
            if key in written:
                # Thousands of NPUs may do equal work: hard links keep one copy on disk
                link(written[key], file)
            else:
                write_table(file, plain[npu])
                written[key] = file
        if plain.groups:
            (staging / GROUPS_NAME).write_text(json.dumps(plain.groups) + "\n", encoding="utf-8")
    return out / prefix


def expanded_tables(traces: TraceSet) -> TraceTables:
    """Return the expanded traces without writing files; each trace is created on access.

    Args:
        traces: The traces of all NPUs.
    """
    plain = _PlainTraces(traces)
    return TraceTables(plain, plain.groups)


class _PlainTraces(Mapping[int, TraceTable]):
    """The trace of each NPU that is not idle, with its own peers and with numbers as names of groups."""

    def __init__(self, traces: TraceSet) -> None:
        """Number the groups of a trace set's families."""
        self._traces = traces
        number = 1
        self._first: dict[str, int] = {}
        self._of_npu = {name: group_of_npu(family, traces.npus) for name, family in traces.families.items()}
        self.groups: dict[str, tuple[int, ...]] = {}  # Members of all groups of the families, by their number as text
        for name, family in traces.families.items():
            self._first[name] = number
            self.groups.update({str(number + i): members for i, members in enumerate(family)})
            number += len(family)
        self._named = [[name for name in _used(table) if name in self._of_npu] for table in traces.traces]
        self._has_peers = [_has_peers(table) for table in traces.traces]

    def __iter__(self) -> Iterator[int]:
        yield from np.flatnonzero(self._traces.trace_of_npu >= 0).tolist()

    def __len__(self) -> int:
        return int(np.count_nonzero(self._traces.trace_of_npu >= 0))

    def __getitem__(self, npu: int) -> TraceTable:
        """Return the trace of an NPU."""
        trace, shift, numbers = self.key(npu)
        names = dict(zip(self._named[trace], numbers, strict=True))
        return _of_npu(self._traces.traces[trace], shift, names)

    def key(self, npu: int) -> tuple[int, int, tuple[str, ...]]:
        """Return trace, shift of peers, and group numbers of an NPU; NPUs with the same key have equal files.

        Args:
            npu: The number of the NPU.
        """
        trace = int(self._traces.trace_of_npu[npu])
        numbers = []
        for name in self._named[trace]:
            place = int(self._of_npu[name][npu])
            if place == NO_GROUP:
                path = self._traces.traces[trace].path
                raise WorkloadError(f'{path}: NPU {npu} runs it but is in no group of the family "{name}"')
            numbers.append(str(self._first[name] + place))
        example = int(self._traces.example_npu[trace])
        # Without peers the shift changes nothing; 0 lets such NPUs share a file
        shift = 0 if example == AS_WRITTEN or not self._has_peers[trace] else npu - example
        return trace, shift, tuple(numbers)


def _used(trace: TraceTable) -> list[str]:
    """Return the names of the groups of a trace's collectives and messages."""
    communicates = (NodeType.COMM_COLL_NODE, NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
    rows = np.unique(trace.group[np.isin(trace.type, communicates)])
    return [trace.group_names[row] for row in rows.tolist()]


def _has_peers(table: TraceTable) -> bool:
    return bool(np.any((table.type == NodeType.COMM_SEND_NODE) | (table.type == NodeType.COMM_RECV_NODE)))


def _of_npu(trace: TraceTable, shift: int, number_of_group: dict[str, str]) -> TraceTable:
    """Return the trace with `shift` added to its peers and with groups renamed."""
    is_message = (trace.type == NodeType.COMM_SEND_NODE) | (trace.type == NodeType.COMM_RECV_NODE)
    src, dst = (
        np.where(is_message & (column >= 0), column + np.int32(shift), column)
        for column in (trace.comm_src, trace.comm_dst)
    )
    group_names = tuple(number_of_group.get(name, name) for name in trace.group_names)
    return dataclasses.replace(trace, comm_src=src, comm_dst=dst, group_names=group_names)
