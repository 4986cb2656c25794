"""Traces of NPUs from a trace set, a folder, or files with a common prefix, for et.statistics."""

import os

from et import read_trace
from et.reshape import find_files
from et.statistics import Rank
from workload.errors import WorkloadError
from workload.trace_sets.files import is_set, read_set
from workload.trace_sets.trace_set import NO_GROUP, TraceSet, group_of_npu
from workload.trace_sets.view import AS_WRITTEN


def read_ranks(path: str | os.PathLike[str]) -> list[Rank]:
    """Read the NPUs that have a trace, sorted by number: of a trace set, of a folder or prefix, or of one file.

    Dangling dependencies, and control dependencies that close a cycle, are dropped: et.read_trace(strict=False).

    Raises:
        WorkloadError: If the manifest of a set is invalid, or two traces belong to one NPU.
        et.TraceError: If there are no traces, or a file is invalid.
    """
    if is_set(path):
        return ranks_of(read_set(path, strict=False, keep_others=True))
    files = find_files(path)
    ranks: dict[int, Rank] = {}
    for file in files:
        npu = max(file.npu, 0) if len(files) == 1 else file.npu
        if npu < 0:
            raise WorkloadError(f"{file.path}: its name says no NPU, expected NAME.<npu>.et beside others")
        if npu in ranks:
            raise WorkloadError(f"{file.path}: NPU {npu} has {ranks[npu].table.path} too, expected one file")
        ranks[npu] = Rank(npu, read_trace(file.path, strict=False, keep_others=True))
    return [ranks[npu] for npu in sorted(ranks)]


def ranks_of(traces: TraceSet) -> list[Rank]:
    """Return the NPUs of a trace set that are not idle."""
    group = {name: group_of_npu(groups, traces.npus) for name, groups in traces.families.items()}
    ranks = []
    for npu, trace in enumerate(traces.trace_of_npu.tolist()):
        if trace >= 0:
            example = int(traces.example_npu[trace])
            shift = 0 if example == AS_WRITTEN else npu - example
            own = {name: f"{name}[{of_npu[npu]}]" for name, of_npu in group.items() if of_npu[npu] != NO_GROUP}
            ranks.append(Rank(npu, traces.traces[trace], shift, own))
    return ranks
