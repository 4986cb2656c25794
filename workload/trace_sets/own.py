"""The traces that the NPUs of one rank run."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from et import TraceTable
from workload.errors import NOBODY, WorkloadError, first_of
from workload.trace_sets.view import AS_WRITTEN, TraceView

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
T = TypeVar("T")

IDLE = -1
ELSEWHERE = -2


class OwnTraces(NamedTuple):
    """Distinct traces in the order of the first NPU that runs each: so is every order that follows from it.

    Attributes:
        views: the traces.
        trace_of_npu: int32[npus], row of views, -1 = idle or another rank's.
        users: int64[] for each trace, the NPUs of this rank that run it.
    """

    views: list[TraceView]
    trace_of_npu: Int32
    users: list[Int64]

    def each(self, work: Callable[[TraceView, Int64], T]) -> list[T]:
        """What `work` makes of each trace and its users.

        Raises:
            WorkloadError: work failed; of several errors that of the least NPU, the first user unless work says whose.
        """
        made: list[T] = []
        errors: list[WorkloadError] = []
        for view, users in zip(self.views, self.users, strict=True):
            try:
                made.append(work(view, users))
            except WorkloadError as error:
                error.npu = int(users[0]) if error.npu == NOBODY else error.npu
                errors.append(error)
        if errors:
            raise first_of(errors)
        return made


def own_traces(
    traces: Sequence[TraceTable],
    trace_of_npu: Int32,
    dims: tuple[int, ...] | None = None,
    example_npu: Int32 | None = None,
) -> OwnTraces:
    """Those of the traces that are run.

    Args:
        traces: distinct traces.
        trace_of_npu: int32[npus], below 0 = none of them.
        dims: extents of the fabric's dimensions, see TraceView.
        example_npu: int32[traces], see TraceView; None = AS_WRITTEN.

    Raises:
        WorkloadError: as TraceView, of the least NPU.
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
