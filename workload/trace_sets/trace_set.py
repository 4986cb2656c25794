"""Traces of all NPUs; NPUs with the same work share one trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nadi.et import TraceTable
from nadi.et.arrays import Int32
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets.rank_traces import IDLE
from nadi.workload.trace_sets.view import AS_WRITTEN

Families = Mapping[str, tuple[tuple[int, ...], ...]]

NO_GROUP = -1


@dataclass(frozen=True, eq=False)
class TraceSet:
    """Distinct traces, and the NPUs that run them.

    NPUs with the same work share a trace, even if their groups and peers differ. The trace's sends and receives have
    the peers of its example NPU; for another NPU, the difference between its number and the example's is added to them.
    Its collectives name families of groups: for each NPU, the name means the group of the family that contains it.
    """

    traces: Sequence[TraceTable]  # T distinct traces
    trace_of_npu: Int32  # int32[npus], trace of each NPU; IDLE (-1) = no trace, ELSEWHERE (-2) = another rank's NPU
    example_npu: Int32  # int32[T], example NPU of each trace; AS_WRITTEN (-1) = its peers are the same for all NPUs
    # Groups of each family by name, NPUs in member order; an NPU is in at most one group of a family
    families: Families = field(default_factory=dict)
    framework: str = ""  # Framework of the training steps ("megatron", "deepspeed" or "fsdp"); "" = unknown
    copied: frozenset[str] = frozenset()  # Families whose collectives run on copy engines, not multiprocessors

    @classmethod
    def of(cls, tables: Sequence[TraceTable | None], groups: Mapping[str, Sequence[int]] | None = None) -> "TraceSet":
        """Return a trace set of one trace per NPU; the peers of a shared trace are the same for all its NPUs.

        `tables` are the traces of NPU 0, 1, ..., None = the NPU is idle; `groups` has the members (NPU numbers, in
        member order) of the groups that the traces name. Raises WorkloadError: there is no trace, a table is no trace,
        or a group is empty, has a member twice or out of range, or is named "" or "0", which always mean all NPUs.
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
        """Number of NPUs, including idle ones."""
        return len(self.trace_of_npu)


def _members(name: str, members: Sequence[int], npus: int) -> tuple[int, ...]:
    """Return the members of a named group after a check; WorkloadError if one is no NPU or occurs twice."""
    numbers = tuple(int(member) for member in members)
    if name in {"", "0"}:
        raise WorkloadError(f"group {name!r}: always all NPUs, expected another name")
    if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= member < npus for member in numbers):
        raise WorkloadError(f"group {name!r}: members {numbers!r:.80}, expected NPUs from 0 to {npus - 1}, each once")
    return numbers


def group_of_npu(groups: Sequence[tuple[int, ...]], npus: int) -> Int32:
    """Return int32[npus]: group of each NPU in a family, NO_GROUP (-1) = no group; members beyond npus do not count."""
    group_of = np.full(npus, NO_GROUP, np.int32)
    member = np.array([npu for members in groups for npu in members], np.int64)
    group = np.repeat(np.arange(len(groups)), [len(members) for members in groups])
    is_valid = (member >= 0) & (member < npus)
    group_of[member[is_valid]] = group[is_valid]
    return group_of
