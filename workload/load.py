"""Finding and reading the traces of a run."""

import hashlib
import os
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from et import TraceTable, read_trace
from workload.errors import WorkloadError


def load_traces(
    prefix: str | os.PathLike[str], npus: int, *, strict: bool = True
) -> tuple[list[TraceTable], NDArray[np.int32]]:
    """Read the traces `<prefix>.<npu>.et` (or `.et.gz`); equal files are read once.

    Args:
        prefix: folder and beginning of the names; or one file, which then every NPU runs.
        npus: NPUs of the fabric. Those without a file are idle.
        strict: as in et.read_trace.

    Returns:
        Distinct traces, and int32[npus]: the trace of each NPU, -1 = none.

    Raises:
        WorkloadError: no file, two files for one NPU, or a file for an NPU that the fabric lacks.
        et.TraceError: a file is wrong.
    """
    path = Path(prefix)
    if path.is_file():
        return [read_trace(path, strict=strict)], np.zeros(npus, np.int32)
    files = _find(path, npus)
    trace_of_npu = np.full(npus, -1, np.int32)
    traces: list[TraceTable] = []
    number: dict[bytes, int] = {}
    for npu, file in sorted(files.items()):
        digest = _digest(file)
        if digest not in number:
            number[digest] = len(traces)
            traces.append(read_trace(file, strict=strict))
        trace_of_npu[npu] = number[digest]
    return traces, trace_of_npu


def _find(prefix: Path, npus: int) -> dict[int, Path]:
    """The file of each NPU."""
    name = re.compile(re.escape(prefix.name) + r"\.(\d+)\.et(\.gz)?")
    files: dict[int, Path] = {}
    for file in sorted(prefix.parent.iterdir()) if prefix.parent.is_dir() else ():
        match = name.fullmatch(file.name)
        if match is None:
            continue
        npu = int(match[1])
        if npu in files:
            raise WorkloadError(f"{file}: NPU {npu} has {files[npu].name} too, expected one file")
        files[npu] = file
    if not files:
        raise WorkloadError(f"{prefix}: no traces, looked for {prefix}.<npu>.et, {prefix}.<npu>.et.gz and {prefix}")
    if max(files) >= npus:
        raise WorkloadError(f"{files[max(files)]}: trace of NPU {max(files)}, but the fabric has {npus} NPUs")
    return files


def _digest(file: Path) -> bytes:
    try:
        return hashlib.blake2b(file.read_bytes()).digest()
    except OSError as error:
        raise WorkloadError(f"{file}: {error.strerror or error}, expected a trace") from error
