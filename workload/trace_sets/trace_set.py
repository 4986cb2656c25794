"""Traces of all NPUs where those that do the same share one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from et import TraceTable
from workload.errors import WorkloadError
from workload.trace_sets.own import IDLE
from workload.trace_sets.view import AS_WRITTEN

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
        framework: Framework whose training steps these are ("megatron", "deepspeed" or "fsdp"); "" = not known.
        copied: Families whose collectives copy engines do, so that they take no multiprocessors from computation.
    """

    traces: Sequence[TraceTable]
    trace_of_npu: Int32
    example_npu: Int32
    families: Families = field(default_factory=dict)
    framework: str = ""
    copied: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tables: Sequence[TraceTable | None], groups: Mapping[str, Sequence[int]] | None = None) -> "TraceSet":
        """Traces as they are, one for each NPU; NPUs may share one, whose peers then are everybody's.

        Args:
            tables: of NPU 0, 1, ...; None = the NPU has nothing to do.
            groups: members (NPU numbers, in member order) of the groups that the traces name.

        Raises:
            WorkloadError: no trace, what is no trace, a group without members, with a member twice or that is none of
                the NPUs, or one named "" or "0", which always mean all NPUs.
        """
        distinct: dict[int, TraceTable] = {}
        for npu, table in enumerate(tables):
            if table is not None and not isinstance(table, TraceTable):
                raise WorkloadError(
                    f"trace of NPU {npu}: found a {type(table).__name__}, expected a TraceTable or None"
                )
            if table is not None:
                distinct.setdefault(id(table), table)
        if not distinct:
            raise WorkloadError(f"traces of {len(tables)} NPUs: found none, expected one or more")
        row = {key: number for number, key in enumerate(distinct)}
        trace_of_npu = np.array([IDLE if table is None else row[id(table)] for table in tables], np.int32)
        example_npu = np.full(len(distinct), AS_WRITTEN, np.int32)
        families = {name: (_members(name, members, len(tables)),) for name, members in (groups or {}).items()}
        return cls(tuple(distinct.values()), trace_of_npu, example_npu, families)

    @property
    def npus(self) -> int:
        """NPUs, idle ones too."""
        return len(self.trace_of_npu)


def _members(name: str, members: Sequence[int], npus: int) -> tuple[int, ...]:
    found = tuple(int(member) for member in members)
    if name in {"", "0"}:
        raise WorkloadError(f"group {name!r}: always all NPUs, expected another name")
    if not found or len(set(found)) < len(found) or not all(0 <= member < npus for member in found):
        raise WorkloadError(f"group {name!r}: members {found!r:.80}, expected NPUs from 0 to {npus - 1}, each once")
    return found


def group_of_npu(groups: Sequence[tuple[int, ...]], npus: int) -> Int32:
    """int32[npus]: which group of a family each NPU is in, NO_GROUP = -1: none; members beyond npus are left out."""
    found = np.full(npus, NO_GROUP, np.int32)
    member = np.array([npu for members in groups for npu in members], np.int64)
    group = np.repeat(np.arange(len(groups)), [len(members) for members in groups])
    is_there = (member >= 0) & (member < npus)
    found[member[is_there]] = group[is_there]
    return found
