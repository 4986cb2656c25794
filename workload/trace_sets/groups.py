"""Groups (communicators): members of the names in traces, and slots of each NPU.

A slot is an NPU's own number for a group, in the order of the groups' first use in its trace. So two NPUs with the same
work in different groups have the same rows. Every name is a separate group, even with equal members, because its
collectives are counted separately. If collectives of all NPUs are restricted to some dimensions, every line (plane,
...) of NPUs with the same coordinates in the other dimensions is a group. For each NPU, the name of a family means the
group of the family that contains it.

Group numbers do not depend on the number of ranks: groups are numbered by the first NPU that uses them and its slot. A
rank holds the members of the groups that its own NPUs use.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int32, Int64, Mask, pointers
from nadi.workload.errors import Exchange, WorkloadError, agree, alone
from nadi.workload.trace_sets.trace_set import NO_GROUP, WHOLE, Families, OwnTraces, TraceView, group_of_npu

ALL_NPUS = ""


class GroupTable(NamedTuple):
    """The G groups of all ranks, and the slots of a rank's NPUs."""

    # int64[G+1], pointers: the members of group g are group_member[group_ptr[g]:group_ptr[g+1]], empty if no NPU of
    # this rank uses it. Group 0 is all NPUs on every rank.
    group_ptr: Int64
    group_member: Int32  # int32[], NPUs; the index in the group is the member number
    names: tuple[str, ...]  # Names of the groups in traces; "" = all NPUs, or a line of them, or unused on this rank
    slot_ptr: Int64  # int64[npus+1], pointers to the slots of each NPU, empty for idle and other ranks' NPUs
    slot_group: Int32  # int32[], group of each slot
    slot_member: Int32  # int32[], member number of the slot's NPU in the group

    def slots_of(self, npu: int) -> slice:
        """Return the slice of an NPU's slots in slot_group and slot_member.

        Args:
            npu: The number of the NPU.
        """
        return slice(int(self.slot_ptr[npu]), int(self.slot_ptr[npu + 1]))

    def sizes(self) -> Int64:
        """Return int64[G]: number of members of each group, 0 if this rank does not hold them."""
        return np.diff(self.group_ptr)

    def members(self, group: int) -> Int32:
        """Return the NPUs of a group in member order, empty if this rank does not hold them.

        Args:
            group: The number of the group.
        """
        return self.group_member[self.group_ptr[group] : self.group_ptr[group + 1]]


def resolve(
    rank_traces: OwnTraces,
    npus: int,
    named_groups: Mapping[str, tuple[int, ...]],
    exchange: Exchange = alone,
    dims: tuple[int, ...] = (),
    families: Families | None = None,
    memory_nodes: Sequence[int] = (),
) -> GroupTable:
    """Return the groups that the traces use.

    METADATA nodes of a trace may define other groups than the named ones. Raises WorkloadError: a group is unknown, a
    member is out of range or occurs twice, a name is that of a group and of a family, or an NPU is not a member of a
    group of its trace.

    Args:
        rank_traces: The distinct traces of this rank's NPUs.
        npus: The number of NPUs of the fabric.
        named_groups: The members of each named group.
        exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
        dims: The sizes of the fabric's dimensions, fastest first, to which collectives may be restricted.
        families: The groups of each family by name; None = no families.
        memory_nodes: The NPUs that are memory nodes, which are not in the group of all NPUs.
    """
    book = _Book(npus, named_groups, families or {}, dims, memory_nodes)
    slots = agree(exchange, lambda: rank_traces.each(book.slots))
    slot_ptr, local = _by_npu(rank_traces, slots, npus)
    owner = np.repeat(np.arange(npus), np.diff(slot_ptr))
    first_uses = _first_uses(slot_ptr, local, owner, book.keys)
    # Groups are numbered by the first use on any rank
    keys = dict.fromkeys(key for _, _, key in sorted(chain.from_iterable(exchange(first_uses))))
    number_of = {key: number for number, key in enumerate(keys, 1)}
    group_of = np.array([0, *(number_of[key] for key in book.keys[1:])], np.int32)
    slot_group = group_of[local]
    sizes = np.zeros(len(number_of) + 1, np.int64)
    # Groups that only other ranks use keep size 0
    sizes[group_of] = [len(members) for members in book.members]
    group_ptr = pointers(sizes)
    group_member = np.concatenate([book.members[i] for i in np.argsort(group_of).tolist()])
    names = [ALL_NPUS] * len(sizes)
    for number, name in zip(group_of.tolist(), book.names, strict=True):
        names[number] = name
    slot_member, is_member = _member_numbers(group_ptr, group_member, slot_group, owner, npus)
    table = GroupTable(group_ptr, group_member, tuple(names), slot_ptr, slot_group, slot_member)
    agree(exchange, lambda: _check_membership(rank_traces, table, owner, is_member))
    return table


def _check_membership(rank_traces: OwnTraces, group_table: GroupTable, npu_of_slot: Int64, is_member: Mask) -> None:
    """Check that the NPU of every slot (NPU and group) is a member of the slot's group; is_member: bool[slots]."""
    if np.all(is_member):
        return
    at = int(np.argmin(is_member))
    npu = int(npu_of_slot[at])
    view = rank_traces.views[rank_traces.trace_of_npu[npu]]
    raise WorkloadError(
        f"{view.first_use(at - int(group_table.slot_ptr[npu]))}: NPU {npu} runs it but is not one of "
        f"the group's {len(group_table.members(int(group_table.slot_group[at])))} members",
        npu,
    )


# First NPU and slot that use a group, and the group's key, which is the same on all ranks
_FirstUse = tuple[int, int, bytes]


def _by_npu(rank_traces: OwnTraces, slots_of_traces: Sequence[Int32], npus: int) -> tuple[Int64, Int32]:
    """Return the slots by NPU: pointers int64[npus+1], and the groups' numbers in the book int32[]."""
    # slots_of_traces: for each trace int32[NPUs that run it, slots], or int32[1, slots] if all have the same groups.
    counts = np.zeros(npus, np.int64)
    for groups, users in zip(slots_of_traces, rank_traces.users, strict=True):
        counts[users] = groups.shape[1]
    slot_ptr = pointers(counts)
    local = np.empty(int(slot_ptr[-1]), np.int32)
    for groups, users in zip(slots_of_traces, rank_traces.users, strict=True):
        # Places int64[users, slots]; where all users have the same groups, the one row of `groups` is broadcast to them
        local[slot_ptr[users][:, None] + np.arange(groups.shape[1])] = groups
    return slot_ptr, local


def _first_uses(slot_ptr: Int64, group_in_book: Int32, npu_of_slot: Int64, keys: Sequence[bytes]) -> list[_FirstUse]:
    """Return the first use of each group except that of all NPUs."""
    # `slot_ptr` is int64[npus+1]; for each slot, `group_in_book` int32[] is the number of its group and `npu_of_slot`
    # int64[] its NPU; `keys` has the key of each group in the book.
    # Slots are ordered by NPU, so the first slot with a group belongs to the first NPU that uses it.
    groups, first = np.unique(group_in_book, return_index=True)
    npu = npu_of_slot[first]
    places = zip(groups.tolist(), npu.tolist(), (first - slot_ptr[npu]).tolist(), strict=True)
    return [(npu, slot, keys[group]) for group, npu, slot in places if group]


class _Book:
    """The groups of a rank, numbered in the order of their first use, 0 = all NPUs except memory nodes."""

    def __init__(
        self,
        npus: int,
        named_groups: Mapping[str, tuple[int, ...]],
        families: Families,
        dims: tuple[int, ...],
        memory_nodes: Sequence[int] = (),
    ) -> None:
        """Begin with the group of all NPUs except memory nodes; dims: sizes of the fabric's dimensions."""
        self.members = [np.setdiff1d(np.arange(npus, dtype=np.int32), memory_nodes).astype(np.int32)]
        self.keys = [b""]  # Key of each group, the same on all ranks
        self.names = [ALL_NPUS]  # Name of each group in traces
        self._npus, self._groups, self._families, self._dims = npus, named_groups, families, dims
        self._number: dict[object, int] = {ALL_NPUS: 0}
        self._of_npu: dict[str, Int32] = {}

    def slots(self, view: TraceView, running_npus: Int64) -> Int32:
        """Return the groups of a trace's slots: int32[NPUs that run it, slots], or int32[1, slots] if all are equal.

        Args:
            view: The view of the trace: its rows by kind, in topological order.
            running_npus: The NPUs that run the trace, int64[], ascending.
        """
        own = [d != WHOLE or name in self._families for name, d in zip(view.slot_names, view.slot_dims, strict=True)]
        groups = np.zeros((len(running_npus) if any(own) else 1, len(own)), np.int32)
        for slot, (name, dims) in enumerate(zip(view.slot_names, view.slot_dims, strict=True)):
            if dims != WHOLE:
                groups[:, slot] = [self._number_along(npu, dims) for npu in running_npus.tolist()]
            elif name in self._families:
                groups[:, slot] = self._numbers_in(view, slot, running_npus)
            else:
                groups[:, slot] = self._number_of(view, slot)
        return groups

    def _add(self, name: str, members: Int32, key: bytes) -> int:
        """Add a group with its name and key, and return its number."""
        self.names.append(name)
        self.members.append(members)
        self.keys.append(key)
        return len(self.members) - 1

    def _numbers_in(self, view: TraceView, slot: int, running_npus: Int64) -> Int32:
        """Return the number of the group, of the family that a slot names, of each NPU that runs the trace."""
        name = view.slot_names[slot]
        groups = self._families[name]
        if name in self._groups:
            raise WorkloadError(f'group "{name}": stands in the group file, too, but is a family of the trace set')
        if name not in self._of_npu:
            self._of_npu[name] = group_of_npu(groups, self._npus)
        place = self._of_npu[name][running_npus]
        if np.any(place == NO_GROUP):
            npu = int(running_npus[np.argmax(place == NO_GROUP)])
            raise WorkloadError(
                f"{view.first_use(slot)}: NPU {npu} runs it but is in none of the family's {len(groups)} groups", npu
            )
        used, row = np.unique(place, return_inverse=True)
        numbers = []
        for at in used.tolist():
            key = (name, at)
            if key not in self._number:
                self._number[key] = self._add(name, self._checked(name, groups[at]), _digest(name, groups[at]))
            numbers.append(self._number[key])
        return np.array(numbers, np.int32)[row.reshape(-1)]

    def _number_along(self, npu: int, dims: int) -> int:
        """Return the group of NPUs that differ from `npu` only in the dimensions `dims`, bit d for dimension d."""
        taking_part = [d for d in range(len(self._dims)) if dims >> d & 1]
        strides = {d: math.prod(self._dims[:d]) for d in taking_part}
        # The NPU of the line (plane, ...) whose coordinates in these dimensions are 0
        corner = npu - sum(npu // stride % self._dims[d] * stride for d, stride in strides.items())
        key = (dims, corner)
        if key not in self._number:
            members = np.array([corner], np.int32)
            for d, stride in strides.items():
                # Each dimension multiplies the members, the earlier ones fastest: in a 2 x 3 fabric, dimension 1 of NPU
                # 1 is 1, 3, 5
                members = (members + (np.arange(self._dims[d], dtype=np.int32) * stride)[:, None]).reshape(-1)
            self._number[key] = self._add(ALL_NPUS, members, _digest(f"dimensions {dims}", tuple(members.tolist())))
        return self._number[key]

    def _number_of(self, view: TraceView, slot: int) -> int:
        """Return the number of the group that a slot of a trace names; WorkloadError if it is unknown."""
        name = view.slot_names[slot]
        key: object = name
        if name != ALL_NPUS and name not in self._groups:
            if name not in view.table.metadata_groups:
                known = ", ".join(f'"{g}"' for g in [*self._families, *self._groups][:8]) or "none"
                place = "the trace set" if self._families else "the group file"
                raise WorkloadError(f"{view.first_use(slot)}: unknown group, expected one of {place} ({known})")
            key = (name, view.table.metadata_groups[name])
        if key not in self._number:
            members = self._groups[name] if name in self._groups else view.table.metadata_groups[name]
            checked = self._checked(name, members or tuple(self.members[0].tolist()))
            self._number[key] = self._add(name, checked, _digest(name, members))
        return self._number[key]

    def _checked(self, name: str, members: tuple[int, ...]) -> Int32:
        """Return the members of a group as an array; WorkloadError if one is out of range or occurs twice."""
        out_of_range = [m for m in members if not 0 <= m < self._npus]
        if out_of_range:
            raise WorkloadError(f'group "{name}": member {out_of_range[0]}, expected an NPU from 0 to {self._npus - 1}')
        if len(set(members)) < len(members):
            raise WorkloadError(f'group "{name}": a member stands twice, expected each once')
        return np.array(members, np.int32)


def _digest(name: str, members: tuple[int, ...]) -> bytes:
    """Return a key of a group, equal for equal names and members."""
    digest = hashlib.blake2b(np.array([len(members), *members], np.int64).tobytes(), digest_size=16)
    digest.update(name.encode(errors="surrogatepass"))
    return digest.digest()


def _member_numbers(
    group_ptr: Int64, group_member: Int32, slot_group: Int32, npu_of_slot: Int64, npus: int
) -> tuple[Int32, Mask]:
    """Return the member number of each slot's NPU in its group, and whether it is a member."""
    # group_ptr, group_member: members of the groups as CSR; slot_group: int32[slots]; npus: number of NPUs.
    sizes = np.diff(group_ptr)
    keys = np.repeat(np.arange(len(sizes)), sizes) * npus + group_member
    by_key = np.argsort(keys)
    # One number for each (group, NPU), looked up among those of all members
    wanted = slot_group.astype(np.int64) * npus + npu_of_slot
    # searchsorted returns len(keys) for a number above all; the comparison below then finds that it is no member
    at = np.minimum(np.searchsorted(keys[by_key], wanted), len(keys) - 1)
    row = by_key[at]
    return (row - group_ptr[slot_group]).astype(np.int32), keys[row] == wanted
