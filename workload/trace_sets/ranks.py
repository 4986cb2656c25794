"""The trace of each NPU of a set, of a folder or of files that begin alike, as et.statistics takes them."""

import os
from collections.abc import Callable

from et import read_trace
from et.reshape import find_files
from et.statistics import Rank
from workload.errors import WorkloadError
from workload.trace_sets.files import is_set, read_set
from workload.trace_sets.trace_set import NO_GROUP, TraceSet, group_of_npu
from workload.trace_sets.view import AS_WRITTEN


def read_ranks(where: str | os.PathLike[str], told: Callable[[int, int], None] = lambda _, __: None) -> list[Rank]:
    """The NPUs that have a trace, by number.

    Dependencies that dangle, and control dependencies that close a cycle, are left out: et.read_trace(strict=False).

    Args:
        where: the folder of a trace set or of plain traces, PREFIX of PREFIX.<npu>.et, or one trace.
        told: called with how many files are read, and how many there are.

    Raises:
        WorkloadError: the manifest of a set is wrong, or two traces are of one NPU.
        et.TraceError: no traces, or a file is wrong.
    """
    if is_set(where):
        return ranks_of(read_set(where, strict=False, keep_others=True))
    files = find_files(where)
    found: dict[int, Rank] = {}
    for number, file in enumerate(files):
        told(number, len(files))
        npu = max(file.npu, 0) if len(files) == 1 else file.npu
        if npu < 0:
            raise WorkloadError(f"{file.path}: its name says no NPU, expected NAME.<npu>.et beside others")
        if npu in found:
            raise WorkloadError(f"{file.path}: NPU {npu} has {found[npu].table.path} too, expected one file")
        found[npu] = Rank(npu, read_trace(file.path, strict=False, keep_others=True))
    return [found[npu] for npu in sorted(found)]


def ranks_of(traces: TraceSet) -> list[Rank]:
    """The NPUs of a trace set that are not idle."""
    group = {name: group_of_npu(groups, traces.npus) for name, groups in traces.families.items()}
    ranks = []
    for npu, trace in enumerate(traces.trace_of_npu.tolist()):
        if trace >= 0:
            example = int(traces.example_npu[trace])
            shift = 0 if example == AS_WRITTEN else npu - example
            own = {name: f"{name}[{of_npu[npu]}]" for name, of_npu in group.items() if of_npu[npu] != NO_GROUP}
            ranks.append(Rank(npu, traces.traces[trace], shift, own))
    return ranks
