"""Search and reading of the traces of a run."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.et import TraceError, TraceTable, read_trace
from nadi.et.files import GROUPS_NAME, PlainTraces, plain_traces
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
    """Read a run's traces.

    Args:
        path: The value of `[workload] traces`: the folder of a trace set, or a folder, prefix or file of plain traces.
        npus: The number of NPUs of the fabric.
        strict: Whether dependencies on missing nodes, and control dependencies that close cycles, are errors; else they
            are dropped.
        own: Whether this rank runs each NPU, bool[npus]; None = it runs all.
        exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
        keep_others: Whether attributes that no column takes are kept.
    """
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
    NPU. Every rank lists all files, but opens only those of its own NPUs; a trace has the name of the first equal file
    of any rank. NPUs without a file are idle. Raises WorkloadError: there is no file, two files for one NPU, or a file
    for an NPU that the fabric does not have; et.TraceError: a file is invalid.

    Args:
        prefix: The folder and the beginning of the files' names, or one file, which is the trace of every NPU.
        npus: The number of NPUs of the fabric.
        strict: Whether dependencies on missing nodes, and control dependencies that close cycles, are errors; else they
            are dropped.
        own: Whether this rank runs each NPU, bool[npus]; None = it runs all.
        exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
        keep_others: Whether attributes that no column takes are kept.
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
        # Errors name the same file whatever the number of ranks, although each rank has read a copy of its own
        traces.append(dataclasses.replace(trace, path=str(files[first_user[content]])))
    return traces, trace_of_npu


def files_of(traces: Path, npus: int = MAX_NPUS + 1) -> PlainTraces:
    """Return the files of plain traces, at most one for each NPU. Raises WorkloadError: they do not fit.

    Args:
        traces: The prefix of the files' names, or a folder that has traces of one prefix.
        npus: The number of NPUs; files of larger numbers are errors.
    """
    try:
        found = plain_traces(traces)
    except TraceError as error:
        raise WorkloadError(str(error)) from None
    last = max(found.files)
    if last >= npus:
        raise WorkloadError(f"{found.files[last]}: trace of NPU {last}, but the fabric has {npus} NPUs")
    return found


def files_of_traces(path: Path) -> list[Path]:
    """Return the files that `load_set` and `groups_of` find, for NPUs of any number; no files if the path is wrong.

    Args:
        path: The path of a trace set's folder, a folder or prefix of plain traces, or one file.
    """
    try:
        if is_set(path):
            contents = manifest.read_manifest(path / manifest.NAME)
            return [path / manifest.NAME, *(path / file for file in contents.files)]
        if path.is_file() or inputs.type_of(path) not in {"", "a folder"}:
            return [path]
        groups = groups_of(path)
        return [*files_of(path).files.values(), *([groups] if groups else [])]
    except (OSError, ValueError):
        return []


def groups_of(path: str | os.PathLike[str]) -> Path | None:
    """Return the group file of a folder of plain traces; None if there is no such file.

    Args:
        path: The folder of the traces.
    """
    beside = Path(path) / GROUPS_NAME
    return beside if beside.is_file() and not is_set(path) else None


def users_of_contents(files: Mapping[int, Path]) -> dict[bytes, list[int]]:
    """Return the NPUs with equal files, by digest of the content.

    Args:
        files: The file of each NPU.
    """
    users: dict[bytes, list[int]] = {}
    for npu, file in files.items():
        with inputs.refusing(file, "a trace", WorkloadError):
            digest = hashlib.blake2b(inputs.read_bytes(file), digest_size=16).digest()
        users.setdefault(digest, []).append(npu)
    return users
