"""Groups (communicators): from the names in traces to members and to the slots of each NPU.

A slot is an NPU's own number for a group: group names in the order in which its trace first uses them. Two NPUs that
do the same in different groups so have the same rows. Every name is a group of its own, even with equal members,
because its collectives are counted apart.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload.errors import WorkloadError
from workload.view import TraceView

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

ALL_NPUS = ""


class GroupTable(NamedTuple):
    """G groups and the slots of all NPUs.

    Attributes:
        names: name of each group; group 0 is "", all NPUs.
        group_ptr: int64[G+1], members of a group are group_member[group_ptr[g]:group_ptr[g+1]].
        group_member: int32[], NPUs; the place in the group is the member number.
        slot_ptr: int64[npus+1], slots of an NPU.
        slot_group: int32[], the group.
        slot_member: int32[], the NPU's member number there.
    """

    names: tuple[str, ...]
    group_ptr: Int64
    group_member: Int32
    slot_ptr: Int64
    slot_group: Int32
    slot_member: Int32

    def slots_of(self, npu: int) -> slice:
        """Rows of slot_group and slot_member that are an NPU's."""
        return slice(int(self.slot_ptr[npu]), int(self.slot_ptr[npu + 1]))

    def sizes(self) -> Int64:
        """int64[G]: number of members of each group."""
        return np.diff(self.group_ptr)


def resolve(
    views: Sequence[TraceView], trace_of_npu: Int32, npus: int, groups: Mapping[str, tuple[int, ...]]
) -> GroupTable:
    """Find the groups that the traces use.

    Args:
        views: distinct traces.
        trace_of_npu: int32[npus], -1 = the NPU has none.
        npus: NPUs of the fabric.
        groups: members of each named group; what it lacks may stand in METADATA nodes of the trace.

    Raises:
        WorkloadError: unknown group, a member out of range or twice, or an NPU that is no member of a group of its
            trace.
    """
    book = _Book(npus, groups)
    slots = [np.array([book.number(view, slot) for slot in range(len(view.slot_names))], np.int32) for view in views]
    slots.append(np.zeros(0, np.int32))  # of trace -1
    own = [slots[trace] for trace in trace_of_npu.tolist()]
    slot_ptr = _ptr([len(s) for s in own])
    slot_group = np.concatenate([np.zeros(0, np.int32), *own])
    group_ptr = _ptr([len(m) for m in book.members])
    group_member = np.concatenate(book.members)
    owner = np.repeat(np.arange(npus), np.diff(slot_ptr))
    slot_member, found = _member_numbers(group_ptr, group_member, slot_group, owner, npus)
    if not np.all(found):
        at = int(np.argmin(found))
        npu = int(owner[at])
        view = views[trace_of_npu[npu]]
        members = book.members[slot_group[at]]
        raise WorkloadError(
            f"{view.first_use(at - int(slot_ptr[npu]))}: NPU {npu} runs it but is not one of "
            f"the group's {len(members)} members"
        )
    return GroupTable(tuple(book.names), group_ptr, group_member, slot_ptr, slot_group, slot_member)


class _Book:
    """Numbers groups as they come."""

    def __init__(self, npus: int, groups: Mapping[str, tuple[int, ...]]) -> None:
        self.names = [ALL_NPUS]
        self.members = [np.arange(npus, dtype=np.int32)]
        self._npus, self._groups = npus, groups
        self._number: dict[object, int] = {ALL_NPUS: 0}

    def number(self, view: TraceView, slot: int) -> int:
        name = view.slot_names[slot]
        key: object = name
        if name != ALL_NPUS and name not in self._groups:
            if name not in view.table.metadata_groups:
                known = ", ".join(f'"{g}"' for g in list(self._groups)[:8]) or "none"
                raise WorkloadError(f"{view.first_use(slot)}: unknown group, expected one of the group file ({known})")
            key = (name, view.table.metadata_groups[name])
        if key not in self._number:
            members = self._groups[name] if name in self._groups else view.table.metadata_groups[name]
            self._number[key] = len(self.names)
            self.names.append(name)
            self.members.append(self._checked(name, members or tuple(range(self._npus))))
        return self._number[key]

    def _checked(self, name: str, members: tuple[int, ...]) -> Int32:
        out_of_range = [m for m in members if not 0 <= m < self._npus]
        if out_of_range:
            raise WorkloadError(f'group "{name}": member {out_of_range[0]}, expected an NPU from 0 to {self._npus - 1}')
        if len(set(members)) < len(members):
            raise WorkloadError(f'group "{name}": a member stands twice, expected each once')
        return np.array(members, np.int32)


def _member_numbers(
    group_ptr: Int64, group_member: Int32, slot_group: Int32, owner: Int64, npus: int
) -> tuple[Int32, NDArray[np.bool_]]:
    """Place of each slot's NPU in its group, and whether it has one."""
    sizes = np.diff(group_ptr)
    keys = np.repeat(np.arange(len(sizes)), sizes) * npus + group_member
    by_key = np.argsort(keys)
    wanted = slot_group.astype(np.int64) * npus + owner
    at = np.minimum(np.searchsorted(keys[by_key], wanted), len(keys) - 1)
    row = by_key[at]
    return (row - group_ptr[slot_group]).astype(np.int32), keys[row] == wanted


def _ptr(counts: list[int]) -> Int64:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
