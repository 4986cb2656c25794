"""Traces of all NPUs where those that do the same share one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from et import TraceTable

Int32 = NDArray[np.int32]
Families = Mapping[str, tuple[tuple[int, ...], ...]]

NO_GROUP = -1


@dataclass(frozen=True, eq=False)
class TraceSet:
    """Distinct traces, and who runs them.

    NPUs that do the same, each in groups of its own and with peers as far away, share a trace. Its sends and receives
    name peers as its example NPU has them; for another NPU all these numbers shift by as much as it is away from the
    example. Its collectives name families of groups: for each NPU the name means the one group that it is in.

    Attributes:
        traces: T distinct ones.
        trace_of_npu: int32[npus], the trace of each NPU; IDLE (-1) = it has none, ELSEWHERE (-2) = it is another
            rank's.
        example_npu: int32[T], whose numbers the peers of a trace are; AS_WRITTEN (-1) = everybody's.
        families: groups by name, each a list of NPUs in member order; an NPU is in at most one group of a family.
    """

    traces: Sequence[TraceTable]
    trace_of_npu: Int32
    example_npu: Int32
    families: Families = field(default_factory=dict)

    @property
    def npus(self) -> int:
        """NPUs, idle ones too."""
        return len(self.trace_of_npu)


def group_of_npu(groups: Sequence[tuple[int, ...]], npus: int) -> Int32:
    """int32[npus]: which group of a family each NPU is in, NO_GROUP = -1: none; members beyond npus are left out."""
    found = np.full(npus, NO_GROUP, np.int32)
    member = np.array([npu for members in groups for npu in members], np.int64)
    group = np.repeat(np.arange(len(groups)), [len(members) for members in groups])
    is_there = (member >= 0) & (member < npus)
    found[member[is_there]] = group[is_there]
    return found
