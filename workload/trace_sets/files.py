"""Trace sets as files: one for each distinct trace, and a manifest beside them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import inputs
from et import read_trace, write_table
from workload.errors import WorkloadError
from workload.trace_sets import manifest
from workload.trace_sets.folder import check_prefix, staged_traces
from workload.trace_sets.manifest import Manifest, read_manifest
from workload.trace_sets.own import ELSEWHERE, IDLE
from workload.trace_sets.trace_set import TraceSet
from workload.trace_sets.view import AS_WRITTEN

Mask = NDArray[np.bool_]


def write_set(folder: str | os.PathLike[str], traces: TraceSet, prefix: str = "traces") -> Path:
    """Write a set: `<folder>/<prefix>.npu<example>.et` for each trace, and `<folder>/traces.json`.

    Files get their names when all are complete, the manifest last.

    Returns:
        The folder, as run files name it.

    Raises:
        WorkloadError: the folder cannot be written, or holds traces that are not of this set; the prefix is no name.
    """
    out = Path(folder)
    check_prefix(prefix)
    examples = _examples(traces)
    files = tuple(f"{prefix}.npu{npu}.et" for npu in examples)
    nodes = tuple(len(table) for table in traces.traces)
    said = Manifest(
        files, nodes, traces.example_npu, traces.trace_of_npu, traces.families, traces.framework, traces.copied
    )
    with staged_traces(out, [*files, manifest.NAME], "the traces of this set") as staging:
        for table, file in zip(traces.traces, files, strict=True):
            write_table(staging / file, table)
        (staging / manifest.NAME).write_text(manifest.written(said), encoding="utf-8")
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

    Args:
        folder: with the manifest.
        npus: of the fabric, at least those of the set; the others are idle. None: those of the set.
        strict: as in et.read_trace.
        own: bool[npus], the NPUs that this rank runs; None = all. Others are ELSEWHERE, and files that no own NPU needs
            are not opened.
        keep_others: as in et.read_trace.

    Raises:
        WorkloadError: the manifest is wrong, a file is missing or has another number of nodes than the manifest says,
            or the fabric has fewer NPUs than the set.
        et.TraceError: a file is wrong.
    """
    path = Path(folder) / manifest.NAME
    said = read_manifest(path)
    npus = len(said.trace_of_npu) if npus is None else npus
    if len(said.trace_of_npu) > npus:
        raise WorkloadError(f"{path}: traces of {len(said.trace_of_npu)} NPUs, but the fabric has {npus} NPUs")
    for file in said.files:
        if not (path.parent / file).is_file():
            raise WorkloadError(f"{path.parent / file}: no such file, but {manifest.NAME} names it")
    trace_of_npu = np.full(npus, IDLE, np.int32)
    trace_of_npu[: len(said.trace_of_npu)] = said.trace_of_npu
    if own is not None:
        trace_of_npu[~own] = ELSEWHERE
    used, row = np.unique(trace_of_npu[trace_of_npu >= 0], return_inverse=True)
    trace_of_npu[trace_of_npu >= 0] = row
    tables = []
    for trace in used.tolist():
        file = path.parent / said.files[trace]
        table = read_trace(file, strict=strict, keep_others=keep_others)
        if len(table) != said.nodes[trace]:
            raise WorkloadError(f"{file}: {len(table)} nodes, but {manifest.NAME} says {said.nodes[trace]}")
        tables.append(table)
    return TraceSet(tables, trace_of_npu, said.example_npu[used], said.families, said.framework, said.copied)


def with_node_counts(folder: Path, nodes: Mapping[str, int]) -> None:
    """Have the manifest of a folder, if there is one, say how many nodes its files have now, by their names.

    Raises:
        WorkloadError: the manifest is wrong.
    """
    path = folder / manifest.NAME
    if path.is_file():
        said = read_manifest(path)
        counts = tuple(nodes.get(file, count) for file, count in zip(said.files, said.nodes, strict=True))
        inputs.write_whole(path, manifest.written(said._replace(nodes=counts)))


def is_set(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with a manifest."""
    return (Path(path) / manifest.NAME).exists()


def describe_set(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a manifest says, in values that JSON can hold; the traces are not opened.

    Raises:
        WorkloadError: the manifest is wrong.
    """
    path = Path(folder) / manifest.NAME
    said = read_manifest(path)
    many = np.bincount(said.trace_of_npu[said.trace_of_npu >= 0], minlength=len(said.files))
    columns = zip(said.files, many.tolist(), said.example_npu.tolist(), said.nodes, strict=True)
    return {
        "path": str(path),
        "npus": len(said.trace_of_npu),
        "idle": int(np.count_nonzero(said.trace_of_npu == IDLE)),
        "traces": [
            {"file": file, "npus": npus, "example": example, "nodes": nodes} for file, npus, example, nodes in columns
        ],
        "families": {name: _sizes(groups) for name, groups in said.families.items()},
    }


def _sizes(groups: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """How many groups, and how many members the smallest and the largest has."""
    sizes = [len(members) for members in groups]
    return {"groups": len(groups), "fewest_members": min(sizes), "most_members": max(sizes)}


def _examples(traces: TraceSet) -> list[int]:
    """An NPU of each trace, to name its file by: its example, or its first user where peers are everybody's.

    Raises:
        WorkloadError: a trace that no NPU runs, or an example that does not run its trace.
    """
    found = []
    for trace, example in enumerate(traces.example_npu.tolist()):
        users = np.flatnonzero(traces.trace_of_npu == trace)
        if len(users) == 0:
            raise WorkloadError(f"trace {trace} of the set: no NPU runs it, expected one or more")
        if example != AS_WRITTEN and example not in users:
            raise WorkloadError(f"trace {trace} of the set: its example NPU {example} does not run it, expected a user")
        found.append(int(users[0]) if example == AS_WRITTEN else example)
    return found
