"""Traces that the NPUs of one rank run."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from nadi.et import TraceTable
from nadi.et.arrays import Int32, Int64
from nadi.workload.errors import NOBODY, WorkloadError, first_of
from nadi.workload.trace_sets.view import AS_WRITTEN, TraceView

T = TypeVar("T")

IDLE = -1
ELSEWHERE = -2


class OwnTraces(NamedTuple):
    """Distinct traces of a rank, ordered by the first NPU that runs each."""

    views: list[TraceView]  # Distinct traces
    trace_of_npu: Int32  # int32[npus], index of the NPU's trace in `views`, -1 = idle or another rank's NPU
    users: list[Int64]  # int64[] per trace, NPUs of this rank that run it

    def each(self, work: Callable[[TraceView, Int64], T]) -> list[T]:
        """Call `work` with each trace and its users, and return the results; errors are those of the smallest NPU."""
        results: list[T] = []
        errors: list[WorkloadError] = []
        for view, users in zip(self.views, self.users, strict=True):
            try:
                results.append(work(view, users))
            except WorkloadError as error:
                error.npu = int(users[0]) if error.npu == NOBODY else error.npu
                errors.append(error)
        if errors:
            raise first_of(errors)
        return results


def own_traces(
    traces: Sequence[TraceTable],
    trace_of_npu: Int32,
    dims: tuple[int, ...] | None = None,
    example_npu: Int32 | None = None,
) -> OwnTraces:
    """Return the traces that NPUs of this rank run; the error of a wrong trace is that of the smallest NPU.

    `trace_of_npu` is int32[npus], the index of the NPU's trace in `traces`, negative = no trace here; `example_npu`
    int32[traces], None = AS_WRITTEN. See TraceView for `dims` and examples.
    """
    runners = np.flatnonzero(trace_of_npu >= 0)
    used, first, row = np.unique(trace_of_npu[runners], return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    place = np.empty(len(used), np.int32)
    place[by_first] = np.arange(len(used))
    own = np.full(len(trace_of_npu), IDLE, np.int32)
    own[runners] = place[row.reshape(-1)]
    by_trace = runners[np.argsort(own[runners], kind="stable")]
    ends = np.cumsum(np.bincount(own[runners], minlength=len(used)))
    users = np.split(by_trace, ends[:-1]) if len(used) else []
    views = []
    for trace, of_trace in zip(used[by_first].tolist(), users, strict=True):
        try:
            example = AS_WRITTEN if example_npu is None else int(example_npu[trace])
            views.append(TraceView(traces[trace], dims, example))
        except WorkloadError as error:
            error.npu = int(of_trace[0])
            raise
    return OwnTraces(views, own, users)
