"""Search and reading of the traces of a run."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.et import TraceError, TraceTable, read_trace
from nadi.et.prefixes import GROUPS_NAME, PlainTraces, plain_traces
from nadi.inputs.arrays import Int32, Mask
from nadi.inputs.limits import MAX_NPUS
from nadi.workload.errors import Exchange, WorkloadError, alone
from nadi.workload.trace_sets import manifest
from nadi.workload.trace_sets.files import is_set, read_set
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, ELSEWHERE, IDLE, TraceSet

TRACE_ENDINGS = (".et", ".et.gz")


def load_set(
    path: str | os.PathLike[str],
    npus: int,
    *,
    strict: bool = True,
    own: Mask | None = None,
    exchange: Exchange = alone,
    keep_others: bool = False,
) -> TraceSet:
    """Read a run's traces from the value of `[workload] traces`; the options are those of `load_traces`."""
    if is_set(path):
        return read_set(path, npus, strict=strict, own=own, keep_others=keep_others)
    traces, trace_of_npu = load_traces(path, npus, strict=strict, own=own, exchange=exchange, keep_others=keep_others)
    return TraceSet(traces, trace_of_npu, np.full(len(traces), AS_WRITTEN, np.int32))


def load_traces(
    prefix: str | os.PathLike[str],
    npus: int,
    *,
    strict: bool = True,
    own: Mask | None = None,
    exchange: Exchange = alone,
    keep_others: bool = False,
) -> tuple[list[TraceTable], Int32]:
    """Read the traces `<prefix>.<npu>.et` (or `.et.gz`) of a rank's own NPUs; equal files are read once.

    Return distinct traces, and int32[npus]: trace of each NPU, IDLE (-1) = no trace, ELSEWHERE (-2) = another rank's
    NPU. Every rank lists all files, but opens only those of its `own` NPUs (bool[npus], None = all); a trace has the
    name of the first equal file of any rank. One file instead of a prefix is the trace of every NPU; NPUs without a
    file are idle. See et.read_trace for `strict` and `keep_others`. Raises WorkloadError: there is no file, two files
    for one NPU, or a file for an NPU that the fabric does not have; et.TraceError: a file is invalid.
    """
    own = np.ones(npus, np.bool_) if own is None else own
    trace_of_npu = np.where(own, IDLE, ELSEWHERE).astype(np.int32)
    path = Path(prefix)
    if path.is_file():
        trace_of_npu[own] = 0
        return [read_trace(path, strict=strict, keep_others=keep_others)] if np.any(own) else [], trace_of_npu
    files = files_of(path, npus).files
    users = users_of_contents({npu: file for npu, file in files.items() if own[npu]})
    first_user: dict[bytes, int] = {}  # Smallest NPU over all ranks by digest of the content
    for of_rank in exchange({content: npus[0] for content, npus in users.items()}):
        for content, npu in of_rank.items():
            first_user[content] = min(npu, first_user.get(content, npu))
    traces: list[TraceTable] = []
    for content, own_users in users.items():
        trace_of_npu[own_users] = len(traces)
        trace = read_trace(files[own_users[0]], strict=strict, keep_others=keep_others)
        traces.append(dataclasses.replace(trace, path=str(files[first_user[content]])))
    return traces, trace_of_npu


def files_of(traces: Path, npus: int = MAX_NPUS + 1) -> PlainTraces:
    """Return the traces of a prefix, or of a folder that has those of one prefix; at most one for each NPU."""
    try:
        found = plain_traces(traces)
    except TraceError as error:
        raise WorkloadError(str(error)) from None
    last = max(found.files)
    if last >= npus:
        raise WorkloadError(f"{found.files[last]}: trace of NPU {last}, but the fabric has {npus} NPUs")
    return found


def files_of_traces(path: Path) -> list[Path]:
    """List the files that `load_set` and `groups_of` find for a path, for NPUs of any number; none if it is wrong."""
    try:
        if is_set(path):
            said = manifest.read_manifest(path / manifest.NAME)
            return [path / manifest.NAME, *(path / file for file in said.files)]
        if path.is_file() or inputs.type_of(path) not in {"", "a folder"}:
            return [path]
        groups = groups_of(path)
        return [*files_of(path).files.values(), *([groups] if groups else [])]
    except (OSError, ValueError):
        return []


def groups_of(path: str | os.PathLike[str]) -> Path | None:
    """Return the group file of a folder of plain traces, None if there is no such file."""
    beside = Path(path) / GROUPS_NAME
    return beside if beside.is_file() and not is_set(path) else None


def users_of_contents(files: Mapping[int, Path]) -> dict[bytes, list[int]]:
    """Return the NPUs with equal files, by digest of the content."""
    users: dict[bytes, list[int]] = {}
    for npu, file in files.items():
        with inputs.refusing(file, "a trace", WorkloadError):
            digest = hashlib.blake2b(inputs.read_bytes(file), digest_size=16).digest()
        users.setdefault(digest, []).append(npu)
    return users
